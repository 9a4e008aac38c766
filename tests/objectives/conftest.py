"""Tokenizers and a corpus of tiny documents."""

import pytest
from corpora import random_documents, tiny_tokenizer, write_corpus

from bothways.objectives.corpus import CorpusPieces


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), "electra")


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), "xlnet")


@pytest.fixture(scope="module")
def source(tokenizer, tmp_path_factory):
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), tokenizer, random_documents(0, 12))
    return CorpusPieces.of(corpus, tokenizer, 18)
