"""A tiny checkpoint folder that each test may spoil, and classifiers above sentence embedders."""

import pytest
from above_embedders import trained

from contract_cases import write_embedder
from tiny_models import write_checkpoint


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A factory: a classifier above a sentence embedder and the folder that it saved itself into, made once."""
    made = {}

    def make(model_type="bert", kind="text", target="single", normalize=True):
        key = model_type, kind, target, normalize
        if key not in made:
            folder = tmp_path_factory.mktemp("-".join(map(str, key)))
            classifier = trained(write_embedder(folder / "base", model_type, normalize=normalize), kind, target)
            classifier.save(folder / "saved")
            made[key] = classifier, folder / "saved"
        return made[key]

    return make
