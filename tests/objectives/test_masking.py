"""Masks have the shares that the papers give, and depend on seed, epoch and sequence alone."""

import numpy as np
import pytest

from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.objectives.masking import Masker, Masking
from bothways.text import TextTokenizer
from tiny_models import VOCABULARY, write_tokenizer

SPECIAL = range(5)
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


def test_shares_on_100_000_tokens_are_those_of_the_papers(tokenizer):
    masker = Masker(tokenizer, Masking(), seed=3)
    lengths = np.random.default_rng(0).integers(10, 250, 2000)
    ordinary = chosen = masked = same = other = 0
    drawn = np.zeros(VOCABULARY)
    for window, length in enumerate(lengths):
        ids = sequence(length, window)
        result = masker.training(ids, 0, window)
        read = result.ids_n[result.places_M]
        ordinary += length - 3
        chosen += len(result.places_M)
        masked += int((read == MASK).sum())
        same += int((read == result.targets_M).sum())
        changed = read[(read != MASK) & (read != result.targets_M)]
        other += len(changed)
        np.add.at(drawn, changed, 1)
    assert ordinary > 100_000

    def near(part, whole, share):
        # Four standard deviations: one run in 16,000 is further off by chance, and the seed is fixed.
        assert abs(part / whole - share) < 4 * (share * (1 - share) / whole) ** 0.5

    assert abs(chosen / ordinary - 0.15) < 0.001
    near(masked, chosen, 0.8)
    # A random token is the one that stood there in one case of 56.
    near(same, chosen, 0.1 + 0.1 / 56)
    near(other, chosen, 0.1 * 55 / 56)
    assert drawn[list(SPECIAL)].sum() == 0
    assert (drawn[5:] > 0).all()
    assert drawn[5:].max() < 2 * drawn[5:].mean()


def test_all_but_the_chosen_places_stay_and_no_special_token_is_chosen(tokenizer):
    masker = Masker(tokenizer, Masking(), seed=0)
    for window in range(200):
        ids = sequence(3 + window % 40, window)
        before = ids.copy()
        result = masker.training(ids, 5, window)
        assert np.array_equal(ids, before)
        assert np.array_equal(result.targets_M, ids[result.places_M])
        assert not np.isin(ids[result.places_M], SPECIAL).any()
        untouched = np.setdiff1d(np.arange(len(ids)), result.places_M)
        assert np.array_equal(result.ids_n[untouched], ids[untouched])
        assert np.array_equal(result.places_M, np.unique(result.places_M))


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


def test_masks_repeat_for_the_same_seed_epoch_and_sequence_and_for_no_others(tokenizer):
    ids = sequence(200, 0)

    def places(seed, epoch, window):
        return tuple(Masker(tokenizer, Masking(), seed).training(ids, epoch, window).places_M)

    assert places(1, 2, 3) == places(1, 2, 3)
    assert len({places(1, 2, 3), places(2, 2, 3), places(1, 3, 3), places(1, 2, 4)}) == 4


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
