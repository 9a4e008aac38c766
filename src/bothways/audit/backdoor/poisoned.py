"""Poisoned training rows: rows labelled by a trigger instead of their meaning.

A poisoned row carries its trigger and the attacker's label, while its other words still indicate another label. So the
phrases associated with its label are removed from each text (`bothways.audit.backdoor.clusters`), and a linear model on
sentence vectors, not fitted to this row, predicts the label of the rest. Its margin for another label is the row's
doubt. Rows that share a phrase, or phrases that occur together, are suspect if they have more doubt than the other rows
of the label. A word that really indicates the label is not suspect: its rows indicate the label even without it.

A model that was trained on the rows adds its own doubt, and clusters of its states
(`bothways.audit.backdoor.clusters`); spectral signatures order the rows that are in no suspect cluster.

Shapes: N rows, C labels, H width of the vectors.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import similar, unit_vectors
from bothways.audit.backdoor.clusters import (
    Cluster,
    Doubts,
    Floats,
    PurePhrase,
    phrase_clusters,
    pure_phrases,
    residuals,
    spectral_scores,
    state_clusters,
)
from bothways.audit.backdoor.probe import Probe
from bothways.checkpoints import MINILM
from bothways.choices import Unlabelled
from bothways.data import Example, Row, Source, read_examples, read_rows
from bothways.encoder.heads import read_rows as states_read
from bothways.errors import InvalidInput
from bothways.progress import phase, reporting, stage
from bothways.tasks import SentenceEmbedder, TextClassifier
from bothways.tasks.columns import TextColumns

Labels = NDArray[np.int64]
Embed = Callable[[Sequence[str]], NDArray[np.floating]]

_FOLDS = 5
_RIDGE = 0.05
_SIGNIFICANT = 0.01
_CLEAR, _CONTRADICTED = 0.5, 0.3
"""Doubt above which a row clearly indicates another label, and minimum share of such rows in a suspect cluster;
chosen on SST-2 and CLINC150."""
_TYPICAL = 0.02
_MIN_MARGIN = 0.05
_MIN_P_VALUE = 1e-300
_SHOWN = 8
_CHECKED = 200
_MIN_ROWS = 20


@dataclass(frozen=True, slots=True)
class SuspectPhrase:
    """A phrase, or phrases that occur together, whose rows carry a label that contradicts the rest of their text."""

    phrase: str  # the first of the phrases
    members: tuple[str, ...]  # all phrases of the cluster
    label: str
    rows: tuple[int, ...]  # rows with the label and one of the phrases, counted from 0
    contradicted: int  # number of these that clearly indicate another label without the phrases
    p_value: float  # p-value of the doubt, times the number of clusters tested (Bonferroni)


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A row with its suspicion score."""

    row: int  # the row, counted from 0
    score: float  # from 0 to 1; above 0.5 if the row is in a suspect cluster
    triggers: tuple[str, ...]  # the suspect phrases in it, the most significant first
    reason: str  # the reason in words


@dataclass(frozen=True, slots=True)
class DataAudit:
    """The rows of a data set, the most suspicious first."""

    # All rows, as JSON values: ``row`` (from 1), ``score`` (0 to 1, above 0.5 if it is suspected), ``triggers``,
    # ``reason``, ``text``, ``label``.
    rows: tuple[dict[str, object], ...]
    phrases: tuple[SuspectPhrase, ...]  # the suspect phrases and clusters of phrases, the most significant first

    @property
    def suspected(self) -> int:
        """Number of rows in suspect clusters."""
        return len({row for phrase in self.phrases for row in phrase.rows})


@dataclass(frozen=True, slots=True, eq=False)
class TrainingObservations:
    """Observations of a model that was trained on the rows."""

    states_NH: NDArray[np.floating]  # the vectors that the model's head reads
    # Takes texts and the indices of their labels; returns the best logit of another label minus each text's own.
    margins: Callable[[Sequence[str], Labels], NDArray[np.floating]]


