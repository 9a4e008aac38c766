"""One tiny model of each task, trained for a moment, and a server of all of them."""

import pytest
from serving_cases import running

from classifier_cases import without_dropout
from task_cases import CASES, fitted
from tiny_models import write_checkpoint


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a tiny encoder."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    return without_dropout(folder)


@pytest.fixture(scope="session")
def folders(base, tmp_path_factory):
    """Folders of trained models by task."""
    folder = tmp_path_factory.mktemp("models")
    for name in CASES:
        fitted(base, name).save(folder / name, golden=None)
    return {name: folder / name for name in CASES}


@pytest.fixture(scope="session")
def everything(folders):
    """A server of one model for each task."""
    with running(*folders.values()) as server:
        yield server
