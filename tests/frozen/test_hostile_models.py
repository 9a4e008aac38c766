"""Nothing that stands in a folder makes opening it run away, fail in another way than by an error of the tree, or lie.

Found cases are kept in ``hostile``, one JSON file each, and tried again. What the fuzzer finds prints itself as one.
"""

import functools
import json
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hostile import outcome, spoilt, use
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_frozen_models import MODELS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bounds of processes are set as Linux has them")

FOUND = sorted((Path(__file__).parent / "hostile").glob("*.json"))
EXPECTED = re.compile(r"opened|refused: ")

# The training that was interrupted is read by its own test; answers of the frozen models lie beside them.
FOLDERS = sorted(path.name for path in MODELS.iterdir() if path.is_dir() and path.name != "unfinished")
VALUES = (
    *(None, True, False, -1, 0, 1, 2.5, 10**5, 10**9, 10**18, int(1e30), 10**400, -(10**400), 1e300),
    *(float("nan"), float("inf"), "", "x", "a\0b", "../x", "/dev/zero", "\ud800", "1" * 5000, "x" * 10**6),
    *([], [1], ["x"], [[]], [None], {}, {"x": 1}, {"0": "x"}),
    *(["x"] * 10**5, [0.5] * 10**5, functools.reduce(lambda inner, _: [inner], range(300), [])),
)


@functools.cache
def files_of(model):
    return sorted(path.relative_to(MODELS / model).as_posix() for path in (MODELS / model).rglob("*") if path.is_file())


@functools.cache
def paths_of(model, file):
    """The paths of all fields of a JSON file, those of long lists of one kind by a few of them."""
    content = json.loads((MODELS / model / file).read_bytes())

    def below(value, path):
        if path:
            yield path
        parts = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
        for key, part in parts if len(parts) < 40 else parts[:3] + parts[-3:]:
            yield from below(part, (*path, key))

    return list(below(content, ()))


@st.composite
def fields(draw):
    model = draw(st.sampled_from(FOLDERS))
    file = draw(st.sampled_from([file for file in files_of(model) if file.endswith(".json")]))
    case = {"model": model, "file": file, "path": draw(st.sampled_from(paths_of(model, file)))}
    return case | draw(st.just({}) | st.builds(lambda value: {"value": value}, st.sampled_from(VALUES)))


@st.composite
def contents(draw):
    model = draw(st.sampled_from(FOLDERS))
    file = draw(st.sampled_from(files_of(model)))
    size = (MODELS / model / file).stat().st_size
    # Most of a file of arrays is numbers; what says how they lie is at its beginning.
    at = draw(st.integers(0, min(size, 600)) | st.integers(0, size))
    cut, inserted = draw(st.integers(0, 8) | st.integers(0, size)), draw(st.binary(max_size=8))
    return {"model": model, "file": file, "at": at, "cut": cut, "bytes": inserted.hex()}


def check(case):
    with tempfile.TemporaryDirectory() as folder:
        said = outcome(use, str(spoilt(case, Path(folder))), case["model"])
    shown = json.dumps(case)
    assert EXPECTED.match(said), f"{shown[:500]}{'...' * (len(shown) > 500)}\n{said}"


def fuzzed(cases, examples):
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(case=cases())
    def run(case):
        check(case)

    run()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_refused(path):
    check(json.loads(path.read_bytes()))


@pytest.mark.parametrize("cases", [fields, contents])
def test_a_sample_of_spoilt_folders_is_refused_or_opens(cases):
    fuzzed(cases, 12)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [fields, contents])
def test_spoilt_folders_are_refused_or_open(cases):
    fuzzed(cases, 1000)


PLACES = [
    *(("pipe", model, file) for model in ("classifier", "index") for file in files_of(model)),
    *(("device", model, file) for model, file in (("classifier", "config.json"), ("index", "index.json"))),
]


@pytest.mark.parametrize(("kind", "model", "file"), PLACES)
def test_a_file_that_is_no_file_is_refused(kind, model, file, tmp_path):
    spoilt({"model": model, "file": file, "at": 0, "cut": 0, "bytes": ""}, tmp_path)
    path = tmp_path / model / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert EXPECTED.match(said := outcome(use, str(tmp_path), model)), said


# What is too large to keep as a file, and fills memory or takes for ever where nothing is bounded.

MEMBER = {"path": "../classifier", "fingerprint": "0" * 64}
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
DOUBLING = {"type": "Replace", "pattern": {"String": "w"}, "content": "ww"}


def tensors(count):
    header = json.dumps({f"t{number}": EMPTY for number in range(count)}).encode()
    content = len(header).to_bytes(8, "little") + header
    return {"model": "classifier", "file": "model.safetensors", "at": 0, "cut": 10**9, "bytes": content.hex()}


def field(model, file, path, value):
    return {"model": model, "file": file, "path": [path], "value": value}


LARGE = {
    "100,000 members": field("ensemble_mean", "bothways.json", "members", [MEMBER] * 100_000),
    "100,000 heads": field("multitask", "bothways.json", "heads", [{"name": "a", "config": {}}] * 100_000),
    "100,000 labels": field("classifier", "config.json", "id2label", {str(number): "x" for number in range(100_000)}),
    "a billion layers": field("classifier", "config.json", "num_hidden_layers", 10**9),
    "36 doublings": field(
        "classifier", "tokenizer.json", "normalizer", {"type": "Sequence", "normalizers": [DOUBLING] * 36}
    ),
    "fifty thousand empty tensors": partial(tensors, 50_000),
    **{
        f"nested {model} {file}": {"model": model, "file": file, "at": 0, "cut": 10**9, "bytes": (b"[" * 10**5).hex()}
        for model in ("classifier", "ensemble_mean", "index")
        for file in files_of(model)
        if file.endswith((".json", ".jsonl"))
    },
}


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in LARGE.items()),
        pytest.param(partial(tensors, 1_000_000), id="a million empty tensors", marks=pytest.mark.slow),
    ],
)
def test_what_is_too_large_is_refused(case, tmp_path):
    case = case() if callable(case) else case
    said = outcome(use, str(spoilt(case, tmp_path)), case["model"])
    assert said.startswith("refused: "), said
