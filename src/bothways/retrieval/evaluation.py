"""Evaluation of searches against relevance judgments, and of rerankers on lists of candidates."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from bothways.checkpoints.hub import locate
from bothways.choices import LabelValue, Shared, Unlabelled
from bothways.data import Example, RowsWithoutLabel, Source, class_label, number, read_rows
from bothways.data.judgments import check_grade
from bothways.data.known_rows import SharedRows, compared
from bothways.data.label_rows import check_looks, converted, one_spelling
from bothways.data.labels import BLANKS, reading_numbers
from bothways.data.sources import PLAIN_READING, LabelReading
from bothways.errors import InvalidInput, did_you_mean
from bothways.evaluation.metrics.ranking import ranking_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import Report
from bothways.progress import progress
from bothways.retrieval.index import VectorStore
from bothways.retrieval.ranking import Hit
from bothways.retrieval.reranking import (
    AFFIRMATIVE,
    BiEncoder,
    CrossEncoder,
    Reranker,
    are_grades,
    checked_scores,
)
from bothways.tasks import PairClassifier, SentenceEmbedder
from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.columns import PairColumns, column_names, renamed
from bothways.tasks.embedding.spec import EMBEDDING
from bothways.tasks.heads.targets import Regression
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.opening import OpenArguments
from bothways.tasks.registry import check_open_options, stored_task, task_class, task_of_heads
from bothways.tasks.scores import TokensRead, texts_read
from bothways.tasks.task import AnyTask

# Tasks whose models can embed texts; None stands for an encoder without a task.
EMBEDS = (None, EMBEDDING.name, MASKED_LM.name)


def search_outcomes(
    search: Callable[[Sequence[str]], list[list[Hit]]],
    queries: Mapping[str, str],
    judgments: Mapping[str, Mapping[str, int]],
    left_out: Collection[tuple[str, str]] = (),
) -> Outcomes:
    """Search for each query, and return the outcomes that reports and comparisons are computed from.

    Args:
        search: Function that returns the hits of each query, as many as the metrics need.
        queries: Texts of the queries by id.
        judgments: Relevance by query id and document id.
        left_out: Query ids and document ids of pairs that count neither as hits nor as judgments.

    Raises:
        InvalidInput: No query has a relevant document.
        MissingDependency: The extra ``search`` is not installed.
    """
    answers = search(list(queries.values()))
    rankings = {
        query: [hit.id for hit in hits if (query, hit.id) not in left_out]
        for query, hits in zip(queries, answers, strict=True)
    }
    remaining = {
        query: {document: grade for document, grade in grades.items() if (query, document) not in left_out}
        for query, grades in judgments.items()
    }
    return ranking_outcomes(rankings, remaining)


def pairs_of_training(
    models: Sequence[AnyTask],
    queries: Mapping[str, str],
    judgments: Mapping[str, Mapping[str, int]],
    index: VectorStore,
    shared: Shared = "keep",
) -> tuple[set[tuple[str, str]], SharedRows | None]:
    """Compare the pairs of a query and a relevant document with the training rows of an embedder and a reranker.

    Return the ids of the pairs to leave out, none unless ``shared`` is ``"drop"``, and the number of pairs that a model
    was trained on; None if the training rows of no model are known.

    Raises:
        InvalidInput: The models were trained on all pairs, which are to be dropped.
    """
    known = [rows for model in models if (rows := model.fitted.known.rows()) is not None]
    relevant = {(query, name) for query, grades in judgments.items() for name, grade in grades.items() if grade > 0}
    wanted = {name for _, name in relevant}
    documents = index.texts_of(wanted)
    ids = sorted((query, name) for query, name in relevant if query in queries and name in documents)
    pairs = [Example((queries[query], documents[name]), None, place) for place, (query, name) in enumerate(ids)]
    if not known or not pairs:
        return set(), None
    found_P = np.max([each.find(pairs) for each in known], axis=0)
    kept, counts = compared(found_P, pairs, shared, "pairs of a query and a relevant document")
    return set(ids).difference(ids[each.row] for each in kept), counts


def absent_documents(judgments: Mapping[str, Mapping[str, int]], ids: Collection[str]) -> int:
    """Return the number of documents judged relevant that are not among ``ids``, the ids of an index.

    Raises:
        InvalidInput: The index has no relevant document, or no document is judged relevant.
    """
    relevant = {document for of_query in judgments.values() for document, grade in of_query.items() if grade > 0}
    if not relevant:
        raise InvalidInput(
            "no document is judged relevant: expected a grade above 0 for at least one document of a query."
        )
    absent = relevant.difference(ids)
    if len(absent) == len(relevant):
        raise InvalidInput(
            f"the index has none of the {len(relevant):,} documents that are judged relevant. Check that both use the "
            f"same ids: for example, the index has {next(iter(ids), None)!r}, and the judgments {min(absent)!r}. "
            "Build the index with the column of the ids (--id on the command line)."
        )
    return len(absent)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query with candidate passages of known relevance."""

    query: str
    passages: tuple[str, ...]  # the passages to rank
    grades: tuple[int, ...]  # the relevance of each; 0 for not relevant


