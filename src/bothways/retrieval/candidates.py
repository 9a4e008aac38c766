"""Queries with candidates of which it is known how well they answer: rows of query, passage and relevance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from bothways.checkpoints.hub import locate
from bothways.data import Source, class_label, read_rows, text_at, value_at
from bothways.data.judgments import check_grade
from bothways.errors import InvalidInput, did_you_mean
from bothways.evaluation import Report
from bothways.evaluation.rankings import ranking_outcomes
from bothways.progress import progress
from bothways.retrieval.reranking import (
    AFFIRMATIVE,
    BiEncoder,
    CrossEncoder,
    Reranker,
    are_grades,
    scores_and_readings,
)
from bothways.tasks import PairClassifier, SentenceEmbedder
from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.columns import PairColumns, column_names, renamed
from bothways.tasks.embedding.spec import EMBEDDING, FEW_SHOT
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.registry import check_open_options, stored_task, task_class, task_of_heads
from bothways.tasks.scores import TokensRead, texts_read
from bothways.tasks.targets import Regression
from bothways.tasks.task import OpenArguments

# Tasks whose models embed texts, or are encoders that may as well; None of an encoder with no task at all.
MAKING_VECTORS = (None, EMBEDDING.name, FEW_SHOT.name, MASKED_LM.name)


@dataclass(frozen=True, slots=True)
class Candidates:
    """One query's passages.

    Attributes:
        query: The query.
        passages: What is to be ranked.
        grades: How well each answers: 0 for not at all.
    """

    query: str
    passages: tuple[str, ...]
    grades: tuple[int, ...]


def read_candidates(
    data: Source,
    *,
    query: str = "text_a",
    passage: str = "text_b",
    label: str = "label",
    relevant: str | None = None,
) -> list[Candidates]:
    """Rows of one passage each, gathered by query.

    Args:
        data: A file, or a list of mappings.
        query: Column of the queries.
        passage: Column of the passages.
        label: Column of their relevance: a grade from 0 on, or a label.
        relevant: The label of passages that answer; None where grades are given, or where it is the one that is
            usually called so (``AFFIRMATIVE``).

    Raises:
        InvalidInput: A text is missing, a grade is far out of range, or it is not clear which label means that a
            passage answers.
    """
    rows = [
        (row.where, text_at(row, query), text_at(row, passage), class_label(value_at(row, label)))
        for row in read_rows(data)
    ]
    labels = {value for *_, value in rows}
    if relevant is None and not are_grades(labels):
        relevant = _usual(labels, label)
    if relevant is not None and relevant not in labels:
        raise InvalidInput(
            f"no passage has {relevant!r} in {label!r}, the label that was looked for as that of passages that answer: "
            f"there are {_shown(labels)}.{did_you_mean(relevant, labels)} If one of these means that a passage "
            "answers, pass relevant=... (on the command line --relevant); of a model of pairs it must be a label of "
            "the model as well."
        )
    gathered: dict[str, list[tuple[str, int]]] = {}
    for where, asked, found, value in rows:
        grade = check_grade(value, where) if relevant is None else int(value == relevant)
        gathered.setdefault(asked, []).append((found, grade))
    return [
        Candidates(asked, tuple(passage for passage, _ in found), tuple(grade for _, grade in found))
        for asked, found in gathered.items()
    ]


def _usual(labels: set[str], column: str) -> str:
    usual = [label for label in sorted(labels) if label.lower() in AFFIRMATIVE]
    if len(usual) != 1:
        raise InvalidInput(
            f"the relevance in {column!r} must be whole numbers from 0 on, or it must be said which label means that a "
            f"passage answers: it has {_shown(labels)}. Pass relevant=... (on the command line --relevant)."
        )
    return usual[0]


def _shown(labels: set[str]) -> str:
    return ", ".join(map(repr, sorted(labels)[:10]))


def evaluate_reranker(
    reranker: Reranker,
    candidates: Sequence[Candidates],
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
) -> Report:
    """Rank each query's candidates and measure the rankings.

    Queries of which all candidates answer, or none, say nothing about a ranking and are left out, as is usual for
    TREC-QA; the report counts them as ``queries_without_contrast``. Of passages with equal scores the less relevant
    comes first, so that ties and the order of the data gain nothing.

    Args:
        reranker: What scores the passages.
        candidates: The queries.
        resamples: Of the bootstrap over queries.
        seed: Of the bootstrap.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: No query is left, or the reranker gave no finite number for each passage.
        MissingDependency: The extra ``search`` is not installed.
    """
    telling = [each for each in candidates if any(each.grades) and not all(each.grades)]
    if not telling:
        raise InvalidInput("there is no query with passages that answer and others that do not: nothing to measure.")
    rankings, judgments = {}, {}
    readings: list[TokensRead] = []
    with progress("ranking", len(telling), show=show_progress) as bar:
        for each in telling:
            scores_P, read = scores_and_readings(reranker, each.query, each.passages)
            readings += read
            rankings[each.query] = [str(row) for row in np.lexsort((np.array(each.grades), -scores_P))]
            judgments[each.query] = {str(row): grade for row, grade in enumerate(each.grades)}
            bar.advance()
    outcomes = ranking_outcomes(rankings, judgments, queries_without_contrast=len(candidates) - len(telling))
    read_in_all = texts_read(readings) if readings else None
    return replace(outcomes, tokens_read=read_in_all).report(resamples=resamples, seed=seed)


def _reads_pairs(folder: Path, name: str) -> bool:
    """Return whether the model in a folder reads two texts at once, rather than making a vector of each.

    Raises:
        InvalidInput: It does neither.
    """
    stored = stored_task(folder)
    task = stored or task_of_heads(folder)
    if task == PAIRS.name or (stored is None and task == CLASSIFICATION.name):
        return True
    if task not in MAKING_VECTORS:
        raise InvalidInput(
            f"candidates are ranked by a model of pairs, by an embedder or by an encoder that was trained for no other "
            f"task, but {name!r} is a model for {task}."
        )
    return False


class CandidateRanking:
    """A model that is judged by how it ranks the candidates of queries.

    Attributes:
        columns: Where query, passage and relevance stand.
    """

    def __init__(self, reranker: Reranker, columns: PairColumns, relevant: str | None) -> None:
        self.reranker = reranker
        self.columns = columns
        self._relevant = relevant

    @classmethod
    def open(
        cls, name_or_path: str | Path, *, relevant: str | None = None, **options: Unpack[OpenArguments]
    ) -> "CandidateRanking":
        """Open a model of pairs as a cross-encoder, and an embedder or a bare encoder as one that ranks by cosines.

        A checkpoint from elsewhere with a head for texts is taken for a model of pairs. Query, passage and relevance
        stand where a model of labels had texts and labels in training; a model of scores reads the relevance in
        ``label``.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            relevant: The label of passages that answer.
            options: See `bothways.tasks.reading.OpenOptions`, and the options of embedders or of models of pairs.

        Raises:
            InvalidInput: The model of pairs has no such label, or the model was trained for another task. And
                everything that `bothways.load` raises.
        """
        found = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
        if not _reads_pairs(found.folder, str(name_or_path)):
            check_open_options(str(name_or_path), "embedding", options)
            embedder = SentenceEmbedder.from_pretrained(name_or_path, **options)
            return cls(BiEncoder(embedder), PairColumns(), relevant)
        check_open_options(str(name_or_path), "pairs", options)
        pairs: PairClassifier = task_class(PAIRS).from_pretrained(name_or_path, **options)
        if isinstance(pairs.outputs.target, Regression):
            # What it was trained on are scores; what is known of candidates is another column.
            return cls(CrossEncoder(pairs), pairs.with_columns(label=PairColumns().label).columns, relevant)
        reranker = CrossEncoder(pairs, relevant)
        return cls(reranker, pairs.columns, reranker.relevant)

    def with_columns(self, **names: object) -> "CandidateRanking":
        """Return the same model, reading other columns.

        Raises:
            UnreadColumn: It reads no such part of a row.
        """
        return CandidateRanking(self.reranker, renamed(self.columns, names), self._relevant)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Parts of a row that have columns, by the names that `with_columns` takes."""
        return column_names(self.columns)

    @property
    def ranked_by(self) -> str:
        """The ranker of the candidates: ``"cross-encoder"`` or ``"cosine"``."""
        return "cross-encoder" if isinstance(self.reranker, CrossEncoder) else "cosine"

    def evaluate(
        self, data: Source, *, resamples: int = 1000, seed: int = 0, show_progress: bool | None = None
    ) -> Report:
        """Metrics on rows of query, passage and relevance, with 95 % bootstrap intervals over queries."""
        candidates = read_candidates(
            data,
            query=self.columns.text_a,
            passage=self.columns.text_b,
            label=self.columns.label,
            relevant=self._relevant,
        )
        return evaluate_reranker(self.reranker, candidates, resamples=resamples, seed=seed, show_progress=show_progress)
