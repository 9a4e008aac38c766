"""Bars on a terminal; in a pipe lines where the command line asks for them, and else silence."""

import io
import sys
import threading
import types

import pytest

from bothways import progress as progress_module
from bothways.progress import add_time, elapsed, figure, phase, progress, reporting, stage, stage_seconds, timed


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


# --- stages ---


@pytest.fixture
def quick(monkeypatch):
    """Threads that print look at the clock without a pause."""
    monkeypatch.setattr("bothways.progress._REFRESH", 0.001)


def waiting_for(stream, text):
    deadline = threading.Event()
    for _ in range(2000):
        if text in stream.getvalue():
            return True
        deadline.wait(0.005)
    return False


@pytest.mark.usefixtures("quick")
def test_a_stage_that_reports_nothing_writes_a_line_a_minute(stderr, clock):
    pipe = stderr(io.StringIO)
    with reporting(lines=True), stage("calibrating"):
        assert pipe.getvalue() == "calibrating\n"
        for second, line in ((11, "calibrating: 11 s\n"), (75, "calibrating: 1 min 15 s\n")):
            clock[0] = float(second)
            assert waiting_for(pipe, line)
    assert pipe.getvalue().count("\n") == 3


@pytest.mark.usefixtures("quick")
def test_a_notebook_draws_a_bar_in_place_and_keeps_its_end(stderr, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=object))
    cell = stderr(io.StringIO)
    with stage("training", 4) as bar:
        bar.advance(2, "loss 0.5")
        clock[0] = 2.0
        half = "training: ██████████░░░░░░░░░░ 2 of 4 (50%), 2 s, about 2 s left, loss 0.5"
        assert waiting_for(cell, half)
        bar.say("epoch 1 of 2")
        clock[0] = 4.0
        bar.advance(2)
    said, last, end = (each.rpartition("\r")[2].rstrip() for each in cell.getvalue().split("\n"))
    assert (said, end) == ("epoch 1 of 2", "")
    assert last == "training: ████████████████████ 4 of 4 (100%), 4 s, loss 0.5"
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not progress_module._in_notebook()


def test_a_bar_within_another_is_a_line_of_the_same_display(stderr):
    terminal = stderr(Terminal)
    with stage("warm-up") as outer, progress("counting sheep", 3) as inner:
        inner.advance(2)
        outer.say("a line")
        assert len(progress_module._SHOWN) == 1
        assert progress_module._SHOWN[0].tasks[1].completed == 2
    assert not progress_module._SHOWN
    assert all(name in terminal.getvalue() for name in ("warm-up", "counting sheep", "a line"))
    assert "0/?" not in terminal.getvalue()


def test_stages_are_timed_and_those_within_a_stage_are_not_counted_twice(clock):
    with timed() as outer:
        with timed() as times:
            with stage("one"):
                clock[0] += 2.0
                with stage("within"):
                    clock[0] += 3.0
                add_time("earlier", 7.0)
            clock[0] += 1.0
            add_time("earlier", 10.0)
            assert elapsed() == 16.0
        assert (times.stages, elapsed("one")) == ({"one": 5.0, "earlier": 10.0}, 5.0)
    assert (outer.stages, outer.seconds) == (times.stages, 16.0)
    assert (elapsed(), stage_seconds()) == (0.0, {})
