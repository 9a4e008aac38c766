"""Rows for training a judge: negatives, pairs of texts, and held-out rows.

Negatives recombine the texts of positives, as in ARES (Saad-Falcon et al. 2023, arXiv:2311.09476, section 3.1); no text
is generated. A weak negative gets the passage, or the answer, of a random other query. A strong negative is harder to
recognise: its passage, or answer, comes from a row about the same document, or else from the row whose passage ranks
highest for the query (BM25).
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bothways import data
from bothways.choices import Negatives
from bothways.errors import InvalidInput
from bothways.judging.triples import Dimension, ReadTriples, Triple, TripleColumns, read_triples
from bothways.retrieval.lexical import LexicalIndex
from bothways.tasks.columns import PairColumns
from bothways.tasks.heads.splits import hold_out

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.judging.triples import Rows

HELD_OUT = 0.1
LABELS = ("0", "1")
_DRAWS = 20
# Nearest passages to try for a strong negative, and random ones for a weak one.
_NEAREST, _TRIES = 20, 50


@dataclass(frozen=True, slots=True)
class JudgeData:
    """Training data of a judge."""

    columns: PairColumns
    training: "list[Row]"  # pairs to train on
    validation: "list[Row]"  # held-out pairs
    made: int  # number of negatives made for training and validation
    left_out: int  # number of rows without a label, or without all texts
    repeated: int  # number of rows that repeat another
    shared_passages: int  # number of passages that validation data share with training data

    @property
    def notes(self) -> list[str]:
        """Sentences on how the rows were prepared."""
        notes = {
            f"{self.left_out:,} rows lack a label, or a text that the judge reads, and were left out.": self.left_out,
            f"{self.repeated:,} rows repeat the texts and label of another and count once.": self.repeated,
            f"{self.made:,} negatives were made from passages and answers of other questions. Metrics and "
            "probabilities refer to such rows: real mistakes are harder to detect. Measure the judge on human "
            "labels.": self.made,
            f"{self.shared_passages:,} passages of the validation rows are also in the training rows: validation "
            "metrics are optimistic.": self.shared_passages,
        }
        return [note for note, count in notes.items() if count]


def prepare(
    train: "Rows",
    dimension: Dimension,
    *,
    validation: "Rows | None" = None,
    columns: TripleColumns | None = None,
    negatives: Negatives | None = None,
    seed: int = 0,
) -> JudgeData:
    """Return the text pairs for training and validating a judge; the arguments are those of `Judge.train`.

    ``negatives`` defaults to ``"both"`` if no row has a label, else to ``"none"``.
    """
    named = columns or TripleColumns()
    read = read_triples(train, dimension, named)
    kind: Negatives = negatives or ("none" if read.labelled else "both")
    rows = _labelled(read, dimension, kind, named, "training")
    if validation is None:
        parts = _split(rows, seed)
    else:
        parts = rows, _labelled(read_triples(validation, dimension, named), dimension, kind, named, "validation")
    completed = [_with_negatives(part, dimension, kind, seed + number) for number, part in enumerate(parts)]
    first = "query_and_answer" if len(dimension.first) > 1 else named.query
    pairs = PairColumns(first, named.text(dimension.second), named.label(dimension))
    training, validated = (_pairs(part, dimension, pairs) for part in completed)
    for what, made in (("training", training), ("validation", validated)):
        labels = {row.values[pairs.label] for row in made}
        if labels != set(LABELS):
            raise InvalidInput(
                f"expected {what} rows with the labels 0 and 1, got only {', '.join(sorted(map(str, labels)))} in "
                f"{len(made):,} rows (negatives={kind!r}). Give more rows, or validation data of your own."
            )
    passages = [{each.passage for each in part} for part in parts]
    after = sum(map(len, completed))
    return JudgeData(
        columns=pairs,
        training=training,
        validation=validated,
        made=after - sum(map(len, parts)),
        left_out=read.incomplete + len(read.triples) - len(rows),
        repeated=after - len(training) - len(validated),
        shared_passages=len(passages[0] & passages[1]) if dimension.second == "passage" else 0,
    )


def _labelled(
    read: ReadTriples, dimension: Dimension, kind: Negatives, columns: TripleColumns, what: str
) -> list[Triple]:
    """Return the labelled rows; if there are none, all rows with label 1."""
    labelled, column = list(read.labelled), columns.label(dimension)
    if not labelled:
        if kind == "none":
            raise InvalidInput(
                f"expected labels in the column {column!r} of the {what} rows, got none in {len(read.triples):,} rows. "
                f"Name the column: {dimension.name}=... (--{dimension.name.replace('_', '-')} COLUMN), or generate "
                "negatives: negatives='both' (--negatives both)."
            )
        return [replace(each, label=1) for each in read.triples]
    labels = Counter(each.label for each in labelled)
    if len(labels) == 1 and not (labels[1] and kind != "none"):
        (only,) = labels
        remedy = (
            "or generate negatives: negatives='both' (--negatives both)" if only else "since a judge learns from both"
        )
        raise InvalidInput(
            f"expected labels 0 and 1 in the column {column!r} of the {what} rows, got {only} in all {len(labelled):,} "
            f"labelled rows. Give rows of the other label, {remedy}."
        )
    return labelled


def _split(rows: Sequence[Triple], seed: int) -> tuple[list[Triple], list[Triple]]:
    """Hold out a tenth of the rows; draw again, up to 19 times, while these lack one of the labels."""
    group, classes = _groups(rows), {each.label for each in rows}
    splits = (
        hold_out(rows, HELD_OUT, seed + attempt, lambda label: (str(label),), group=group.__getitem__)
        for attempt in range(_DRAWS)
    )
    first = next(splits)
    return next((each for each in (first, *splits) if {row.label for row in each[1]} == classes), first)


def _groups(rows: Sequence[Triple]) -> dict[Triple, Hashable]:
    """Return a group for each row; rows linked by a query, a passage or a document, also indirectly, share a group."""
    from scipy.cluster.hierarchy import DisjointSet

    groups = DisjointSet(("query", each.query) for each in rows)
    for each in rows:
        for other in (("passage", each.passage or None), ("document", each.document)):
            if other[1] is not None:
                groups.add(other)
                groups.merge(("query", each.query), other)
    return {each: groups["query", each.query] for each in rows}


def _pairs(rows: Sequence[Triple], dimension: Dimension, columns: PairColumns) -> "list[Row]":
    unique = {(dimension.pair(each), each.label): each.where for each in reversed(rows)}
    return [
        data.Row(number, columns.labelled_row(pair, str(label)), where)
        for number, ((pair, label), where) in enumerate(reversed(unique.items()), start=1)
    ]


# --- negatives ---


def _with_negatives(rows: Sequence[Triple], dimension: Dimension, kind: Negatives, seed: int) -> list[Triple]:
    """Add negatives to the rows, except those whose text pair is already among the rows."""
    if kind == "none":
        return list(rows)
    known = {dimension.pair(each) for each in rows}
    made = make_negatives([each for each in rows if each.label == 1], dimension, kind, seed)
    return [*rows, *(each for each in made if dimension.pair(each) not in known)]


def make_negatives(
    positives: Sequence[Triple],
    dimension: Dimension,
    kind: Literal["weak", "strong", "both"] = "both",
    seed: int = 0,
) -> list[Triple]:
    """Return at most one negative (label 0) for each positive: weak, strong, or alternately strong and weak."""
    part: _Exchanged = "passage" if dimension.name == "context_relevance" else "answer"
    if len({each.text(part) for each in positives}) < 2:
        raise InvalidInput(
            f"expected at least two different {part}s to generate negatives from, got one in {len(positives):,} rows. "
            "Give rows of more questions, or label some rows 0."
        )
    kinds = {"weak": (False,), "strong": (True,), "both": (True, False)}[kind]
    return list(_Negatives(positives, part, np.random.default_rng(seed), strong=kind != "weak").made(kinds))


_Exchanged = Literal["passage", "answer"]


class _Negatives:
    """Replaces the passage or the answer of triples by that of another triple."""

    def __init__(
        self, triples: Sequence[Triple], part: _Exchanged, generator: np.random.Generator, *, strong: bool
    ) -> None:
        self._triples, self._part, self._generator = triples, part, generator
        self._same_document: dict[str, list[int]] = defaultdict(list)
        self._right: dict[str, set[str]] = defaultdict(set)
        for number, each in enumerate(triples):
            self._right[each.query].add(each.text(part))
            if each.document is not None:
                self._same_document[each.document].append(number)
        self._nearest = _nearest(triples) if strong else []

    def made(self, kinds: Sequence[bool]) -> Iterator[Triple]:
        """Yield at most one negative per triple; ``kinds`` (True: strong) alternate."""
        for number, triple in enumerate(self._triples):
            other = self._strong(number) if kinds[number % len(kinds)] else None
            other = self._weak(number) if other is None else other
            if other is not None:
                taken, where = self._triples[other].text(self._part), f"a negative made from {triple.where}"
                yield replace(triple, label=0, id=None, where=where, **{self._part: taken})

    def _fits(self, number: int, other: int) -> bool:
        """Return True if the passage or answer of another triple is wrong for this triple's query."""
        triple, candidate = self._triples[number], self._triples[other]
        differs = candidate.text(self._part) not in self._right[triple.query] and candidate.query != triple.query
        # A second question about the same passage has an answer that the passage supports.
        return differs and (self._part == "passage" or not triple.passage or candidate.passage != triple.passage)

    def _strong(self, number: int) -> int | None:
        document = self._triples[number].document
        beside = self._same_document[document] if document is not None else []
        shuffled = self._generator.permutation(beside).tolist() if beside else []
        candidates = [*shuffled, *self._nearest[number].tolist()]
        return next((each for each in candidates if self._fits(number, each)), None)

    def _weak(self, number: int) -> int | None:
        drawn: list[int] = self._generator.integers(len(self._triples), size=_TRIES).tolist()
        return next((each for each in (*drawn, *range(len(self._triples))) if self._fits(number, each)), None)


def _nearest(triples: Sequence[Triple]) -> list[NDArray[np.int64]]:
    """Return the indices of the best triples for each query, by BM25 on passages (on queries where there is none)."""
    index = LexicalIndex.build([each.passage or each.query for each in triples], None)
    return [found.ranking.rows_K for found in index.retrieve([each.query for each in triples], _NEAREST)]