def read_candidates(
    data: Source,
    *,
    query: str = "text_a",
    passage: str = "text_b",
    label: str = "label",
    relevant: str | None = None,
    unlabelled: Unlabelled = "error",
    reading: LabelReading = PLAIN_READING,
) -> list[Candidates]:
    """Read rows that have a query and one passage each, and group them by query.

    Args:
        data: A file, or a list of mappings.
        query: Column of the queries.
        passage: Column of the passages.
        label: Column of the relevance: a grade of at least 0, or a label.
        relevant: The label of relevant passages. Default: labels that are whole numbers are grades; else the label
            that is in ``AFFIRMATIVE``.
        unlabelled: What to do with rows without a relevance (empty, null or ``-``): ``"error"`` refuses the data,
            ``"drop"`` leaves such rows out.
        reading: Rules for reading labels that are numbers, or that look alike.

    Raises:
        InvalidInput: A text is missing, a grade is above 1000, or the label of relevant passages is unclear.
    """
    columns, known = PairColumns(query, passage, label), () if relevant is None else (relevant,)
    rows = _judged_pairs(data, columns, unlabelled, reading, known)
    labels = {value for *_, value in rows}
    shown = ", ".join(map(repr, sorted(labels)[:10]))
    if relevant is None and not are_grades(labels):
        usual = [name for name in sorted(labels) if name.lower() in AFFIRMATIVE]
        if len(usual) != 1:
            raise InvalidInput(
                f"the relevance in {label!r} must be whole numbers of at least 0, or labels of which one means "
                f"'relevant', got {shown}. Name that label with relevant=... (on the command line --relevant)."
            )
        relevant = usual[0]
    if relevant is not None and relevant not in labels:
        raise InvalidInput(
            f"no passage has the label {relevant!r} for relevant passages; the labels in {label!r} are {shown}."
            f"{did_you_mean(relevant, labels)} If one of these means relevant, pass relevant=... (on the command line "
            "--relevant); for a pair model it must also be one of the model's labels."
        )
    by_query: dict[str, list[tuple[str, int]]] = {}
    for where, query_text, passage_text, value in rows:
        grade = check_grade(value, where) if relevant is None else int(value == relevant)
        by_query.setdefault(query_text, []).append((passage_text, grade))
    return [
        Candidates(text, tuple(passage for passage, _ in graded), tuple(grade for _, grade in graded))
        for text, graded in by_query.items()
    ]


