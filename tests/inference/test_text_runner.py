"""The runner of texts: order, batch invariance, laziness, flat memory, errors, and running out of memory."""

import itertools
import threading
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.data.windows import WindowStore
from bothways.encoder.linear import rows_to_fill
from bothways.errors import InvalidInput, TextTooLong
from bothways.inference import TextOptions, text_runner
from bothways.products import ROW_BLOCK, matrix_product
from bothways.text import Places, Window
from tiny_models import FIRST_WORD, VOCABULARY

CPU = torch.device("cpu")
LIMIT = 18  # positions of the tiny BERT
LIMIT_WORDS = LIMIT - 2

words = st.integers(FIRST_WORD, VOCABULARY - 1).map("w{}".format)
ragged_texts = st.lists(st.lists(words, min_size=1, max_size=40).map(" ".join), min_size=1, max_size=9)


def text_of(length, first=0):
    """A text of so many words, and tokens."""
    return " ".join(f"w{FIRST_WORD + (first + place) % (VOCABULARY - FIRST_WORD)}" for place in range(length))


def means(packed):
    """A trivial model: the mean id and the length of each window."""
    parts = packed.ids_T.float().split(list(packed.lengths))
    return torch.stack([torch.stack([part.mean(), torch.tensor(float(len(part)))]) for part in parts])


def runner_of(model, forward=means, tokens=None, **reading):
    return text_runner(model.tokenizer, forward, CPU, TextOptions(**{"max_length": LIMIT, **reading}), tokens)


def first_states(model):
    return lambda packed: model.encoder(packed)[packed.first_tokens_B]


def expected_rows(model, text):
    """What `means` says of a text, without the runner."""
    encoded = model.tokenizer.encode([text], max_length=LIMIT)[0]
    return np.array([[np.mean(window.ids), len(window.ids)] for window in encoded.windows])


def tokenizer_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokenizer")]


@given(ragged_texts, st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=60)
def test_answers_come_in_the_order_of_the_texts_whatever_their_lengths(model, texts, tokens, block_texts):
    answers = list(runner_of(model, tokens=tokens, block_texts=block_texts).run(texts))
    assert len(answers) == len(texts)
    for text, answer in zip(texts, answers, strict=True):
        np.testing.assert_allclose(answer.rows_WK, expected_rows(model, text), rtol=1e-6)
        assert answer.lengths == tuple(answer.rows_WK[:, 1])


