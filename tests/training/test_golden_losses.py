"""The loss of every update of a tiny training of each task, loss and family is that in `golden_losses.json`.

A training is a chain of many parts, the drawing of rows, dropout and masks among them, and a change to any of them
moves every later loss. What moves them on purpose writes the file anew and says so in its commit:

    PYTHONPATH=src:tests python tests/training/test_golden_losses.py
"""

import functools
import json
import tempfile
from pathlib import Path

import pytest

from answering_cases import questions
from bothways import MultiTask, SentenceEmbedder, TaskData
from bothways.families import FAMILIES
from bothways.tasks.embedding.losses import CoSENT, Distillation, Matryoshka, MultipleNegativesRanking, Triplet
from bothways.tasks.embedding.spec import PlainTexts, Triplets
from bothways.tasks.registry import SPECS, task_class
from bothways.training.optimizers import Stepper
from contract_cases import rows
from cuda_emulation import emulated_cuda, no_waits
from everyday import some_of
from task_cases import pairs, raw, tagged, texts
from tiny_models import switch_off_dropout, write_checkpoint

GOLDEN = Path(__file__).with_name("golden_losses.json")
# Float32 adds up in another order with other vector units and threads: with AVX-512, AVX2, SSE4 and two threads the
# losses of one commit differed by 7.3e-6 at most. A head begins at a linear model of states that hardly differ between
# the texts of a tiny encoder: 3e-7 more or less of these changed the losses by 1.1e-4 at most (of several labels).
TOLERANCE = 5e-4
QUICK = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 6, "seed": 5, "log_every_updates": 1, "show_progress": False}


def scored(count):
    return [{"text_a": row["text_a"], "text_b": row["text_b"], "score": len(row["text_a"])} for row in pairs(count)]


def anchored(count):
    return [
        {"anchor": row["text"], "positive": f"w{7 + n} w30", "negative": f"w{50 - n}"}
        for n, row in enumerate(texts(count))
    ]


def choices(count):
    endings = ["w6 w30", "w5 w31"]
    return [
        {"context": row["text"], "choices": endings[:: (-1) ** n], "label": 1 - n % 2}
        for n, row in enumerate(texts(count))
    ]


# The task, what makes its rows, and the options of its training.
CASES = {
    "classification, one label": ("classification", texts, {}),
    "classification, several labels": ("classification", lambda count: rows("multi", count), {"target": "multi"}),
    "classification, a number": ("classification", lambda count: rows("regression", count), {"target": "regression"}),
    "pairs": ("pairs", pairs, {}),
    "tagging": ("tagging", tagged, {}),
    "question answering": ("question-answering", questions, {}),
    "multiple choice": ("multiple_choice", choices, {}),
    "masked LM": ("masked_lm", raw, {}),
    "CoSENT": ("embedding", scored, {"loss": CoSENT()}),
    "multiple negatives ranking": ("embedding", anchored, {"loss": MultipleNegativesRanking(), "columns": Triplets()}),
    "triplet": ("embedding", anchored, {"loss": Triplet(), "columns": Triplets()}),
    "matryoshka": ("embedding", scored, {"loss": Matryoshka(CoSENT(), (24, 8))}),
    "distillation": ("embedding", raw, {"columns": PlainTexts()}),
    "multitask": ("multitask", None, {}),
    **{f"family {model_type}": ("classification", texts, {}) for model_type in FAMILIES if model_type != "bert"},
}


def losses_of(case, folder, *, device="cpu", **changes):
    """Train a tiny model afresh, and return the loss of each update."""
    name, made, options = CASES[case]
    write_checkpoint(folder / "base", case.removeprefix("family ") if case.startswith("family ") else "bert")
    training = {**QUICK, **options, **changes, "log": folder / "log.jsonl"}
    if case == "distillation":
        write_checkpoint(folder / "teacher", seed=1)
        teacher = SentenceEmbedder.from_pretrained(folder / "teacher", device=device, dtype="float32")
        training["loss"] = Distillation(teacher)
    if name == "multitask":
        parts = {"names": TaskData(tagged(18), tagged(6), task="tagging"), "animal": TaskData(texts(12), texts(6))}
        MultiTask.from_pretrained(folder / "base", device=device).fit(parts, **training)
    else:
        model = task_class(SPECS[name]).from_pretrained(folder / "base", device=device)
        model.fit(made(24), validation=made(12), **training)
    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "update"]


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """A function: the losses of a case, trained once."""
    return functools.cache(lambda case: losses_of(case, tmp_path_factory.mktemp("usual")))


@pytest.mark.parametrize("case", CASES)
def test_the_losses_of_a_training_are_those_that_were_written(case, losses):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert losses(case) == pytest.approx(golden[case], rel=TOLERANCE)


@pytest.mark.parametrize(
    "case",
    some_of(CASES, "tagging", "triplet", "family albert", "family deberta-v2", "family xlnet"),
)
def test_activation_checkpointing_has_the_same_losses(case, losses, tmp_path):
    assert losses_of(case, tmp_path, activation_checkpointing=True) == losses(case)


@pytest.mark.parametrize(
    "case",
    some_of(
        CASES,
        "pairs",
        "tagging",
        "question answering",
        "multiple negatives ranking",
        "multitask",
        "family deberta-v2",
        "family xlnet",
        "family modernbert",
    ),
)
def test_a_training_in_bfloat16_has_the_losses_of_one_in_float32_but_for_rounding(case, tmp_path, monkeypatch):
    """In bfloat16 as a GPU computes it, emulated on a CPU, with an error where the host would wait for the device."""
    backward = Stepper._backward

    def watched(*given):
        with no_waits():
            return backward(*given)

    switch_off_dropout(monkeypatch)  # each backend draws its dropout in another order
    expected = losses_of(case, tmp_path / "float32")
    monkeypatch.setattr(Stepper, "_backward", watched)
    with emulated_cuda(monkeypatch):
        found = losses_of(case, tmp_path / "bfloat16", precision="bfloat16")
    assert found == pytest.approx(expected, rel=0.05)


def test_every_task_has_losses():
    assert {name for name, *_ in CASES.values()} == {*SPECS, "multitask"}
    assert list(json.loads(GOLDEN.read_text(encoding="utf-8"))) == list(CASES)


def write():
    """Write the losses of every case."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = losses_of(case, Path(folder))
    GOLDEN.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()) + "\n}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    write()
