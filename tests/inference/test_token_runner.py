"""The runner of texts where the model gives a row for each token: which row is whose, and where the token stands."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.inference import TextOptions, text_runner
from bothways.text import Places, Window
from tiny_models import FIRST_WORD, VOCABULARY

CPU = torch.device("cpu")
LIMIT = 18  # positions of the tiny BERT

words = st.integers(FIRST_WORD, VOCABULARY - 1).map("w{}".format)
ragged_texts = st.lists(st.lists(words, min_size=1, max_size=40).map(" ".join), min_size=1, max_size=9)


def ids_and_positions(packed):
    """A trivial model: the id and the position of each token."""
    return torch.stack([packed.ids_T, packed.positions_T], 1).float()


def runner_of(model, forward=ids_and_positions, tokens=None, **reading):
    options = TextOptions(**{"max_length": LIMIT, **reading})
    return text_runner(model.tokenizer, forward, CPU, options, tokens, per_token=True)


def ids_of(model, text):
    return model.tokenizer.encode([text], max_length=10_000)[0].windows[0].ids[1:-1]


@given(ragged_texts, st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=60)
def test_each_token_has_the_row_of_its_own_and_stands_where_the_text_has_it(model, texts, tokens, block_texts):
    answers = list(runner_of(model, tokens=tokens, block_texts=block_texts).run(texts))
    assert len(answers) == len(texts)
    for text, answer in zip(texts, answers, strict=True):
        ids, seen = ids_of(model, text), set()
        for rows_nK, places in zip(answer.rows, answer.places, strict=True):
            assert rows_nK[:, 1].tolist() == list(range(len(rows_nK)))
            assert places.sequences_n.tolist() == [-1, *[0] * (len(rows_nK) - 2), -1]
            for place, row in enumerate(rows_nK[1:-1]):
                number = places.start + place
                assert row[0] == ids[number]
                assert text[places.begins_n[place + 1] : places.ends_n[place + 1]] == text.split()[number]
                seen.add(number)
        assert seen == set(range(len(ids)))
        assert answer.dropped_tokens == 0


def test_batches_filled_to_whole_blocks_give_the_rows_that_were_asked_for(model):
    text = " ".join(f"w{FIRST_WORD + number}" for number in range(LIMIT - 3))
    for answer in runner_of(model, tokens=64 * 60).run([text] * 70):
        assert answer.rows[0][1:-1, 0].tolist() == ids_of(model, text)


def test_tokens_of_a_pair_say_which_text_they_are_of(model):
    [answer] = runner_of(model).run([("w5 w6", "w7")])
    assert answer.places[0].sequences_n.tolist() == [-1, 0, 0, -1, 1, -1]
    assert answer.places[0].begins_n.tolist() == [0, 0, 3, 0, 0, 0]


def test_cut_texts_say_how_much_was_dropped(model):
    text = " ".join(f"w{FIRST_WORD + number}" for number in range(20))
    [answer] = runner_of(model, on_overflow="truncate").run([text])
    assert (len(answer.rows), answer.dropped_tokens) == (1, 20 - (LIMIT - 2))


def test_stored_windows_keep_the_places_of_their_tokens(model):
    texts = [" ".join(f"w{FIRST_WORD + number}" for number in range(count)) for count in (3, 40, 1)]
    encoded = model.tokenizer.encode(texts, max_length=LIMIT, offsets=True)
    store = WindowStore.of(encoded)
    windows = [window for text in encoded for window in text.windows]
    assert len(windows) > 4
    for number, window in enumerate(windows):
        stored, right = store.places(number), Places.of(window)
        assert stored.start == right.start
        for name in ("begins_n", "ends_n", "sequences_n"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(right, name))


def test_places_are_refused_where_texts_were_encoded_without_offsets(model):
    with pytest.raises(InvalidInput, match="offsets=True"):
        WindowStore.of(model.tokenizer.encode(["w5"], max_length=LIMIT)).places(0)
    with pytest.raises(InvalidInput, match="offsets=True"):
        Places.of(Window([1], [0]))
