"""A small corpus and tokenizers that were trained on it."""

import pytest
from pretraining_cases import TEXTS

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
