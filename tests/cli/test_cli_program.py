"""The program as a whole: help, exit codes, and how light it is."""

import contextlib
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import typing
from importlib.metadata import version
from pathlib import Path

import pytest
from command_line import call, fails, ok, write_jsonl

from bothways import choices
from bothways.advice import cards, ranking
from bothways.cli import main
from bothways.cli.program import SUMMARIES, build_app, joined
from bothways.compose.ensembles import combining
from bothways.data import formats
from bothways.devices import DTYPES
from bothways.evaluation import tag_schemes
from bothways.evaluation.calibration import METHODS
from bothways.evaluation.detectors import DETECTORS
from bothways.export import folder
from bothways.families import FAMILIES, family
from bothways.tasks.embedding.losses import CoSENT, MultipleNegativesRanking, Triplet
from bothways.text import windows

HEAVY = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "faiss", "bm25s", "pyarrow", "altair")


EVERY_COMMAND = """
import json, sys
from bothways.cli import main
from bothways.cli.program import build_app
app = build_app()
for name in app:
    app[name]
for words in ("train", "classification"), ("search", "query"):
    main([*words, "--help"])
print(json.dumps(sorted(sys.modules)))
"""


def test_no_command_loads_a_heavy_package_before_it_runs():
    done = subprocess.run([sys.executable, "-c", EVERY_COMMAND], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert {"bothways.cli.predictions.predict", "bothways.cli.training.train"} <= loaded
    assert loaded.isdisjoint(HEAVY)


def leaves(app, path=()):
    """All commands with the words that call them."""
    for name in app:
        if not name.startswith("-"):
            yield (*path, name), app[name]
            yield from leaves(app[name], (*path, name))


ALL = dict(leaves(build_app()))
# Every day some of those whose descriptions have several paragraphs; the others in turn.
LONGEST = (("train", "classification"), ("search", "query"), ("evaluate",), ("predict",), ("explain",), ("audit",))


def test_every_command_that_is_told_a_format_is_told_an_encoding():
    options = {}
    for words, app in ALL.items():
        called = app.assemble_argument_collection() if app.default_command else ()
        options[words] = {name for argument in called for name in argument.names}
    formats = {words for words, names in options.items() if names & {"--format", "--data-format"}} - {("export",)}
    assert len(formats) > 20
    assert formats == {words for words, names in options.items() if "--encoding" in names}


def test_every_command_can_be_quiet():
    called = {words: app.assemble_argument_collection() for words, app in ALL.items() if app.default_command}
    assert len(called) > 35
    for words, options in called.items():
        assert [each.name for each in options if "--quiet" in each.names] == ["--quiet"], words


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_first_line_of_help_says_in_few_words_what_a_command_does(words):
    first = ALL[words].help.split("\n\n")[0].split()
    assert len(first) <= 10
    assert first[-1].endswith(".")
    # An imperative: neither a noun with its article nor a verb in the third person.
    assert first[0] not in {"A", "An", "The", "What", "How", "Whether", "Of"}
    assert not re.search("(?<!s)s$|ing$", first[0])


def test_help_groups_the_commands_in_the_order_of_use():
    titles = re.findall(r"^╭─ (.+?) ─", call("--help").out, re.MULTILINE)
    assert titles == [
        "Choose a model",
        "Train",
        "Evaluate",
        "Predict",
        "Embed and search",
        "Explain and audit",
        "Tokens and masks",
        "Share",
        "Commands",
    ]


def test_help_shows_columns_before_training_and_training_before_the_model():
    titles = re.findall(r"^╭─ (.+?) ─", call("train", "classification", "--help").out, re.MULTILINE)
    assert titles[:4] == ["Parameters", "Columns", "Task", "Training"]
    assert titles.index("Training") < titles.index("Model")


@pytest.mark.parametrize("words", ALL, ids=" ".join)
@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_examples_of_help_are_shown_as_they_are_typed(monkeypatch, words, width):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = "\n".join(line.rstrip() for line in ok(*words, "--help").out.splitlines())
    assert f"Usage: bothways {' '.join(words)}" in shown
    assert (ALL[words].help_epilogue or "") in shown
    # An old name shows the example of the new one.
    has_example = ALL[words].default_command is not None and words != ("train", "answering")
    assert not has_example or f"\n  bothways {' '.join(words)} " in shown


@pytest.mark.parametrize(
    "words", [pytest.param(each, marks=[pytest.mark.slow] * (each not in LONGEST)) for each in ALL]
)
def test_paragraphs_of_help_break_where_the_line_is_full(monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "1000")
    if ALL[words].default_command is None:
        return
    shown = call(*words, "--help").out
    paragraphs = joined(inspect.cleandoc(ALL[words].default_command.__doc__).partition("\n\nArgs:")[0]).split("\n\n")
    assert all(paragraph in (line.rstrip() for line in shown.splitlines()) for paragraph in paragraphs)
    # The names of options begin within four columns of the frame; what is further in goes on with a description.
    assert not re.search(r"^│ {6,}\S", shown, re.MULTILINE)


def test_help_summarises_every_command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert {words[0]: app.help.split("\n\n")[0] for words, app in ALL.items() if len(words) == 1} == SUMMARIES
    shown = call("--help").out
    for name, summary in SUMMARIES.items():
        assert re.search(rf"^│ {name} +{re.escape(summary)} +│$", shown, re.MULTILINE), name


def test_version_names_the_installed_package():
    assert call("--version").out == f"bothways {version('bothways')}\n"


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        (choices.CalibrationMethod, METHODS),
        (choices.CalibrationChoice, ("auto", *METHODS)),
        (choices.DetectorKind, DETECTORS),
        (choices.DetectorChoice, (*DETECTORS, choices.ALL_LAYERS)),
        (choices.Dtype, ("auto", *DTYPES)),
        (choices.FamilyName, FAMILIES),
        (choices.LossName, [loss.name for loss in (MultipleNegativesRanking, CoSENT, Triplet)]),
        (choices.SpanScheme, [scheme for scheme in typing.get_args(choices.Scheme) if scheme != "plain"]),
    ],
)
def test_choices_are_what_there_is(choice, known):
    assert typing.get_args(choice) == tuple(known)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (combining, "Method"),
        (cards, "Language"),
        (folder, "ExportFormat"),
        (formats, "Format"),
        (windows, "Overflow"),
        (ranking, "Constraint"),
        (family, "HeadName"),
        (tag_schemes, "Scheme"),
    ],
)
def test_modules_have_their_choices_from_one_place(module, name):
    assert getattr(module, name) is getattr(choices, name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], 'Did you mean "train"?'),
        (["predict", "x", "text", "--ouput", "y"], "Did you mean --output?"),
        (["train", "classification", "--modle", "x"], "Unknown option: --modle. Did you mean --model?\n"),
        (["predict", "--hepl"], "Did you mean --help?"),
        (["--versoin"], "Unknown option: --versoin. Did you mean --version?\nSee: bothways --help\n"),
        (["search", "--hlep"], "Unknown option: --hlep. Did you mean --help?\nSee: bothways search --help\n"),
        (
            ["train", "classification", "--model", "x", "--train", "y", "--output", "z", "--calibration", "temprature"],
            'Did you mean "temperature"?',
        ),
        (
            ["pretrain", "--recipe", "robertta", "--tokenizer", "x", "--data", "y", "--output", "z"],
            'Did you mean "roberta"?',
        ),
        (["recommend", "--task", "nerr"], "Did you mean 'ner'?"),
        (["recommend", "--task", "dancing"], "Known: classification, ner"),
        (["recommend", "--task", "ner", "--max-latency-ms", 5], "needs a measurement"),
        (["recommend", "--task", "ner", "--constraint", "beauty"], "Choose from"),
        (["recommend", "--constraint", "latency"], "--task"),
        (["models", "--download"], "needs the name"),
        (["models", "roberta-base", "--revision", "0" * 40], "--revision and --allow-pickle need --download"),
        (["models", "roberta-base", "--allow-pickle"], "--revision and --allow-pickle need --download"),
        (["models", "roberta-base", "--download", "--family", "bert"], "no --family"),
        (["models", "roberta-base", "--family", "roberta"], "got both"),
        (["cost", "roberta-base", "--length", 600], "into windows"),
        (["cost", "roberta-base", "--batch", 0], "Must be >= 1"),
        (["cost", "roberta-base", "--batch", 10**9], "at most 2,147,483,647 tokens"),
        (["compare-models", "roberta-base", "roberta-base"], "each model only once"),
        (["plan", "bertt"], 'Did you mean "bert"?'),
        (["plan", "bert", "--hardware", "3 x Z80"], "Devices: T4"),
        (["plan", "bert", "--scale", "huge"], '"published"'),
        (["plan", "bert", "--hardware", "A100", "--length", 1024], "at most 512 tokens"),
        (["plan", "bert", "--updates", 4, "--tokens", "5k"], "expected --updates or --tokens"),
        (["plan", "bert", "--tokens", "many"], "a number of tokens such as 50M"),
        (["plan", "bert", "--batch-from", 999, "--batch-warmup-updates", 9], "at least 999 sequences"),
        (["plan", "bert", "--updates", 9, "--batch-from", 2, "--batch-warmup-updates", 99], "takes 99 updates"),
        (["evaluate", "x"], "Missing option: --data."),
        (["train", "classification", "--model", "x", "--data=y"], "Unknown option: --data.\n"),
        (["train", "classification", "--epochs", "0", "--model", "m", "--train", "t", "--output", "o"], "Must be >= 1"),
        (["predict", "x", "text", "--max-length", "many"], 'unable to convert "many" into int'),
        (["models", "--family", "gpt"], 'Choose from: "bert"'),
        (["predict", "x"], "give texts, or --data"),
        (["predict", "x", "text", "--data", "y"], "got both"),
        (["export", "x", "--format", "tflite", "--output", "y"], 'Choose from: "onnx"'),
        (["export", "x", "--format", "onnx", "--head", "classifier", "--output", "y"], 'Choose from: "masked_lm"'),
        (["export", "x", "--format", "onnx", "--dtype", "float16", "--output", "y"], "written in float32"),
        (["embed", "x", "--data", "y", "--output", "-"], "cannot be written to standard output"),
        (["embed", "x", "--data", "y", "--output", "v.txt"], "must end in .npy, .jsonl or .jsonl.gz"),
        (["embed", "x", "--data", "y.jsonl", "--output", "./y.jsonl"], "the same file"),
        (["predict", "x", "--data", "y.jsonl", "--output", "./y.jsonl"], "the same file"),
        (["fill-mask", "x", "--data", "y.jsonl", "--output", "./y.jsonl"], "the same file"),
    ],
)
def test_bad_usage_ends_with_2_and_says_where_to_look(words, said):
    outcome = call(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert said in outcome.err
    assert "See: bothways" in outcome.err
    assert outcome.err.endswith("--help\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "tiny", "--label", "lable"], "Did you mean --label label?"),
        (["--model", "tiny", "--text", "txt"], "Did you mean --text text?"),
        (["--model", "tiyn"], "Did you mean 'tiny'?"),
        (["--model", "./tiyn"], "Did you mean 'tiny'?"),
        (["--model", "all-MiniLM-L6-v2"], "Did you mean 'sentence-transformers/all-MiniLM-L6-v2'?"),
        (
            ["--model", "sentence-transformers/all-MiniLM-L6-v3"],
            "Did you mean 'sentence-transformers/all-MiniLM-L6-v2'?",
        ),
        (["--model", "roberta-bse"], "Did you mean 'FacebookAI/roberta-base'?"),
        (["--model", "tiny", "--train", "test.jsnl.gz"], "Did you mean 'test.jsonl.gz'?"),
    ],
    ids=" ".join,
)
def test_a_misspelt_name_is_answered_with_the_nearest(files, monkeypatch, words, said):
    monkeypatch.chdir(files)
    data = [] if "--train" in words else ["--train", "test.jsonl.gz"]
    fails(1, said, "train", "classification", *words, *data, "--output", "misspelt")
    assert not Path("misspelt").exists()


