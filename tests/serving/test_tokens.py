"""A token that is in several windows is given once, from the window in which it stands farthest from the ends."""

import numpy as np
import pytest

from bothways import TextTagger
from bothways.errors import InvalidInput
from bothways.inference.texts import TextOptions, TextRunner, TokenBudget
from bothways.serving.api.vectors import encoded_ids, rows_of_tokens
from task_cases import LONG


class Distances:
    """Gives each token its distance from the nearer end of its window, and the window's place in the text."""

    budget = TokenBudget(100)

    def run(self, windows):
        return [
            np.array([[min(row + 1, len(window.ids) - row), window.start] for row in range(len(window.ids))])
            for window in windows
        ]


@pytest.fixture(scope="module")
def runner(folders):
    tokenizer = TextTagger.from_pretrained(folders["tagging"]).backend.tokenizer
    return TextRunner(tokenizer, Distances(), TextOptions(18, stride=6), per_token=True)


def test_each_token_comes_from_where_it_has_the_most_context(runner):
    encoded = runner.tokenize([LONG])
    (found,) = rows_of_tokens(runner, encoded, special=False)
    assert [LONG[begin:end] for begin, end in found.places] == LONG.split()
    assert found.indices == list(range(1, 46))
    windows = [(window.start, len(window.ids)) for window in encoded[0].windows]
    assert len(windows) > 3
    for index, (distance, start) in zip(found.indices, found.rows_TK, strict=True):
        own = {
            begin: min(index - begin + 1, size - (index - begin))
            for begin, size in windows
            if 0 < index - begin < size - 1
        }
        assert distance == own[start] == max(own.values())


def test_special_tokens_stand_around_the_whole_text(runner):
    (bare,) = rows_of_tokens(runner, runner.tokenize([LONG]), special=False)
    (whole,) = rows_of_tokens(runner, runner.tokenize([LONG]), special=True)
    assert whole.ids == [1, *bare.ids, 2]
    assert (whole.places[0], whole.places[-1]) == ((0, 0), (0, 0))
    assert whole.rows_TK[[0, -1], 0].tolist() == [1, 1]
    assert whole.rows_TK[-1, 1] == max(bare.rows_TK[:, 1])


def test_ids_are_one_window_without_special_tokens_of_their_own(runner):
    (found,) = rows_of_tokens(runner, encoded_ids([[5, 6, 7]], runner, 61), special=True)
    assert (found.ids, len(found.rows_TK)) == ([5, 6, 7], 3)


@pytest.mark.parametrize("ids", [[], [5] * 19, [61], [-1]])
def test_ids_that_the_model_cannot_read_are_refused(runner, ids):
    with pytest.raises(InvalidInput, match=r"for text 2|text 2 has"):
        encoded_ids([[5], ids], runner, 61)
