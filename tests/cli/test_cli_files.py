"""Files on the command line: columns are remembered and proposed, and no command replaces a file unasked."""

import inspect
import json

import pytest
from command_line import fails, ok, rows, short_training, write_jsonl
from cyclopts import App

from bothways.cli import main
from bothways.cli.inputs import like
from bothways.cli.options import ANY_FILE
from bothways.cli.program import build_app

REVIEWS = [{"key": row["id"], "review_body": row["text"], "mood": row["label"]} for row in rows(24, 5)]


@pytest.fixture(scope="module")
def reviews(files, tmp_path_factory):
    """Rows whose columns have other names than the defaults."""
    return write_jsonl(tmp_path_factory.mktemp("reviews") / "reviews.jsonl", REVIEWS)


@pytest.fixture(scope="module")
def reviewed(files, reviews):
    """A model that was trained on these rows, and the outcome of its training."""
    folder = reviews.parent / "run"
    words = [reviews if each == files / "few.jsonl.gz" else each for each in short_training(files, folder)]
    return folder, ok(*words, "--text", "review_body", "--label", "mood")


# --- columns ---


def test_a_missing_column_names_the_option_and_the_likely_column(files, reviews, tmp_path):
    words = ("train", "classification", files / "tiny", "--train", reviews, "--output", tmp_path / "run")
    fails(1, "Did you mean --text review_body?\n", *words, "--label", "mood")
    fails(1, "Did you mean --label mood?\n", *words, "--text", "review_body", "--label", "moood")
    fails(1, "Name another: --label COLUMN.\n", *words, "--text", "review_body")
    build = ("search", "build", files / "tiny", "--data", reviews, "--output", tmp_path / "index")
    fails(1, "--text review_body?", *build)
    fails(1, "--id key?", *build, "--text", "review_body", "--id", "kee")


@pytest.mark.parametrize(
    "words",
    [
        "predict {run} --data {data}",
        "evaluate {run} --data {data}",
        "compare {run} {run} --data {data} --resamples 5",
        "tokenize {run} --data {data}",
        "quantize {run} --data {data} --output {new}",
        "embed {run} --data {data} --output {new}.npy",
        "explain heads {run} --data {data} --most 2 --no-random",
        "check {run} --record {new} --data {data}",
        "audit {run} --data {data} --detectors ClassifierConfidenceAnalyzer --fail-on critical",
        "adapt {run} --data {data} --output {new} --epochs 1 --no-checkpoints",
        "train classification {run} --train {data} --output {new} --epochs 1 --no-checkpoints",
        "ensemble {run} {run} --calibrate {data} --output {new}",
    ],
)
def test_commands_read_the_columns_that_the_model_was_trained_on(reviewed, reviews, tmp_path, words):
    folder, _ = reviewed
    given = words.format(run=folder, data=reviews, new=tmp_path / "new").split()
    ok(*given, *([] if given[0] in ("tokenize", "ensemble") else ["--device", "cpu"]))


def test_an_index_remembers_the_columns_it_was_built_from(files, reviews, tmp_path):
    index = tmp_path / "index"
    build = ("search", "build", files / "tiny", "--data", reviews, "--output", index)
    ok(*build, "--text", "review_body", "--id", "key")
    more = write_jsonl(tmp_path / "more.jsonl", [{**row, "key": f"m{row['key']}"} for row in REVIEWS[:3]])
    assert ok("search", "add", index, "--data", more, "--json").json() == {"added": 3, "texts": 27}
    fails(1, "--id key?", "search", "add", index, "--data", more, "--id", "keys")
    assert ok("search", "delete", index, "--data", more, "--json").json() == {"deleted": 3, "texts": 24}


def test_the_next_command_fits_the_task_and_the_format(reviewed, files):
    folder, outcome = reviewed
    assert f"next         bothways evaluate {folder} --data test.jsonl  #" in outcome.out
    assert like("test", "a.conll", ANY_FILE) == "test.conll"
    assert like("test", "texts.txt", ANY_FILE) == "test.jsonl"


def test_a_text_that_is_the_name_of_a_file_is_refused(run, index, reviews, monkeypatch):
    monkeypatch.chdir(reviews.parent)
    for command in ("predict", "tokenize", "fill-mask"):
        fails(2, "Did you mean --data reviews.jsonl?", command, run, "reviews.jsonl")
    for words in (("explain", run), ("search", "query", index), ("mask", run)):
        fails(2, "'reviews.jsonl', which is a file", *words, "reviews.jsonl")
    ok("predict", run, "run")  # a folder, and a word


