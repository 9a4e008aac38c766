"""What ``train`` says against a training, its data and its labels: lines for people, keys for programs."""

import re
from textwrap import shorten

import pytest
from command_line import call, ok, read_jsonl, rows, saved_of, write_jsonl

from bothways import TextClassifier, open_trained


def words_of(task, model, train, output, *more):
    return [
        *("train", task, "--model", model, "--train", train, "--output", output),
        *("--device", "cpu", "--quiet", *more),
    ]


def starting(said, word):
    """The lines of an output that begin with a word."""
    return [line for line in said.splitlines() if re.match(rf"{word} {{2,}}", line)]


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory):
    """Held-out rows of which every fourth has the other label, and one is there twice."""
    made = rows(40, 7)
    for row in made[::4]:
        row["label"] = "odd" if row["label"] == "even" else "even"
    made.append({**made[1], "label": "even"})
    return write_jsonl(tmp_path_factory.mktemp("notes") / "held out.jsonl", made)


def trained_on(files, mislabelled, output, *more):
    """The outcome of a training that is validated on them, and its folder."""
    usual = ("--epochs", 4, "--learning-rate", 0.01, "--validation", mislabelled, *more)
    return call(*words_of("classification", files / "tiny", files / "train.jsonl.gz", output, *usual)), output


@pytest.fixture(scope="module")
def in_words(files, mislabelled, tmp_path_factory):
    return trained_on(files, mislabelled, tmp_path_factory.mktemp("notes") / "run")


@pytest.fixture(scope="module")
def as_json(files, mislabelled, tmp_path_factory):
    return trained_on(files, mislabelled, tmp_path_factory.mktemp("notes") / "run", "--json")


def test_the_labels_to_look_at_are_shown_and_the_next_step_is_the_last_line(in_words, as_json, files):
    outcome, folder = in_words
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-2:] == [
        f"saved in     {folder}",
        f"next         bothways evaluate {folder} --data {files / 'test.jsonl.gz'}  # your labelled test rows",
    ]
    shown, found = starting(outcome.out, "look at"), as_json[0].json()["confident_mistakes"]
    assert len(shown) == 5 < len(found) == 10
    for line, each in zip(shown, found, strict=False):
        said = f"{each['label']!r}, but {each['predicted']!r} with {each['probability']:.3f}"
        assert line == f"look at      {each['where']}: {said}: {shorten(each['text'], 70, placeholder=' ...')}"


def test_the_mistakes_are_rows_of_the_held_out_data(as_json, mislabelled):
    stored = read_jsonl(mislabelled)
    found = as_json[0].json()["confident_mistakes"]
    assert [each["probability"] for each in found] == sorted((each["probability"] for each in found), reverse=True)
    for each in found:
        assert each.keys() == {"where", "text", "label", "predicted", "probability"}
        number = int(re.fullmatch(r"line (\d+) of '.*held out\.jsonl'", each["where"]).group(1))
        assert (each["text"], each["label"]) == (stored[number - 1]["text"], stored[number - 1]["label"])
        assert each["predicted"] != each["label"]
    wrong = {each["where"].split()[1] for each in found}
    assert wrong & {str(number) for number in range(1, 41, 4)}


def test_notes_and_baseline_are_those_of_the_card(in_words, as_json):
    (outcome, _), (machine, folder) = in_words, as_json
    summary, card = machine.json(), TextClassifier.from_pretrained(folder, device="cpu").card
    assert summary["notes"] == card["notes"]
    assert [line.removeprefix("note").strip() for line in starting(outcome.out, "note")] == summary["notes"]
    assert any("Texts that occur with different labels: line 2 of" in note for note in summary["notes"])
    assert any("only 41 held-out rows" in note for note in summary["notes"])
    assert summary["baseline"] == card["baseline"]["metrics"]
    assert {name: card["metrics"][name] for name in summary["validation"]} == summary["validation"]
    assert summary["validation"].keys() == summary["baseline"].keys() == {"accuracy", "macro_f1", "nll"}
    assert [*card["training"]["validations"][0]["metrics"]] == ["accuracy", "macro_f1", "loss"]
    (line,) = starting(outcome.out, "baseline")
    assert line.endswith("(linear model of frozen hidden states)")
    assert f"accuracy {summary['baseline']['accuracy']:.4f}" in line


