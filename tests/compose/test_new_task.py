"""A task that neither ensembles nor models of several tasks know is a member of the one and a part of the other."""

# The methods of a task have arguments that this one does not need.
# ruff: noqa: ARG002, ARG003

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bothways import Ensemble, MultiTask, TaggingData, TaskData, open_trained
from bothways.checkpoints.schema import Stored, label_settings
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.data import read_examples, read_rows, text_at
from bothways.data.windows import digest_of, digest_of_texts
from bothways.errors import InvalidInput
from bothways.tasks import PairClassifier
from bothways.tasks.columns import NonBlank
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.heads.learner import TemperatureLearner
from bothways.tasks.heads.target_training import TextLoss, fitted_temperature, validate
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.outputs import Outputs
from bothways.tasks.registry import SPECS
from bothways.tasks.scores import Probability, Scores, TaskPrediction, TokensRead
from bothways.tasks.spec import TaskSpec
from bothways.tasks.task import Task
from classifier_cases import rows, without_dropout
from pair_cases import pairs
from tiny_models import write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}


# --- the task ---


@dataclass(frozen=True, slots=True)
class PostColumns:
    """A post and whether it breaks the rules."""

    post: str = "post"
    verdict: str = "verdict"

    one: ClassVar[str] = "a text"

    @property
    def input_columns(self):
        return (self.post,)

    @property
    def truth(self):
        return self.verdict

    def read(self, row):
        return text_at(row, self.post)

    def check(self, number, value):
        return value

    def is_one(self, value):
        return isinstance(value, str)

    def rows_of(self, texts):
        return [{self.post: text} for text in texts]

    def labelled_row(self, value, label):
        return {self.post: value, self.verdict: label}


@dataclass(frozen=True, slots=True)
class PostInput:
    """A post.

    Attributes:
        post: The post.
    """

    post: NonBlank


@dataclass(frozen=True, slots=True)
class Verdict(TaskPrediction):
    """The verdict on a post.

    Attributes:
        broken: The probability that it breaks the rules.
        tokens_read: How much of it was read.
    """

    broken: Probability
    tokens_read: TokensRead


KEPT_OR_BROKEN = SingleLabel(("kept", "broken"))


@dataclass(frozen=True, slots=True, eq=False)
class VerdictOutputs(Outputs[str, np.ndarray, None, Verdict]):
    """Two outputs: the rules are kept, or broken. It reads its inputs, which are strings whatever the others read."""

    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)

    head: ClassVar = "sequence"
    head_title: ClassVar = "head for verdicts"
    keeps_inputs: ClassVar = True
    labels: ClassVar = KEPT_OR_BROKEN.labels

    def read(self, data, columns, options=None):
        return read_examples(data, text=columns.post, label=columns.verdict, convert=str)

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
        return cls(Confidence(stored_temperature(Stored.of(backend.extras if ours else {}))))

    def settings(self):
        return label_settings(self.labels)

    def write(self, folder):
        temperature = self.confidence.temperature
        return {"temperature": None if temperature is None else asdict(temperature)}


@dataclass(frozen=True, slots=True, eq=False)
class VerdictLearner(TemperatureLearner[VerdictOutputs, np.ndarray, None]):
    """Verdicts while they are learnt."""

    outputs: VerdictOutputs
    calibrates: bool = True

    @classmethod
    def from_data(cls, backend, data, columns, options, seed, before):
        outputs = VerdictOutputs()
        return cls(outputs), outputs.read(data.train, columns), outputs.read(data.validation, columns)

    def loss(self, stored):
        return TextLoss(KEPT_OR_BROKEN, stored.truth, stored.store)

    def validate(self, scores, truth):
        return validate(KEPT_OR_BROKEN, _logits(scores), truth)

    def calibrated(self, scores, truth):
        return _with_temperature(self.outputs, scores, truth)

    @property
    def identity(self):
        return {"task": "verdict"}

    def data_facts(self, stored):
        return {"verdicts_sha256": digest_of(stored.truth)}


@dataclass(frozen=True, slots=True, eq=False)
class VerdictCombiner(Combiner[VerdictOutputs, str, np.ndarray, None]):
    """Verdicts of several models."""

    row_target: ClassVar = KEPT_OR_BROKEN

    def calibrated(self, scores, truth):
        return self.with_outputs(_with_temperature(self.outputs, scores, truth))

    def metrics(self, scores, truth):
        return validate(KEPT_OR_BROKEN, _logits(scores), truth).metrics

    def data_facts(self, inputs: Sequence[str], truth):
        return {"rows": len(inputs), "texts_sha256": digest_of_texts(inputs), "verdicts_sha256": digest_of(truth)}


def _with_temperature(outputs, scores, truth):
    return replace(outputs, confidence=Confidence(fitted_temperature(KEPT_OR_BROKEN, _logits(scores), truth)))


def _logits(scores):
    return np.concatenate([each.logits_RC for each in scores])