@pytest.mark.parametrize(("before", "after"), [(None, "32"), ("1024", "1024")])
def test_what_is_compiled_for_each_shape_of_a_batch_is_not_kept_for_ever(monkeypatch, before, after):
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, before or "")
    if before is None:
        monkeypatch.delenv(name)
    ok("--version")
    assert os.environ[name] == after


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs to know its resident memory")
def test_a_long_prediction_stays_in_flat_memory(run, tmp_path):
    texts = [" ".join(f"w{5 + (row * 7 + word * 3) % 50}" for word in range(1 + row % 14)) for row in range(2_000)]
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in texts] * 30)
    program = """
        import sys
        from bothways.cli import main
        from bothways.data import output
        write, seen = output._write_one, []
        def counting(*given):
            seen.append(None)
            if len(seen) % 20_000 == 0:
                print(int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20, flush=True)
            write(*given)
        output._write_one = counting
        main(sys.argv[1:])
    """
    words = ["predict", run, "--data", data, "--output", tmp_path / "out.jsonl", "--quiet", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    resident = [float(line) for line in done.stdout.split()]
    assert len(resident) == 3
    assert resident[-1] - resident[0] < 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cost", "nobody/nothing"], "not in the catalogue"),
        (["models", "bert-base-uncasd"], "google-bert/bert-base-uncased"),
        (["tokenize", "nobody/nothing", "w6"], "'nobody/nothing'"),
    ],
)
def test_an_unknown_model_is_a_failure_that_names_it_or_the_nearest(words, said):
    fails(1, said, *words)