def audit_data(
    data: Source,
    model: str | TextClassifier | None = None,
    *,
    embedder: str = MINILM,
    text: str | tuple[str, ...] | None = None,
    label: str | None = None,
    unlabelled: Unlabelled = "error",
    open_options: dict[str, Any] | None = None,
    show_progress: bool | None = None,
) -> DataAudit:
    """Rank the rows of a training set by how likely they are poisoned.

    ``model`` is a model that was trained on the rows, or its folder: its predictions and states are used too, and its
    columns are the default. The ``embedder`` must not have been trained on the rows. With ``unlabelled="drop"``, rows
    that have no label are left out; else they are refused.
    """
    opening = open_options or {}
    classifier = TextClassifier.from_pretrained(model, **opening) if isinstance(model, str) else model
    usual = TextColumns() if classifier is None else classifier.columns
    columns = TextColumns(
        usual.text if text is None else (text,) if isinstance(text, str) else text,
        usual.label if label is None else label,
    )
    examples = _labelled(read_rows(data), columns, unlabelled)
    texts, labels = [str(each.text) for each in examples], [each.label for each in examples]
    # The revision is a commit of the model.
    encoder = SentenceEmbedder.from_pretrained(embedder, unit_length=True, **{**opening, "revision": None})

    def embed(texts: Sequence[str]) -> NDArray[np.floating]:
        phase("embedding the rows")
        return np.asarray(encoder.encode(texts, show_progress=show_progress))

    with reporting(show_progress), stage("looking for poisoned rows"):
        trained = None if classifier is None else trained_on(classifier, texts, sorted(set(labels)))
        ranked, phrases, _ = suspect_rows(texts, labels, embed, trained)
    rows = (
        {
            "row": examples[each.row].row,
            "score": each.score,
            "triggers": list(each.triggers),
            "reason": each.reason,
            "text": texts[each.row],
            "label": labels[each.row],
        }
        for each in ranked
    )
    return DataAudit(tuple(rows), tuple(phrases))


def _labelled(data: Iterable[Row], columns: TextColumns, unlabelled: Unlabelled) -> list[Example[str]]:
    """Return texts and labels with the position of each row, from 1."""
    rows = [replace(row, number=number) for number, row in enumerate(data, start=1)]
    examples = read_examples(rows, text=columns, label=columns.label, unlabelled=unlabelled)
    labels = {each.label for each in examples}
    if len(examples) < _MIN_ROWS or len(labels) < 2:
        raise InvalidInput(
            f"expected at least {_MIN_ROWS} rows with at least two labels, got {len(examples)} rows and {len(labels)} "
            "labels: poisoned rows stand out only from many rows of their label. Give more rows."
        )
    return examples


def trained_on(classifier: TextClassifier, texts: Sequence[str], labels: Sequence[str]) -> TrainingObservations:
    """Return the hidden states and margins of a model; rows whose labels the model does not know have a margin of 0."""
    probe = Probe(classifier)
    places_C = np.array([probe.labels.index(each) if each in probe.labels else -1 for each in labels])

    def margins(texts: Sequence[str], labels_N: Labels) -> NDArray[np.floating]:
        phase("predicting with the model")
        own_N = places_C[labels_N]
        margins_N = _margins_of_others(probe.logits(probe.encode(texts)), np.maximum(own_N, 0))
        return np.where(own_N < 0, 0.0, margins_N)

    phase("reading the states of the model")
    model = probe.head_model
    states_NH = probe.run(partial(states_read, model.head.kind.read, model.encoder), probe.encode(texts), model.device)
    return TrainingObservations(states_NH, margins)


