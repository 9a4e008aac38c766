"""Stages of a training: none is repeated after an interruption, and the answers are those of an uninterrupted run."""

import contextlib
import json

import numpy as np
import pytest
import torch

from bothways.compose import MultiTask, TaskData
from bothways.errors import InvalidInput, OutputExists
from bothways.pretraining import TaskDistiller
from bothways.progress import timed
from bothways.tasks import SentenceEmbedder, TextClassifier
from bothways.tasks.registry import SPECS, task_class
from bothways.training import stages
from bothways.training.options import STAGES, TrainingOptions
from task_cases import CASES, QUICK


class Killed(BaseException):
    """Ends a run like SIGKILL: nobody handles it."""


class Watch:
    """The names of the stages that are computed; the one of the number ``dies`` kills the run in its middle."""

    def __init__(self):
        self.names, self.dies, self.within = [], None, False

    @contextlib.contextmanager
    def stage(self, name, total=None):
        with stage(name, total) as bar:
            if self.within:
                yield bar
                return
            self.names.append(name)
            self.within = True
            try:
                yield bar
                if self.dies == len(self.names):
                    raise Killed
            finally:
                self.within = False


stage = stages.stage


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(stages, "stage", watch.stage)
    return watch


def classify(model, **options):
    fitted = TextClassifier.from_pretrained(model, device="cpu")
    fitted.fit(CASES["classification"].rows(24), **QUICK, **options)
    return fitted


def few(model, **options):
    fitted = SentenceEmbedder.from_pretrained(model, device="cpu")
    fitted.save(options["checkpoints"].with_name("embedder"), overwrite=True)
    fitted = TextClassifier.from_pretrained(options["checkpoints"].with_name("embedder"), device="cpu")
    fitted.fit(CASES["classification"].rows(24), **{**QUICK, "epochs": 1}, **options)
    return fitted


def several(model, **options):
    fitted = MultiTask.from_pretrained(model, device="cpu")
    made = CASES["classification"].rows(24)
    fitted.fit({"one": TaskData(made), "two": TaskData(made[::-1])}, **QUICK, **options)
    return fitted


def distill(model, rows=None, **options):
    teacher = options["checkpoints"].with_name("teacher")
    if not teacher.exists():
        fitted = TextClassifier.from_pretrained(model, device="cpu")
        fitted.fit(CASES["classification"].rows(24), **QUICK)
        fitted.save(teacher)
    distiller = TaskDistiller.from_pretrained(teacher, layers=1, device="cpu")
    distiller.fit(rows or CASES["classification"].rows(30), **QUICK, **options)
    return distiller.model


def distill_unlabelled(model, **options):
    return distill(model, [{"text": row["text"]} for row in CASES["classification"].rows(30)], **options)


def task(name):
    def fit(model, **options):
        fitted = task_class(SPECS[name]).from_pretrained(model, device="cpu")
        fitted.fit(CASES[name].rows(24), **QUICK, **options)
        return fitted

    return fit


TRAINERS = {
    "few texts": few,
    "several tasks": several,
    "distillation": distill,
    "distillation without labels": distill_unlabelled,
    **{name: task(name) for name in CASES if name not in ("classification", "pairs")},
    "pairs": task("pairs"),
}


def written(fitted, folder):
    """The tensors and the settings of a model, without times."""
    fitted.save(folder, overwrite=True, golden=None)
    settings = json.loads((folder / "bothways.json").read_text())

    def timeless(value):
        match value:
            case dict():
                timed = ("seconds", "stages", "resumed_from", "resume", "checkpoints")
                return {name: timeless(each) for name, each in value.items() if name not in timed}
            case list():
                return [timeless(each) for each in value]
        return value

    return timeless(settings)  # with the checksums of all other files


def unbroken(fit, model, folder, watch):
    expected = written(fit(model, checkpoints=folder / "unbroken"), folder / "model")
    names, watch.names = watch.names, []
    return expected, names


