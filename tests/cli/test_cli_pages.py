"""``evaluate``: a table of classes on the terminal, and a page, for models of every task."""

import re
from pathlib import Path

import pytest
from command_line import call, ok, rows, write_jsonl

from answering_cases import questions

FROZEN = Path(__file__).parents[1] / "frozen" / "models"
WORDS = ["w5", "w6", "w7", "w8"]
TEXTS = [" ".join(WORDS[at % 4 :] + WORDS[: at % 4]) for at in range(8)]
ANIMALS = ["ant", "bee", "cow"]
LABELLED = [{"text": text, "body": text, "label": ANIMALS[at % 3]} for at, text in enumerate(TEXTS)]
NUMBERED = [{"text": text, "label": float(at)} for at, text in enumerate(TEXTS)]
TAGGED = [{"tokens": text.split(), "tags": ["B-PER", "O", "B-LOC", "O"]} for text in TEXTS]
SCORED = [{"text_a": TEXTS[0], "text_b": text, "score": float(at)} for at, text in enumerate(TEXTS)]
ENSEMBLE = [{"body": row["body"], "animal": row["label"]} for row in LABELLED]
SEVERAL = [{**row, **tagged, "amount": 1.0 * at} for at, (row, tagged) in enumerate(zip(LABELLED, TAGGED, strict=True))]
CASES = {
    "classifier": ([{"body": row["body"], "animal": row["label"]} for row in LABELLED], "Confusion matrix"),
    "multi_label": ([{**row, "label": ["odd", "second"][: at % 3]} for at, row in enumerate(LABELLED)], "<h2>Labels"),
    "regression": (NUMBERED, "Predicted (vertical) against true numbers"),
    "tagger": (TAGGED, "<h2>Spans"),
    "answerer": (questions(8), "Exact match"),
    "embedder": (SCORED, "Spearman"),
    "masked_lm": ([{"text": "v20 v21 v22 v23"}] * 6, "Perplexity"),
    "ensemble_vote": (ENSEMBLE, "Each member of the ensemble"),
    "ensemble_tags": (TAGGED, "Each member of the ensemble"),
    "ensemble_answers": (questions(8), "Each member of the ensemble"),
}


@pytest.mark.parametrize("name", CASES)
def test_models_of_every_task_have_a_page(name, tmp_path):
    made, said = CASES[name]
    data, page = write_jsonl(tmp_path / "data.jsonl", made), tmp_path / "page.html"
    outcome = ok("evaluate", FROZEN / name, "--data", data, "--resamples", 10, "--report", page)
    written = page.read_text(encoding="utf-8")
    assert f"Evaluation of {name}" in written
    assert said in written
    # What is printed is what is drawn.
    metrics = re.findall(r"^(\w+) +(-?[\d.]+)  \[", outcome.out, re.MULTILINE)
    assert metrics
    assert all(value in written for _, value in metrics)


def test_a_model_of_several_tasks_has_a_page_with_all_of_them(tmp_path):
    data, page = write_jsonl(tmp_path / "data.jsonl", SEVERAL), tmp_path / "page.html"
    outcome = ok("evaluate", FROZEN / "multitask", "--data", data, "--resamples", 10, "--report", page)
    written = page.read_text(encoding="utf-8")
    for title in ("animal: Metrics", "animal: Classes", "names: Spans", "amount: Metrics", "names: the model"):
        assert f"<h2>{title}</h2>" in written
    assert re.search(r"^names\n +precision", outcome.out, re.MULTILINE)


def test_every_class_has_its_row_on_the_terminal(files, run):
    words = ["evaluate", run, "--data", files / "test.jsonl.gz", "--resamples", 10]
    table = call(*words, "--json").json()["per_class"]
    lines = call(*words).out.splitlines()
    assert lines[-3].split() == ["precision", "recall", "f1", "support", "predicted"]
    for line, (label, numbers) in zip(lines[-2:], table.items(), strict=True):
        scores = [f"{numbers[name]:.4f}" for name in ("precision", "recall", "f1")]
        assert line.split() == [label, *scores, str(numbers["support"]), str(numbers["predicted"])]


@pytest.mark.slow
def test_of_many_classes_the_terminal_shows_some_and_says_where_the_others_are(files, tmp_path):
    made = [{**row, "label": f"{'a long name of a label ' * 3}{at % 45:02d}"} for at, row in enumerate(rows(90, 0))]
    data = write_jsonl(tmp_path / "many.jsonl", made)
    words = ["--model", files / "tiny", "--train", data, "--validation", data, "--epochs", 1, "--device", "cpu"]
    ok("train", "classification", *words, "--output", tmp_path / "run")
    page = tmp_path / "page.html"
    outcome = call("evaluate", tmp_path / "run", "--data", data, "--resamples", 5, "--report", page)
    _, legend, classes = outcome.out.strip().split("\n\n")
    assert "nll: negative" in legend
    table = classes.splitlines()[1:]
    assert len(table) == 21
    assert table[-1].endswith("--report and --json show 25 more.")
    assert all(len(line.split("  ")[0]) <= 40 for line in table[:-1])
    written = page.read_text(encoding="utf-8")
    assert all(f"<td>{row['label']}</td>" in written for row in made[:45])
