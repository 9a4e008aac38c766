"""Bars on a terminal, silence in a pipe."""

import io
import sys

import pytest

from bothways.progress import progress


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
