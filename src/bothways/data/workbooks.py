"""Rows from the first sheet of an Excel workbook (extra ``excel``)."""

import warnings
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time
from itertools import zip_longest
from typing import IO

from bothways.data.columns import Row, check_columns
from bothways.data.lines import LONGEST_IN_DOCUMENT
from bothways.errors import InvalidInput, MissingDependency, SheetsLeftOut
from bothways.reading import MIB

_EXPORT = "save the sheet as CSV UTF-8 (in Excel: File, Save As, CSV UTF-8)"


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
