"""Rows from documents that are read whole: JSON with a list of objects, files as in SQuAD, and Excel workbooks.

A workbook is read from its first sheet (extra ``excel``). A SQuAD file (1.1 and 2.0) holds articles, their paragraphs,
and the questions on each of them::

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}], "is_impossible": ...}]}]}]}

It becomes one row per question, with the columns ``id``, ``title``, ``context``, ``question`` and ``answers``.
"""

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from itertools import zip_longest
from typing import IO, TypeVar

from bothways.data.columns import Row, check_columns
from bothways.data.formats import parse_json
from bothways.data.lines import LONGEST_IN_DOCUMENT
from bothways.errors import InvalidInput, MissingDependency, SheetsLeftOut, read_with
from bothways.reading import MIB

T = TypeVar("T")

_EXPECTED = 'an array of objects, or SQuAD\'s form {"data": [{"paragraphs": [...]}]}'
_EXPORT = "save the sheet as CSV UTF-8 (in Excel: File, Save As, CSV UTF-8)"


def json_rows(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Yield the objects of an array, or the questions of a SQuAD file."""
    content = "".join(_up_to(LONGEST_IN_DOCUMENT.size, lines, name))
    if not content.strip():
        return
    lines_with = read_with("format", "jsonl")
    document = parse_json(content, name, hint=f"Expected {_EXPECTED}; for one object per line give {lines_with}.")
    if isinstance(document, list):
        for number, values in enumerate(document, start=1):
            where = f"row {number} of {name}"
            if not isinstance(values, dict):
                raise InvalidInput(f"{where} is of type {type(values).__name__}. Expected an object.")
            yield Row(number, values, where)
    elif isinstance(document, dict) and isinstance(document.get("data"), list):
        for number, (values, where) in enumerate(_questions(document, name), start=1):
            yield Row(number, values, where)
    else:
        raise InvalidInput(f"{name} is a JSON document of another form. Expected {_EXPECTED}.")


def _up_to(limit: int, lines: Iterator[str], name: str) -> Iterator[str]:
    size = 0
    for line in lines:
        size += len(line)
        if size > limit:
            raise InvalidInput(f"{name} is longer than {limit // 2**20} MiB. {LONGEST_IN_DOCUMENT.advice}")
        yield line


def _questions(document: Mapping[str, object], name: str) -> Iterator[tuple[dict[str, object], str]]:
    for article, in_article in _objects(document, "data", name):
        title = {"title": article["title"]} if "title" in article else {}
        for paragraph, in_paragraph in _objects(article, "paragraphs", in_article):
            context = _part(paragraph, "context", str, in_paragraph)
            for question, where in _objects(paragraph, "qas", in_paragraph):
                # In a file, an id is easier to find than a position.
                named = f"question {question['id']!r} of {name}" if "id" in question else where
                yield _row(question, {**title, "context": context}, where), named


def _row(question: Mapping[str, object], above: Mapping[str, object], where: str) -> dict[str, object]:
    values = {"id": question.get("id"), **above, "question": _part(question, "question", str, where)}
    if question.get("is_impossible") is True:
        if question.get("answers"):
            raise InvalidInput(f"{where} has both `is_impossible: true` and answers: drop one of the two.")
        return {**values, "answers": []}
    # Files for prediction need not have answers.
    return {**values, "answers": question["answers"]} if "answers" in question else values


def _objects(holder: Mapping[str, object], key: str, where: str) -> Iterator[tuple[Mapping[str, object], str]]:
    for number, each in enumerate(_part(holder, key, list, where), start=1):
        place = f"{key}[{number - 1}] of {where}"
        if not isinstance(each, dict):
            raise InvalidInput(f"{place} is of type {type(each).__name__}. Expected an object.")
        yield each, place


def _part(holder: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    value = holder.get(key)
    if not isinstance(value, kind):
        found = "missing" if key not in holder else f"of type {type(value).__name__}"
        raise InvalidInput(f"{key!r} in {where} is {found}. Expected {_EXPECTED}.")
    return value


# --- workbooks ---


def xlsx_rows(stream: IO[bytes], name: str) -> Iterator[Row]:
    """Yield the rows below the header of a workbook's first sheet.

    Numbers are Python numbers, dates are strings as in ISO 8601, and a formula has the value that was saved with it.
    Empty cells are None, and empty rows are skipped.

    Warns:
        SheetsLeftOut: There are other sheets.
    """
    _check_archive(stream, name)
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        missing = MissingDependency.of("openpyxl", extra="excel", purpose=f"reading the Excel workbook {name}")
        raise MissingDependency(f"{missing}. Or {_EXPORT}.") from error
    try:
        workbook = load_workbook(stream, read_only=True, data_only=True)
        sheet = workbook.worksheets[0]
        sheet.reset_dimensions()  # some programs save wrong ones
        records = enumerate(sheet.iter_rows(values_only=True), start=1)
        header = next((list(map(_plain, cells)) for _, cells in records), [])
    except Exception as error:  # of zipfile, of XML and of openpyxl, or a KeyError for a missing part
        raise InvalidInput(f"{name} is no Excel workbook, or is damaged: {error}. Open it, and {_EXPORT}.") from error
    if len(workbook.sheetnames) > 1:
        warnings.warn(
            f"{name} has the sheets {', '.join(map(repr, workbook.sheetnames))}: only {sheet.title!r} is read. Save "
            "another one as a workbook or CSV file of its own.",
            SheetsLeftOut,
            stacklevel=2,
        )
    names = [None if cell is None else str(cell) for cell in header]
    check_columns([each for each in names if each is not None], f"the header of {name}")
    number = None
    for number, cells in records:
        values = dict[str, object]()
        for column, (key, cell) in enumerate(zip_longest(names, map(_plain, cells)), start=1):
            if key is not None:
                values[key] = cell
            elif cell is not None:
                raise InvalidInput(
                    f"row {number} of {name} has a value in column {column}, but the header has no name there. "
                    "Expected the names of the columns in the first row."
                )
        if any(value is not None for value in values.values()):
            yield Row(number, values, f"row {number} of {name}")
    if number is None and header:
        raise InvalidInput(f"{name} has a header but no rows below it. Expected at least one row.")


def _check_archive(stream: IO[bytes], name: str) -> None:
    try:
        with zipfile.ZipFile(stream) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InvalidInput(
            f"{name} is not an Excel workbook (.xlsx), or is damaged: {error}. If it is an .xls file, {_EXPORT}."
        ) from error
    if size > LONGEST_IN_DOCUMENT.size:
        raise InvalidInput(f"{name} has more than {LONGEST_IN_DOCUMENT.size // MIB} MiB unpacked: {_EXPORT}.")


def _plain(cell: object) -> object:
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    return cell.isoformat() if isinstance(cell, date | time) else cell
