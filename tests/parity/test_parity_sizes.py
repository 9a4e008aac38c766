"""Published sizes have the published number of parameters."""

import pytest
import torch
import transformers

from bothways.families import FAMILIES
from bothways.families.catalogue import count_parts

PUBLISHED = {size.name: (family, size) for family in FAMILIES.values() for size in family.published}

# Of the bare encoder with its pooler, where the family's published weights have a slot for one.
KNOWN = {
    "google-bert/bert-base-uncased": 109_482_240,
    "google-bert/bert-base-cased": 108_310_272,
    "google-bert/bert-large-uncased": 335_141_888,
    "google-bert/bert-large-cased": 333_579_264,
    "google-bert/bert-base-multilingual-cased": 177_853_440,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216,
    "distilbert/distilbert-base-uncased": 66_362_880,
    "distilbert/distilbert-base-cased": 65_190_912,
    "distilbert/distilbert-base-multilingual-cased": 134_734_080,
    "FacebookAI/roberta-base": 124_645_632,
    "FacebookAI/roberta-large": 355_359_744,
    "FacebookAI/xlm-roberta-base": 278_043_648,
    "FacebookAI/xlm-roberta-large": 559_890_432,
    "almanach/camembert-base": 110_621_952,
    "almanach/camembert-large": 336_661_504,
    "distilbert/distilroberta-base": 82_118_400,
    "albert/albert-base-v2": 11_683_584,
    "albert/albert-large-v2": 17_683_968,
    "albert/albert-xlarge-v2": 58_724_864,
    "albert/albert-xxlarge-v2": 222_595_584,
    "google/electra-base-discriminator": 108_891_648,
    "google/electra-large-discriminator": 334_092_288,
}


def count(family, size):
    return sum(count_parts(family.config(size.settings)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_as_many_parameters_as_in_transformers(name):
    family, size = PUBLISHED[name]
    config = transformers.AutoConfig.for_model(family.model_type, **size.settings)
    with torch.device("meta"):
        theirs = transformers.AutoModel.from_config(config)
    assert count(family, size) == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("name", KNOWN)
def test_a_published_size_has_the_number_of_parameters_known_for_it(name):
    assert count(*PUBLISHED[name]) == KNOWN[name]


def test_every_family_has_a_published_size():
    assert all(family.published for family in FAMILIES.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_that_a_configuration_leaves_out_mean_what_they_mean_in_transformers(name):
    family, size = PUBLISHED[name]
    complete = transformers.AutoConfig.for_model(family.model_type, **size.settings).to_dict()
    assert family.config(size.settings) == family.config(complete)
