"""Tiny checkpoints and labelled texts for the tests of the tasks."""

import pytest

from tiny_models import write_checkpoint


@pytest.fixture
def base(tmp_path):
    """The folder of a tiny bare BERT that reads 18 tokens."""
    write_checkpoint(tmp_path / "base")
    return tmp_path / "base"