def test_texts_of_the_data_are_in_no_file_of_the_model_but_in_its_golden_answers(as_json, tmp_path):
    outcome, folder = as_json
    texts = [each["text"] for each in outcome.json()["confident_mistakes"]]
    open_trained(folder).save(tmp_path / "neutral", golden="neutral")
    for path in (*folder.rglob("*"), *(tmp_path / "neutral").rglob("*")):
        if path.suffix in (".json", ".jsonl", ".md") and path != folder / "golden.json":
            assert not any(text in path.read_text() for text in texts), path


def test_a_start_that_is_kept_is_saved_and_said(files, tmp_path):
    data, folder = files / "train.jsonl.gz", tmp_path / "run"
    usual = ("--validation", data, "--epochs", 1, "--learning-rate", 5.0)
    outcome = ok(*words_of("classification", files / "tiny", data, folder, *usual))
    assert "kept epoch   0 of 1" in outcome.out
    kept = "Fine-tuning did not do better than the linear model of frozen hidden states"
    assert any(kept in line for line in starting(outcome.out, "note"))
    validation, baseline = (starting(outcome.out, word)[0].split(maxsplit=1)[1] for word in ("validation", "baseline"))
    assert baseline.startswith(f"{validation} (")
    card = saved_of(folder)["card"]
    assert card["training"]["kept_epoch"] == 0
    ok("predict", folder, "w5 w6", "--json")


def test_a_training_without_mistakes_shows_none(trained):
    assert "validation   accuracy 1.0000" in trained.out
    assert starting(trained.out, "look at") == []
    (note,) = starting(trained.out, "note")
    assert "only 20 held-out rows" in note


def test_an_embedder_has_its_baseline_and_no_labels_to_look_at(files, tmp_path):
    data = [{"text": row["text"], "label": row["label"]} for row in rows(24, 2)]
    train = write_jsonl(tmp_path / "data.jsonl", data)
    words = words_of("embedding", files / "tiny", train, tmp_path / "run", "--label", "label", "--epochs", 1)
    outcome = call(*words, "--json")
    summary = outcome.json()
    assert "only 4 held-out rows" in summary["notes"][-1]
    assert summary["confident_mistakes"] == []
    card = saved_of(tmp_path / "run")["card"]
    assert summary["baseline"] == card["training"]["validations"][0]["metrics"]
    shown = call(*words, "--overwrite").out
    assert starting(shown, "baseline")[0].endswith("(embedder before the training)")


def test_a_tagger_has_notes_and_words_to_look_at(files, tmp_path):
    made = [
        {"tokens": row["text"].split(), "tags": ["B-X" if word == "w6" else "O" for word in row["text"].split()]}
        for row in rows(30, 4)
    ]
    train = write_jsonl(tmp_path / "data.jsonl", made)
    summary = call(
        *words_of("tagging", files / "tiny", train, tmp_path / "run", "--validation", train, "--epochs", 1, "--json")
    ).json()
    assert any("only 30 held-out rows" in note for note in summary["notes"])
    assert all("('w" in mistake["where"] for mistake in summary["confident_mistakes"])
    assert summary["baseline"].keys() == summary["validation"].keys()


def test_several_tasks_have_a_baseline_each(files, tmp_path):
    for name, label in (("one", "label"), ("two", "id")):
        made = [
            {"text": row["text"], "label": row["label"] if label == "label" else str(at % 2)}
            for at, row in enumerate(rows(24, 5))
        ]
        write_jsonl(tmp_path / f"{name}.jsonl", made)
    tasks = [part for name in ("one", "two") for part in ("--task", f"{name}={tmp_path / name}.jsonl")]
    outcome = ok(
        *("train", "multitask", "--model", files / "tiny", *tasks, "--output", tmp_path / "run"),
        *("--device", "cpu", "--quiet", "--epochs", 1, "--json"),
    )
    summary = outcome.json()
    assert summary["baseline"].keys() == summary["validation"].keys() >= {"one.accuracy", "two.nll"}
    assert {note.partition(":")[0] for note in summary["notes"]} == {"one", "two"}
    assert summary["confident_mistakes"] == []
