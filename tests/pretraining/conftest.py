"""A small corpus and tokenizers that were trained on it."""

from dataclasses import replace

import pytest
from pretraining_cases import corpus_of, tiny

from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import RECIPES, scaled

KINDS = ("wordpiece", "bpe", "unigram")


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    return {kind: corpus_of(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="session")
def trained_tokenizers(_trained):
    """A tokenizer of each kind."""
    return {kind: _trained[kind][0] for kind in KINDS}


@pytest.fixture(scope="session")
def corpora(_trained):
    """Shards of each tokenizer."""
    return {kind: _trained[kind][1] for kind in KINDS}


@pytest.fixture
def make(trained_tokenizers, corpora):
    """A factory: a pretrainer of a recipe with a very small model, and its corpus."""

    def made(name="roberta", **changes):
        kind = RECIPES[name].tokenizer
        small = replace(tiny(scaled(RECIPES[name], "tiny")), **changes)
        return Pretrainer(small, trained_tokenizers[kind], device="cpu"), corpora[kind]

    return made