def test_a_failure_is_one_line_without_traceback_or_markup(tmp_path):
    outcome = call("evaluate", tmp_path / "[bold]nothing[/bold]", "--data", "x.jsonl")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "[bold]nothing[/bold]" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_error_cannot_steer_the_terminal(tmp_path):
    outcome = call("predict", f"{tmp_path}/\x1b[31mred", "text")
    assert outcome.code == 1
    assert "\x1b" not in outcome.err
    assert "x1b[31mred" in outcome.err


def test_overwriting_is_offered_only_where_it_would_help(files, run, index, tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    for words in (
        ("predict", run, "w6", "--output", tmp_path / "folder.jsonl"),
        ("embed", files / "tiny", "--data", files / "test.jsonl.gz", "--output", tmp_path / "folder.jsonl"),
        ("train", "classification", "--model", "m", "--train", "t", "--output", files / "test.jsonl.gz"),
        ("search", "build", "--model", "m", "--data", "t", "--output", files / "test.jsonl.gz"),
    ):
        outcome = fails(1, "Choose another path.", *words)
        assert "--overwrite" not in outcome.err
    assert "--overwrite." in call("search", "build", "--model", "m", "--data", "t", "--output", index).err


@pytest.mark.parametrize(
    "command",
    [
        ("train", "classification", "--model", "m", "--train", "t", "--overwrite"),
        ("adapt", "--model", "m", "--data", "t"),
        ("ensemble", "a", "b", "--overwrite"),
        ("search", "build", "--model", "m", "--data", "t", "--overwrite"),
        ("export", "m", "--format", "safetensors", "--overwrite"),
        ("quantize", "m", "--data", "t", "--overwrite"),
    ],
)
@pytest.mark.parametrize("output", [".", ".."])
def test_the_current_folder_is_never_replaced(tmp_path, monkeypatch, command, output):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fails(1, "would replace the folder", *command, "--output", output)
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_standard_output_that_is_closed_is_a_clear_failure_before_any_work():
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["recommend", "--task", "ner"]) == 1
    assert err.getvalue().startswith("error: standard output is closed")