def _judged_pairs(
    data: Source, columns: PairColumns, unlabelled: Unlabelled, reading: LabelReading, known: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    """Return each row in words, with its query, its passage and the name of its label."""
    without = RowsWithoutLabel(columns.label, unlabelled)
    convert = reading_numbers(class_label, reading.names) if reading.names else class_label
    rows = [
        (row.where, *columns.read(row), str(converted(row, columns.label, convert)))
        for row in read_rows(data)
        if not without.holds(row, BLANKS[number])
    ]
    without.check(len(rows))
    if not reading.normalise:
        check_looks(([name] for *_, name in rows), columns.label)
        return rows
    names = one_spelling([[name] for *_, name in rows], known)
    return [(where, query, passage, names[name]) for where, query, passage, name in rows]


def evaluate_reranker(
    reranker: Reranker,
    candidates: Sequence[Candidates],
    *,
    resamples: int = 1000,
    seed: int = 0,
    show_progress: bool | None = None,
) -> Report:
    """Rank each query's candidates and measure the rankings.

    Queries whose candidates are all relevant, or all irrelevant, give the same metrics for all rankings; they are left
    out, as is usual for TREC-QA, and counted as ``queries_without_contrast``. Of passages with equal scores, the less
    relevant is ranked first, so that neither ties nor the order of the data help.

    Args:
        reranker: Scores the passages.
        candidates: The queries with their candidates.
        resamples: Bootstrap resamples over queries.
        seed: Seed of the bootstrap.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: No query is left, or the reranker did not give one finite score for each passage.
        MissingDependency: The extra ``search`` is not installed.
    """
    contrasting = [each for each in candidates if any(each.grades) and not all(each.grades)]
    if not contrasting:
        raise InvalidInput("nothing to measure: no query has both relevant and irrelevant passages. Add such queries.")
    rankings, judgments = {}, {}
    reads: list[TokensRead] = []
    with progress("ranking", len(contrasting), show=show_progress) as bar:
        for each in contrasting:
            scores_P, read = checked_scores(reranker, each.query, each.passages)
            reads += read
            rankings[each.query] = [str(row) for row in np.lexsort((np.array(each.grades), -scores_P))]
            judgments[each.query] = {str(row): grade for row, grade in enumerate(each.grades)}
            bar.advance()
    outcomes = ranking_outcomes(rankings, judgments, queries_without_contrast=len(candidates) - len(contrasting))
    return replace(outcomes, tokens_read=texts_read(reads) if reads else None).report(resamples=resamples, seed=seed)


class CandidateRanking:
    """An evaluation of a model by its rankings of each query's candidate passages.

    Attributes:
        columns: The columns of query, passage and relevance.
    """

    def __init__(self, reranker: Reranker, columns: PairColumns, relevant: str | None) -> None:
        self.reranker = reranker
        self.columns = columns
        self._relevant = relevant

    @classmethod
    def open(
        cls, name_or_path: str | Path, *, relevant: str | None = None, **options: Unpack[OpenArguments]
    ) -> "CandidateRanking":
        """Open a pair classifier as a cross-encoder, or an embedder or a bare encoder to rank by similarity.

        A checkpoint of another library with a text classification head counts as a pair classifier. Query, passage and
        relevance are read from the columns that the classifier was trained on; for a regression model, relevance is
        read from ``label``.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            relevant: The label of relevant passages.
            options: See `bothways.tasks.backend.OpenOptions`, and the options of embedders or of pair classifiers.

        Raises:
            InvalidInput: The pair classifier has no such label, or the model was trained for another task. All errors
                of `bothways.load` are raised too.
        """
        located = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
        stored = stored_task(located.folder)
        task = stored or task_of_heads(located.folder)
        if task != PAIRS.name and (stored is not None or task != CLASSIFICATION.name):
            if task not in EMBEDS:
                raise InvalidInput(
                    f"expected a pair classifier, an embedder or an encoder without another task to rank candidates, "
                    f"but {str(name_or_path)!r} is a model for {task}."
                )
            check_open_options(str(name_or_path), "embedding", options)
            embedder = SentenceEmbedder.from_pretrained(name_or_path, **options)
            return cls(BiEncoder(embedder), PairColumns(), relevant)
        check_open_options(str(name_or_path), "pairs", options)
        pairs: PairClassifier = task_class(PAIRS).from_pretrained(name_or_path, **options)
        if isinstance(pairs.fitted.outputs.target, Regression):
            # It was trained on scores; the relevance of candidates is in another column.
            return cls(CrossEncoder(pairs), pairs.with_columns(label=PairColumns().label).columns, relevant)
        reranker = CrossEncoder(pairs, relevant)
        return cls(reranker, pairs.columns, reranker.relevant)

    def with_columns(self, **names: object) -> "CandidateRanking":
        """Return the same model with other columns.

        Raises:
            UnreadColumn: A name is not in `column_names`.
        """
        return CandidateRanking(self.reranker, renamed(self.columns, names), self._relevant)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names that `with_columns` takes, one for each column that is read."""
        return column_names(self.columns)

    @property
    def ranked_by(self) -> str:
        """The kind of ranker: ``"cross-encoder"``, or the similarity of an embedder, such as ``"cosine"``."""
        return (
            self.reranker.embedder.fitted.settings.similarity
            if isinstance(self.reranker, BiEncoder)
            else "cross-encoder"
        )

    def evaluate(
        self,
        data: Source,
        *,
        unlabelled: Unlabelled = "error",
        normalise_labels: bool | None = None,
        labels: Sequence[LabelValue] | None = None,
        shared: Shared = "keep",
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Evaluate on rows with a query, a passage and a relevance; 95 % bootstrap intervals resample the queries.

        With ``unlabelled="drop"``, rows without a relevance are left out, and with ``shared="drop"`` those that the
        model was trained on. ``normalise_labels`` takes labels that look alike as one, and ``labels`` are those that
        numbers stand for, if they are no grades.
        """
        rows = list(read_rows(data))
        read = [Example(self.columns.read(row), None, number, row.where) for number, row in enumerate(rows)]
        kept, counts = read, dict[str, SharedRows]()
        match self.reranker:
            case CrossEncoder(pairs=model) | BiEncoder(embedder=model):
                kept, counts = model.fitted.known.compared(read, shared)
        candidates = read_candidates(
            [rows[each.row] for each in kept],
            query=self.columns.text_a,
            passage=self.columns.text_b,
            label=self.columns.label,
            relevant=self._relevant,
            unlabelled=unlabelled,
            reading=PLAIN_READING.with_options(normalise_labels, labels),
        )
        report = evaluate_reranker(
            self.reranker, candidates, resamples=resamples, seed=seed, show_progress=show_progress
        )
        return replace(report, shared=counts.get(""))
