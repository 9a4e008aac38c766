"""Targets and factorisation orders: how many, where, in which order, and what the draws depend on."""

import numpy as np
import pytest

from bothways.encoder.streams import VISIBLE
from bothways.errors import InvalidInput
from bothways.objectives.permutation_lm import Permutation, Permuter
from tiny_models import FIRST_WORD, VOCABULARY


def framed(tokenizer, words, seed=0):
    """Random words, and the two tokens that end a sequence."""
    ids = np.random.default_rng(seed).integers(FIRST_WORD, VOCABULARY, words)
    return np.array([*ids, tokenizer.sep_id, tokenizer.cls_id], dtype=np.int32)


def spans_of(places):
    """Lengths of the runs of neighbouring places."""
    return [len(run) for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)]


def test_a_sixth_of_the_tokens_are_targets_in_spans_of_up_to_five(xlnet):
    """Statistics of 100,000 tokens; where spans are too few, single tokens fill up, which may touch a span."""
    permuter, length = Permuter(xlnet, Permutation(), seed=1), 500
    places = [permuter.training(framed(xlnet, length), epoch, 0).places_M for epoch in range(200)]
    tokens = 200 * length
    assert sum(map(len, places)) / tokens == pytest.approx(1 / 6, abs=1 / length)
    everywhere = np.bincount(np.concatenate(places), minlength=length)
    # Targets are as frequent at the begin, in the middle and at the end; a context's begin alone has fewer.
    thirds = everywhere.reshape(5, -1).mean(axis=1) / 200
    assert thirds == pytest.approx(np.full(5, 1 / 6), abs=0.03)
    lengths = np.bincount(np.concatenate([spans_of(each) for each in places]), minlength=8)
    shares = lengths[1:6] / lengths.sum()
    assert (np.diff(shares) < 0).all()
    # By tokens, a 1 / L draw gives spans of each length the same share; the filling adds to single ones.
    assert shares[4] * 5 / shares[2] / 3 == pytest.approx(1, abs=0.25)
    assert lengths[6:].sum() / lengths.sum() < 0.03


def test_targets_and_framing_tokens_have_every_order_and_all_others_are_visible(xlnet):
    permuter, ids = Permuter(xlnet, Permutation(partial=4), seed=2), framed(xlnet, 8)
    firsts = np.zeros(len(ids))
    for epoch in range(2000):
        drawn = permuter.training(ids, epoch, 0)
        assert np.array_equal(drawn.ids_n, ids)
        assert np.array_equal(drawn.targets_M, ids[drawn.places_M])
        ordered = np.sort(np.concatenate([drawn.places_M, [8, 9]]))
        assert len(drawn.places_M) == 2
        assert np.array_equal(np.flatnonzero(drawn.order_n != VISIBLE), ordered)
        assert sorted(drawn.order_n[ordered]) == [0, 1, 2, 3]
        firsts[drawn.order_n.argsort()[len(ids) - len(ordered)]] += 1
    assert firsts[8:] / 2000 == pytest.approx([0.25, 0.25], abs=0.04)


def test_a_span_begins_with_a_word(xlnet):
    """Every third piece begins a word here; single tokens that fill up stand anywhere."""
    permuter = Permuter(xlnet, Permutation(), seed=0)
    permuter._kinds.continues_V[:] = np.arange(len(permuter._kinds.continues_V)) % 3 != 0
    ids = (6 + np.arange(480) % 48).astype(np.int32)
    begins = []
    for epoch in range(100):
        places = permuter.training(ids, epoch, 0).places_M
        begins += [run[0] for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(run) > 2]
    assert len(begins) > 500
    assert np.mean(ids[begins] % 3 == 0) > 0.9


def test_draws_depend_on_seed_epoch_and_sequence_alone(xlnet):
    ids = framed(xlnet, 60)

    def drawn(seed, epoch, sequence):
        found = Permuter(xlnet, Permutation(), seed).training(ids, epoch, sequence)
        return tuple(found.places_M), tuple(found.order_n), tuple(found.uniform_M)

    assert drawn(3, 1, 2) == drawn(3, 1, 2)
    assert len({drawn(3, 1, 2), drawn(4, 1, 2), drawn(3, 2, 2), drawn(3, 1, 3)}) == 4
    permuter = Permuter(xlnet, Permutation(), 3)
    first, second = permuter.validation(ids, 2), permuter.validation(ids, 2)
    assert np.array_equal(first.order_n, second.order_n)
    assert not any(np.array_equal(first.order_n, permuter.training(ids, epoch, 2).order_n) for epoch in range(5))


def test_short_sequences_have_a_target_and_special_ones_none(xlnet):
    permuter = Permuter(xlnet, Permutation(), 0)
    for words in range(1, 7):
        assert len(permuter.training(framed(xlnet, words), 0, words).places_M) in (1, 2)
    empty = permuter.training(framed(xlnet, 0), 0, 0)
    assert len(empty.places_M) == 0
    assert sorted(empty.order_n) == [0, 1]


def test_every_token_can_be_a_target(xlnet):
    found = Permuter(xlnet, Permutation(partial=1), 0).training(framed(xlnet, 12), 0, 0)
    assert found.places_M.tolist() == list(range(12))


@pytest.mark.parametrize("values", [{"partial": 0}, {"longest": 0}])
def test_values_below_one_are_refused(values):
    with pytest.raises(InvalidInput, match="at least 1"):
        Permutation(**values)
