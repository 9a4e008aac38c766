"""Drawings of tokens and words of any length."""

import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from bothways.errors import InvalidInput
from bothways.explain import Attribution, Explanation, TextAttention, Word
from bothways.report import render
from bothways.report.explanation import explanation_page, explanation_picture
from bothways.report.token_maps import head_grid, token_map, word_weights


def attention(size, layers=2, heads=3, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.full(size, 0.1), (layers, heads, size))
    return TextAttention(tuple(f"t{at}" for at in range(size)), (True,) * size, weights)


def labels(svg):
    return [each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_every_token_of_a_short_text_is_named_and_a_few_of_a_long_one():
    short, long = attention(12), attention(512)
    assert [*labels(token_map(short.tokens, short.mean(), "map"))].count("t11") == 2
    named = labels(token_map(long.tokens, long.mean(), "map"))
    assert 40 < len(named) <= 81
    assert named[1:5] == ["t0", "t0", "t13", "t13"]


def test_a_long_map_shows_the_largest_weight_of_each_block():
    weights = np.zeros((256, 256))
    weights[201, 3] = 1.0
    drawn = ElementTree.fromstring(token_map(["x"] * 256, weights, "map"))
    paths = list(drawn.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == 1
    assert paths[0].get("fill-opacity") == "1.00"
    assert paths[0].get("d").count("M") == 1


def test_texts_of_512_tokens_are_drawn_quickly_and_small():
    shown = attention(512, layers=6, heads=12)
    began = time.process_time()
    page = render(explanation_page(Explanation("model", None, shown)))
    assert time.process_time() - began < 20
    assert len(page) < 6_000_000


def test_a_page_shows_words_attention_and_what_is_missing():
    words = (Word("good", 0, 0, 4), Word("<q>", 0, 5, 8), Word("ill", 1, 0, 3))
    found = Attribution("leave-one-out", "log odds of 'a'", 2.0, words, np.array([1.5, -0.5, np.nan]))
    page = render(explanation_page(Explanation("runs/x", found, None, ("attention, since so.",))))
    assert "&lt;q&gt;" in page
    assert "<q>" not in page
    for part in ("log odds of", "+1.500", "-0.500", "Not shown: attention, since so."):
        assert part in page
    picture = explanation_picture(Explanation("runs/x", found, attention(4)))
    assert {"good", "ill", "layer 0"} <= set(labels(picture))


def test_words_are_drawn_no_wider_than_a_phone_can_show_them():
    def width(words):
        return float(word_weights(words, np.ones(len(words)), "words").split('viewBox="0 0 ')[1].split()[0])

    assert width(["Lakers", "win"]) == 260
    assert 400 < width(["charming"] * 60) <= 560


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidInput, match="all pairs of 2 tokens"):
        token_map(["a", "b"], np.zeros((3, 3)), "map")
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        token_map(["a"], [[2.0]], "map")
    with pytest.raises(InvalidInput, match=r"shape \(L, N, S, S\)"):
        head_grid(np.zeros((2, 2)))
    with pytest.raises(InvalidInput, match="a weight for each of 2 words"):
        word_weights(["a", "b"], [1.0], "words")
