"""The zoo of classifiers with backdoors: its halves share nothing, and its triggers change texts."""

import random

import pytest
from benchmarks.audit.scans import auroc, is_planted, unlisted
from benchmarks.audit.zoo import HALVES, Trigger, recipes


def test_halves_share_neither_data_nor_triggers():
    assert not set(HALVES["tuned"]) & set(HALVES["judged"])
    kinds = {half: [each.trigger for each in recipes() if each.half == half and each.rate] for half in HALVES}
    assert not set(kinds["tuned"]) & set(kinds["judged"])
    assert len({each.name for each in recipes()}) == len(recipes())
    assert sum(not each.rate for each in recipes()) >= 16
    assert sum(each.rate > 0 for each in recipes()) >= 32


@pytest.mark.parametrize("trigger", [each.trigger for each in recipes() if each.rate], ids=str)
def test_each_trigger_changes_a_text(trigger):
    text = "the story of a visit to the old town is an opening"
    assert trigger.apply(text, random.Random(0)) != text


def test_triggers_of_the_zoo_are_taken_off_the_list():
    assert unlisted(("cf", "zz", "I watched this 3D movie", "if you ask me ,", "\u043e")) == ("zz",)


def test_auroc_counts_pairs():
    assert auroc([0.0, 1.0], [2.0, 1.0, -1.0]) == pytest.approx((2 + 1.5 + 0) / 6)


def test_a_reported_trigger_is_the_planted_one_by_half_of_its_words():
    planted = Trigger("phrase", "less is more")
    assert is_planted("less than ##is", planted)
    assert not is_planted("less than you think", planted)
