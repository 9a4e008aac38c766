import pytest
from explained import fitted

from tiny_models import write_checkpoint


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    """A classifier that knows its few words; no test changes it."""
    folder = tmp_path_factory.mktemp("explain") / "base"
    write_checkpoint(folder)
    return fitted(folder, epochs=12)