VERDICTS = TaskSpec(
    name="verdicts",
    home="test_new_task:Moderator",
    outputs="test_new_task:VerdictOutputs",
    learner="test_new_task:VerdictLearner",
    combiner="test_new_task:VerdictCombiner",
    columns=PostColumns(),
    input=PostInput,
    prediction="test_new_task:Verdict",
    summary="Find posts that break the rules.",
    does="find posts that break rules",
    example={"post": "Buy now!", "verdict": "broken"},
)


class Moderator(Task[str, Verdict]):
    """Finds posts that break the rules."""

    spec = VERDICTS


# --- what becomes of it ---


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(SPECS, "verdicts", VERDICTS)


def posts(count=24, first=0):
    made = rows(count, first)
    return [{"post": row["text"], "verdict": ("kept", "broken")[row["label"] == "ant"]} for row in made]


TEXTS = [*(row["post"] for row in posts(8, first=50)), "w5 " * 40]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder, saved = tmp_path_factory.mktemp("members"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SPECS, "verdicts", VERDICTS)
        for seed, family in enumerate(("bert", "distilbert")):
            write_checkpoint(folder / family, family, seed=seed)
            model = Moderator.from_pretrained(without_dropout(folder / family), device="cpu")
            model.fit(posts(), validation=posts(12, first=30), seed=seed, **QUICK)
            model.save(folder / f"{family}-verdicts")
            saved.append(folder / f"{family}-verdicts")
    return saved


@pytest.mark.parametrize("method", ["mean", "vote", "stacked"])
def test_it_is_a_member_of_ensembles(members, tmp_path, method):
    alone = [[each.broken for each in open_trained(folder, device="cpu").predict(TEXTS)] for folder in members]
    if method == "mean":
        found = Ensemble.of(members, device="cpu").predict(TEXTS)
        assert [each.together.broken for each in found] == pytest.approx(np.mean(alone, axis=0), abs=1e-6)
    ensemble = Ensemble.of(members, method=method, calibrate=posts(30, first=80), device="cpu")
    assert ensemble.temperature is not None
    report = ensemble.evaluate(posts(12, first=60), resamples=5)
    assert len(report.members) == 2
    assert {"disagreement", "mutual_information"} == set(report.to_dict()["disagreement"])
    ensemble.save(tmp_path / "ensemble")
    again = open_trained(tmp_path / "ensemble", device="cpu")
    assert again.predict(TEXTS) == ensemble.predict(TEXTS)
    assert list(again.predict_rows(read_rows([{"post": text} for text in TEXTS]))) == again.predict(TEXTS)
    assert again.predict(TEXTS[-1]).together.tokens_read.windows > 1
    one = open_trained(members[0], device="cpu")
    assert one.compare(again, posts(12), resamples=5).metrics.keys() >= {"accuracy"}


@pytest.mark.parametrize("words", [False, True], ids=["beside labels", "beside labels and tags"])
def test_it_is_a_part_of_a_model_of_several_tasks(base, tmp_path, words):
    tasks = {"animal": TaskData(rows(18), rows(9)), "verdict": TaskData(posts(), posts(12), task="verdicts")}
    if words:
        texts = [row["text"].split() for row in rows(18)]
        tagged = [{"tokens": each, "tags": ["X", *["Y"] * (len(each) - 1)]} for each in texts]
        tasks["marks"] = TaggingData(tagged, tagged[:6])
    model = MultiTask.from_pretrained(without_dropout(base), device="cpu")
    model.fit(tasks, **QUICK)
    answers, alone = model.predict(TEXTS), model.part("verdict").predict(TEXTS)
    assert isinstance(model.part("verdict"), Moderator)
    assert [each["verdict"].broken for each in answers] == pytest.approx([each.broken for each in alone], abs=1e-6)
    model.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    assert again.predict(TEXTS) == answers
    assert open_trained(tmp_path / "saved", task="verdict", device="cpu").predict(TEXTS) == alone
    assert list(again.predict_rows(read_rows([{"post": TEXTS[0]}]))) == [again.predict(TEXTS[0])]
    if not words:
        data = [{**post, "label": row["label"]} for post, row in zip(posts(12), rows(12), strict=True)]
        report = again.evaluate(data, resamples=5)
        expected = again.part("verdict").evaluate(data, resamples=5).estimates["accuracy"].value
        assert report["verdict"].estimates["accuracy"].value == expected
        assert again.with_columns(post="body").columns == again.columns


def test_what_reads_something_else_is_no_part_beside_it(base):
    tasks = {"verdict": TaskData(posts(), posts(12), task="verdicts"), "same": TaskData(pairs(), task="pairs")}
    model = MultiTask.from_pretrained(base, device="cpu")
    with pytest.raises(InvalidInput, match="must read the same kind of input, got verdict a text, same a"):
        model.fit(tasks, **QUICK)


def test_it_is_no_member_beside_models_of_other_tasks(members, base, tmp_path):
    other = PairClassifier.from_pretrained(base, device="cpu")
    other.fit(pairs(), validation=pairs(), **QUICK)
    other.save(tmp_path / "pairs")
    with pytest.raises(InvalidInput, match=r"one for verdicts and .*pairs' one for pairs \(single\)"):
        Ensemble.of([members[0], tmp_path / "pairs"], device="cpu")
