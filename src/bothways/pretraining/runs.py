"""A run on a corpus: what pre-training and distillation share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives import PretrainingObjective
from bothways.objectives.corruption import Corruption
from bothways.objectives.pretraining import PretrainingModel
from bothways.objectives.sequences import SequenceSource
from bothways.objectives.streams import PhasedStream, StreamPhase
from bothways.pretraining.recipes import Course
from bothways.training.loop import train
from bothways.training.objective import Baseline
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.record import TrainingRecord

# Updates of a run that may be not finite.
_MOST_SKIPPED = 10

# Validated after so many parts of the run, or so many updates.
_PARTS, _MOST_UPDATES = 10, 1000
# Tokens that are held out: a hundredth of those that are read in training, within limits, and at most such a share.
_OF_READ, _LEAST_HELD, _HELD_TOKENS, _MOST_HELD = 100, 20_000, 200_000, 0.05


class DividedSource(SequenceSource, Protocol):
    """Sequences of a corpus of which some can be held out."""

    def hold_out(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Split into a training and a validation source without a common document."""


@dataclass(frozen=True, slots=True)
class CorpusRun:
    """What is trained on a corpus, and for how long.

    Attributes:
        model: The encoder that is trained.
        trained: All that is trained, with its losses.
        corruption: Hides tokens.
        source: Cuts a corpus into sequences of a length.
        course: Lengths of the phases.
        memory: Tokens that a sequence knows of its document beyond itself.
        baseline: The model before the first update, where it is worth validating.
    """

    model: PretrainedEncoder
    trained: PretrainingModel
    corruption: Corruption
    source: Callable[[TokenCorpus, int], DividedSource]
    course: Course
    memory: int = 0
    baseline: Baseline | None = None

    def train(
        self, corpus: TokenCorpus, training: TrainingOptions, device: torch.device, origin: Mapping[str, str]
    ) -> TrainingRecord:
        """Train on a corpus, of which a part of the documents is held out.

        Raises:
            InvalidInput: The corpus is empty, of another tokenizer or has too few documents, or sequences are longer
                than the model reads.
        """
        objective = self._objective(corpus, training)
        resolved = training.resolved(self.model.config.hidden, device, updates_per_epoch=objective.updates_per_epoch())
        return train(objective, resolved, origin=origin)

    def _objective(self, corpus: TokenCorpus, training: TrainingOptions) -> PretrainingObjective:
        """Return the training on a corpus; what is held out is cut as in the last phase."""
        limit = self.model.config.max_length
        phases, validation = [], None
        held = min(_HELD_TOKENS, max(_LEAST_HELD, self.course.tokens // _OF_READ))
        share = min(_MOST_HELD, held / max(1, corpus.manifest.tokens))
        for phase in self.course.phases:
            if limit is not None and phase.length > limit:
                raise InvalidInput(
                    f"the recipe reads sequences of {phase.length} tokens, but its model at most {limit}: choose a "
                    "length that it reads."
                )
            source = self.source(corpus, phase.length)
            if corpus.manifest.documents > 1:
                source, validation = source.hold_out(share, training.seed)
            phases.append(StreamPhase(source, phase.updates, phase.batch, self.memory))
        stream = PhasedStream(phases, training.seed)
        return PretrainingObjective(
            self.trained,
            stream,
            validation,
            self.corruption,
            updates_per_epoch=min(_MOST_UPDATES, math.ceil(stream.updates / _PARTS)),
            tokens=training.max_tokens,
            baseline=self.baseline,
        )


def check_no_epochs(options: TrainingArguments) -> None:
    """Refuse a number of epochs: a corpus is read for a number of updates.

    Raises:
        InvalidInput: There is one.
    """
    if options.get("epochs") is not None:
        raise InvalidInput("pre-training takes a number of updates, not of epochs: pass updates=<number>.")


def course_options(course: Course, given: TrainingArguments) -> TrainingOptions:
    """Return the options of a training: those that are given, and the course's."""
    usual: TrainingArguments = {
        "learning_rate": course.learning_rate,
        "optimizer": course.optimizer,
        "schedule": course.schedule,
        "warmup_fraction": course.warmup,
        "betas": course.betas,
        "eps": course.eps,
        "weight_decay": course.weight_decay,
        "max_gradient_norm": course.max_gradient_norm,
        "skipped_updates": _MOST_SKIPPED,
    }
    chosen: TrainingArguments = {**usual, **given, "updates": course.updates}
    return TrainingOptions(**chosen)


def card_of(corpus: TokenCorpus, record: TrainingRecord) -> dict[str, Any]:
    """Return what a model says of its training."""
    summary = {name: value for name, value in record.to_dict().items() if name != "losses"}
    kept = next((dict(each.metrics) for each in record.validations if each.epoch == record.kept_epoch), None)
    return {
        "data": {"documents": corpus.manifest.documents, "tokens": corpus.manifest.tokens, "sha256": corpus.digest},
        "training": summary,
        "metrics": kept,
        "limits": ["The metrics are of held-out documents, and say how well the objective was learnt, not a task."],
    }


def parameters(model: PretrainedEncoder) -> int:
    """Return the number of an encoder's parameters."""
    return sum(parameter.numel() for parameter in model.encoder.parameters())
