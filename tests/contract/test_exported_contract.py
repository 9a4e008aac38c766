"""An exported model of every task answers as the model itself, also where torch, SciPy and scikit-learn are missing."""

import functools
import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys

import pytest

from bothways import open_trained
from bothways.checkpoints import load, open_checkpoint
from bothways.data import read_rows
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted
from bothways.export import export
from bothways.export.answers import rows_of_task
from bothways.tasks.registry import SPECS, task_class
from contract_cases import as_embedder, rows
from everyday import slow, some_of
from task_cases import CASES, LONG, close, fitted, plain
from tiny_models import TINY, edit_config, write_checkpoint

# The graph for pairs is that for texts.
EVERY_DAY = [name for name in SPECS if name != "pairs"]
every_task = pytest.mark.parametrize("name", some_of(SPECS, *EVERY_DAY))


@pytest.fixture(scope="module", autouse=True)
def one_layer():
    """How long an export takes depends on the layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, "bert", {**TINY["bert"], "num_hidden_layers": 1})
        yield


@pytest.fixture(scope="module")
def base(one_layer, tmp_path_factory):
    """The folder of a tiny bare BERT without dropout."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    edit_config(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return folder


# The classifier's graph has the hidden states that its detector reads.
OPTIONS = {"classification": {"detector": "mahalanobis_layers", "calibration": "temperature"}}


@pytest.fixture(scope="module")
def exports(base, tmp_path_factory):
    """A factory: a trained model and the folder that it was exported to, made once for each task."""
    folder = tmp_path_factory.mktemp("exports")

    @functools.cache
    def make(name):
        case = CASES[name]
        model = fitted(base, name, case.rows(48), case.rows(24), **OPTIONS.get(name, {}))
        model.save(folder / "saved" / name)
        written = export(folder / "saved" / name, folder / name, format="onnx")
        assert written.largest_difference < 1e-4
        return model, written.folder

    return make


def exported(model, folder, **options):
    """What a model was exported to, opened again."""
    model.save(folder / "saved")
    export(folder / "saved", folder / "onnx", format="onnx")
    return type(model).from_pretrained(folder / "onnx", **options)


def answers(model, asked):
    return [plain(each) for each in model.predict_stream(read_rows(asked))]


# --- without torch ---

ALONE = """
import json, sys

ABSENT = {"torch", "scipy", "sklearn"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(f"{name} is not to be used here")

sys.meta_path.insert(0, Absent())
from pathlib import Path
import bothways
from bothways.data import read_rows
from bothways.tasks.registry import SPECS, task_class

answers = {}
rows = json.load(sys.stdin)
for name, (folder, asked, data) in rows.items():
    model = task_class(SPECS[name]).from_pretrained(Path(folder))
    predictions = [each.to_dict() for each in model.predict_stream(read_rows(asked))]
    # An export has no base model beside it.
    baseline = model.evaluate(data, resamples=2).baseline
    assert baseline is None or baseline.name.startswith("always "), baseline
    answers[name] = predictions, model.evaluate(data, baseline=False, resamples=20).to_dict()
print(json.dumps(answers))
from bothways.cli import main
main(["predict", *sys.argv[1:]])
for name, (folder, *_) in rows.items():
    main(["check", folder, "--json"])
assert not ABSENT & set(sys.modules)
"""


@pytest.mark.parametrize("names", [EVERY_DAY, slow(list(SPECS))], ids=["all graphs", "all tasks"])
def test_every_task_answers_and_is_evaluated_where_torch_is_not_installed(exports, names):
    asked = {name: (str(exports(name)[1]), CASES[name].questions(), CASES[name].rows(12)) for name in names}
    model, folder = exports("classification")
    command = [sys.executable, "-c", ALONE, folder, "w5 w6", LONG]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, *printed = map(json.loads, done.stdout.splitlines())
    printed, checked = printed[:2], printed[2:]
    assert [each["label"] for each in printed] == [each.label for each in model.predict(["w5 w6", LONG])]
    assert [(each["ok"], each["task"]) for each in checked] == [(True, name) for name in names]
    for name, (_, questions, data) in asked.items():
        model = exports(name)[0]
        measured = model.evaluate(data, baseline=False, resamples=20).to_dict()
        del measured["training_rows"]  # an export has no checksums of them
        expected = answers(model, questions), measured
        assert close(found[name], json.loads(json.dumps(expected))), name


# --- what an export can do, and what not ---


@every_task
def test_an_export_opens_as_what_it_was_trained_for(exports, name):
    model, folder = exports(name)
    opened = open_trained(folder)
    assert type(opened) is type(model)
    assert (opened.fitted.facts(), opened.card, opened.columns) == (model.fitted.facts(), model.card, model.columns)
    asked = CASES[name].questions()
    assert answers(pickle.loads(pickle.dumps(opened)), asked) == answers(opened, asked)


