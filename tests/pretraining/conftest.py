"""A small corpus and tokenizers that were trained on it."""

import json
from dataclasses import replace

import pytest
from pretraining_cases import TEXTS, tiny

from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import RECIPES, scaled
from bothways.text import TextTokenizer, recipes
from bothways.text.training import train_tokenizer, write_trained_tokenizer


@pytest.fixture(scope="session")
def trained_tokenizers(tmp_path_factory):
    """A tokenizer of each kind."""
    found = {}
    for kind in ("wordpiece", "bpe", "unigram"):
        folder = tmp_path_factory.mktemp("tokenizers") / kind
        write_trained_tokenizer(train_tokenizer(TEXTS, kind, 300), folder)
        found[kind] = TextTokenizer.from_folder(folder, recipes.TRAINED)
    return found


@pytest.fixture(scope="session")
def corpora(trained_tokenizers, tmp_path_factory):
    """Shards of each tokenizer."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    for kind, tokenizer in trained_tokenizers.items():
        write_shards(ShardSource([folder / "texts.jsonl"]), folder / kind, tokenizer, show_progress=False)
    return {kind: TokenCorpus.open(folder / kind) for kind in trained_tokenizers}


@pytest.fixture
def make(trained_tokenizers, corpora):
    """A factory: a pretrainer of a recipe with a very small model, and its corpus."""

    def made(name="roberta", **changes):
        kind = RECIPES[name].tokenizer
        small = replace(tiny(scaled(RECIPES[name], "tiny")), **changes)
        return Pretrainer(small, trained_tokenizers[kind], device="cpu"), corpora[kind]

    return made
