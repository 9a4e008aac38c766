import pytest

from classifier_cases import without_dropout
from tiny_models import write_checkpoint


@pytest.fixture(scope="session")
def plain_bert(tmp_path_factory):
    """The folder of a tiny bare BERT without dropout, which no test writes to."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    return without_dropout(folder)
