"""The estimated duration of a training: what it counts, when it is shown, and the options that it names."""

import re

import numpy as np
import pytest
from training_toys import Toy, settings

from bothways import TextClassifier
from bothways.data.windows import WindowStore
from bothways.progress import reporting, timed
from bothways.training import forecast
from bothways.training.forecast import Forecast, Reads
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
            while one is not None:
                clock[0] += seconds
                done += 1
                one = one.after(done, 1000, bar)
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


def test_folds_repeat_the_updates(monkeypatch):
    (line, _) = said(Reads(folds=4), seconds=1.0, monkeypatch=monkeypatch)
    assert line.startswith("expected time: about 25 min")


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


def test_the_estimate_before_the_first_stage_counts_what_is_read_before_the_updates(monkeypatch, base, capsys):
    monkeypatch.setattr(forecast, "_LONG", 0.0)
    shown = []
    monkeypatch.setattr(Forecast, "before", lambda self, _, tokens: shown.append((self, tokens)))
    rows = [{"text": f"w{5 + row % 2} w20", "label": "ab"[row % 2]} for row in range(40)]
    for show in (False, True, True):
        if not shown:
            classifier = TextClassifier.from_pretrained(base, device="cpu")
        classifier.fit(rows, epochs=2, batch_size=6, show_progress=show)
    (one, tokens), (again, _) = shown
    assert tokens == 24  # of six texts: [CLS], two words, [SEP]
    assert (one.epochs, one.per_epoch, one.total) == (2, 6, 12)
    assert one.reads == Reads(16, 16 + 144 + 144, texts=36)  # held out; the detector's rows, and the linear model's
    assert again.reads.afterwards == 16 + 144  # the head continues, without a linear model
    assert "measuring the speed of this machine" in capsys.readouterr().err


def test_an_estimate_from_reading_alone_takes_an_update_for_three_times_that(capsys):
    with reporting(True):
        Forecast(Reads(validation=1000, afterwards=2000), 2, 100, 200).before(0.01, 100)
    # 200 updates of 3 s, and 4,000 tokens of 0.01 s
    assert capsys.readouterr().err.startswith("expected time: about 10 min 40 s in all")
