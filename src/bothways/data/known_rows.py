"""Checksums of the rows that a model was trained on, to find them in other data.

A row is known by its input, a triplet by its anchor and its positive: their texts in Unicode normal form NFC, with case
folded and white space collapsed. A checksum has 64 bits: 48 of the texts and 16 of the label (0 for none), so that the
same texts with another label can be told apart. Of N rows and M others, about N M / 2 ** 48 are found by chance.

Shapes: N known rows, M rows to look for.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways import text as tokenizing
from bothways.choices import Shared
from bothways.data.columns import texts_in
from bothways.data.label_rows import LabelledRow
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.reading import read_bytes

KNOWN_ROWS = "training_rows.u64"
"""The file of a saved model: a mark, the largest text checksum, and the row checksums, each as 8 bytes."""

MOST_KNOWN = 1_000_000
"""Maximum checksums in the file, 8 MB. Of more rows, those with the smallest checksums are kept: a random sample."""

UNCHECKED, NEW, ALIKE, OTHER_LABEL = -1, 0, 1, 2
"""Codes of `KnownRows.find`: a row outside of the sample, not known, known with this label or none, or with another."""

_MARK = b"BWROWS1\n"
_ALL = 2**48 - 1
_LABEL_BITS = np.uint64(16)


class ReadRow(LabelledRow, Protocol):
    """A row with its input: a text, words, or a tuple of texts; and its label, None for none."""

    @property
    def text(self) -> object:
        """The input."""

    @property
    def known_by(self) -> object:
        """The texts of the input by which a training row is recognised."""


def normalised(value: object) -> str:
    r"""Return the texts of an input in one normal form.

    >>> normalised(("Cafe\u0301  au lait ", "x")) == normalised(("CAFÉ au\nlait", "X"))
    True
    """
    return "\x1f".join(" ".join(_folded(part).split()) for part in texts_in(value))


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


@dataclass(frozen=True, slots=True, eq=False)
class KnownRows:
    """The checksums of rows in ascending order; of rows up to the text checksum ``limit`` all are known."""

    rows_N: NDArray[np.uint64]
    limit: int = _ALL

    @classmethod
    def of(cls, rows: Iterable[ReadRow]) -> Self:
        """Compute the checksums of rows."""
        return cls(np.unique(_checksums(rows)))

    @property
    def texts_N(self) -> NDArray[np.uint64]:
        """The checksums of the texts alone."""
        return self.rows_N >> _LABEL_BITS

    def __or__(self, other: Self | None) -> Self:
        """Return the rows of both."""
        if other is None:
            return self
        joined = type(self)(np.union1d(self.rows_N, other.rows_N), min(self.limit, other.limit))
        return type(self)(joined.rows_N[joined.texts_N <= np.uint64(joined.limit)], joined.limit)

    def find(self, rows: Sequence[ReadRow]) -> NDArray[np.int8]:
        """Compare each row (M) with the known ones: return codes such as `OTHER_LABEL`."""
        rows_M, known_N = _checksums(rows), self.texts_N
        texts_M, unlabelled_M = rows_M >> _LABEL_BITS, (rows_M & np.uint64(0xFFFF)) == 0
        first_M = np.searchsorted(known_N, texts_M)
        known_M = first_M < np.searchsorted(known_N, texts_M, side="right")
        # The checksum of a row without a label is the smallest of its text.
        unlabelled_M |= np.isin(texts_M << _LABEL_BITS, self.rows_N)
        alike_M = unlabelled_M | np.isin(rows_M, self.rows_N)
        found_M = np.where(known_M, np.where(alike_M, ALIKE, OTHER_LABEL), NEW)
        return np.where(texts_M > np.uint64(self.limit), UNCHECKED, found_M).astype(np.int8)

    def write(self, folder: Path) -> None:
        """Write the checksums, at most `MOST_KNOWN`, into a folder."""
        kept_N, limit = self.rows_N[:MOST_KNOWN], self.limit
        if len(kept_N) < len(self.rows_N):
            limit = int(self.texts_N[MOST_KNOWN - 1])
        folder.mkdir(parents=True, exist_ok=True)
        content = np.concatenate([np.array([limit], np.uint64), kept_N]).astype("<u8").tobytes()
        (folder / KNOWN_ROWS).write_bytes(_MARK + content)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the checksums in a folder; None if it has none."""
        path = folder / KNOWN_ROWS
        if not path.is_file():
            return None
        content = read_bytes(path, 8 * (MOST_KNOWN + 2))
        if len(content) % 8 or len(content) < 16 or not content.startswith(_MARK):
            raise CorruptCheckpoint(f"{str(path)!r} is damaged: delete it, or save the model again.")
        numbers = np.frombuffer(content[8:], "<u8").astype(np.uint64)
        return cls(np.sort(numbers[1:]), int(numbers[0]))


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Counts of rows for a measurement that the model was trained on."""

    rows: int
    checked: int  # rows that could be looked for; fewer if only a sample of the training rows is known
    shared: int  # rows whose texts are those of a training row
    other_label: int  # of the shared rows, those with another label than in training
    left_out: bool = False  # True if the shared rows were not used

    def to_dict(self) -> dict[str, int | bool]:
        """Return JSON values."""
        return asdict(self)

    def summary(
        self,
        rows: str = "rows",
        effect: str = "the metrics look better than they are on new rows",
        advice: str = "Leave them out with shared='drop' (--shared drop).",
    ) -> str:
        """Return sentences on the shared rows; empty if there are none. ``rows`` is the noun phrase for the rows."""
        if not self.shared:
            return ""
        checked = "" if self.checked == self.rows else f" ({self.checked:,} could be checked)"
        label = f", {self.other_label:,} of them with another label" if self.other_label else ""
        of = f"{self.shared:,} of {self.rows:,} {rows}{checked}"
        if self.left_out:
            return f"Left out {of}: they are training rows{label}."
        return f"{of} are training rows{label}: {effect}. {advice}"


RowT = TypeVar("RowT", bound=ReadRow)


def compared(
    found_M: NDArray[np.int8], rows: Sequence[RowT], shared: Shared, called: str = "rows"
) -> tuple[list[RowT], SharedRows]:
    """Count the known rows by what `KnownRows.find` found, and return all, or with ``shared="drop"`` the others.

    Raises:
        InvalidInput: All rows are known, and to be dropped.
    """
    known_M = found_M >= ALIKE
    counts = int((found_M != UNCHECKED).sum()), int(known_M.sum()), int((found_M == OTHER_LABEL).sum())
    found = SharedRows(len(rows), *counts, left_out=shared == "drop")
    if shared == "keep":
        return list(rows), found
    if known_M.all():
        raise InvalidInput(
            f"all {len(rows):,} {called} are training rows: expected some that are not. Give other rows, or leave out "
            "shared='drop' (--shared drop)."
        )
    return [row for row, left_out in zip(rows, known_M.tolist(), strict=True) if not left_out], found


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """The training rows of a model: their checksums, or the folder of the model, which may have them."""

    source: KnownRows | Path | None = None

    def rows(self) -> KnownRows | None:
        """Return the checksums; None if there are none."""
        match self.source:
            case Path() as folder:
                return KnownRows.read(folder)
            case known:
                return known

    def compared(self, rows: Sequence[RowT], shared: Shared) -> tuple[list[RowT], dict[str, SharedRows]]:
        """Compare rows with the training rows, see `compared`; the key of the counts is ``""``."""
        known = self.rows()
        if known is None:
            return list(rows), {}
        kept, counts = compared(known.find(rows), rows, shared)
        return kept, {"": counts}

    def write(self, folder: Path) -> None:
        """Write the checksums, if there are any, into the folder of the model."""
        if (known := self.rows()) is not None:
            known.write(folder)


class AnyTrainingRows(Protocol):
    """The training rows of a model, of the members of an ensemble, or of several tasks."""

    def compared(self, rows: Any, shared: Shared) -> tuple[Any, dict[str, SharedRows]]:  # noqa: ANN401 (rows as read)
        """Return rows, without training rows if ``shared`` is ``"drop"``, and how many are shared, by task."""

    def write(self, folder: Path) -> None:
        """Write the checksums, if there are any, into the folder of the model."""


def _checksums(rows: Iterable[ReadRow]) -> NDArray[np.uint64]:
    return np.fromiter((_hash(normalised(row.known_by), 6) << 16 | _label(row) for row in rows), np.uint64)


def _label(row: ReadRow) -> int:
    """Return 16 bits of a row's label; the order of several labels or answers does not matter, that of tags does."""
    if row.label is None:
        return 0
    match row.text, row.label:
        case tokenizing.Words(), _:
            return _label_bits(repr(row.label))
        case _, tuple(parts):
            return _label_bits(repr(sorted(map(repr, parts))))
    return _label_bits(repr(row.label))


@lru_cache(10_000)
def _label_bits(label: str) -> int:
    return 1 + _hash(label, 8) % 0xFFFF


def _hash(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest(), "big")
