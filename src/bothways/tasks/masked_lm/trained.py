"""A trained masked language model, and its training and evaluation on raw texts."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from typing_extensions import override

from bothways.checkpoints.golden import choose_inputs
from bothways.data.known_rows import KnownRows, TrainingRows, normalised
from bothways.data.windows import WindowStore
from bothways.encoder import MaskedLMHead
from bothways.evaluation.outcomes import TokenLosses, token_outcomes
from bothways.evaluation.report import Report, flat_estimates
from bothways.inference.masked_lm import MaskedLMScorer
from bothways.objectives.masked_lm import MaskedLM, masked_losses
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.sequences import TextWindows
from bothways.progress import stage
from bothways.tasks.backend import stored_reading
from bothways.tasks.card import LIKE_THESE, CardMetrics, DataUsed, data_part, optimistic, written_card
from bothways.tasks.columns import Card
from bothways.tasks.heads.splits import TrainingData, hold_out
from bothways.tasks.masked_lm.masked_text import MaskReader, with_mask
from bothways.tasks.masked_lm.outputs import HEAD, FittedMaskedLM, MaskedLMOutputs, raw_texts, stored_texts
from bothways.tasks.masked_lm.spec import MASKED_LM, MaskedTextColumns, MaskingOptions
from bothways.tasks.spec import TaskSpec
from bothways.tasks.torch_backend import TorchBackend, head_dtype
from bothways.training.forecast import Reads
from bothways.training.options import TrainingOptions, rows_in_update
from bothways.training.stages import Kind, kept
from bothways.training.state import TrainingRecord, seeded

_LOSSES: Kind[TokenLosses] = Kind(
    lambda losses: {name: torch.from_numpy(each) for name, each in vars(losses).items()},
    lambda tensors: TokenLosses(**{name: each.numpy() for name, each in tensors.items()}),
)

# Limits of the metrics, for the card.
LIMITS = (
    optimistic("texts", "the epoch to keep"),
    LIKE_THESE,
    "Metrics of masked tokens say little about the quality of a model that is fine-tuned from this one.",
)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedMaskedLM(FittedMaskedLM):
    """An encoder and its masked language modelling head."""

    backend: TorchBackend
    model: MaskedLM
    scorer: MaskedLMScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Card = field(default_factory=dict)
    golden_inputs: tuple[object, ...] = ()
    known: TrainingRows = TrainingRows()  # noqa: RUF009 (frozen)

    @classmethod
    def of(cls, backend: TorchBackend, head: MaskedLMHead, columns: MaskedTextColumns, card: Card) -> "TrainedMaskedLM":
        """Combine a head with an opened encoder, on the encoder's device."""
        encoder, tokenizer, reading = backend.model.encoder, backend.tokenizer, backend.reading
        model = MaskedLM(encoder, head.to(backend.model.device, head_dtype(backend.model))).eval()
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        return cls(backend, model, MaskedLMScorer(encoder, model.head, tokenizer), outputs, columns, card)

    @override
    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        return masked_losses(self.model, store, masker, self.backend.budget.tokens)

    @override
    def write(self, folder: Path) -> None:
        with_head = replace(self.backend.model, heads={HEAD: self.model.head})
        extras = {"task": MASKED_LM.name, **stored_reading(self.backend.reading), "card": dict(self.card)}
        with_head.write(folder, extras)


@dataclass(frozen=True, slots=True, eq=False)
class MaskedLMTraining:
    """Masked language modelling on raw texts, ready for training.

    ``new_head`` is True if the head was initialised at random; ``before`` has the metrics on the held-out texts before
    the training. ``golden`` are held-out texts with a mask in each.
    """

    started: TrainedMaskedLM
    new_head: bool
    data: DataUsed
    stored: WindowStore
    held: WindowStore
    masker: Masker
    tokens: int
    objective: PretrainingObjective
    before: Report
    golden: tuple[object, ...]
    known: KnownRows
    notes: list[str]

    unit: ClassVar[float] = 1.0

    @property
    def reads(self) -> Reads:
        """The tokens that the training reads besides those of its updates."""
        return replace(Reads.of(self.stored, self.held), split=0)  # raw texts are always read whole

    def finish(self, record: TrainingRecord) -> TrainedMaskedLM:
        """Return the trained model; its card has the metrics before and after the training."""
        report = _report(self.started, self.held, self.masker, self.tokens, "evaluating on the held-out texts")
        card = written_card(self.started.backend.model, record, self.data, CardMetrics(report, LIMITS))
        own = {"new_head": self.new_head, "before": flat_estimates(self.before.estimates)}
        card = {**card, "masking": self.masker.masking.to_card(), **own, "notes": self.notes}
        return replace(self.started, card=card, golden_inputs=self.golden, known=TrainingRows(self.known))


def train_masked_lm(
    spec: TaskSpec,
    backend: TorchBackend,
    before: TrainedMaskedLM | None,
    data: TrainingData,
    columns: MaskedTextColumns,
    options: MaskingOptions,
    training: TrainingOptions,
) -> MaskedLMTraining:
    """Read raw texts and prepare the training; create a head, tied to the token embeddings, if there is none."""
    del spec
    data = replace(data, known=None if before is None else before.known.rows(), seed=training.seed)
    with stage("reading the data"):
        examples = raw_texts(data.train, columns)
        if data.validation is None:
            examples, held_out = hold_out(
                examples, 0.1, data.seed, lambda _: (), group=lambda each: normalised(each.text)
            )
        else:
            held_out = raw_texts(data.validation, columns)
        held_out = data.unshared(examples, held_out, options.shared)
        known, notes = data.compared(examples, held_out)
    stored, held = stored_texts(backend, examples), stored_texts(backend, held_out)
    masker = Masker(backend.tokenizer, options.masking or Masking(), training.seed)
    if before is None:
        with seeded(training.seed):
            head = backend.files.new_masked_lm_head()
    else:
        head = deepcopy(before.model.head)
    started = TrainedMaskedLM.of(backend, head, columns, {})
    sources = TextWindows(stored, masker, "training"), TextWindows(held, masker, "validation")
    objective = PretrainingObjective.in_epochs(
        started.model, *sources, masker, batch_size=rows_in_update(training), tokens=training.max_tokens
    )
    parts = data_part(len(examples), stored), data_part(len(held_out), held)
    used = DataUsed(columns, *parts, split=data.validation is None)
    report = _report(started, held, masker, training.max_tokens, "evaluating the model before the training")
    texts = choose_inputs(((each.text, None) for each in held_out), (each.text for each in examples), training.seed)
    golden = tuple(with_mask(str(text)) for text in texts)
    parts_of = (started, before is None, used, stored, held, masker, training.max_tokens, objective, report, golden)
    return MaskedLMTraining(*parts_of, known, notes)


def _report(fitted: TrainedMaskedLM, held: WindowStore, masker: Masker, tokens: int, name: str) -> Report:
    """Return the metrics on held-out texts; the masked positions are the same throughout the training.

    ``name`` is that of this stage of the training.
    """
    losses = kept(
        name,
        _LOSSES,
        lambda bar: masked_losses(fitted.model, held, masker, tokens, bar),
        fitted.model,
        f"{held.digest} {masker.masking.to_card()} seed {masker.seed} tokens {tokens}",
        total=len(held.lengths),
    )
    return token_outcomes(losses).report(seed=masker.seed)
