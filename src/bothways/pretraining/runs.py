"""A run on a corpus: what pre-training and distillation share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives import PretrainingObjective
from bothways.objectives.corruption import Corruption
from bothways.objectives.pretraining import PretrainingModel
from bothways.objectives.sequences import SequenceSource
from bothways.objectives.streams import PhasedStream, StreamPhase
from bothways.pretraining.recipes import BatchWarmup, Course
from bothways.training.loop import train
from bothways.training.objective import Baseline
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.record import TrainingRecord

# Updates of a run that may be not finite.
_MOST_SKIPPED = 10

# Items whose tokens are counted, to know how many updates read a number of tokens.
_SAMPLED = 2048

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
    """Training run on a corpus: what is trained, and for how long.

    Attributes:
        model: The encoder that is trained.
        trained: All that is trained, with its losses.
        corruption: Hides tokens.
        source: Cuts a corpus into sequences of a length.
        course: Lengths of the phases.
        memory: Tokens that a sequence knows of its document beyond itself.
        warmup: Growth of the batch at the beginning, in place of the course's.
        baseline: The model before the first update, where it is worth validating.
    """

    model: PretrainedEncoder
    trained: PretrainingModel
    corruption: Corruption
    source: Callable[[TokenCorpus, int], DividedSource]
    course: Course
    memory: int = 0
    warmup: BatchWarmup | None = None
    baseline: Baseline | None = None

    def train(
        self, corpus: TokenCorpus, training: TrainingOptions, device: torch.device, origin: Mapping[str, str]
    ) -> TrainingRecord:
        """Train on a corpus, of which a part of the documents is held out.

        Raises:
            InvalidInput: The corpus is empty, of another tokenizer or has too few documents.
        """
        objective, updates = self._objective(corpus, training)
        training = replace(training, updates=updates, total_tokens=None)
        resolved = training.resolved(self.model.config.hidden, device, updates_per_epoch=objective.updates_per_epoch())
        return train(objective, resolved, origin=origin)

    def _objective(self, corpus: TokenCorpus, training: TrainingOptions) -> tuple[PretrainingObjective, int]:
        """Return the training on a corpus and its updates; what is held out is cut as in the last phase."""
        sources = {length: self.source(corpus, length) for length in {each.length for each in self.course.phases}}
        counted = training.total_tokens is not None or self.warmup is not None
        real = {length: mean_tokens(source) for length, source in sources.items()} if counted else None
        course = self.course.lasting(tokens=training.total_tokens, warmup=self.warmup, real=real)
        held = min(_HELD_TOKENS, max(_LEAST_HELD, course.tokens // _OF_READ))
        share = min(_MOST_HELD, held / max(1, corpus.manifest.tokens))
        phases, validation = [], None
        for phase in course.phases:
            source = sources[phase.length]
            if corpus.manifest.documents > 1:
                source, validation = source.hold_out(share, training.seed)
            phases.append(StreamPhase(source, phase.updates, phase.batch, self.memory, phase.growth))
        stream = PhasedStream(phases, training.seed)
        objective = PretrainingObjective(
            self.trained,
            stream,
            validation,
            self.corruption,
            updates_per_epoch=min(_MOST_UPDATES, math.ceil(stream.updates / _PARTS)),
            tokens=training.max_tokens,
            baseline=self.baseline,
        )
        return objective, course.updates


def mean_tokens(source: SequenceSource) -> float:
    """Return the mean tokens of an item, special ones included, of up to 2,048 that are evenly spread."""
    places = np.unique(np.linspace(0, len(source) - 1, _SAMPLED).astype(np.int64))
    return sum(len(each.ids) for each in source.read(places, 0)) / max(1, len(places))


def check_no_epochs(options: TrainingArguments) -> None:
    """Refuse a number of epochs: a corpus is read for a number of updates.

    Raises:
        InvalidInput: There is one.
    """
    if options.get("epochs") is not None:
        raise InvalidInput(
            "pre-training takes a number of updates or tokens, not of epochs: pass updates=<number> or "
            "total_tokens=<number>."
        )


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
    length: TrainingArguments = {} if given.get("total_tokens") is not None else {"updates": course.updates}
    chosen: TrainingArguments = {**usual, **given, **length}
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