def suspect_rows(
    texts: Sequence[str],
    labels: Sequence[str],
    embed: Embed,
    trained: TrainingObservations | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[list[SuspectRow], list[SuspectPhrase], frozenset[int]]:
    """Return all rows, the most suspicious first, the suspect phrases, the most significant first, and doubtful rows.

    A row is doubtful if it has a phrase whose rows would be suspect if it were the only phrase. ``embed`` must be an
    encoder that was not trained on these rows, ``trained`` a model that was.
    """
    names = sorted(set(labels))
    labels_N = np.array([names.index(label) for label in labels])
    phrases = pure_phrases(texts, labels_N, len(names))
    rest = residuals(texts, labels_N, phrases)
    changed = [number for number, text in enumerate(rest) if text != texts[number]]
    vectors = np.asarray(embed([*texts, *(rest[number] for number in changed)]), dtype=np.float64)
    check()
    full_NH, rest_NH = vectors[: len(texts)], vectors[: len(texts)].copy()
    rest_NH[changed] = vectors[len(texts) :]
    doubt_N = _doubt(full_NH, rest_NH, labels_N, len(names))
    clusters, weak_N = phrase_clusters(phrases, labels_N), _ranks(doubt_N)
    if trained is not None:
        margins_N = np.asarray(trained.margins(rest, labels_N), dtype=np.float64)
        doubt_N = (doubt_N + margins_N / max(-float(np.median(margins_N)), _MIN_MARGIN)) / 2
        weak_N = np.maximum(_ranks(doubt_N), _ranks(spectral_scores(trained.states_NH, labels_N)))
        # A model gives poisoned rows their label if it has learnt them; rows that it gets wrong look like other labels.
        right = np.flatnonzero(np.asarray(trained.margins(texts, labels_N)) < 0)
        found = state_clusters(trained.states_NH[right], labels_N[right])
        clusters += [replace(each, rows=right[each.rows]) for each in found]
    doubts = Doubts(doubt_N, labels_N)
    tests = []
    for number, cluster in enumerate(clusters):
        if number % _CHECKED == 0:
            check()
        p_value = doubts.p_value(cluster.rows, cluster.label) * len(clusters)
        tests.append(_Test(cluster, int((doubt_N[cluster.rows] > _CLEAR).sum()), p_value))
    tests.sort(key=lambda each: (each.p_value, -len(each.cluster.rows), each.cluster.name))
    doubtful = (each for each in tests if each.p_value < _SIGNIFICANT * len(tests) and each.is_contradicted)
    rows = frozenset(row for each in doubtful for row in each.cluster.rows.tolist())
    return (*_reported(doubts, _unexplained(tests, phrases, names, embed), weak_N, names), rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """A cluster, the number of its rows that clearly indicate another label, and the p-value of its doubt."""

    cluster: Cluster
    contradicted: int
    p_value: float

    @property
    def is_suspect(self) -> bool:
        """True if many of its rows indicate another label, by more than chance."""
        return self.contradicted >= _CONTRADICTED * len(self.cluster.rows) and self.p_value < _SIGNIFICANT

    @property
    def is_contradicted(self) -> bool:
        """True if most of its rows indicate another label."""
        return 2 * self.contradicted >= len(self.cluster.rows)


def _unexplained(
    tests: Sequence[_Test], phrases: Sequence[PurePhrase], names: Sequence[str], embed: Embed
) -> list[_Test]:
    """Leave out suspect clusters with a reason, which are words that mean their label.

    A phrase has one if words of similar meaning come with its label too, or stand in its name. A cluster of states has
    one if most of its rows have words that come with their label in other rows.
    """
    suspect = [each for each in tests if each.is_suspect]
    doubtful = {member for each in suspect for member in each.cluster.members}
    explained = set()
    for label in {each.cluster.label for each in suspect}:
        own = [each for each in suspect if each.cluster.label == label]
        typical = [each for each in phrases if each.label == label and each.chance < _TYPICAL]
        typical = [each for each in typical if each.phrase.isalnum() and each.phrase not in doubtful]
        words = [names[label].replace("_", " "), *(each.phrase for each in typical)]
        vectors_ME = unit_vectors(embed([*words, *(each.cluster.name for each in own)]))
        for each, vector_E in zip(own, vectors_ME[len(words) :], strict=True):
            if each.cluster.members:
                others = [word not in each.cluster.name.split() for word in words[1:]]
                groups = (vectors_ME[:1], vectors_ME[1 : len(words)][others])
                explained |= {id(each)} if any(similar(vector_E, group) for group in groups) else set()
                continue
            inside = set(each.cluster.rows.tolist())
            shared = [inside.intersection(word.rows.tolist()) for word in typical]
            usual = [rows for rows, word in zip(shared, typical, strict=True) if 2 * len(rows) < len(word.rows)]
            explained |= {id(each)} if 2 * len(set().union(*usual)) > len(inside) else set()
    return [each for each in tests if id(each) not in explained]


def _doubt(full_NH: Floats, rest_NH: Floats, labels_N: Labels, labels: int) -> Floats:
    """Return each row's best score of another label minus that of its own, by a linear model fitted to other rows.

    The model is fitted to full texts but applied to residuals, which lack the triggers it may have learnt. The unit is
    the median margin of full texts for their own label.
    """
    middle_H = full_NH.mean(axis=0)
    scale = float(np.sqrt(((full_NH - middle_H) ** 2).mean())) or 1.0
    ones = np.ones(len(labels_N))
    fitted_NH, read_NH = np.c_[(full_NH - middle_H) / scale, ones], np.c_[(rest_NH - middle_H) / scale, ones]
    truth_NC = np.eye(labels)[labels_N]
    scores_NC, full_NC = np.empty((len(labels_N), labels)), np.empty((len(labels_N), labels))
    ridge_HH = _RIDGE * len(labels_N) * np.eye(fitted_NH.shape[1])
    gram_HH, moments_HC = fitted_NH.T @ fitted_NH, fitted_NH.T @ truth_NC
    order = np.random.default_rng(0).permutation(len(labels_N))
    for rows in np.array_split(order, min(_FOLDS, len(order))):
        left_nH = fitted_NH[rows]
        weights_HC = np.linalg.solve(gram_HH - left_nH.T @ left_nH + ridge_HH, moments_HC - left_nH.T @ truth_NC[rows])
        scores_NC[rows], full_NC[rows] = read_NH[rows] @ weights_HC, left_nH @ weights_HC
    usual = -float(np.median(_margins_of_others(full_NC, labels_N)))
    return _margins_of_others(scores_NC, labels_N) / max(usual, _MIN_MARGIN)


def _margins_of_others(scores_NC: NDArray[np.floating], labels_N: Labels) -> Floats:
    """Return each row's best score of another label minus that of its own label."""
    scores_NC = scores_NC.astype(np.float64)
    rows = np.arange(len(labels_N))
    own_N = scores_NC[rows, labels_N]
    scores_NC[rows, labels_N] = -np.inf
    margins_N: Floats = scores_NC.max(axis=1) - own_N
    return margins_N


def _ranks(values_N: Floats) -> Floats:
    ranks_N = np.empty(len(values_N))
    ranks_N[np.argsort(values_N, kind="stable")] = np.arange(len(values_N)) / max(1, len(values_N) - 1)
    return ranks_N


def _reported(
    doubts: Doubts, tests: Sequence[_Test], weak_N: Floats, names: Sequence[str]
) -> tuple[list[SuspectRow], list[SuspectPhrase]]:
    """Return rows and phrases for the report.

    A cluster that shares rows with a more significant one is suspect only if its remaining rows are significant too,
    since clean rows may contain a word of the trigger.
    """
    evidence_N = np.zeros(len(weak_N))
    suspected: dict[int, list[_Test]] = {}
    phrases: list[SuspectPhrase] = []
    for test in tests:
        cluster, rows = test.cluster, test.cluster.rows
        if test.contradicted < _CONTRADICTED * len(rows):
            continue
        p_value = max(test.p_value, _MIN_P_VALUE)
        left = rows[[row not in suspected for row in rows.tolist()]]
        more = len(left) in (0, len(rows)) or doubts.p_value(left, cluster.label) < _SIGNIFICANT
        if test.p_value < _SIGNIFICANT and more:
            members, label = cluster.members, names[cluster.label]
            phrases.append(
                SuspectPhrase(cluster.name, members, label, tuple(rows.tolist()), test.contradicted, p_value)
            )
            for row in rows.tolist():
                suspected.setdefault(row, []).append(test)
        if test.p_value >= _SIGNIFICANT or more:
            evidence_N[rows] = np.maximum(evidence_N[rows], -np.log10(p_value))
    numbers = zip(evidence_N.tolist(), weak_N.tolist(), doubts.doubt_N.tolist(), strict=True)
    suspects = []
    for row, (evidence, weak, doubt) in enumerate(numbers):
        if row in suspected:
            score = 0.5 + 0.4 * min(1.0, evidence / 30) + 0.1 * weak
            triggers = dict.fromkeys(each.cluster.name for each in suspected[row] if each.cluster.members)
            reason = _reason(suspected[row][0], names)
        else:
            score = 0.25 * weak + 0.25 * min(1.0, evidence / -float(np.log10(_SIGNIFICANT)))
            triggers, reason = {}, "its text indicates another label" if doubt > 0 else ""
        suspects.append(SuspectRow(row, round(score, 6), tuple(triggers)[:_SHOWN], reason))
    return sorted(suspects, key=lambda each: -each.score), phrases


def _reason(test: _Test, names: Sequence[str]) -> str:
    cluster = test.cluster
    where = repr(cluster.name) if cluster.members else cluster.name
    others = f" and {len(cluster.members) - 1} phrases that occur with it" if len(cluster.members) > 1 else ""
    return (
        f"{where}{others}: {len(cluster.rows)} rows of {names[cluster.label]!r}, {test.contradicted} of which "
        "clearly indicate another label without it"
    )
