"""Folders of sentence-transformers give its vectors, and it reads the same vectors from what is saved of them."""

import json
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_folder_cases import CASES, FAMILIES, GENERAL, OLD_FOLDERS, SELDOM, SIMILARITIES
from sentence_folders import (
    LONG,
    POOLINGS,
    PROMPTS,
    SHORT,
    TEXTS,
    Dense,
    Folder,
    answers,
    edit,
    save,
    sentence_transformer,
    write_dense,
    write_encoder,
    write_old,
)

from bothways.tasks import SentenceEmbedder
from everyday import some_of

pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::bothways.errors.TextsTruncated")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """The folders of a bare encoder of each family."""
    root = tmp_path_factory.mktemp("encoders")
    return {family: write_encoder(root / family, family) for family in FAMILIES}


def opened(folder, **options):
    return SentenceEmbedder.from_pretrained(folder, device="cpu", on_overflow="truncate", **options)


def expected_of(theirs, prompts):
    """Their answers, but with the prompt of documents that a folder has.

    Release 6.2 looks for "document", "passage" and "corpus" in this order, but adds an empty "document" before.
    """
    found = answers(theirs, prompts)
    name = next((name for name in ("document", "passage", "corpus") if prompts.get(name)), "document")
    if name != "document":
        assert np.array_equal(found["document"], found["no prompt"])
        found["document"] = found[f"named {name}"]
    return found


def assert_equal(found, expected):
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, expected[name], rtol=0, atol=1e-5, err_msg=name)


def assert_both_ways(folder, prompts, again, **options):
    """Compare the vectors of a folder of sentence-transformers with ours, and with both of what we save of it."""
    theirs, ours = sentence_transformer(folder), opened(folder, **options)
    expected = expected_of(theirs, prompts)
    assert_equal(answers(ours, prompts), expected)
    ours.save(again)
    reopened, kept = opened(again), sentence_transformer(again)
    assert_equal(answers(reopened, prompts), expected)
    assert_equal(expected_of(kept, prompts), expected)
    assert (kept.prompts, kept.default_prompt_name) == (theirs.prompts, theirs.default_prompt_name)
    assert kept.similarity_fn_name == theirs.similarity_fn_name
    assert kept.max_seq_length == min(theirs.max_seq_length, 512)  # XLNet has no limit there
    assert kept.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert (dict(reopened.fitted.settings.prompts), reopened.fitted.settings.default_prompt) == (
        dict(ours.fitted.settings.prompts),
        ours.fitted.settings.default_prompt,
    )


@pytest.mark.parametrize("name", some_of(CASES, *(CASES.keys() - SELDOM)))
def test_a_folder_gives_the_vectors_of_sentence_transformers(encoders, tmp_path, name):
    made = CASES[name]
    folder = save(made, encoders[made.family], tmp_path / "folder")
    ours, theirs = opened(folder), sentence_transformer(folder)
    expected = expected_of(theirs, made.prompts)
    assert not np.array_equal(expected["plain"], expected["a prompt"])
    assert_equal(answers(ours, made.prompts), expected)
    assert ours.dimensions == expected["plain"].shape[1] == theirs.get_embedding_dimension()
    assert made.prompts.items() <= dict(ours.fitted.settings.prompts).items() <= theirs.prompts.items()
    assert ours.fitted.settings.default_prompt == made.default
    compared = theirs.similarity(expected["plain"][:3], expected["plain"][1:])
    np.testing.assert_allclose(ours.similarity(TEXTS[:3], TEXTS[1:]), compared, rtol=1e-5, atol=1e-5)
    pairs = [each.similarity for each in ours.predict(list(pairwise(TEXTS[:4])))]
    np.testing.assert_allclose(pairs, np.diag(compared), rtol=1e-5, atol=1e-5)


def old_folder(name, encoders, folder):
    """A folder of an older release, its prompts, and the option to read its weights if they are pickled."""
    modules, files = OLD_FOLDERS[name]
    pickled = name == "dense"
    weights = "pytorch_model.bin" if pickled else "model.safetensors"
    write_old(encoders.get(name, encoders["bert"]), folder, modules, files, weights)
    return folder, files.get(GENERAL, {}).get("prompts", {}), {"allow_pickle": True} if pickled else {}


@pytest.mark.parametrize("name", OLD_FOLDERS)
def test_a_folder_of_an_older_release_gives_the_same_vectors(encoders, tmp_path, name):
    folder, prompts, options = old_folder(name, encoders, tmp_path / "folder")
    expected = expected_of(sentence_transformer(folder), prompts)
    assert_equal(answers(opened(folder, **options), prompts), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_saved_with_the_same_vectors(encoders, tmp_path, name):
    made = CASES[name]
    assert_both_ways(save(made, encoders[made.family], tmp_path / "theirs"), made.prompts, tmp_path / "ours")


@pytest.mark.slow
@pytest.mark.parametrize("name", OLD_FOLDERS)
def test_a_folder_of_an_older_release_is_saved_with_the_same_vectors(encoders, tmp_path, name):
    folder, prompts, options = old_folder(name, encoders, tmp_path / "theirs")
    assert_both_ways(folder, prompts, tmp_path / "ours", **options)


# --- any settings ---

DENSE = st.builds(
    Dense, st.integers(1, 30), st.sampled_from(["Tanh", "Identity", "GELU", "SiLU"]), st.booleans(), st.booleans()
)
NAMES = st.sampled_from(["query", "document", "passage", "corpus", 'Ünnamed "1"'])
PROMPT = st.sampled_from(["", " ", SHORT, LONG, "A", "Q:\n", "cat", "Ünnütz: 東京 "])


@st.composite
def folders(draw):
    """Settings of a folder of every kind."""
    prompts = draw(st.dictionaries(NAMES, PROMPT, max_size=3))
    poolings = st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=3).map(tuple)
    return Folder(
        family=draw(st.sampled_from(FAMILIES)),
        pooling=draw(st.sampled_from(POOLINGS) | poolings),
        include_prompt=draw(st.booleans()),
        behind=tuple(draw(st.lists(DENSE | st.just("normalize"), max_size=3))),
        prompts=prompts,
        default=draw(st.sampled_from([None, *prompts])),
        truncate=draw(st.none() | st.integers(1, 40)),
        similarity=draw(st.sampled_from([None, *SIMILARITIES])),
        # A window has room for the prompt and some of the text, since nothing is pooled otherwise.
        max_length=draw(st.sampled_from([34, 38, 40])),
        lowercase=draw(st.booleans()),
    )


def compare(encoders, made):
    with tempfile.TemporaryDirectory() as root:
        folder = save(made, encoders[made.family], Path(root) / "theirs")
        assert_both_ways(folder, made.prompts, Path(root) / "ours")


@given(made=folders())
@settings(max_examples=6)
def test_any_settings_are_read_and_saved_with_the_same_vectors(encoders, made):
    compare(encoders, made)


@pytest.mark.slow
@given(made=folders())
@settings(max_examples=80)
def test_many_settings_are_read_and_saved_with_the_same_vectors(encoders, made):
    compare(encoders, made)


# --- a real model ---


@pytest.fixture
def minilm(minilm_folder, tmp_path):
    """A copy of MiniLM that shares its weights, and says more than the original."""
    folder = tmp_path / "minilm"
    shutil.copytree(minilm_folder, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    (folder / "model.safetensors").symlink_to(minilm_folder / "model.safetensors")
    general = {"prompts": PROMPTS, "default_prompt_name": "passage", "truncate_dim": 50, "similarity_fn_name": "dot"}
    edit(folder / "config_sentence_transformers.json", general)
    edit(folder / "sentence_bert_config.json", {"max_seq_length": 24})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True])
def test_minilm_with_more_settings_is_read_and_saved_with_the_same_vectors(minilm, dense, tmp_path):
    edit(minilm / "1_Pooling" / "config.json", {"pooling_mode_cls_token": dense, "include_prompt": not dense})
    if dense:
        listed = json.loads((minilm / "modules.json").read_text())
        listed.insert(2, {"idx": 2, "name": "dense", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
        (minilm / "modules.json").write_text(json.dumps(listed))
        edit(minilm / "2_Dense" / "config.json", {"in_features": 768, "out_features": 64})
        write_dense(minilm / "2_Dense")
    assert_both_ways(minilm, PROMPTS, tmp_path / "again")
