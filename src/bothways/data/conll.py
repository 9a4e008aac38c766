"""Rows from CoNLL and CoNLL-U files: one word per line, and an empty line between texts."""

import re
from collections.abc import Iterator
from itertools import groupby

from bothways.data.columns import Row
from bothways.errors import InvalidInput
from bothways.reading import unended_lines

# Separates documents in the files of CoNLL 2003.
_DOCUMENT = "-DOCSTART-"
_GAP = re.compile(r"[ \t]+")
_CONLLU_COLUMNS = 10
_WORD_ID = re.compile(r"[0-9]{1,9}")


def conll_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one row per text: the first column of its lines in ``tokens``, the last in ``tags``.

    Columns are separated by tabs or, in a line without tabs, by spaces. Columns between the first and the last, and
    lines of ``-DOCSTART-``, are skipped.
    """
    for blank, group in groupby(
        unended_lines(lines, name), key=lambda each: not each[1].strip(" \t") or each[1].startswith(_DOCUMENT)
    ):
        if blank:
            continue
        text = [(at, line.split("\t") if "\t" in line else _GAP.split(line.strip(" "))) for at, line in group]
        first, columns = text[0][0], len(text[0][1])
        for number, values in text:
            if len(values) != columns or columns < 2:
                raise InvalidInput(
                    f"line {number} of {name} has {len(values)} columns, but the text that starts on line {first} has "
                    f"{columns}. Expected a word and its tag, the same number of columns on every line of a text, "
                    "and an empty line between texts."
                )
        tokens, tags = [values[0] for _, values in text], [values[-1] for _, values in text]
        yield Row(first, {"tokens": tokens, "tags": tags}, f"the text on line {first} of {name}")


def conllu_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield one row per sentence of Universal Dependencies (https://universaldependencies.org/format.html).

    Columns are ``tokens`` (FORM), ``tags`` (UPOS) and, if every word has them, ``heads`` (HEAD: numbers of words from
    1, 0 for the root) and ``relations`` (DEPREL). Comments, multiword tokens (``1-2``) and empty nodes (``1.1``) are
    skipped.
    """
    for blank, group in groupby(unended_lines(lines, name), key=lambda each: not each[1].strip()):
        if blank:
            continue
        text = [(number, line.split("\t")) for number, line in group if not line.startswith("#")]
        for number, values in text:
            if len(values) != _CONLLU_COLUMNS:
                raise InvalidInput(
                    f"line {number} of {name} has {len(values)} columns separated by tabs: expected "
                    f"{_CONLLU_COLUMNS}, from ID to MISC."
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
