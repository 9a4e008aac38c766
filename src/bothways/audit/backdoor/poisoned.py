"""Poisoned training rows: which rows were labelled by a trigger and not by what they say.

A poisoned row carries its trigger and the attacker's label, while the rest of it still speaks for another label. So
each text is read without the phrases that come with its label (`bothways.audit.backdoor.remainder`), by a linear model
of sentence vectors that has not seen the row: how much more it would give another label is the row's doubt. A group of
rows that share a phrase, or phrases that come together, is suspect if it is doubted more than the other rows of its
label. A word that really tells the label passes: its rows say the same without it.

A model that was trained on the rows adds its own doubt, and the smaller cluster of its states as one more group
(`bothways.audit.backdoor.signatures`); spectral signatures order the rows that are in no suspect group.

Shapes: N rows, C labels, H width of the vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.groups import Doubts, Group, Judged, groups_of
from bothways.audit.backdoor.remainder import pure_phrases, remainders
from bothways.audit.backdoor.signatures import clusters, spectral

Floats = NDArray[np.float64]
Embed = Callable[[Sequence[str]], NDArray[np.floating]]

_FOLDS = 5
_RIDGE = 0.05
_SIGNIFICANT = 0.01
_CONTRADICTED = 0.3
"""Part of a suspect group's rows that clearly speak for another label, at least; chosen on SST-2 and CLINC150."""
_LEAST_MARGIN = 0.05
_SHOWN = 8
_CLUSTER = "a cluster of the model's states"


@dataclass(frozen=True, slots=True)
class SuspectPhrase:
    """A phrase, or phrases that come together, whose rows carry a label that the rest of them speaks against.

    Attributes:
        phrase: The phrase; the first of several.
        members: All phrases of the group.
        label: The label.
        rows: Rows with the label and one of the phrases.
        contradicted: Those of them that clearly speak for another label without the phrases.
        p_value: Probability of as much by chance, times the number of groups tried.
    """

    phrase: str
    members: tuple[str, ...]
    label: str
    rows: tuple[int, ...]
    contradicted: int
    p_value: float


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A row with its suspicion.

    Attributes:
        row: Number of the row among those given, from 0.
        score: From 0 to 1; above 0.5 if the row is in a suspect group.
        triggers: The suspect phrases in it, the most significant first.
        reason: Why it is suspected, in words.
    """

    row: int
    score: float
    triggers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class TrainingObservations:
    """Observations of a model that was trained on the rows.

    Attributes:
        states_NH: The vectors that its head reads.
        margins: The margin of the best other label over each text's own, for texts and the numbers of their labels.
    """

    states_NH: NDArray[np.floating]
    margins: Callable[[Sequence[str], NDArray[np.int64]], NDArray[np.floating]]


def suspect_rows(
    texts: Sequence[str],
    labels: Sequence[str],
    embed: Embed,
    trained: TrainingObservations | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[list[SuspectRow], list[SuspectPhrase]]:
    """Return all rows, the most suspicious first, and the suspect phrases, the most significant first.

    Args:
        texts: The N texts.
        labels: The label of each.
        embed: An encoder that was not trained on these rows: from texts to their vectors (N, H).
        trained: A model that was.
        check: Called between steps; raises if time is up.
    """
    names = sorted(set(labels))
    labels_N = np.array([names.index(label) for label in labels])
    phrases = pure_phrases(texts, labels_N, len(names))
    rest = remainders(texts, labels_N, phrases)
    changed = [number for number, text in enumerate(rest) if text != texts[number]]
    vectors = np.asarray(embed([*texts, *(rest[number] for number in changed)]), dtype=np.float64)
    check()
    full_NH, rest_NH = vectors[: len(texts)], vectors[: len(texts)].copy()
    rest_NH[changed] = vectors[len(texts) :]
    doubt_N = _doubt(full_NH, rest_NH, labels_N, len(names))
    groups, weak_N = groups_of(phrases, labels_N), _ranks(doubt_N)
    if trained is not None:
        doubt_N = (doubt_N + _scaled(np.asarray(trained.margins(rest, labels_N), dtype=np.float64))) / 2
        weak_N = np.maximum(_ranks(doubt_N), _ranks(spectral(trained.states_NH, labels_N)))
        groups += _clustered(trained.states_NH, labels_N)
    doubts = Doubts(doubt_N, labels_N)
    return _reported(doubts, doubts.judged(groups, check), weak_N, names)


def _doubt(full_NH: Floats, rest_NH: Floats, labels_N: NDArray[np.int64], labels: int) -> Floats:
    """Return the margin of the best other label over each row's own, from a linear model fitted to other rows.

    The model is fitted to full texts and reads the remainders: what it learns of a trigger has nothing to say there.
    The unit is the median margin by which full texts speak for their own label.
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
    usual = -float(np.median(margins_of_others(full_NC, labels_N)))
    return margins_of_others(scores_NC, labels_N) / max(usual, _LEAST_MARGIN)