def test_a_standard_input_that_is_closed_is_a_clear_failure(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    fails(1, "standard input is closed", "evaluate", run, "--data", "-")


def into(descriptor, *words):
    """Run a command whose results go to an open file; its exit code and what it says."""
    with (
        os.fdopen(descriptor, "w") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        return main([str(word) for word in words]), err.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
@pytest.mark.parametrize("words", [["models", "--json"], ["predict", "RUN", "w5"]])
def test_a_standard_output_that_takes_no_more_is_a_clear_failure(run, words):
    full = os.open("/dev/full", os.O_WRONLY)
    code, said = into(full, *(run if word == "RUN" else word for word in words))
    assert code == 1
    assert said.startswith("error: cannot write to standard output: No space left on device")
    assert said.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("bothways.advice.cards.sized", broken)
    with pytest.raises(ZeroDivisionError):
        call("models")


def test_ctrl_c_before_anything_was_done_ends_with_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bothways.advice.cards.sized", interrupted)
    outcome = call("models")
    assert outcome.code == 130
    assert outcome.err == "error: interrupted.\n"


def test_a_reader_that_goes_away_is_no_error(run):
    reading, writing = os.pipe()
    os.close(reading)
    assert into(writing, "predict", run, "w5", "w6") == (128 + signal.SIGPIPE, "")


def test_results_and_remarks_are_apart_and_json_is_ascii_where_there_is_no_utf_8(files):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["tokenize", str(files / "tiny"), "w6 été", "--json"]) == 0
    assert json.loads(written.getvalue())["tokens"] == ["[CLS]", "w6", "[UNK]", "[SEP]"]
    assert err.getvalue() == ""


def test_the_demo_is_called_with_what_was_asked_for(monkeypatch, tmp_path):
    def run(output, *, overwrite, seed, show):
        show(f"{output} {seed} {overwrite}")
        return output / "report.html"

    monkeypatch.setattr("bothways.demo.run", run)
    assert call("demo", "--output", tmp_path, "--seed", 3).out == f"{tmp_path} 3 False\n"
