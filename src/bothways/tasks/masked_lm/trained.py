"""A trained masked language model as a value, and how it learns raw texts and is measured on them."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.data.windows import WindowStore
from bothways.encoder import MaskedLMHead
from bothways.evaluation import Report, token_outcomes
from bothways.evaluation.metrics.masked_lm import TokenLosses
from bothways.evaluation.report import flat_estimates
from bothways.inference.masked_lm import MaskedLMScorer
from bothways.objectives import MaskedLM, Masker, Masking, PretrainingObjective, TextWindows, masked_losses
from bothways.progress import phase
from bothways.tasks.card import LIKE_THESE, CardMetrics, DataUsed, data_part, optimistic, written_card
from bothways.tasks.head import TrainingData
from bothways.tasks.learning import Preparation
from bothways.tasks.masked_lm.fitted import HEAD, FittedMaskedLM, raw_texts, stored_texts
from bothways.tasks.masked_lm.masked_text import MaskReader
from bothways.tasks.masked_lm.outputs import MaskedLMOutputs
from bothways.tasks.masked_lm.spec import MaskedTextColumns
from bothways.tasks.opening import OpenedModel
from bothways.tasks.splits import hold_out
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

# What a reader of the card has to know.
LIMITS = (
    optimistic("texts", "the epoch to keep"),
    LIKE_THESE,
    "How well masked tokens are predicted says little of how good a model is that is fine-tuned from this one.",
)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedMaskedLM(FittedMaskedLM):
    """An encoder and its masked language modelling head: an immutable value, for any number of threads.

    Attributes:
        opened: The encoder, and how it reads texts.
        model: Encoder and head.
        scorer: Answers queries about single places; it works out once which words the vocabulary spells.
        outputs: What the head's outputs mean.
        columns: Where texts stood in training.
        card: What the model says of its making, with what `fit` measured before and after.
    """

    opened: OpenedModel
    model: MaskedLM
    scorer: MaskedLMScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, opened: OpenedModel, head: MaskedLMHead, columns: MaskedTextColumns, card: Mapping[str, Any]
    ) -> "TrainedMaskedLM":
        """Put a head above the encoder, where the encoder is."""
        encoder, tokenizer, reading = opened.model.encoder, opened.model.tokenizer, opened.reading
        model = MaskedLM(encoder, head.to(opened.model.device, opened.head_dtype)).eval()
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        return cls(opened, model, MaskedLMScorer(encoder, model.head, tokenizer), outputs, columns, card)

    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of stored texts at the masker's places.

        Raises:
            InvalidInput: The texts have no token to mask.
        """
        return masked_losses(self.model, store, masker, self.opened.batch_tokens)

    def write(self, folder: Path, task: str) -> None:
        """Write encoder and head in the ecosystem's layout into an existing folder.

        It opens as a masked language model in transformers, and here as any encoder, to be fine-tuned for a task.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        with_head = replace(self.opened.model, heads={HEAD: self.model.head})
        with_head.write(folder, {"task": task, **self.opened.stored_reading(), "card": dict(self.card)})


def prepare_masked_lm(
    opened: OpenedModel,
    before: TrainedMaskedLM | None,
    data: TrainingData,
    columns: MaskedTextColumns,
    masking: Masking | None,
    training: TrainingOptions,
) -> Preparation[PretrainingObjective, TrainedMaskedLM]:
    """Read raw texts, draw a head on the model's own token table if there is none, and lay out the training.

    Raises:
        InvalidInput: The data are not usable; the message names the row.
        TextTooLong: A text is too long and the policy is ``"error"``.
    """
    examples = raw_texts(data.train, columns)
    if data.validation is None:
        examples, held_out = hold_out(examples, 0.1, training.seed, lambda _: (), group=lambda each: each.text)
    else:
        held_out = raw_texts(data.validation, columns)
    stored, held = stored_texts(opened, examples), stored_texts(opened, held_out)
    masker = Masker(opened.model.tokenizer, masking or Masking(), training.seed)
    if before is None:
        with seeded(training.seed):
            head = opened.checkpoint.new_masked_lm_head()
    else:
        head = deepcopy(before.model.head)
    begun = TrainedMaskedLM.of(opened, head, columns, {})
    sources = TextWindows(stored, masker, "training"), TextWindows(held, masker, "validation")
    objective = PretrainingObjective.in_epochs(
        begun.model, *sources, masker, batch_size=training.rows_in_update(), tokens=training.max_tokens
    )

    def predicted() -> Report:
        """Return how well the validation texts are predicted, at the places that are theirs for the whole training."""
        losses = masked_losses(begun.model, held, masker, training.max_tokens)
        return token_outcomes(losses).report(seed=masker.seed)

    first = predicted()

    def finish(record: TrainingRecord) -> TrainedMaskedLM:
        phase("evaluating on the held-out texts")
        parts = data_part(len(examples), stored), data_part(len(held_out), held)
        used = DataUsed(columns, *parts, split=data.validation is None)
        card = written_card(opened.model, record, used, CardMetrics(predicted(), LIMITS))
        own = {"new_head": before is None, "before": flat_estimates(first.estimates)}
        return replace(begun, card={**card, "masking": masker.masking.to_card(), **own})

    return Preparation(objective, finish)
