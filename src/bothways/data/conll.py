"""Rows out of CoNLL files: a word and its tag a line, an empty line between texts."""

import re
from collections.abc import Iterator
from itertools import groupby

from bothways.data.row import Row
from bothways.errors import InvalidInput

# Stands between documents in the files of CoNLL 2003.
_DOCUMENT = "-DOCSTART-"
_GAP = re.compile(r"[ \t]+")


def conll_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """One text a row: the first column of its lines in ``tokens``, the last in ``tags``.

    Columns are separated by tabs or, where a line has none, by spaces; those between the first and the last are passed
    over, as are lines of ``-DOCSTART-``.

    Raises:
        InvalidInput: A line has other columns than the first of its text, or one alone.
    """
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, start=1))
    for blank, group in groupby(numbered, key=lambda each: not each[1].strip(" \t") or each[1].startswith(_DOCUMENT)):
        if blank:
            continue
        text = [(number, _columns(line)) for number, line in group]
        first, columns = text[0][0], len(text[0][1])
        for number, values in text:
            if len(values) != columns or columns < 2:
                raise InvalidInput(
                    f"line {number} of {name} has {len(values)} columns, but the text that starts on line {first} has "
                    f"{columns}. Expected a word and its tag, with the same columns on every line of a text, and an "
                    "empty line between texts."
                )
        tokens, tags = [values[0] for _, values in text], [values[-1] for _, values in text]
        yield Row(first, {"tokens": tokens, "tags": tags}, f"the text on line {first} of {name}")


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else _GAP.split(line.strip(" "))
