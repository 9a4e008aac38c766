"""Lengths in tokens, and batches that grow: what is read, exactly resumed, and refused where it makes no sense."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from bothways.errors import InvalidInput
from bothways.objectives.streams import BatchGrowth
from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.recipes import RECIPES, scaled
from bothways.training.options import LinearDecay, rate_fraction, recorded_options, warmup_updates

QUICK = {"batch_size": 8, "show_progress": False, "precision": "float32"}


@pytest.mark.parametrize(("first", "full", "updates"), [(1, 8, 14), (3, 3, 5), (2, 9, 1), (1, 8, 3), (5, 300, 101)])
def test_each_size_of_a_growing_batch_has_as_many_updates(first, full, updates):
    growth = BatchGrowth(first, updates)
    sizes = [growth.before(each + 1, full) - growth.before(each, full) for each in range(updates + 20)]
    assert sizes[0] == first
    assert sizes[updates:] == [full] * 20
    assert all(one <= other for one, other in pairwise(sizes))
    counts = Counter(sizes[:updates])
    if full > first:
        assert full not in counts
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_growth_over_billions_of_updates_is_counted_at_once():
    assert BatchGrowth(1, 10**12).before(10**12, 3) == 10**12 + 10**12 // 2


@pytest.mark.parametrize("name", ["roberta", "bert", "modernbert"])
@pytest.mark.parametrize("tokens", [1, 5_000, 10**9, 3 * 10**12])
def test_a_length_in_tokens_is_the_fewest_updates_that_read_as_many(name, tokens):
    recipe = scaled(RECIPES[name], "published")
    found = recipe.changed(tokens=tokens).course
    assert found.tokens >= tokens
    if found.updates > 1:
        assert recipe.changed(updates=found.updates - 1).course.tokens < tokens


def test_the_batch_of_modernbert_grows_as_published():
    phase = RECIPES["modernbert"].course.phases[0]
    assert phase.growth.first == 768
    assert phase.growth.before(phase.growth.updates, phase.batch) * phase.length == pytest.approx(50e9, rel=1e-3)
    assert phase.tokens == pytest.approx(1.7e12, rel=1e-2)
    small = scaled(RECIPES["modernbert"], "tiny").course.phases[0]
    assert (small.growth.first, small.growth.updates) == (5, 41)
    assert scaled(RECIPES["modernbert"], "tiny").changed(batch=64).course.phases[0].growth.first == 10


def test_a_warmup_over_tokens_reads_as_many():
    course = scaled(RECIPES["roberta"], "tiny").changed(warmup=BatchWarmup(4, tokens=400_000)).course
    growth = course.phases[0].growth
    assert growth.before(growth.updates, 32) * 128 == pytest.approx(400_000, rel=0.05)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_a_run_reads_as_many_tokens_as_were_asked_for(name, make):
    pretrainer, corpus = make(name)
    record = pretrainer.fit(corpus, total_tokens=3_000, **QUICK)
    # To within an update, of 8 sequences of up to 24 tokens; lanes read whole documents in order, so they see few.
    assert record.tokens == pytest.approx(3_000, abs=600 if name == "xlnet" else 8 * 24)
    assert record.settings.updates == record.updates == len(record.losses)
    assert "total_tokens" not in recorded_options(record.settings)


def test_the_rate_goes_by_updates_while_the_batch_grows(make, tmp_path):
    pretrainer, corpus = make()
    options = {**QUICK, "updates": 20, "learning_rate": 1e-3, "log": tmp_path / "log", "log_every_updates": 1}
    pretrainer.fit(corpus, batch_warmup=BatchWarmup(1, updates=14), **options)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    updates = [line for line in lines if line["event"] == "update"]
    warmup = warmup_updates(20, 0.06)
    rates = [1e-3 * rate_fraction(LinearDecay(), each, warmup=warmup, total=20) for each in range(20)]
    assert [line["learning_rate"] for line in updates] == pytest.approx(rates)
    read = [line["tokens"] for line in updates]
    assert read[0] <= 24
    assert sum(read[:5]) < sum(read[5:10]) < sum(read[15:])


def test_what_makes_no_sense_is_refused(make):
    pretrainer, corpus = make()
    with pytest.raises(InvalidInput, match="one of epochs, updates and total_tokens, got updates=4, total_tokens=100"):
        pretrainer.fit(corpus, updates=4, total_tokens=100, **QUICK)
    with pytest.raises(InvalidInput, match="`total_tokens` must be a whole number, at least 1"):
        pretrainer.fit(corpus, total_tokens=0, **QUICK)
    with pytest.raises(InvalidInput, match="at least 9 sequences, the size of the first batch, got 8"):
        pretrainer.fit(corpus, updates=4, batch_warmup=BatchWarmup(9, updates=2), **QUICK)
    with pytest.raises(InvalidInput, match="takes 5 updates, but the first phase has only 4"):
        pretrainer.fit(corpus, updates=4, batch_warmup=BatchWarmup(2, updates=5), **QUICK)
    for wrong in ({}, {"updates": 3, "tokens": 3}, {"updates": 0}, {"tokens": -1}):
        with pytest.raises(InvalidInput, match="either `updates` or `tokens`, each at least 1"):
            BatchWarmup(2, **wrong)
    memory, texts = make("xlnet")
    with pytest.raises(InvalidInput, match="expected a memory or a batch warm-up, got both"):
        memory.fit(texts, updates=4, batch_warmup=BatchWarmup(2, updates=2), **QUICK)