@pytest.mark.usefixtures("one_thread")  # which computes a batch whole
@pytest.mark.parametrize("texts", [1, 3, 70, 127, 200])
def test_large_batches_are_filled_to_whole_blocks_that_nobody_reads(model, texts):
    seen = []

    def forward(packed):
        seen.append(len(packed.ids_T))
        return means(packed)

    given_texts = [text_of(LIMIT_WORDS - 1, first) for first in range(texts)]
    answers = list(runner_of(model, forward, tokens=64 * 60).run(given_texts))
    real = texts * (LIMIT - 1)
    full = -(-real // ROW_BLOCK) * ROW_BLOCK
    [rows] = seen
    if real <= matrix_product().packed_rows:
        assert rows == real + rows_to_fill(real) <= full
    else:
        filling = matrix_product().filling
        assert rows in (real, full)
        assert rows - real <= filling * real
        assert rows == full or full > (1 + filling) * real
    assert len(answers) == texts
    for text, answer in zip(given_texts, answers, strict=True):
        np.testing.assert_allclose(answer.rows_WK, expected_rows(model, text), rtol=1e-6)


@given(ragged_texts, st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=40)
def test_an_answer_depends_on_neither_its_batch_nor_the_budget_nor_the_block(model, texts, tokens, block_texts):
    forward = first_states(model)
    together = list(runner_of(model, forward, tokens=tokens, block_texts=block_texts).run(texts))
    for text, answer in zip(texts, together, strict=True):
        alone = next(runner_of(model, forward).run([text]))
        np.testing.assert_allclose(answer.rows_WK, alone.rows_WK, rtol=0, atol=1e-5)


def test_an_endless_iterator_is_answered_as_it_goes_and_read_three_blocks_ahead_at_most(model):
    read = Counter()

    def endless():
        for number in itertools.count():
            read["texts"] += 1
            yield text_of(1 + number % 5, number)

    answers = runner_of(model, block_texts=8).run(endless())
    assert read["texts"] == 0  # nothing before the first answer is asked for
    for done in range(1, 101):
        next(answers)
        assert read["texts"] <= done + 3 * 8
    answers.close()
    assert not tokenizer_threads()


def test_blocks_are_bounded_by_characters_too(model):
    read = Counter()

    def long_texts():
        for _ in range(50):
            read["texts"] += 1
            yield text_of(300)

    next(runner_of(model, block_texts=1000, block_characters=2000).run(long_texts()))
    assert read["texts"] <= 3 * 2


def test_memory_stays_flat_however_many_texts_go_through(model):
    def peak(count):
        runner = runner_of(model, lambda packed: torch.zeros(len(packed.lengths), 1), block_texts=256)
        stream = runner.run(text_of(1 + number % 3, number) for number in range(count))
        tracemalloc.start()
        try:
            assert sum(1 for _ in stream) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak(1_500)
    assert peak(6_000) < 1.2 * few + 200_000


def test_the_next_block_is_tokenised_in_another_thread(model, monkeypatch):
    encode, threads = model.tokenizer.encode, []

    def recording(*args, **kwargs):
        threads.append(threading.get_ident())
        return encode(*args, **kwargs)

    monkeypatch.setattr(model.tokenizer, "encode", recording)
    computing = []

    def forward(packed):
        computing.append(threading.get_ident())
        return means(packed)

    assert len(list(runner_of(model, forward, block_texts=2).run([text_of(3)] * 9))) == 9
    assert len(threads) == 5
    assert set(computing) == {threading.get_ident()}
    assert threading.get_ident() not in threads


def test_tokenising_goes_on_while_the_model_computes(model, monkeypatch):
    encode, third = model.tokenizer.encode, threading.Event()
    calls = Counter()

    def recording(*args, **kwargs):
        calls["encode"] += 1
        if calls["encode"] == 3:
            third.set()
        return encode(*args, **kwargs)

    monkeypatch.setattr(model.tokenizer, "encode", recording)
    # The first block's forward pass returns only once the third block is being tokenised.
    waited = []

    def forward(packed):
        waited.append(third.wait(timeout=30))
        return means(packed)

    assert len(list(runner_of(model, forward, block_texts=2).run([text_of(3)] * 6))) == 6
    assert all(waited)


def test_no_text_gives_no_answer(model):
    assert list(runner_of(model).run([])) == []
    assert list(runner_of(model).run(iter(()))) == []


@pytest.mark.parametrize("bad_at", [0, 1, 7, 20])
def test_an_error_of_the_iterator_comes_through_once_and_no_thread_stays(model, bad_at):
    class BrokenError(Exception):
        pass

    def texts():
        for number in range(30):
            if number == bad_at:
                raise BrokenError
            yield text_of(2, number)

    answers = runner_of(model, block_texts=4).run(texts())
    with pytest.raises(BrokenError):
        list(answers)
    assert next(answers, None) is None
    assert not tokenizer_threads()


@pytest.mark.parametrize("too_long_at", [0, 1, 9, 29])
def test_an_error_of_the_tokeniser_comes_through_once_and_no_thread_stays(model, too_long_at):
    texts = [text_of(40 if number == too_long_at else 3) for number in range(30)]
    answers = runner_of(model, block_texts=4, on_overflow="error").run(texts)
    with pytest.raises(TextTooLong, match=f"text {too_long_at + 1} has 40 tokens"):
        list(answers)
    assert next(answers, None) is None
    assert not tokenizer_threads()


def test_an_error_of_the_model_comes_through_and_no_thread_stays(model):
    def forward(packed):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        list(runner_of(model, forward, block_texts=4).run([text_of(3)] * 30))
    assert not tokenizer_threads()


def test_a_longer_stride_gives_more_windows(model):
    long = [text_of(50)]
    few, many = (next(runner_of(model, stride=stride).run(long)) for stride in (0, LIMIT_WORDS - 1))
    assert (len(few.rows_WK), len(many.rows_WK)) == (-(-50 // LIMIT_WORDS), 50 - LIMIT_WORDS + 1)


def test_cut_texts_say_how_much_was_dropped(model):
    [answer] = token_runner_of(model, on_overflow="truncate").run([text_of(20)])
    assert (len(answer.rows), answer.dropped_tokens) == (1, 20 - LIMIT_WORDS)
    answers = list(runner_of(model, on_overflow="truncate").run([text_of(LIMIT_WORDS), text_of(50)]))
    assert [answer.dropped_tokens for answer in answers] == [0, 50 - LIMIT_WORDS]
    assert [answer.lengths for answer in answers] == [(LIMIT,), (LIMIT,)]


@pytest.mark.parametrize("index", [0, 5, 13])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        *((text, "is empty") for text in ("", "  \n\t", "\u3000", ("w5", " "))),
        *((value, "to be a str or a tuple of two str") for value in (None, 3, b"bytes", ["w5", "w6"], ("w5", None))),
        ("w5 \ud83d", "has half of a surrogate pair"),
    ],
)
def test_what_is_no_text_is_refused_by_its_number(model, bad, words, index):
    texts = [bad if number == index else text_of(2) for number in range(14)]
    with pytest.raises(InvalidInput, match=rf"text {index + 1} {words}"):
        list(runner_of(model, block_texts=4).run(texts))


def test_pairs_of_texts_are_read_as_one(model):
    answer, _ = runner_of(model).run([("w5 w6", "w7"), "w5"])
    assert answer.lengths == (6,)  # [CLS] w5 w6 [SEP] w7 [SEP]


@pytest.mark.parametrize("name", ["tokens", "block_texts", "block_characters"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_budget_below_one_is_refused(model, name, value):
    with pytest.raises(InvalidInput, match=f"{name} must be at least 1, but it is {value}"):
        runner_of(model, **{name: value})


@pytest.mark.parametrize(("tokens", "texts"), [(None, 1024), (8192, 2048)])
def test_blocks_are_large_enough_for_short_texts_to_fill_a_batch(model, tokens, texts):
    taken = itertools.count()
    answers = runner_of(model, tokens=tokens).run(text_of(2) for _ in taken)
    next(answers)
    # Two blocks were encoded, and a third was read.
    assert next(taken) in range(2 * texts, 3 * texts + 2)


# --- a row for each token ---


def ids_and_positions(packed):
    """A trivial model: the id and the position of each token."""
    return torch.stack([packed.ids_T, packed.positions_T], 1).float()


def token_runner_of(model, tokens=None, **reading):
    options = TextOptions(**{"max_length": LIMIT, **reading})
    return text_runner(model.tokenizer, ids_and_positions, CPU, options, tokens, per_token=True)


def ids_of(model, text):
    return model.tokenizer.encode([text], max_length=10_000)[0].windows[0].ids[1:-1]


@given(ragged_texts, st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=60)
def test_each_token_has_the_row_of_its_own_and_stands_where_the_text_has_it(model, texts, tokens, block_texts):
    answers = list(token_runner_of(model, tokens=tokens, block_texts=block_texts).run(texts))
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
    text = text_of(LIMIT - 3)
    for answer in token_runner_of(model, tokens=64 * 60).run([text] * 70):
        assert answer.rows[0][1:-1, 0].tolist() == ids_of(model, text)


def test_tokens_of_a_pair_say_which_text_they_are_of(model):
    [answer] = token_runner_of(model).run([("w5 w6", "w7")])
    assert answer.places[0].sequences_n.tolist() == [-1, 0, 0, -1, 1, -1]
    assert answer.places[0].begins_n.tolist() == [0, 0, 3, 0, 0, 0]


def test_stored_windows_keep_the_places_of_their_tokens(model):
    texts = [text_of(count) for count in (3, 40, 1)]
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
