"""The two sides of the pre-training benchmark, on the same sequences of tokens from the same random start.

Ours is the objective that `bothways pretrain` trains by. The peer is transformers' Trainer: with its collator for
masked language modelling, and with ELECTRA put together from its generator and discriminator.

Shapes: B sequences of a batch, S longest of them, M masked places, V vocabulary.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.classifiers import StepClock, step_clock
from benchmarks.harness import minilm_folder
from benchmarks.trainer_peers import LEARNING_RATE, WARM_UP, WEIGHT_DECAY, quiet_settings, quiet_transformers

UPDATE = 32
"""Sequences of an update."""

OURS, PEER = "bothways", "transformers"

Objective = Literal["MLM", "RTD"]

_SHAPES: dict[str, dict[str, int]] = {
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
SHAPES = tuple(_SHAPES)

GENERATOR = 4
"""Part of the discriminator's width and heads that the generator has: ELECTRA-small's quarter."""


@dataclass(frozen=True)
class Work:
    """What is trained.

    Attributes:
        objective: The objective.
        shape: Name of the encoder's shape.
    """

    objective: Objective
    shape: str


def settings_of(shape: str, *, part: int = 1) -> dict[str, Any]:
    """Return a BERT's or an ELECTRA's settings; with a part of the width and heads."""
    sizes = dict(_SHAPES[shape])
    for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
        sizes[name] //= part
    common = {
        "vocab_size": 30522,
        "type_vocab_size": 2,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    }
    return {**sizes, **common, "embedding_size": _SHAPES[shape]["hidden_size"]}


def training_flop(work: Work, lengths: Sequence[int]) -> float:
    """Return the floating-point operations of matrix products in an update on sequences of these lengths.

    Padding is not counted; logits are those of the 15 % of tokens that are masked; a backward pass counts twice.
    """
    forward = _encoder_flop(settings_of(work.shape), lengths)
    narrow = settings_of(work.shape) if work.objective == "MLM" else settings_of(work.shape, part=GENERATOR)
    if work.objective == "RTD":
        forward += _encoder_flop(narrow, lengths)
    width, vocabulary = narrow["embedding_size"], narrow["vocab_size"]
    forward += 0.15 * sum(lengths) * 2 * width * (narrow["hidden_size"] + vocabulary)
    return 3.0 * forward


def _encoder_flop(settings: dict[str, Any], lengths: Sequence[int]) -> float:
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    linear = 2 * (4 * hidden**2 + 2 * hidden * inner)
    return float(settings["num_hidden_layers"] * sum(n * (linear + 4 * n * hidden) for n in lengths))


class Ours:
    """This package's objective and training loop."""

    def __init__(self, work: Work, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._work = work

    def train(self, sequences: Sequence[np.ndarray], batch: int, seed: int) -> dict[str, float]:
        """Train one pass; ``batch`` is not read, for batches go by tokens here."""
        import torch

        from bothways.objectives import Masker, Masking, PretrainingObjective
        from bothways.training.loop import train
        from bothways.training.options import TrainingOptions

        del batch
        options = TrainingOptions(
            epochs=1, batch_size=UPDATE, learning_rate=LEARNING_RATE, warmup_fraction=WARM_UP,
            weight_decay=WEIGHT_DECAY, seed=seed, show_progress=False,
        )  # fmt: skip
        device = torch.device("cpu")
        tokenizer, model = _our_model(self._work, seed)
        masking = Masking() if self._work.objective == "MLM" else Masking(masked=0.85, random=0.0)
        objective = PretrainingObjective.in_epochs(
            model, _Sequences(sequences), None, Masker(tokenizer, masking, seed),
            batch_size=UPDATE, tokens=options.max_tokens,
        )  # fmt: skip
        resolved = options.resolved(
            _SHAPES[self._work.shape]["hidden_size"], device, updates_per_epoch=objective.updates_per_epoch()
        )
        with step_clock() as clock:
            train(objective, resolved)
        return _times(clock)


def _our_model(work: Work, seed: int) -> tuple[Any, Any]:
    """Return a tokenizer, and a model with random weights and its losses."""
    from bothways import load
    from bothways.encoder.heads import ScoreHead
    from bothways.families import FAMILIES
    from bothways.objectives import MaskedLM, ReplacedTokens, SharedEmbeddings
    from bothways.pretraining.models import masked_lm_head, new_model

    tokenizer = load(minilm_folder()).tokenizer
    if work.objective == "MLM":
        made = new_model(FAMILIES["bert"], settings_of(work.shape), tokenizer, ("masked_lm",), seed=seed)
        return tokenizer, MaskedLM(made.encoder, masked_lm_head(made))
    family = FAMILIES["electra"]
    made = new_model(family, settings_of(work.shape), tokenizer, ("replaced_token",), seed=seed)
    narrow = new_model(family, settings_of(work.shape, part=GENERATOR), tokenizer, ("masked_lm",), seed=seed + 1)
    head = made.heads["replaced_token"]
    assert isinstance(head, ScoreHead)
    shared = SharedEmbeddings()
    return tokenizer, ReplacedTokens(narrow.encoder, masked_lm_head(narrow), made.encoder, head, embeddings=shared)


class _Sequences:
    """Sequences in memory."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        self._sequences = sequences
        self.digest = hashlib.sha256(b"".join(each.tobytes() for each in sequences)).hexdigest()

    def __len__(self) -> int:
        return len(self._sequences)

    def read(self, places: Sequence[int], epoch: int) -> list[Any]:
        """Return some."""
        from bothways.objectives.sequences import TrainingSequence

        del epoch
        return [
            TrainingSequence(self._sequences[place], np.zeros(len(self._sequences[place]), dtype=np.uint8), int(place))
            for place in places
        ]


class Peer:
    """transformers' Trainer, which accumulates gradients where a batch is smaller than an update."""

    def __init__(self, work: Work, threads: int) -> None:
        self._transformers, self._work = quiet_transformers(threads), work
        self._tokenizer = self._transformers.AutoTokenizer.from_pretrained(minilm_folder())

    def train(self, sequences: Sequence[np.ndarray], batch: int, seed: int) -> dict[str, float]:
        """Train one pass in batches of so many sequences."""
        transformers = self._transformers
        transformers.set_seed(seed)
        mlm = self._work.objective == "MLM"
        shares = {} if mlm else {"mask_replace_prob": 0.85, "random_replace_prob": 0.0}
        collator = transformers.DataCollatorForLanguageModeling(self._tokenizer, **shares)
        rows = [{"input_ids": each.tolist()} for each in sequences]
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            trainer = transformers.Trainer(
                model=self._masked_lm() if mlm else electra(transformers, self._work.shape),
                args=transformers.TrainingArguments(
                    **quiet_settings(folder, seed),
                    disable_tqdm=True,
                    use_cpu=True,
                    dataloader_pin_memory=False,
                    num_train_epochs=1,
                    per_device_train_batch_size=batch,
                    gradient_accumulation_steps=UPDATE // batch,
                    learning_rate=LEARNING_RATE,
                    lr_scheduler_type="linear",
                    warmup_steps=WARM_UP,
                    weight_decay=WEIGHT_DECAY,
                ),
                train_dataset=rows,
                data_collator=collator,
            )
            trainer.remove_callback(transformers.PrinterCallback)
            with step_clock() as clock:
                trainer.train()
        return _times(clock)

    def _masked_lm(self) -> Any:  # noqa: ANN401
        settings = settings_of(self._work.shape)
        settings.pop("embedding_size")
        return self._transformers.BertForMaskedLM(self._transformers.BertConfig(**settings))


def electra(transformers: Any, shape: str) -> Any:  # noqa: ANN401
    """Return ELECTRA's pre-training (Clark et al. 2020, arXiv:2003.10555) put together from transformers' parts."""
    import torch

    class Electra(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            narrow = transformers.ElectraConfig(**settings_of(shape, part=GENERATOR))
            self.generator = transformers.ElectraForMaskedLM(narrow)
            self.discriminator = transformers.ElectraForPreTraining(transformers.ElectraConfig(**settings_of(shape)))
            self.discriminator.electra.embeddings = self.generator.electra.embeddings

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:  # noqa: ANN401
            found = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            chosen_BS = labels != -100
            with torch.no_grad():
                logits_MV = found.logits[chosen_BS]
                sampled_M = (logits_MV - torch.empty_like(logits_MV).exponential_().log()).argmax(-1)  # Gumbel
                original_BS = torch.where(chosen_BS, labels, input_ids)
                corrupted_BS = original_BS.masked_scatter(chosen_BS, sampled_M)
            replaced_BS = (corrupted_BS != original_BS).long()
            told = self.discriminator(input_ids=corrupted_BS, attention_mask=attention_mask, labels=replaced_BS)
            return {"loss": found.loss + 50.0 * told.loss}

    return Electra()


def _times(clock: StepClock) -> dict[str, float]:
    if len(clock.wall) < 2:
        raise RuntimeError("expected training to step an optimizer at least once; no step was seen")
    return {
        "wall": clock.wall[-1] - clock.wall[0],
        "cpu": clock.cpu[-1] - clock.cpu[0],
        "steps": len(clock.wall) - 1,
    }


def build(name: str, work: Work, threads: int) -> Ours | Peer:
    """Return the subject of a worker."""
    return Ours(work, threads) if name == OURS else Peer(work, threads)
