"""Whole words, spans and n-grams are chosen whole, as much as is to be, and with the lengths of the papers."""

import numpy as np
import pytest

from bothways.errors import InvalidInput
from bothways.objectives.masking import Masker, Masking, NGramMasking, SpanMasking, TokenMasking, WholeWordMasking

UNITS = [TokenMasking(), WholeWordMasking(), SpanMasking(), NGramMasking()]
MASK, SPECIAL = 4, 5


class Pieces:
    """A tokenizer of 100 tokens, of which those from 60 on go on with a word."""

    mask_id = MASK
    special_ids = frozenset(range(SPECIAL))

    class word_marks:  # noqa: N801 (an attribute of a tokenizer)
        @staticmethod
        def continues(piece):
            return piece.startswith("##")

    @staticmethod
    def vocabulary():
        return {number: f"##p{number}" if number >= 60 else f"p{number}" for number in range(100)}


def sequence(length, seed):
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
    for number in range(800):
        ids = sequence(130, number)
        result = masker.training(ids, 0, number)
        assert np.array_equal(np.unique(result.places_M), result.places_M)
        assert not np.isin(ids[result.places_M], range(SPECIAL)).any()
        assert np.array_equal(np.delete(result.ids_n, result.places_M), np.delete(ids, result.places_M))
        read = result.ids_n[result.places_M]
        ordinary, chosen = ordinary + 128, chosen + len(read)
        masked, kept = masked + int((read == MASK).sum()), kept + int((read == result.targets_M).sum())
    assert ordinary > 100_000
    assert chosen / ordinary == pytest.approx(0.15, abs=0.003)
    assert masked / chosen == pytest.approx(0.8, abs=0.02)
    assert kept / chosen == pytest.approx(0.1 + 0.1 / 95, abs=0.015)


@pytest.mark.parametrize("unit", UNITS[1:], ids=lambda unit: type(unit).__name__)
def test_the_pieces_of_a_word_are_chosen_together(unit):
    masker = Masker(Pieces(), Masking(unit=unit), seed=2)
    for number in range(200):
        ids = sequence(60, number)
        result, word_n = masker.training(ids, 0, number), words(ids)
        inside = np.isin(np.arange(len(ids)), result.places_M)
        for word in np.unique(word_n[result.places_M]):
            assert inside[word_n == word].all()


def test_spans_become_masks_or_other_tokens_as_a_whole():
    masker = Masker(Pieces(), Masking(unit=SpanMasking()), seed=3)
    for number in range(200):
        ids = sequence(200, number)
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
        assert len(masker.training(sequence(12, number), 0, number).places_M) <= 3
    one_word = np.array([1, 7, *[70] * 9, 2], dtype=np.int32)
    assert len(masker.training(one_word, 0, 0).places_M) == 10
    assert len(masker.training(np.array([1, 2], dtype=np.int32), 0, 0).places_M) == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_static_masks_stay_and_dynamic_ones_change_and_both_are_the_seeds(unit):
    ids = sequence(100, 0)

    def places(epoch, seed=0, *, dynamic):
        return Masker(Pieces(), Masking(unit=unit, dynamic=dynamic), seed).training(ids, epoch, 3).places_M.tolist()

    assert places(0, dynamic=False) == places(5, dynamic=False) == places(0, dynamic=True)
    assert places(1, dynamic=True) == places(1, dynamic=True) != places(0, dynamic=True)
    assert places(0, 1, dynamic=False) != places(0, dynamic=False)


@pytest.mark.parametrize("make", [lambda: SpanMasking(0.0), lambda: SpanMasking(longest=0), lambda: NGramMasking(0)])
def test_runs_that_cannot_be_are_refused(make):
    with pytest.raises(InvalidInput, match=r"must be .*, got"):
        make()
