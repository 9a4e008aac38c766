"""Relevance judgments: which document answers which query, and how well."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bothways.data.lines import decoded_lines, decompressed, open_file
from bothways.errors import InvalidInput

Judgments = dict[str, dict[str, int]]
"""Grade of relevance by query id and document id; 0 or less for a document that is not relevant."""

MAX_GRADE = 1000
"""Maximum absolute grade: trec_eval counts grades in a table, and misreads larger ones."""

_HEADERS = (("query_id", "doc_id", "relevance"), ("query-id", "corpus-id", "score"))
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def read_judgments(path: str | os.PathLike[str], *, encoding: str | None = None) -> Judgments:
    """Read a file of judgments, plain or compressed with gzip, in UTF-8 or another ``encoding``.

    Two layouts are supported: TREC's four columns separated by white space, without a header (query, iteration,
    document, relevance), and three columns separated by tabs, with a header (``query_id``, ``doc_id``, ``relevance``,
    or ``query-id``, ``corpus-id``, ``score``).

    Raises:
        InvalidInput: The file cannot be read, is empty, has another layout, judges a pair twice, or has an invalid
            relevance; the message says where.
    """
    judgments: Judgments = {}
    for where, query, document, relevance in _records(Path(path), encoding):
        if not _WHOLE.fullmatch(relevance):
            raise InvalidInput(f"{where}: the relevance must be a whole number, got {relevance!r}.")
        of_query = judgments.setdefault(query, {})
        if document in of_query:
            raise InvalidInput(f"{where}: document {document!r} was judged for query {query!r} before. Drop one.")
        of_query[document] = check_grade(relevance, where)
    if not judgments:
        raise InvalidInput(f"{str(path)!r} is empty: expected at least one judgment.")
    return judgments


def check_grade(grade: str, where: str) -> int:
    """Parse a grade of relevance, from -``MAX_GRADE`` to ``MAX_GRADE``."""
    digits = grade.lstrip("+-0") or "0"
    if len(digits) > len(str(MAX_GRADE)) or int(digits) > MAX_GRADE:
        raise InvalidInput(
            f"{where}: the relevance must lie between {-MAX_GRADE} and {MAX_GRADE}, got {grade:.30}. Check "
            "the order of the columns."
        )
    return int(grade)


def _records(path: Path, encoding: str | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield a description of each line for messages, and its query id, document id and relevance."""
    name = repr(str(path))
    headed: bool | None = None
    with open_file(path) as stream:
        raw = decompressed(stream, name, gzip_expected=path.name.lower().endswith(".gz"))
        lines = decoded_lines(raw, name, encoding=encoding)
        for number, line in enumerate(lines, start=1):
            where = f"line {number} of {name}"
            if not line.strip():
                continue
            if headed is None:
                headed = tuple(_cells(line)) in _HEADERS
                if headed:
                    continue
            fields = _cells(line) if headed else line.split()
            if len(fields) != (3 if headed else 4):
                raise InvalidInput(
                    f"{where} has {len(fields)} columns. Expected 3 separated by tabs, with the header 'query_id, "
                    "doc_id, relevance', or 4 as in TREC: query, iteration, document, relevance."
                )
            yield where, fields[0], fields[-2], fields[-1]


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a table, without their quotes if they have any."""
    cells = line.rstrip("\r\n").split("\t")
    return [cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell for cell in cells]
