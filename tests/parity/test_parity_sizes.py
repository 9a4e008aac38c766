"""Published sizes have the published number of parameters."""

import pytest
import torch
import transformers

from bothways.encoder import Pooler, count_parameters
from bothways.encoder.config import TanhPooler
from bothways.families import FAMILIES

PUBLISHED = {size.name: (family, size) for family in FAMILIES.values() for size in family.published}


def count(family, size):
    config = family.config(size.settings)
    with torch.device("meta"):
        pooler = Pooler(config) if isinstance(config.pooler, TanhPooler) else None
    return count_parameters(config) + sum(value.numel() for value in (pooler.parameters() if pooler else ()))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_as_many_parameters_as_in_transformers(name):
    family, size = PUBLISHED[name]
    config = transformers.AutoConfig.for_model(family.model_type, **size.settings)
    with torch.device("meta"):
        theirs = transformers.AutoModel.from_config(config)
    assert count(family, size) == sum(parameter.numel() for parameter in theirs.parameters())


def test_every_family_has_a_published_size():
    assert all(family.published for family in FAMILIES.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_that_a_configuration_leaves_out_mean_what_they_mean_in_transformers(name):
    family, size = PUBLISHED[name]
    complete = transformers.AutoConfig.for_model(family.model_type, **size.settings).to_dict()
    assert family.config(size.settings) == family.config(complete)
