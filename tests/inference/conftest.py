import pytest

from bothways import load
from tiny_models import write_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder)
    return load(folder, device="cpu")
