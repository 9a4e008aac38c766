"""The passage that is shown of a hit: where the rarest words of the query stand together, and which they are."""

import numpy as np
import pytest

from bothways.retrieval import EncoderIdentity, SearchIndex
from bothways.retrieval.lexical import LexicalIndex, passage_of, terms_of

FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor "


def marked(passage):
    return [passage.text[start:end] for start, end in passage.marked]


def weighted(query):
    return dict.fromkeys(terms_of(query), 1.0)


def test_a_short_text_is_shown_whole():
    passage = passage_of("Birds  fly\nsouth.", weighted("birds"), terms_of)
    assert passage.text == "Birds fly south."
    assert marked(passage) == ["Birds"]
    assert "".join(part for part, _ in passage.parts()) == passage.text
    assert [part for part, word in passage.parts() if word] == ["Birds"]


def test_a_long_text_is_shown_where_most_words_of_the_query_stand():
    text = "Birds first. " + FILLER * 10 + "How do birds fly over mountains? " + FILLER * 10
    passage = passage_of(text, weighted("birds fly mountains"), terms_of)
    assert marked(passage) == ["birds", "fly", "mountains"]
    assert passage.text.startswith("…")
    assert passage.text.endswith("…")
    assert len(passage.text) <= 202
    # It begins and ends between words.
    assert set(passage.text.strip("…").split()) <= set(text.split())
    place = passage.text.index("birds")
    assert 60 < place < 140


def test_rare_words_decide_and_frequent_ones_are_not_marked():
    text = "the the the the and the " * 20 + "an osprey " + FILLER * 5
    passage = passage_of(text, {"the": 0.01, "osprey": 5.0}, terms_of)
    assert marked(passage) == ["osprey"]


def test_without_a_word_of_the_query_the_beginning_is_shown():
    passage = passage_of(FILLER * 10, weighted("penguin"), terms_of)
    assert passage.text.startswith("lorem ipsum")
    assert passage.marked == ()
    assert len(passage.text) <= 201
    assert passage_of("", {}, terms_of).text == ""


@pytest.mark.parametrize(
    ("text", "query", "words"),
    [
        ("東京は日本の首都です", "東京", ["東京"]),
        ("東京は日本の首都です", "都", ["都"]),
        ("Cafe\N{COMBINING ACUTE ACCENT} Noir", "CAFÉ", ["Café"]),
        ("हिन्दी भाषा", "भाषा", ["भाषा"]),
    ],
)
def test_words_of_every_script_are_found(text, query, words):
    assert marked(passage_of(text, weighted(query), terms_of)) == words


def test_an_index_shows_the_passage_of_a_hit():
    pytest.importorskip("bm25s")
    encoder = EncoderIdentity(name="x", fingerprint="y", pooling="mean", dimensions=2)
    index = SearchIndex.build(np.eye(2, dtype=np.float32), texts=["the birds", "cats"], encoder=encoder)
    assert marked(index.passage("bird", "the birds")) == ["birds"]


def test_an_index_finds_words_by_their_stems_and_weighs_them_by_how_rare_they_are():
    pytest.importorskip("bm25s")
    texts = ["the bird flies", "the cat sleeps", "the dog runs", "the birds sing"]
    index = LexicalIndex.build(texts, "english")
    weights = index.weights("The birds flying unicorn")
    assert set(weights) == {"the", "bird", "fli"}
    assert weights["fli"] > weights["bird"] > weights["the"] > 0
    assert marked(index.passage("the birds flying", texts[0])) == ["bird", "flies"]
