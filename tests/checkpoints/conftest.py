"""A tiny checkpoint folder that each test may spoil."""

import pytest

from tiny_models import write_checkpoint


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"
