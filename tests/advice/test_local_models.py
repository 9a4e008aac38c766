"""Models that need no download: in installed packages, in the hub cache, and in folders."""

import json

import huggingface_hub.constants
import pytest

from bothways.advice import LocalModel, find_local_models
from tiny_models import edit_config, write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Return what is found in the folder ``here``, without what is installed; by name."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("bothways.checkpoints.hub.EMBEDDED", {})
    return lambda: {each.name: each for each in find_local_models(tmp_path / "here")}


def size(folder):
    return (folder / "model.safetensors").stat().st_size / 1e6


def test_without_local_models_the_list_is_empty(found):
    assert found() == {}


def test_the_hub_cache_and_folders_are_searched(found, tmp_path):
    repository = tmp_path / "hub" / "models--someone--a-model"
    cached = repository / "snapshots" / COMMIT
    write_checkpoint(cached)
    near, deep = tmp_path / "here" / "near", tmp_path / "here" / "runs" / "deep"
    for folder in (near, deep, tmp_path / "here" / "a" / "b" / "too-deep", tmp_path / "here" / ".hidden"):
        write_checkpoint(folder, "roberta")
    (deep / "bothways.json").write_text(json.dumps({"task": "classification"}))
    assert found() == {
        "someone/a-model": LocalModel("someone/a-model", "bert", "", COMMIT, False, size(cached)),
        str(near): LocalModel(str(near), "roberta", "", None, True, size(near)),
        str(deep): LocalModel(str(deep), "roberta", "classification", None, True, size(deep)),
    }
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert found()["someone/a-model"].by_name is True


def test_parts_of_a_model_are_no_models_and_their_weights_count(found, tmp_path):
    whole = tmp_path / "here" / "ensemble"
    for name in ("0", "1"):
        write_checkpoint(whole / name)
    (whole / "bothways.json").write_text(json.dumps({"task": "ensemble"}))
    assert list(found()) == [str(whole)]
    assert found()[str(whole)].weights_mb == pytest.approx(2 * size(whole / "0"))


@pytest.mark.parametrize("spoiled", ["decoder", "own code", "no weights", "no json"])
def test_a_folder_that_cannot_be_loaded_is_not_listed(found, tmp_path, spoiled):
    folder = tmp_path / "here" / "model"
    write_checkpoint(folder)
    if spoiled == "decoder":
        edit_config(folder, model_type="gpt2")
    elif spoiled == "own code":
        edit_config(folder, auto_map={"AutoModel": "modeling_x.XModel"})
    elif spoiled == "no weights":
        (folder / "model.safetensors").unlink()
    else:
        (folder / "config.json").write_text("{")
    assert found() == {}