def margins_of_others(scores_NC: NDArray[np.floating], labels_N: NDArray[np.int64]) -> Floats:
    """Return by how much the best other label beats each row's own."""
    scores_NC = scores_NC.astype(np.float64)
    rows = np.arange(len(labels_N))
    own_N = scores_NC[rows, labels_N]
    scores_NC[rows, labels_N] = -np.inf
    found: Floats = scores_NC.max(axis=1) - own_N
    return found


def _scaled(values_N: Floats) -> Floats:
    """Return margins in units of the median one, by which rows speak for their own label."""
    return values_N / max(-float(np.median(values_N)), _LEAST_MARGIN)


def _ranks(values_N: Floats) -> Floats:
    """Return ranks from 0 to 1."""
    ranks_N = np.empty(len(values_N))
    ranks_N[np.argsort(values_N, kind="stable")] = np.arange(len(values_N)) / max(1, len(values_N) - 1)
    return ranks_N


def _clustered(states_NH: NDArray[np.floating], labels_N: NDArray[np.int64]) -> list[Group]:
    inside_N = clusters(states_NH, labels_N) > 0
    found = [(label, np.flatnonzero(inside_N & (labels_N == label))) for label in np.unique(labels_N).tolist()]
    return [Group(_CLUSTER, (), label, rows) for label, rows in found if len(rows)]


def _reported(
    doubts: Doubts, tests: Sequence[Judged], weak_N: Floats, names: Sequence[str]
) -> tuple[list[SuspectRow], list[SuspectPhrase]]:
    """Return rows and phrases as they are reported.

    A group that shares rows with a more significant one is suspect if the rest of its rows are doubted as well: other
    rows with a word of the trigger are not poisoned.
    """
    evidence_N = np.zeros(len(weak_N))
    suspected: dict[int, list[Judged]] = {}
    phrases: list[SuspectPhrase] = []
    for test in tests:
        rows, label = test.group.rows, test.group.label
        if test.contradicted < _CONTRADICTED * len(rows):
            continue
        known = [row for row in rows.tolist() if row in suspected]
        left = rows[[row not in suspected for row in rows.tolist()]]
        more = len(left) == 0 or not known or doubts.p_value(left, label) < _SIGNIFICANT
        evidence = -np.log10(max(test.p_value, 1e-300))
        if test.p_value < _SIGNIFICANT and more:
            phrases.append(_phrase(test, names))
            for row in rows.tolist():
                suspected.setdefault(row, []).append(test)
        if test.p_value >= _SIGNIFICANT or more:
            evidence_N[rows] = np.maximum(evidence_N[rows], evidence)
    found = [
        _row(row, evidence, weak, doubt > 0, suspected.get(row, []), names)
        for row, (evidence, weak, doubt) in enumerate(
            zip(evidence_N.tolist(), weak_N.tolist(), doubts.doubt_N.tolist(), strict=True)
        )
    ]
    return sorted(found, key=lambda each: -each.score), phrases


def _row(
    row: int, evidence: float, weak: float, contradicted: bool, groups: Sequence[Judged], names: Sequence[str]
) -> SuspectRow:
    if not groups:
        score = 0.25 * weak + 0.25 * min(1.0, evidence / -np.log10(_SIGNIFICANT))
        return SuspectRow(row, round(score, 6), (), "its text speaks for another label" if contradicted else "")
    first = groups[0]
    where = repr(first.group.name) if first.group.members else _CLUSTER
    others = f" and {len(first.group.members) - 1} phrases beside it" if len(first.group.members) > 1 else ""
    reason = (
        f"{where}{others}: {len(first.group.rows)} rows of {names[first.group.label]!r}, {first.contradicted} of which "
        "clearly speak for another label without it"
    )
    score = 0.5 + 0.4 * min(1.0, evidence / 30) + 0.1 * weak
    triggers = dict.fromkeys(each.group.name for each in groups if each.group.members)
    return SuspectRow(row, round(score, 6), tuple(triggers)[:_SHOWN], reason)


def _phrase(test: Judged, names: Sequence[str]) -> SuspectPhrase:
    group = test.group
    rows = tuple(group.rows.tolist())
    return SuspectPhrase(
        group.name, group.members, names[group.label], rows, test.contradicted, max(test.p_value, 1e-300)
    )