def test_a_forked_process_answers_with_threads_of_its_own(exports, monkeypatch):
    _, folder = exports("classification")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # a session of one thread has none that a fork could lose
    opened, forking = open_trained(folder), multiprocessing.get_context("fork")
    expected, found = opened.predict("w5 w6"), forking.SimpleQueue()
    child = forking.Process(target=lambda: found.put(opened.predict("w5 w6").to_dict()), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert found.get() == expected.to_dict()


def test_what_takes_weights_is_refused_by_name(exports, tmp_path):
    _, folder = exports("classification")
    opened = open_trained(folder)
    with pytest.raises(InvalidInput, match=r"weights to train, got .*ONNX export.*open the model that was exported"):
        opened.fit(rows("single", 12))
    with pytest.raises(InvalidInput, match="weights to save"):
        opened.save(tmp_path / "saved")
    with pytest.raises(InvalidInput, match="weights to use"):
        opened.model  # noqa: B018
    with pytest.raises(InvalidInput, match="weights to open, got"):
        load(folder)
    assert list(tmp_path.iterdir()) == []


def test_an_export_answers_its_own_task_alone(exports):
    _, folder = exports("classification")
    with pytest.raises(NotFitted, match="expected an exported model for tagging, got"):
        task_class(SPECS["tagging"]).from_pretrained(folder)
    with pytest.raises(NotFitted, match="expected an exported model for embedding, got"):
        task_class(SPECS["embedding"]).from_pretrained(folder)
    with pytest.raises(NotFitted, match="expected an exported model for masked_lm, got"):
        task_class(SPECS["masked_lm"]).from_pretrained(folder)


def test_another_device_or_precision_is_refused(exports):
    _, folder = exports("classification")
    for options in ({"device": "cuda"}, {"dtype": "bfloat16"}):
        with pytest.raises(InvalidInput, match="expected device 'cpu' and dtype 'float32'"):
            open_trained(folder, **options)
    for dtype in ("float32", "auto"):
        open_trained(folder, device="cpu", dtype=dtype)


def test_damage_is_noticed(exports, tmp_path):
    _, folder = exports("classification")
    for name in ("model.onnx", "confidence.safetensors", "config.json", "bothways.json", "tokenizer.json"):
        shutil.copytree(folder, tmp_path / name)
        content = (tmp_path / name / name).read_bytes()
        (tmp_path / name / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CorruptCheckpoint, match="was altered or damaged"):
            task_class(SPECS["classification"]).from_pretrained(tmp_path / name)
    (tmp_path / "model.onnx" / "model.onnx").unlink()
    shutil.copytree(folder, tmp_path / "less")
    (tmp_path / "less" / "confidence.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match="missing from"):
        task_class(SPECS["classification"]).from_pretrained(tmp_path / "less")


def test_an_export_for_other_programs_alone_says_so(exports, tmp_path):
    write_checkpoint(tmp_path / "model", architecture="BertForPreTraining")
    assert rows_of_task(open_checkpoint(tmp_path / "model"), "next_sentence") is None
    folder = shutil.copytree(exports("classification")[1], tmp_path / "onnx")
    described = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**described, "rows": None}))
    with pytest.raises(NotFitted, match="bothways cannot predict with"):
        task_class(SPECS["classification"]).from_pretrained(folder)


# --- further kinds of models ---


@pytest.mark.slow  # every day: a single label, whose graph is the same
@pytest.mark.parametrize("target", ["multi", "regression"])
def test_other_targets(base, tmp_path, target):
    model = fitted(base, "classification", rows(target, 24), rows(target, 12), target=target)
    found = exported(model, tmp_path)
    asked = [{"text": text} for text in ("w5 w6", "w20", LONG)]
    assert close(answers(found, asked), answers(model, asked))


@pytest.mark.parametrize("detector", some_of(["neighbours", "mahalanobis_layers"], "mahalanobis_layers"))
def test_confidence_that_reads_hidden_states(base, exports, tmp_path, detector):
    if detector == OPTIONS["classification"]["detector"]:
        model, folder = exports("classification")
        found = open_trained(folder)
    else:
        options = {**OPTIONS["classification"], "detector": detector}
        model = fitted(base, "classification", rows("single", 48), rows("single", 24), **options)
        found = exported(model, tmp_path)
    asked = [{"text": text} for text in ("w5 w6", "w20", "w60 w61 w62", LONG)]
    ours, theirs = (
        [plain(each) for each in one.predict_stream(read_rows(asked), coverage=0.8)] for one in (model, found)
    )
    assert {"out_of_domain", "out_of_domain_score"} <= ours[0].keys()
    assert close(theirs, ours)


@pytest.mark.parametrize("elsewhere", some_of([None, "mean", "cls", "max", "weighted_mean", "mean_sqrt_length"], None))
def test_vectors_of_an_embedder_that_was_trained_here_or_comes_from_elsewhere(exports, tmp_path, elsewhere):
    kind, texts = task_class(SPECS["embedding"]), ["w5 w6", "w20", LONG]
    if elsewhere is None:
        model, folder = exports("embedding")
    else:
        write_checkpoint(tmp_path / "model")
        as_embedder(tmp_path / "model", elsewhere)
        model = kind.from_pretrained(tmp_path / "model", device="cpu")
        folder = export(tmp_path / "model", tmp_path / "onnx", format="onnx").folder
    found = kind.from_pretrained(folder)
    assert abs(model.encode(texts) - found.encode(texts)).max() < 1e-5
    assert abs(model.encode(texts, dimensions=8) - found.encode(texts, dimensions=8)).max() < 1e-5
    assert found.fitted.fingerprint() == found.fitted.fingerprint() != model.fitted.fingerprint()
    pooling = elsewhere or "mean"
    other = "max" if pooling == "mean" else "mean"
    with pytest.raises(InvalidInput, match=f"exported with, '{pooling}', got '{other}'"):
        found.encode(texts, pooling=other)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"words": ["w6", "w7"]}, "w5 [MASK] w20"),
        ({"top": 3, "beam": 4}, "w5 [MASK] w20 [MASK]"),
        ({"max_pieces": 2}, "[MASK]"),
    ],
)
def test_masks_are_filled_alike(exports, options, asked):
    model, folder = exports("masked_lm")
    found = open_trained(folder)
    assert close(plain(found.predict(asked, **options)), plain(model.predict(asked, **options)))
    ours, theirs = (one.pseudo_log_likelihood(["w5 w6 w7", LONG]) for one in (model, found))
    assert all(close(plain(a), plain(b)) for a, b in zip(ours, theirs, strict=True))
