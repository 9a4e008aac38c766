"""Bars on a terminal; in a pipe lines where the command line asks for them, and else silence."""

import io
import sys

import pytest

from bothways.progress import phase, progress, reporting


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "speaks"), [(Terminal, True), (io.StringIO, False)])
def test_a_bar_shows_on_a_terminal_only(monkeypatch, stream, speaks):
    monkeypatch.setattr(sys, "stderr", stream())
    with progress("counting sheep", 3) as bar:
        bar.advance(2, "two")
        bar.advance()
    assert ("counting sheep" in sys.stderr.getvalue()) is speaks


def test_a_program_without_standard_error_has_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress("counting sheep", 3) as bar:
        bar.advance()


def test_a_single_unit_has_a_bar_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("counting a sheep", 1) as bar:
        bar.advance()
    assert sys.stderr.getvalue() == ""
    with progress("counting a sheep", 1, show=True) as bar:
        bar.advance()
    assert "counting a sheep" in sys.stderr.getvalue()


def test_a_bar_can_be_forced_off(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("counting sheep", 3, show=False) as bar:
        bar.advance()
    assert sys.stderr.getvalue() == ""


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("bothways.progress.time.monotonic", lambda: self.now)


def test_long_work_writes_a_line_a_minute_in_a_pipe(monkeypatch):
    # The library itself stays silent there; the command line, whose jobs run into files, would else be dumb for hours.
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = Clock(monkeypatch)
    with reporting(lines=True), progress("counting sheep", 1000, done=100) as bar:
        for second in range(1, 301):
            clock.now = float(second)
            bar.advance(1, f"sheep {second}")
    first, second, *_, last = lines = sys.stderr.getvalue().splitlines()
    assert first == "counting sheep: 110 of 1,000 (11%), 10 s, about 14 min 50 s left, sheep 10"
    assert second == "counting sheep: 170 of 1,000 (17%), 1 min 10 s, about 13 min 50 s left, sheep 70"
    assert len(lines) == 5
    assert "4 min 10 s" in last


def test_work_of_unknown_length_is_counted(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = Clock(monkeypatch)
    with reporting(lines=True), progress("predicting") as bar:
        bar.advance()
        clock.now = 30.0
        bar.advance(2000)
    assert sys.stderr.getvalue() == "predicting: 2,001 done, 30 s\n"


def test_short_work_writes_no_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with reporting(lines=True), progress("predicting", 3) as bar:
        bar.advance(3)
    assert sys.stderr.getvalue() == ""


def test_lines_that_stay_put_off_the_next_one(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = Clock(monkeypatch)
    with reporting(lines=True), progress("training", 9) as bar:
        clock.now = 9.0
        bar.say("epoch 1 of 3")
        clock.now = 60.0
        bar.advance()
    assert sys.stderr.getvalue() == "training: epoch 1 of 3\n"


@pytest.mark.parametrize(("stream", "lines"), [(Terminal, False), (io.StringIO, True)])
def test_a_phase_is_a_line_unless_nobody_is_to_see_it(monkeypatch, stream, lines):
    monkeypatch.setattr(sys, "stderr", stream())
    with reporting(lines=lines):
        phase("calibrating")
        with reporting(False):
            phase("saving")
            with progress("counting", 2) as bar:
                bar.say("unheard")
    assert sys.stderr.getvalue() == "calibrating\n"


def test_a_program_that_is_no_command_hears_of_no_phase_in_a_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    phase("calibrating")
    assert sys.stderr.getvalue() == ""


def test_a_full_log_does_not_end_the_work(monkeypatch):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with reporting(lines=True):
        phase("calibrating")


def test_a_bar_has_lines_above_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("training", 3) as bar:
        bar.say("epoch 1 of 3")
    assert "epoch 1 of 3" in sys.stderr.getvalue()
