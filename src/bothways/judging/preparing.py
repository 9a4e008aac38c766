"""Rows for the training of a judge: made negatives, pairs of texts, and rows that are held out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bothways.choices import Negatives
from bothways.errors import InvalidInput
from bothways.judging.dimensions import Dimension
from bothways.judging.negatives import with_negatives
from bothways.judging.triples import ReadTriples, Triple, TripleColumns, read_triples
from bothways.tasks.columns import PairColumns
from bothways.tasks.splits import hold_out

if TYPE_CHECKING:
    from bothways.data import Format, Row, Source

HELD_OUT = 0.1
LABELS = ("0", "1")
_DRAWS = 20


@dataclass(frozen=True, slots=True)
class JudgeData:
    """Training data of a judge.

    Attributes:
        columns: Of the pairs.
        training: Pairs to learn from.
        validation: Pairs that are held out.
        made: Negatives among both that were made.
        left_out: Rows that have no label, or not all texts.
        repeated: Rows that say the same as one before.
        shared_passages: Passages that validation data share with training data.
    """

    columns: PairColumns
    training: "list[Row]"
    validation: "list[Row]"
    made: int
    left_out: int
    repeated: int
    shared_passages: int

    @property
    def notes(self) -> list[str]:
        """Sentences on how the rows were prepared."""
        notes = []
        if self.left_out:
            notes.append(f"{self.left_out:,} rows have no label, or lack a text that is read, and were left out.")
        if self.repeated:
            notes.append(f"{self.repeated:,} rows repeat the texts and label of another and count once.")
        if self.made:
            notes.append(
                f"{self.made:,} negatives were made from passages and answers of other questions. Metrics and "
                "probabilities are of such rows: real mistakes are harder to tell. Measure the judge on human labels."
            )
        if self.shared_passages:
            notes.append(
                f"{self.shared_passages:,} passages of the validation rows are also learnt from: their metrics are "
                "optimistic."
            )
        return notes


def prepare(
    train: "Source | Iterable[Mapping[str, object]]",
    dimension: Dimension,
    *,
    validation: "Source | Iterable[Mapping[str, object]] | None" = None,
    columns: TripleColumns | None = None,
    negatives: Negatives | None = None,
    seed: int = 0,
    format: "Format | None" = None,  # noqa: A002 (the option's name)
) -> JudgeData:
    """Read triples and lay out the pairs that a judge is trained and validated on.

    Args:
        train: Labelled triples; or triples without any label, which all count as good, so that negatives are made.
        dimension: What is judged.
        validation: Held-out triples; about a tenth of the training rows when left out, which share neither a query nor
            a passage with the others.
        columns: Where the parts of a row stand.
        negatives: Which negatives are made (see `bothways.judging.negatives`). By default ``"both"`` where no row has a
            label, else ``"none"``.
        seed: Draws held-out rows and negatives.
        format: Of both files.

    Raises:
        InvalidInput: There is no label and no negative is to be made, or all labels are the same.
    """
    named = columns or TripleColumns()
    read = read_triples(train, dimension, named, format=format)
    kind: Negatives = negatives or ("none" if read.labelled else "both")
    rows = _to_learn(read, dimension, kind, named, "training")
    if validation is None:
        training, held = _held_out(rows, seed)
        found = [training, held]
    else:
        other = read_triples(validation, dimension, named, format=format)
        found = [rows, _to_learn(other, dimension, kind, named, "validation")]
    completed = [_completed(part, dimension, kind, seed + number) for number, part in enumerate(found)]
    pairs = PairColumns("query_and_answer" if len(dimension.first) > 1 else named.query, *_rest(dimension, named))
    unique = [_pairs(part, dimension, pairs) for part in completed]
    _check_classes(unique, pairs.label, kind)
    before, after = (sum(map(len, parts)) for parts in (found, completed))
    return JudgeData(
        columns=pairs,
        training=unique[0],
        validation=unique[1],
        made=after - before,
        left_out=read.incomplete + len(read.triples) - len(rows),
        repeated=after - sum(map(len, unique)),
        shared_passages=0 if dimension.second != "passage" else len(_passages(found[0]) & _passages(found[1])),
    )


def _held_out(rows: Sequence[Triple], seed: int) -> tuple[list[Triple], list[Triple]]:
    """Hold rows out; where all of them have the same label by chance, others are drawn."""
    group = _Groups(rows).of
    classes = {each.label for each in rows}
    drawn = (
        hold_out(rows, HELD_OUT, seed + attempt, lambda label: (str(label),), group=group) for attempt in range(_DRAWS)
    )
    first = next(drawn)
    return next((each for each in (first, *drawn) if {row.label for row in each[1]} == classes), first)


def _rest(dimension: Dimension, columns: TripleColumns) -> tuple[str, str]:
    return str(getattr(columns, dimension.second)), columns.label(dimension)


def _to_learn(
    read: ReadTriples, dimension: Dimension, kind: Negatives, columns: TripleColumns, what: str
) -> list[Triple]:
    """Return the labelled rows; where none has a label, all as good ones.

    Raises:
        InvalidInput: There is no label, and no negative is to be made; or all labels are the same.
    """
    labelled, column = list(read.labelled), columns.label(dimension)
    if not labelled:
        if kind == "none":
            raise InvalidInput(
                f"expected labels in the column {column!r} of the {what} rows, got none in {len(read.triples):,} rows. "
                "Name the column, or let negatives be made (negatives='both')."
            )
        return [replace(each, label=1) for each in read.triples]
    labels = Counter(each.label for each in labelled)
    if len(labels) == 1 and not (labels[1] and kind != "none"):
        (only,) = labels
        remedy = "or let negatives be made (negatives='both')" if only else "for a judge learns from both"
        raise InvalidInput(
            f"expected labels 0 and 1 in the column {column!r} of the {what} rows, got {only} in all {len(labelled):,} "
            f"labelled rows. Give rows of the other label, {remedy}."
        )
    return labelled


def _completed(rows: Sequence[Triple], dimension: Dimension, kind: Negatives, seed: int) -> list[Triple]:
    """Return rows with made negatives, none of which is a pair that is labelled good."""
    if kind == "none":
        return list(rows)
    good = [each for each in rows if each.label == 1]
    known = {dimension.pair(each) for each in rows}
    made = with_negatives(good, dimension, kind, seed)[len(good) :]
    return [*rows, *(each for each in made if dimension.pair(each) not in known)]


def _pairs(rows: Sequence[Triple], dimension: Dimension, columns: PairColumns) -> "list[Row]":
    from bothways.data import Row

    unique = {(dimension.pair(each), each.label): each.where for each in reversed(rows)}
    return [
        Row(number, columns.labelled_row(pair, str(label)), where)
        for number, ((pair, label), where) in enumerate(reversed(unique.items()), start=1)
    ]


def _check_classes(parts: "Sequence[Sequence[Row]]", column: str, kind: Negatives) -> None:
    for what, rows in zip(("training", "validation"), parts, strict=True):
        found = {row.values[column] for row in rows}
        if found != set(LABELS):
            raise InvalidInput(
                f"expected {what} rows with the labels 0 and 1, got {', '.join(sorted(map(str, found)))} alone in "
                f"{len(rows):,} rows (negatives={kind!r}). Give more rows, or validation data of your own."
            )


def _passages(rows: Sequence[Triple]) -> set[str]:
    return {each.passage for each in rows}


class _Groups:
    """Rows that share a query, a passage or a document, also through others: none may be held out without the rest."""

    def __init__(self, rows: Sequence[Triple]) -> None:
        self._parent: dict[tuple[str, str], tuple[str, str]] = {}
        for each in rows:
            first, *others = self._names(each)
            for other in others:
                self._parent[self._root(first)] = self._root(other)

    def of(self, triple: Triple) -> tuple[str, str]:
        """Return what names the group of a row."""
        return self._root(self._names(triple)[0])

    def _names(self, triple: Triple) -> list[tuple[str, str]]:
        names = [("query", triple.query)]
        names += [("passage", triple.passage)] * bool(triple.passage)
        return names + ([("document", triple.document)] if triple.document is not None else [])

    def _root(self, name: tuple[str, str]) -> tuple[str, str]:
        path = []
        while (above := self._parent.setdefault(name, name)) != name:
            path.append(name)
            name = above
        for each in path:
            self._parent[each] = name
        return name
