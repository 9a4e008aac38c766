"""Rows from CoNLL and CoNLL-U files: one word per line, and an empty line between texts."""

import re
from collections.abc import Collection, Iterator
from itertools import groupby

from bothways.data.columns import Row
from bothways.data.lines import unended_lines
from bothways.errors import InvalidInput, read_with, shown

DOCUMENT = "-DOCSTART-"
"""The word between documents in the files of CoNLL 2003."""

_GAP = re.compile(r"[ \t]+")
_CONLLU_COLUMNS = 10
_WORD_ID = re.compile(r"[0-9]{1,9}")


_Lines = list[tuple[int, str]]
# A comment has a blank after its mark. A word may also begin with the mark, as hashtags do.
_MARKED = re.compile(r"#[ \t]+\S")
_ASSIGNMENT = re.compile(r"#[ \t]+[\w.:-]+(?:[ \t]+\w+)?[ \t]*=")
_NAMED = re.compile(r"#[ \t]+(?:newdoc|newpar|doc|document|sent|sentence|sent_id|text|id)\b", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_SPAN_TAG = re.compile(r"O|[BIESLU](?:-.+)?")


def conll_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one row per text: the first column of its lines in ``tokens``, the last in ``tags``.

    Columns are separated by tabs or, in a line without tabs, by spaces. Columns between the first and the last, lines
    of ``-DOCSTART-`` and comments (see `_without_comments`) are skipped.
    """
    seen: set[str] = set()
    for group in _texts(lines, name):
        text = [(number, _columns(line)) for number, line in _without_comments(group, seen, name)]
        if not text:
            continue
        first, columns = text[0][0], len(text[0][1])
        for number, values in text:
            if columns == _CONLLU_COLUMNS and [each[0] for _, each in text] == [*map(str, range(1, len(text) + 1))]:
                raise InvalidInput(
                    f"line {number} of {name} begins with the number of a word, as in CoNLL-U: give "
                    f"{read_with('format', 'conllu')}."
                )
            if len(values) != columns or columns < 2:
                raise InvalidInput(
                    f"line {number} of {name} has {len(values)} columns, but the text that starts on line {first} has "
                    f"{columns}. Expected a word and its tag, separated by tabs or spaces, the same number of columns "
                    "on every line of a text, and an empty line between texts; a comment begins with '#' and a blank."
                )
        tokens, tags = [values[0] for _, values in text], [values[-1] for _, values in text]
        seen.update(tags)
        yield Row(first, {"tokens": tokens, "tags": tags}, f"the text on line {first} of {name}")


def _texts(lines: Iterator[str], name: str) -> Iterator[_Lines]:
    """Yield the numbered lines between empty lines and those of ``-DOCSTART-``."""
    numbered = unended_lines(lines, name)
    for between, group in groupby(numbered, lambda each: not each[1].strip() or each[1].startswith(DOCUMENT)):
        if not between:
            yield list(group)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else _GAP.split(line.strip(" "))


def _layout(line: str) -> tuple[bool, int]:
    return "\t" in line, len(_columns(line))


def _without_comments(text: _Lines, seen: Collection[str], name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of words in a text, given the tags ``seen`` before it.

    A line with ``#`` and a blank is a comment if its columns are not those of the words beside it, or if it is an
    assignment (``# text = ...``). It is a word if a tab follows ``#``, or if its last column is ``O``, the tag of a
    span or another tag of the file. Else numbers and common names (``# 7``, ``# id 3 domain=en``) are comments. A line
    before the first word that is none of these is refused.
    """
    unmarked = [line for _, line in text if not _MARKED.match(line)]
    layouts, tags = {_layout(line) for line in unmarked}, {_columns(line)[-1] for line in unmarked}
    numeric = any(map(_NUMBER.fullmatch, tags or seen))
    started = False
    for number, line in text:
        if _MARKED.match(line):
            tag = _columns(line)[-1]
            is_number = not started and _NUMBER.fullmatch(tag) is not None
            known = _SPAN_TAG.fullmatch(tag) or tag in tags or tag in seen
            if (layouts and _layout(line) not in layouts) or _ASSIGNMENT.match(line):
                continue
            if not line.startswith("#\t") and (not known or (is_number and numeric)):
                if (is_number and not numeric) or _NAMED.match(line) or "=" in tag:
                    continue
                if not started:
                    raise InvalidInput(
                        f"line {number} of {name} is {shown(line, 40)}: expected a word or a comment, but it may be "
                        "both, since it has as many columns as a word and no tag of the lines before it. Separate the "
                        "columns of words by tabs, or remove the comments."
                    )
        started = True
        yield number, line


def conllu_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one row per sentence of Universal Dependencies (https://universaldependencies.org/format.html).

    Columns are ``tokens`` (FORM), ``tags`` (UPOS) and, if every word has them, ``heads`` (HEAD: numbers of words from
    1, 0 for the root) and ``relations`` (DEPREL). Comments, which are all lines with ``#``, since words begin with a
    number, multiword tokens (``1-2``) and empty nodes (``1.1``) are skipped.
    """
    for group in _texts(lines, name):
        text = [(number, line.split("\t")) for number, line in group if not line.startswith("#")]
        for number, values in text:
            if len(values) != _CONLLU_COLUMNS:
                raise InvalidInput(
                    f"line {number} of {name} has {len(values)} columns separated by tabs: expected "
                    f"{_CONLLU_COLUMNS}, from ID to MISC. For a word and its tag per line give "
                    f"{read_with('format', 'conll')}."
                )
        words = [(number, values) for number, values in text if _WORD_ID.fullmatch(values[0])]
        if words:
            yield _sentence(words, name)


def _sentence(words: list[tuple[int, list[str]]], name: str) -> Row:
    first = words[0][0]
    for place, (number, values) in enumerate(words, start=1):
        if int(values[0]) != place:
            raise InvalidInput(
                f"line {number} of {name}: expected word number {place} of the sentence, got {values[0]!r}."
            )
    columns: dict[str, object] = {"tokens": [each[1] for _, each in words], "tags": [each[3] for _, each in words]}
    if all(values[6] != "_" and values[7] != "_" for _, values in words):
        for number, values in words:
            if not _WORD_ID.fullmatch(values[6]) or int(values[6]) > len(words):
                raise InvalidInput(
                    f"line {number} of {name}: expected a head from 0 to {len(words)}, got {values[6]!r}."
                )
        columns |= {"heads": [int(each[6]) for _, each in words], "relations": [each[7] for _, each in words]}
    return Row(first, columns, f"the sentence on line {first} of {name}")
