"""The estimated duration of a training: what it counts, when it is shown, and the options that it names."""

import re

import numpy as np
import pytest
from training_toys import Toy, settings

from bothways import TextClassifier
from bothways.data.windows import WindowStore
from bothways.progress import reporting, timed
from bothways.training import forecast
from bothways.training.forecast import READ, Forecast, Reads
from bothways.training.loop import train


class Shown(list):
    def say(self, line):
        self.append(line)


def said(reads, *, seconds, epochs=3, per_epoch=100, total=300, before=0.0, done=0, monkeypatch):
    """The lines after updates of so many seconds and 1,000 tokens each, and ``before`` seconds of other stages."""
    clock, bar = [0.0], Shown()
    with monkeypatch.context() as patch:
        patch.setattr(forecast.time, "perf_counter", lambda: clock[0])
        patch.setattr("bothways.progress.time.monotonic", lambda: clock[0] + before * bool(clock[0]))
        with timed():
            one = Forecast(reads, epochs, per_epoch, total)
            while one.measuring:
                clock[0] += seconds
                done += 1
                one.update(done, 1000, bar)
    return list(bar)


def test_the_estimate_has_updates_validations_and_what_comes_after(monkeypatch):
    # After 20 s and 4 of 300 updates of 1 s, each with 1,000 tokens that are read in a third of that.
    reads = Reads(validation=30_000, afterwards=60_000)
    assert said(reads, seconds=1.0, before=20.0, monkeypatch=monkeypatch) == [
        "expected time: about 6 min 10 s in all, 24 s of it so far",  # 24 + 296 + 3 x 10 + 20
        "shorter: epochs=1 (--epochs 1) about 2 min 34 s",
    ]


@pytest.mark.parametrize(("seconds", "lines"), [(0.1, 0), (0.5, 2)])
def test_a_short_training_is_not_announced(seconds, lines, monkeypatch):
    assert len(said(Reads(), seconds=seconds, monkeypatch=monkeypatch)) == lines


def test_long_texts_are_counted_and_may_be_truncated(monkeypatch):
    split, shorter = said(Reads(texts=2000, split=412, first=0.5), seconds=1.0, monkeypatch=monkeypatch)
    assert split.endswith("; 412 of 2,000 texts are read in several windows")
    assert 'on_overflow="truncate" (--on-overflow truncate) about 2 min' in shorter


def test_a_single_epoch_is_shortened_by_its_updates_and_passes_of_short_epochs_by_one_epoch(monkeypatch):
    _, shorter = said(Reads(), seconds=1.0, epochs=1, per_epoch=300, monkeypatch=monkeypatch)
    assert shorter == "shorter: updates=150 (--updates 150) about 2 min 34 s"
    _, shorter = said(Reads(passes=10), seconds=1.0, monkeypatch=monkeypatch)
    assert shorter == "shorter: epochs=1 (--epochs 1) about 14 s"


def test_folds_repeat_the_warm_up_the_linear_start_and_the_updates(monkeypatch):
    reads = Reads(folds=4, warm_up=30_000, start=9_000)
    (line, _) = said(reads, seconds=1.0, monkeypatch=monkeypatch)
    assert line.startswith("expected time: about 27 min 12 s in all")  # 300 + 4 x (30 + 3 + 300)


def test_an_estimate_that_an_epoch_proves_wrong_is_corrected(monkeypatch):
    clock, bar = [0.0], Shown()
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr("bothways.progress.time.monotonic", lambda: clock[0])
    with timed():
        one = Forecast(Reads(validation=30_000, afterwards=30_000), 4, 100, 400)
        for seconds in (1.0, 1.1, 3.0):
            for _ in range(100):
                clock[0] += seconds
                one.update(round(clock[0]), 1000, bar)
            clock[0] += 10 * seconds
            one.epoch(100 * (1 + [1.0, 1.1, 3.0].index(seconds)), bar)
    estimates = [line for line in bar if line.startswith("expected")]
    assert estimates == [
        "expected time: about 7 min 30 s in all, 4 s of it so far",  # 400 + 4 x 10 + 10
        "expected time: now about 15 min 21 s in all, 9 min 21 s of it so far",  # 561 + 300 + 30 + 30
    ]


def test_what_is_read_is_counted_in_tokens_of_windows():
    store = WindowStore(
        np.zeros(10, np.int32),
        np.zeros(10, np.uint8),
        np.array([0, 4, 8, 10]),
        np.array([0, 0, 1]),
        np.zeros(2, np.int64),
    )
    assert Reads.of(store, store, again=0.5) == Reads(10, 15, 0, 1, 2, 1, 0.6)
    assert Reads.of(store, None, folds=4) + Reads.of(store, store) == Reads(10, 10, 0, 1, 4, 2, 0.6)


def test_a_run_shows_its_estimate_only_where_progress_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(forecast, "_LONG", 0.0)
    train(Toy(), settings(epochs=30, show_progress=False), reads=pytest.fail)
    with reporting(True):
        train(Toy(), settings(epochs=30), reads=Reads)
    assert re.search(r"training: expected time: about \d+ s in all", capsys.readouterr().err)


def test_the_estimate_before_the_first_stage_counts_every_stage_that_reads_texts(monkeypatch, base, capsys):
    announced = []
    monkeypatch.setattr(Forecast, "before", lambda self, *given: announced.append((self, *given)))
    rows = [{"text": f"w{5 + row % 2} w20", "label": "ab"[row % 2]} for row in range(40)]
    for show in (False, True, True):
        if not announced:
            classifier = TextClassifier.from_pretrained(base, device="cpu")
        classifier.fit(rows, epochs=6, batch_size=6, show_progress=show)
    (one, seconds, tokens, besides), (again, _, _, none) = announced
    assert tokens == 24  # of six texts: [CLS], two words, [SEP]
    assert 0 < seconds < 1
    assert besides > none == 0  # of fitting linear models
    assert (one.epochs, one.per_epoch, one.total) == (6, 6, 36)
    assert one.reads == Reads(16, 16 + 144, texts=36, start=144, cost=one.reads.cost)  # 144 for the detector
    assert 0 < one.reads.cost != READ
    assert again.reads.start == 0  # the head continues, without a linear model
    assert "measuring the speed of this machine" in capsys.readouterr().err
    classifier.fit(rows, epochs=4, batch_size=6, show_progress=True)
    assert len(announced) == 2  # three updates of 24 would be too many to measure the speed with


def test_measuring_the_speed_changes_no_weight(base):
    rows = [{"text": f"w{5 + row % 2} w20", "label": "ab"[row % 2]} for row in range(40)]
    trained = []
    for show in (False, True):
        classifier = TextClassifier.from_pretrained(base, device="cpu")
        record = classifier.fit(rows, epochs=6, batch_size=6, show_progress=show)
        assert ("measuring the speed of this machine" in record.stages) == show
        trained.append((record.losses, classifier.predict_proba(["w5 w20"]).tolist()))
    assert trained[0] == trained[1]


def test_the_estimate_before_the_first_stage_has_both_linear_starts_the_warm_up_and_the_teacher(capsys):
    reads = Reads(validation=1000, afterwards=2000, start=500, warm_up=3000, cost=0.25)
    with reporting(True):
        Forecast(reads, 2, 100, 200).before(0.03, 100, besides=40.0)
    # 200 updates of 3 s, 90 s of warm-up, (2 x 500 + 3 x 1,000 + 2,000) tokens of 0.0075 s, and the teacher
    assert capsys.readouterr().err.startswith("expected time: about 12 min 55 s in all")
