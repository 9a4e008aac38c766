"""Commands read files as the training of their model did: in the same format and encoding, unless others are given."""

import inspect
import json
import shutil
from pathlib import Path

import pytest
from command_line import fails, ok, short_training, write_jsonl

from bothways import MultiTask
from bothways.cli import inputs
from bothways.cli.options import ANY_FILE, FileOptions
from bothways.cli.program import build_app
from bothways.cli.training import run as runs
from traced_paths import FROZEN

AS_CSV = {"format": "csv", "encoding": "cp1252"}
READ = "is read with --format csv --encoding cp1252, as the files before it"
ROWS = [(f"w{number} w{number + 1} café", ("ant", "bee", "cow")[number % 3]) for number in range(5, 25)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with saved models that were trained on such files as rows.dat, a CSV table in cp1252."""
    folder = tmp_path_factory.mktemp("remembered")
    for name in ("classifier_plain", "classifier_of_words", "masked_lm", "tagger", "tagger_b", "embedder"):
        shutil.copytree(FROZEN / name, folder / name)
        stored = json.loads((folder / name / "bothways.json").read_text())
        stored["card"]["files"] = {"other": AS_CSV}
        (folder / name / "bothways.json").write_text(json.dumps(stored))
    table = "".join(f"{text},{label}\n" for text, label in ROWS)
    (folder / "rows.dat").write_text(f"text,label\n{table}", encoding="cp1252")
    words = "".join(f"{text},B-PER O O\n" for text, _ in ROWS)
    (folder / "words.dat").write_text(f"tokens,tags\n{words}", encoding="cp1252")
    return folder


def words_in(line, made, tmp_path):
    return line.format(made=made, out=tmp_path).split()


COMMANDS = [
    "predict {made}/classifier_plain --data {made}/rows.dat",
    "evaluate {made}/classifier_plain --data {made}/rows.dat",
    "evaluate {made}/tagger --data {made}/words.dat",
    "compare {made}/classifier_plain {made}/classifier_of_words --data {made}/rows.dat --resamples 20",
    "ensemble {made}/tagger {made}/tagger_b --calibrate {made}/words.dat --output {out}/ensemble",
    "quantize {made}/classifier_plain --data {made}/rows.dat --output {out}/int8 --cosine 0.1",
    "check {made}/classifier_plain --record {out}/golden.json --data {made}/rows.dat",
    "tokenize {made}/classifier_plain --data {made}/rows.dat",
    "explain heads {made}/classifier_plain --data {made}/rows.dat --no-random",
    "embed {made}/embedder --data {made}/rows.dat --output {out}/vectors.npy",
    "fill-mask {made}/masked_lm --data {made}/rows.dat --pseudo-likelihood",
    "audit {made}/classifier_plain --data {made}/rows.dat --detectors ClassifierConfidenceAnalyzer --fail-on critical",
    "audit-data {made}/rows.dat --model {made}/classifier_plain --embedder {made}/embedder",
    "search build {made}/embedder --data {made}/rows.dat --output {out}/index",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_of_the_same_kind_is_read_as_the_training_data(line, made, tmp_path):
    assert READ in ok(*words_in(line, made, tmp_path)).err


def test_other_files_are_read_as_they_are_and_given_options_take_precedence(made, tmp_path):
    model = made / "classifier_plain"
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": text, "label": label} for text, label in ROWS])
    assert "is read with" not in ok("predict", model, "--data", rows).err
    shutil.copyfile(rows, tmp_path / "rows.dat")
    given = ("predict", model, "--data", tmp_path / "rows.dat", "--format", "jsonl")
    assert "is read with --encoding cp1252, as" in ok(*given).err
    assert "is read with" not in ok(*given, "--encoding", "utf-8").err
    fails(1, "name 'rows.dat' does not say its format", "predict", FROZEN / "classifier", "--data", made / "rows.dat")


def test_a_file_that_is_read_in_the_wrong_encoding_is_noticed(made, tmp_path):
    (tmp_path / "rows.dat").write_text("text,label\nw5 café,ant\n", encoding="utf-8")
    said = ok("predict", made / "classifier_plain", "--data", tmp_path / "rows.dat").err
    assert "is also valid in UTF-8" in said
    assert "If the first is right, read the file with --encoding utf-8" in said


def test_an_index_remembers_the_files_that_it_was_built_from(made, tmp_path):
    as_csv = ("--format", "csv", "--encoding", "cp1252")
    table = made / "rows.dat"
    ok("search", "build", FROZEN / "embedder", "--data", table, "--id", "text", "--output", tmp_path / "index", *as_csv)
    (tmp_path / "more.dat").write_text("text,label\nw30 é,ant\n", encoding="cp1252")
    for command in ("add", "delete"):
        assert READ in ok("search", command, tmp_path / "index", "--data", tmp_path / "more.dat").err
    assert "files" not in json.loads((FROZEN / "index" / "index.json").read_text()).get("source", {})


def test_a_training_stores_how_its_files_were_read(files, made, tmp_path):
    words = short_training(files, tmp_path / "run", "--format", "csv", "--encoding", "cp1252")
    words[words.index("--train") + 1] = made / "rows.dat"
    shown = ok(*words)
    assert f"next         bothways evaluate {tmp_path / 'run'} --data test.dat  # " in shown.out
    stored = json.loads((tmp_path / "run" / "bothways.json").read_text())
    assert stored["card"]["files"] == {"other": AS_CSV}


TRAININGS = [
    "train embedding tiny --train {made}/rows.dat --label label --output {out}/run",
    "train multitask tiny --task a={made}/rows.dat --output {out}/run",
    "judge train tiny --train {made}/rows.dat --dimension answer_relevance --output {out}/run",
    "adapt tiny --data {made}/rows.dat --output {out}/run",
    "distill tiny --data {made}/rows.dat --output {out}/run",
]


@pytest.mark.parametrize("line", TRAININGS)
def test_every_training_stores_how_its_files_were_read(line, made, tmp_path, monkeypatch):
    stored = []
    monkeypatch.setattr(runs, "_run", lambda *given, **_: stored.append(given[5]) or 0)
    ok(*words_in(line, made, tmp_path), "--format", "csv", "--encoding", "cp1252")
    assert stored == [{"other": AS_CSV}]


def test_a_model_of_several_tasks_remembers_the_files_of_all(tmp_path):
    model = MultiTask.from_pretrained(FROZEN / "multitask", device="cpu")
    model._with_card(files={"csv": AS_CSV}).save(tmp_path / "model", golden=None)
    cards = MultiTask.from_pretrained(tmp_path / "model", device="cpu").card
    assert len(cards) > 1
    assert all(card["files"] == {"csv": AS_CSV} for card in cards.values())
    assert inputs._files_of(tmp_path / "model", runs.opt.ANY_MODEL) == {"csv": AS_CSV}


def test_only_what_differs_from_the_usual_is_remembered():
    typed = FileOptions("csv", None)
    assert typed.to_remember("a.csv", "-", None) == {}
    assert typed.to_remember("a.csv", "eng.train") == {"other": {"format": "csv", "encoding": None}}
    assert ANY_FILE.settings("eng.testa") == {"format": None, "encoding": None}
    later = FileOptions(trained=typed.to_remember("eng.train"))
    assert later.settings("eng.testa") == {"format": "csv", "encoding": None}
    assert later.settings("eng.csv") == later.settings("-") == {"format": None, "encoding": None}


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"card": {"files": {"csv": {"format": 1}}}}'])
def test_damaged_settings_are_left_out(content, tmp_path):
    Path(tmp_path / "bothways.json").write_text(content)
    assert inputs._files_of(tmp_path, runs.opt.ANY_MODEL) == {}


def test_every_command_that_reads_files_names_its_model_by_a_known_parameter():
    def commands(app, path):
        if app.default_command is not None:
            yield " ".join(path), inspect.signature(app.default_command).parameters
        for name in (each for each in app if not each.startswith("-")):
            yield from commands(app[name], (*path, name))

    reading = {name: given for name, given in commands(build_app(), ()) if "file" in given}
    without = {name for name, given in reading.items() if not set(given) & set(inputs._MODELS)}
    assert without == {"pretrain", "tokenizer train"}  # they begin without a model
