"""A training run on a corpus, shared by pre-training and distillation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives.corpus import PieceSource
from bothways.objectives.masking import Corruption
from bothways.objectives.pretraining import PretrainingModel, PretrainingObjective
from bothways.objectives.sequences import SequenceSource
from bothways.objectives.streams import PhasedStream, StreamPhase
from bothways.pretraining.courses import BatchWarmup, Course
from bothways.training.forecast import Reads
from bothways.training.loop import train
from bothways.training.objective import Baseline
from bothways.training.options import TrainingArguments, TrainingOptions
from bothways.training.state import TrainingRecord

# Maximum number of updates skipped because their loss or gradient is not finite.
_MAX_SKIPPED = 10

# Number of items sampled to estimate the tokens per update.
_SAMPLED = 2048

# Number of validations of a run, and maximum number of updates between two.
_PARTS, _MAX_UPDATES = 10, 1000
# Held-out tokens: 1 / _OF_READ of the training tokens, within limits, and at most a fraction of the corpus.
_OF_READ, _MIN_HELD, _HELD_TOKENS, _MAX_HELD = 100, 20_000, 200_000, 0.05


@dataclass(frozen=True, slots=True)
class CorpusRun:
    """A training run on a corpus; `source` cuts the corpus into sequences of a given length.

    `trained` has all trained parts and their losses; `memory` is the number of earlier tokens of a document that a
    sequence attends to; `warmup` replaces the batch growth of the course; `baseline` is the initial model.
    """

    model: PretrainedEncoder
    trained: PretrainingModel
    corruption: Corruption
    source: Callable[[TokenCorpus, int], PieceSource]
    course: Course
    memory: int = 0
    warmup: BatchWarmup | None = None
    baseline: Baseline | None = None

    def train(self, corpus: TokenCorpus, training: TrainingOptions, origin: Mapping[str, str]) -> TrainingRecord:
        """Train on a corpus, holding out a part of its documents."""
        objective, updates, held = self._objective(corpus, training)
        whole = replace(training, updates=updates, total_tokens=None)
        return train(objective, whole, self.model, origin=origin, reads=lambda: Reads(validation=held))

    def _objective(self, corpus: TokenCorpus, training: TrainingOptions) -> tuple[PretrainingObjective, int, int]:
        """Return the objective, and the numbers of updates and of held-out tokens.

        Held-out documents give sequences as in the last phase.
        """
        sources = {length: self.source(corpus, length) for length in {each.length for each in self.course.phases}}
        counted = training.total_tokens is not None or self.warmup is not None
        real = {length: mean_tokens(source) for length, source in sources.items()} if counted else None
        course = self.course.lasting(tokens=training.total_tokens, warmup=self.warmup, real=real)
        held = min(_HELD_TOKENS, max(_MIN_HELD, course.tokens // _OF_READ))
        share = min(_MAX_HELD, held / max(1, corpus.manifest.tokens))
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
            updates_per_epoch=min(_MAX_UPDATES, math.ceil(stream.updates / _PARTS)),
            tokens=training.max_tokens,
            baseline=self.baseline,
        )
        return objective, course.updates, 0 if validation is None else round(share * corpus.manifest.tokens)


def mean_tokens(source: SequenceSource) -> float:
    """Return the mean tokens per item (special ones included), estimated from up to 2,048 evenly spaced items."""
    places = np.unique(np.linspace(0, len(source) - 1, _SAMPLED).astype(np.int64))
    return sum(len(each.ids) for each in source.read(places, 0)) / max(1, len(places))


def check_no_epochs(options: TrainingArguments) -> None:
    """Raise InvalidInput if ``epochs`` is set, since the length of corpus runs is given in updates or tokens."""
    if options.get("epochs") is not None:
        raise InvalidInput(
            "expected a number of updates or tokens, got epochs: pass updates=<number> or total_tokens=<number>."
        )


def course_options(course: Course, given: TrainingArguments) -> TrainingOptions:
    """Return the training options: the given ones, else those of the recipe's course (its phases of training)."""
    usual: TrainingArguments = {
        "learning_rate": course.learning_rate,
        "optimizer": course.optimizer,
        "schedule": course.schedule,
        "warmup_fraction": course.warmup,
        "max_gradient_norm": course.max_gradient_norm,
        "skipped_updates": _MAX_SKIPPED,
    }
    length: TrainingArguments = {} if given.get("total_tokens") is not None else {"updates": course.updates}
    chosen: TrainingArguments = {**usual, **given, **length}
    return TrainingOptions(**chosen)


def card_of(corpus: TokenCorpus, record: TrainingRecord) -> dict[str, object]:
    """Return the model card of a model trained on a corpus."""
    summary = {name: value for name, value in record.to_dict().items() if name != "losses"}
    kept = next((dict(each.metrics) for each in record.validations if each.epoch == record.kept_epoch), None)
    return {
        "data": {"documents": corpus.manifest.documents, "tokens": corpus.manifest.tokens, "sha256": corpus.digest},
        "training": summary,
        "metrics": kept,
        "limits": ["The metrics measure the objective on held-out documents, not a task."],
    }


def parameters(model: PretrainedEncoder) -> int:
    """Return the number of an encoder's parameters."""
    return sum(parameter.numel() for parameter in model.encoder.parameters())