# --- outputs ---

OUTPUTS = [
    "predict {run} w6 --output {file}.jsonl",
    "embed {tiny} --data {data} --output {file}.npy",
    "fill-mask {tiny} --data {data} --output {file}.jsonl",
    "evaluate {run} --data {data} --report {file}.html",
    "explain {run} w6 --report {file}.json",
    "audit {run} --detectors ModelProvenanceChecker --report {file}.txt",
    "audit-data {other} --output {file}.jsonl",
    "check {run} --record {file}.golden",
    "search mine {index} --data {data} --output {file}.jsonl",
    "judge score {run} --data {data} --report {file}.html",
    "judge rank {data} --judge {run} --report {file}.html",
    "judge rank {data} --judge {run} --next {file}.jsonl",
]


@pytest.mark.parametrize("words", OUTPUTS)
def test_no_command_replaces_a_file_unasked(files, run, index, tmp_path, words):
    named = {"run": run, "tiny": files / "tiny", "index": index, "data": files / "few.jsonl.gz"}
    given = words.format(**named, other=files / "test.jsonl.gz", file=tmp_path / "old").split()
    old = next(tmp_path.parent / tmp_path.name / word.rpartition("/")[2] for word in given if "/old." in word)
    old.write_text("old")
    outcome = fails(1, ("already exists", "replace it with --overwrite."), *given)
    assert (outcome.out, old.read_text()) == ("", "old")


@pytest.mark.parametrize("words", [each for each in OUTPUTS if each.split()[0] in ("predict", "explain", "check")])
def test_a_file_is_replaced_when_asked(files, run, tmp_path, words):
    given = words.format(run=run, file=tmp_path / "old").split()
    old = tmp_path / given[-1].rpartition("/")[2]
    old.write_text("old")
    ok(*given, "--overwrite", "--device", "cpu")
    assert old.read_text() != "old"


def test_standard_output_is_no_file_to_replace(run, tmp_path, capfdbinary):
    assert main(["predict", str(run), "w6", "--output", "/dev/stdout", "--device", "cpu"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["label"] == "even"
    with (tmp_path / "all").open("a") as stream:
        stream.write("before\n")
        stream.flush()
        ok("predict", run, "w6", "--output", f"/dev/fd/{stream.fileno()}", "--device", "cpu")
    assert (tmp_path / "all").read_text().startswith("before\n{")
    fails(2, "--report needs the name of a file", "evaluate", run, "--data", "none.jsonl", "--report", "-")


def test_a_report_has_one_name_and_an_old_one(run, tmp_path):
    for name in ("--report", "--output"):
        ok("explain", run, "w6 w8", name, tmp_path / f"a{name}.json", "--device", "cpu")
    assert "--output" not in ok("explain", "--help").out


# --- models ---


def commands(app, words=()):
    """All commands with a function, by their words."""
    for name in app:
        if not name.startswith("-"):
            command = app[name]
            if command.default_command is not None:
                yield (*words, name), command
            if isinstance(command, App):
                yield from commands(command, (*words, name))


def test_every_model_is_positional_or_an_option():
    seen = 0
    for words, command in commands(build_app()):
        for argument in command.assemble_argument_collection(parse_docstring=False):
            parameter = argument.field_info
            named = argument.name in ("--model", "--judge") or (words == ("distill",) and argument.name == "--teacher")
            if named and words[0] != "search":
                seen += 1
                optional = words in (("audit-data",), ("judge", "rank"))
                assert optional or argument.index == 0, words
                assert "--model" in argument.names, words
                assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY, words
    assert seen > 25


def test_models_are_read_in_both_forms(files, run):
    data = files / "few.jsonl.gz"
    for words in (("evaluate", "--data", data, "--resamples", 5, "--json"), ("predict", "--data", data)):
        assert ok(words[0], run, *words[1:]).out == ok(*words, "--model", run).out
    both = ok("compare", "--model", run, "--model", run, "--data", data, "--resamples", 5, "--json")
    assert both.out == ok("compare", run, run, "--data", data, "--resamples", 5, "--json").out
    masked = [ok("mask", *words) for words in ((files / "tiny", "w6 w8"), ("w6 w8", "--model", files / "tiny"))]
    assert masked[0].out == masked[1].out
    fails(2, "Missing: MODEL, as the first word or with --model.", "predict", "--data", data)
