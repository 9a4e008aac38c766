import pytest

from bothways import load


@pytest.fixture(scope="session")
def model(tiny_bert):
    return load(tiny_bert, device="cpu")
