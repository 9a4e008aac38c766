"""Bars on a terminal; in a pipe lines where the command line asks for them, and else silence."""

import io
import sys

import pytest

from bothways.progress import figure, phase, progress, reporting


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stderr(monkeypatch):
    """Standard error as a stream; to be called in a test, since pytest puts its own there before each."""

    def replaced(kind):
        monkeypatch.setattr(sys, "stderr", kind())
        return sys.stderr

    return replaced


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the clock shows, in a list."""
    now = [0.0]
    monkeypatch.setattr("bothways.progress.time.monotonic", lambda: now[0])
    return now


def counted(total=3, **options):
    with progress("counting sheep", total, **options) as bar:
        bar.advance(total - 1, "note")
        bar.advance()
        bar.say("a line")


@pytest.mark.parametrize(
    ("total", "options", "shows"),
    [(3, {}, True), (3, {"show": False}, False), (1, {}, False), (1, {"show": True}, True)],
)
def test_a_terminal_shows_a_bar_with_lines_above_it(stderr, total, options, shows):
    terminal = stderr(Terminal)
    counted(total, **options)
    assert ("counting sheep" in terminal.getvalue()) is shows
    assert ("a line" in terminal.getvalue()) is shows


def test_a_program_in_a_pipe_or_without_standard_error_is_silent(stderr, monkeypatch):
    pipe = stderr(io.StringIO)
    counted()
    phase("calibrating")
    assert pipe.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    counted()


def test_long_work_writes_a_line_a_minute_in_a_pipe(stderr, clock):
    pipe = stderr(io.StringIO)
    # The library itself stays silent there; the command line, whose jobs run into files, would else be dumb for hours.
    with reporting(lines=True), progress("counting sheep", 1000, done=100) as bar:
        for second in range(1, 301):
            clock[0] = float(second)
            bar.advance(1, f"sheep {second}")
    first, second, *_, last = lines = pipe.getvalue().splitlines()
    assert first == "counting sheep: 110 of 1,000 (11%), 10 s, about 14 min 50 s left, sheep 10"
    assert second == "counting sheep: 170 of 1,000 (17%), 1 min 10 s, about 13 min 50 s left, sheep 70"
    assert len(lines) == 5
    assert "4 min 10 s" in last


def test_work_of_unknown_length_is_counted_and_short_work_writes_no_line(stderr, clock):
    pipe = stderr(io.StringIO)
    with reporting(lines=True):
        with progress("predicting", 3) as bar:
            bar.advance(3)
        assert pipe.getvalue() == ""
        with progress("predicting") as bar:
            bar.advance()
            clock[0] = 30.0
            bar.advance(2000)
    assert pipe.getvalue() == "predicting: 2,001 done, 30 s\n"


def test_lines_that_stay_put_off_the_next_one(stderr, clock):
    pipe = stderr(io.StringIO)
    with reporting(lines=True), progress("training", 9) as bar:
        clock[0] = 9.0
        bar.say("epoch 1 of 3")
        clock[0] = 60.0
        bar.advance()
    assert pipe.getvalue() == "training: epoch 1 of 3\n"


@pytest.mark.parametrize(("stream", "lines"), [(Terminal, False), (io.StringIO, True)])
def test_a_phase_is_a_line_unless_nobody_is_to_see_it(stderr, stream, lines):
    shown = stderr(stream)
    with reporting(lines=lines):
        phase("calibrating")
        with reporting(False):
            phase("saving")
            with progress("counting", 2) as bar:
                bar.say("unheard")
    assert shown.getvalue() == "calibrating\n"


def test_a_full_log_does_not_end_the_work(stderr):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    stderr(Full)
    with reporting(lines=True):
        phase("calibrating")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *[(0.91234, "0.9123"), (0.0, "0.0000"), (0.00123, "0.0012"), (0.000123456, "0.000123"), (1.5e-7, "1.5e-07")],
        *[(-2e-9, "-2e-09"), (123456.7, "123456.7000"), (3.25e12, "3.25e+12"), (float("nan"), "nan")],
    ],
)
def test_small_and_large_figures_keep_their_digits(value, shown):
    assert figure(value) == shown
    assert figure(value, sign=True) == (shown if shown.startswith("-") else f"+{shown}")
    assert figure(0.0123, 3) == "0.012"
    assert figure(0.00123, 3) == "0.00123"