def test_a_run_that_is_killed_in_any_of_its_stages_repeats_this_stage_alone(base, tmp_path, watch):
    expected, names = unbroken(classify, base, tmp_path, watch)
    assert names == [
        "fitting a linear model to the encoder's hidden states",
        "evaluating the baseline",
        "reading the held-out rows",
        "reading the training rows for the detector",
    ]
    again = {"checkpoints": tmp_path / "killed", "resume": True}
    for number in range(len(names)):
        watch.names, watch.dies = [], 1
        with pytest.raises(Killed):
            classify(base, **again)
        assert watch.names == names[number : number + 1]
        # The next time, this stage finishes, and the one after it is killed.
        watch.names, watch.dies = [], 2
        if number + 1 == len(names):
            break
        with pytest.raises(Killed):
            classify(base, **again)
        assert watch.names == names[number : number + 2]
    assert written(classify(base, **again), tmp_path / "model") == expected
    assert watch.names == names[-1:]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_resumed_run_repeats_no_finished_stage(base, tmp_path, watch, name):
    fit = TRAINERS[name]
    if name.startswith("distillation"):  # the teacher's own stages
        fit(base, checkpoints=tmp_path / "teaching")
        watch.names.clear()
    expected, names = unbroken(fit, base, tmp_path, watch)
    assert names
    assert ("reading the held-out rows with the teacher" in names) == (name == "distillation without labels")
    watch.dies, again = len(names), {"checkpoints": tmp_path / "killed", "resume": True}
    with pytest.raises(Killed):
        fit(base, **again)
    watch.names, watch.dies = [], None
    assert written(fit(base, **again), tmp_path / "model") == expected
    assert watch.names == names[-1:]


def test_a_run_with_other_data_computes_its_own_stages(base, tmp_path, watch):
    names = unbroken(classify, base, tmp_path, watch)[1]
    watch.dies, folder = 1, tmp_path / "killed"
    with pytest.raises(Killed):
        classify(base, checkpoints=folder)
    watch.dies = 3
    with pytest.raises(Killed):
        classify(base, checkpoints=folder, resume=True, seed=1)
    assert watch.names == [names[0], *names[:2]]


def test_both_epochs_and_updates_are_refused_before_the_first_stage(base, watch):
    with pytest.raises(InvalidInput, match="got both: 2 and 3"):
        classify(base, updates=3)
    assert not watch.names


# --- what is stored ---


def made(folder, value, *parts, resume=True):
    """The result of a stage that computes ``value``, and its recorded seconds."""
    with stages.stages_of(TrainingOptions(checkpoints=folder, resume=resume)) as times:
        found = stages.kept("counting", stages.ROWS, lambda _: value, *parts)
    return found, times.stages


ROWS = [np.array([1.0, 2.0]), np.array([[3.0, 4.0], [5.0, 6.0]]), np.zeros((0, 2))]


def test_rows_of_windows_and_of_tokens_come_back_as_they_were(tmp_path):
    made(tmp_path, ROWS)
    found, times = made(tmp_path, [])
    assert [each.tolist() for each in found] == [each.tolist() for each in ROWS]
    assert list(times) == ["counting"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a"], ["b"]),
        ([torch.zeros(2)], [torch.zeros(3)]),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.int32)]),
        ([torch.nn.Linear(1, 1)], [torch.nn.Linear(1, 1)]),
    ],
)
def test_a_stage_of_other_parts_is_another(tmp_path, one, other):
    made(tmp_path, ROWS, *one)
    assert len(made(tmp_path, ROWS[:1], *other)[0]) == 1
    assert len(made(tmp_path, ROWS[:1], *one)[0]) == 3


def test_a_damaged_result_is_computed_again(tmp_path):
    made(tmp_path, ROWS)
    (path,) = tmp_path.glob(f"{STAGES}/*/*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert len(made(tmp_path, ROWS[:1])[0]) == 1
    (path.parent / "checksums.json").unlink()
    assert len(made(tmp_path, ROWS[:2])[0]) == 2


def test_a_new_run_removes_the_stages_of_another_but_not_its_checkpoints(tmp_path):
    made(tmp_path, ROWS)
    made(tmp_path, ROWS[:1], resume=False)
    assert len(list((tmp_path / STAGES).iterdir())) == 1
    (tmp_path / "checkpoint-00000001").mkdir()
    with pytest.raises(OutputExists, match="Resume that run"):
        made(tmp_path, ROWS, resume=False)
    assert (tmp_path / STAGES).is_dir()


def test_the_time_of_a_stage_counts_once_and_after_an_interruption_too(tmp_path):
    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.progress.time.monotonic", lambda: clock[0])
        with stages.stages_of(TrainingOptions(checkpoints=tmp_path)) as times:

            def work(_):
                with stage("within"):
                    clock[0] += 5.0
                return ROWS

            stages.kept("outer", stages.ROWS, work)
            clock[0] += 1.0
            assert (times.stages, times.seconds) == ({"outer": 5.0}, 6.0)
        with timed() as times, stages.stages_of(TrainingOptions(checkpoints=tmp_path, resume=True)):
            stages.kept("outer", stages.ROWS, work)
            clock[0] += 1.0
        assert (times.stages, times.seconds) == ({"outer": 5.0}, 6.0)
