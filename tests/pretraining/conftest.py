"""A small corpus and tokenizers that were trained on it."""

import json

import pytest
from pretraining_cases import TEXTS

from bothways.data.shards import ShardSource, TokenCorpus, write_shards
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
