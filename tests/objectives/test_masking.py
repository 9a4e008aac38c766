"""Masking: seeded by epoch and sequence, in the shares of the papers, for tokens, words, spans and n-grams."""

import numpy as np
import pytest

from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.objectives.masking import Masker, Masking, NGramMasking, SpanMasking, TokenMasking, WholeWordMasking
from bothways.text import TextTokenizer
from tiny_models import VOCABULARY, write_tokenizer

MASK = 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, "bert")
    return TextTokenizer.from_folder(folder, FAMILIES["bert"].tokenizer)


def sequence(length, seed):
    """Ordinary tokens between two special ones, with a special one among them."""
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, length).astype(np.int32)
    ids[0], ids[-1], ids[length // 2] = 1, 2, 3
    return ids


def test_places_are_spread_evenly_over_a_sequence(tokenizer):
    masker = Masker(tokenizer, Masking(), seed=0)
    ids = sequence(43, 0)
    counts = np.zeros(43)
    for epoch in range(4000):
        np.add.at(counts, masker.training(ids, epoch, 0).places_M, 1)
    free = np.delete(counts, [0, 21, 42]) / 4000
    assert np.abs(free - 0.15).max() < 4 * (0.15 * 0.85 / 4000) ** 0.5


def test_a_short_sequence_has_one_chosen_place_at_least(tokenizer):
    masker = Masker(tokenizer, Masking(), seed=0)
    ids = np.array([1, 7, 2], dtype=np.int32)
    assert all(len(masker.training(ids, epoch, 0).places_M) == 1 for epoch in range(50))


def test_masks_do_not_touch_the_global_generators(tokenizer):
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    Masker(tokenizer, Masking(), 0).training(sequence(50, 0), 0, 0)
    assert np.array_equal(np.random.get_state()[1], before)


def test_validation_masks_are_always_the_same_and_not_those_of_training(tokenizer):
    masker, ids = Masker(tokenizer, Masking(), 7), sequence(200, 0)
    first, second = masker.validation(ids, 0), masker.validation(ids, 0)
    assert np.array_equal(first.ids_n, second.ids_n)
    assert not any(np.array_equal(first.places_M, masker.training(ids, epoch, 0).places_M) for epoch in range(5))


@pytest.mark.parametrize("masking", [Masking(1.0, 1.0, 0.0), Masking(0.5, 0.0, 1.0), Masking(0.5, 0.0, 0.0)])
def test_other_shares_are_kept_to(tokenizer, masking):
    result = Masker(tokenizer, masking, 0).training(sequence(203, 0), 0, 0)
    read = result.ids_n[result.places_M]
    assert len(result.places_M) == round(200 * masking.fraction)
    if masking.masked:
        assert (read == MASK).all()
    elif masking.random:
        assert (read != result.targets_M).mean() > 0.9
    else:
        assert (read == result.targets_M).all()


def test_ordinary_tokens_are_counted_for_each_sequence(tokenizer):
    encoded = tokenizer.encode(["w5 w6", "zebra", "w7 zebra w8 w9"], max_length=18)
    assert Masker(tokenizer, Masking(), 0).ordinary_tokens(WindowStore.of(encoded)).tolist() == [2, 0, 3]


@pytest.mark.parametrize("shares", [(0.0, 0.8, 0.1), (1.1, 0.8, 0.1), (0.15, 0.9, 0.2), (0.15, -0.1, 0.1)])
def test_shares_out_of_range_are_refused(shares):
    with pytest.raises(InvalidInput, match=r"must be .* at most 1, got"):
        Masking(*shares)


UNITS = [TokenMasking(), WholeWordMasking(), SpanMasking(), NGramMasking()]
SPECIALS = 5


class Pieces:
    """A tokenizer of 100 tokens, of which those from 60 on go on with a word."""

    mask_id = MASK
    special_ids = frozenset(range(SPECIALS))

    class word_marks:  # noqa: N801 (an attribute of a tokenizer)
        @staticmethod
        def continues(piece):
            return piece.startswith("##")

    @staticmethod
    def vocabulary():
        return {number: f"##p{number}" if number >= 60 else f"p{number}" for number in range(100)}


def sequence_of_words(length, seed):
    """Words of one to several pieces between special tokens."""
    draw = np.random.default_rng(seed)
    ids = np.where(draw.random(length) < 0.3, draw.integers(60, 100, length), draw.integers(5, 60, length))
    ids[0], ids[-1], ids[1] = 1, 2, 7
    return ids.astype(np.int32)


def words(ids):
    """The number of each token's word."""
    return np.cumsum((ids < 60) | (np.arange(len(ids)) == 0))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_the_share_that_is_chosen_and_what_becomes_of_it_are_as_asked_for(unit):
    masker = Masker(Pieces(), Masking(unit=unit), seed=1)
    ordinary = chosen = masked = kept = 0
    drawn = np.zeros(100)
    for number in range(800):
        ids = sequence_of_words(130, number)
        before = ids.copy()
        result = masker.training(ids, 0, number)
        assert np.array_equal(ids, before)
        assert np.array_equal(result.targets_M, ids[result.places_M])
        assert np.array_equal(np.unique(result.places_M), result.places_M)
        assert not np.isin(ids[result.places_M], range(SPECIALS)).any()
        assert np.array_equal(np.delete(result.ids_n, result.places_M), np.delete(ids, result.places_M))
        read = result.ids_n[result.places_M]
        ordinary, chosen = ordinary + 128, chosen + len(read)
        masked, kept = masked + int((read == MASK).sum()), kept + int((read == result.targets_M).sum())
        np.add.at(drawn, read[(read != MASK) & (read != result.targets_M)], 1)
    assert ordinary > 100_000
    assert chosen / ordinary == pytest.approx(0.15, abs=0.003)
    assert masked / chosen == pytest.approx(0.8, abs=0.02)
    assert kept / chosen == pytest.approx(0.1 + 0.1 / 95, abs=0.015)
    assert drawn[:SPECIALS].sum() == 0
    assert (drawn[SPECIALS:] > 0).all()
    assert drawn[SPECIALS:].max() < 2 * drawn[SPECIALS:].mean()


@pytest.mark.parametrize("unit", UNITS[1:], ids=lambda unit: type(unit).__name__)
def test_the_pieces_of_a_word_are_chosen_together(unit):
    masker = Masker(Pieces(), Masking(unit=unit), seed=2)
    for number in range(200):
        ids = sequence_of_words(60, number)
        result, word_n = masker.training(ids, 0, number), words(ids)
        inside = np.isin(np.arange(len(ids)), result.places_M)
        for word in np.unique(word_n[result.places_M]):
            assert inside[word_n == word].all()


def test_spans_become_masks_or_other_tokens_as_a_whole():
    masker = Masker(Pieces(), Masking(unit=SpanMasking()), seed=3)
    for number in range(200):
        ids = sequence_of_words(200, number)
        result = masker.training(ids, 0, number)
        is_mask = result.ids_n[result.places_M] == MASK
        together = np.diff(result.places_M) == 1
        assert (is_mask[1:][together] == is_mask[:-1][together]).all()


@pytest.mark.parametrize(("unit", "mean"), [(SpanMasking(), 3.80), (NGramMasking(), 18 / 11)])
def test_runs_have_the_lengths_of_the_papers(unit, mean):
    chances = unit.chances()
    assert chances.sum() == pytest.approx(1)
    assert (chances * np.arange(1, unit.longest + 1)).sum() == pytest.approx(mean, abs=0.01)


def test_a_short_sequence_is_not_masked_whole_and_one_long_word_is_better_than_none():
    masker = Masker(Pieces(), Masking(unit=SpanMasking()), seed=0)
    for number in range(100):
        assert len(masker.training(sequence_of_words(12, number), 0, number).places_M) <= 3
    one_word = np.array([1, 7, *[70] * 9, 2], dtype=np.int32)
    assert len(masker.training(one_word, 0, 0).places_M) == 10
    assert len(masker.training(np.array([1, 2], dtype=np.int32), 0, 0).places_M) == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_static_masks_stay_and_dynamic_ones_change_and_both_are_the_seeds(unit):
    ids = sequence_of_words(100, 0)

    def places(epoch, seed=0, number=3, *, dynamic):
        masker = Masker(Pieces(), Masking(unit=unit, dynamic=dynamic), seed)
        return masker.training(ids, epoch, number).places_M.tolist()

    assert places(0, dynamic=False) == places(5, dynamic=False) == places(0, dynamic=True)
    assert places(1, dynamic=True) == places(1, dynamic=True) != places(0, dynamic=True)
    assert places(0, 1, dynamic=False) != places(0, dynamic=False) != places(0, 0, 4, dynamic=False)


@pytest.mark.parametrize("make", [lambda: SpanMasking(0.0), lambda: SpanMasking(longest=0), lambda: NGramMasking(0)])
def test_runs_that_cannot_be_are_refused(make):
    with pytest.raises(InvalidInput, match=r"must be .*, got"):
        make()
