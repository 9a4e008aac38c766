"""A task as its author writes it: a room in one file. `test_new_task` registers it, and changes nothing else."""
# ruff: noqa: ARG002, ARG003 (arguments of a task that this one does not need)

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from bothways.checkpoints.schema import Stored, label_settings
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import read_examples
from bothways.data.windows import digest_of, digest_of_texts
from bothways.tasks.columns import TextColumns
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.heads.learner import Learner
from bothways.tasks.heads.target_training import TextLoss, fitted_temperature, validate
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.outputs import Outputs
from bothways.tasks.scores import Probability, Scores, TaskPrediction, TokensRead
from bothways.tasks.spec import TaskSpec, TextInput
from bothways.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Verdict(TaskPrediction):
    """The verdict on a post.

    Attributes:
        broken: The probability that it breaks the rules.
    """

    broken: Probability
    tokens_read: TokensRead


KEPT_OR_BROKEN = SingleLabel(("kept", "broken"))


@dataclass(frozen=True, slots=True, eq=False)
class VerdictOutputs(Outputs[str, np.ndarray, None, Verdict]):
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)

    head: ClassVar = "sequence"
    head_title: ClassVar = "head for verdicts"
    row_target: ClassVar = KEPT_OR_BROKEN

    def read(self, data, columns, options=None):
        return read_examples(data, text=columns, label=columns.label, convert=str)

    def encode(self, examples):
        return KEPT_OR_BROKEN.encode(examples)

    def scores(self, value, rows, options=None):
        assert isinstance(value, str)
        (only,) = rows
        logits_C = only.rows_WK.mean(axis=0).astype(np.float64)
        return Scores(logits_C[None], None, TokensRead(len(only.lengths), only.dropped_tokens))

    def decide(self, scores, options=None):
        stated_NC = KEPT_OR_BROKEN.probabilities(_logits(scores), self.confidence.calibration)
        return [Verdict(float(stated_C[1]), each.read) for stated_C, each in zip(stated_NC, scores, strict=True)]

    def outcomes(self, scores, truth, *, calibrated=None):
        calibration = None if calibrated is False else self.confidence.calibration
        return KEPT_OR_BROKEN.outcomes(_logits(scores), truth, calibration)

    def facts(self):
        return self.write(Path())

    @classmethod
    def open(cls, backend, size, *, ours):
        return cls(Confidence(stored_temperature(Stored.of(backend.files.extras if ours else {}))))

    def settings(self):
        return label_settings(self.labels)

    def write(self, folder):
        return temperature_settings(self.confidence.temperature)


@dataclass(frozen=True, slots=True, eq=False)
class VerdictLearner(Learner[VerdictOutputs, np.ndarray, None]):
    @classmethod
    def from_data(cls, backend, data, columns, options, before):
        outputs = VerdictOutputs()
        return cls(outputs), outputs.read(data.train, columns), outputs.read(data.validation, columns)

    def loss(self, stored):
        return TextLoss(KEPT_OR_BROKEN, stored.truth, stored.store)

    def validate(self, scores, truth):
        return validate(KEPT_OR_BROKEN, _logits(scores), truth)

    def calibrated(self, scores, truth):
        return self.outputs.with_confidence(Confidence(fitted_temperature(KEPT_OR_BROKEN, _logits(scores), truth)))

    @property
    def identity(self):
        return {"task": "verdict"}

    def data_facts(self, stored):
        return {"verdicts_sha256": digest_of(stored.truth)}


@dataclass(frozen=True, slots=True, eq=False)
class VerdictCombiner(Combiner[VerdictOutputs, str, np.ndarray, None]):
    def calibrated(self, scores, truth):
        return replace(self, outputs=VerdictLearner(self.outputs).calibrated(scores, truth))

    def metrics(self, scores, truth):
        return VerdictLearner(self.outputs).validate(scores, truth).metrics

    def data_facts(self, inputs, truth):
        return {"rows": len(inputs), "texts_sha256": digest_of_texts(inputs), "verdicts_sha256": digest_of(truth)}


def _logits(scores):
    return np.concatenate([each.logits_RC for each in scores])


VERDICTS = TaskSpec(
    name="verdicts",
    home="verdict_task:Moderator",
    outputs="verdict_task:VerdictOutputs",
    learner="verdict_task:VerdictLearner",
    combiner="verdict_task:VerdictCombiner",
    columns=TextColumns(text=("post",), label="verdict"),
    input=TextInput,
    prediction="verdict_task:Verdict",
    summary="Find posts that break the rules.",
    does="find posts that break rules",
    example={"post": "Buy now!", "verdict": "broken"},
)


class Moderator(Task[str, Verdict]):
    """Finds posts that break the rules."""

    spec = VERDICTS
