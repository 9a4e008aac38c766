"""A classifier's answers to texts and the share of changed ones, for all detectors that query a model.

Shapes: N texts, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.context import Context, NeedUnmet
from bothways.evaluation.intervals import Estimate, bootstrap_estimates
from bothways.tasks import FillMask, TextClassifier
from bothways.tasks.outputs import score_inputs
from bothways.tasks.scores import Scores

Numbers = NDArray[np.float64]

# Texts in one call of the model; the time limit is checked between calls.
_CHUNK = 64
# Characters of a text that a report shows.
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierAnswers:
    """A classifier's answers to N texts."""

    scores: tuple[Scores[object], ...]  # scores of the head for each text
    probabilities_NC: Numbers  # probabilities of the labels, calibrated if the model is

    @property
    def labels_N(self) -> NDArray[np.int64]:
        """Index of the most probable label."""
        best_N: NDArray[np.int64] = self.probabilities_NC.argmax(axis=1)
        return best_N

    @property
    def confidence_N(self) -> Numbers:
        """Probability of the most probable label."""
        best_N: Numbers = self.probabilities_NC.max(axis=1)
        return best_N


def answers(context: Context, classifier: TextClassifier, texts: Sequence[str]) -> ClassifierAnswers:
    """Predict texts; none may be blank."""
    scores: list[Scores[object]] = []
    for start in range(0, len(texts), _CHUNK):
        context.check_time()
        scores += score_inputs(classifier.fitted, texts[start : start + _CHUNK], show_progress=False)
    labels = len(classifier.labels)
    probabilities_NC = classifier.outputs.class_probabilities(scores) if scores else np.zeros((0, labels))
    return ClassifierAnswers(tuple(scores), np.asarray(probabilities_NC, dtype=np.float64))


def changed_share(changed_N: NDArray[np.bool_]) -> Estimate:
    """Return the share of changed answers, with its 95 % interval."""
    return share(int(changed_N.sum()), len(changed_N))


def mean_changed_share(changed_N: NDArray[np.bool_], originals_N: NDArray[np.int64]) -> Estimate:
    """Return the mean share over the originals with a bootstrap interval, since edits of one text are dependent."""
    _, groups_N = np.unique(originals_N, return_inverse=True)
    rates_M = np.bincount(groups_N, changed_N) / np.bincount(groups_N)
    m = len(rates_M)
    (rate,) = bootstrap_estimates(lambda counts_RM: (counts_RM @ rates_M / m)[:, None], rows=m, of_rows=m)
    return rate


def share(count: int, of: int) -> Estimate:
    """Return a share with its 95 % interval (Wilson 1927); from 0 to 1 if there is nothing to count."""
    from scipy.stats import binomtest

    if not of:
        return Estimate(0.0, 0.0, 1.0)
    interval = binomtest(count, of).proportion_ci(method="wilson")
    return Estimate(count / of, float(interval.low), float(interval.high))


_Scores = TypeVar("_Scores", NDArray[np.float32], Numbers)


def margins(scores_NC: _Scores, label: int) -> _Scores:
    """Return the score of a label minus the largest other score (N)."""
    margins_N: _Scores = scores_NC[..., label] - np.delete(scores_NC, label, axis=-1).max(axis=-1)
    return margins_N


def reference_masked_lm(context: Context) -> FillMask | None:
    """Return the reference as a masked language model, if it has such a head."""
    if context.reference_name is None or "masked_lm" not in context.base_encoder.family.heads:
        return None
    model = FillMask.from_pretrained(context.reference_name, **context.open_options)
    return model if model.has_head else None


def shown(text: str) -> str:
    """Return the beginning of a text, for a report."""
    return text[:_SHOWN_CHARACTERS]


def drawn(rows: int, limit: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices of at most ``limit`` rows drawn at random, in order."""
    return np.sort(rng.permutation(rows)[:limit])


def drawn_texts(context: Context, limit: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Return at most ``limit`` of the user's texts, without blank ones."""
    return tuple(text for _, text in drawn_rows(context, limit, rng))


def drawn_rows(context: Context, limit: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Return at most ``limit`` of the user's texts with their rows, counted from 1, without blank ones."""
    numbers = [row.number for row in context.rows or ()]
    rows = [(number, text) for number, text in zip(numbers, context.texts, strict=True) if text.strip()]
    if not rows:
        raise NeedUnmet("texts, and those of the data are all blank.")
    return [rows[place] for place in drawn(len(rows), limit, rng)]


def drawn_labelled(
    context: Context, limit: int, rng: np.random.Generator
) -> tuple[tuple[str, ...], NDArray[np.int64] | None, str]:
    """Return at most ``limit`` of the user's texts with the indices of their labels; None without, and the reason."""
    try:
        labelled = context.labelled
    except NeedUnmet as error:
        return drawn_texts(context, limit, rng), None, str(error)
    kept = drawn(len(labelled.texts), limit, rng)
    return tuple(labelled.texts[number] for number in kept), labelled.labels_N[kept], ""


def clean_texts(context: Context) -> tuple[str, ...] | None:
    """Return the user's clean texts, without blank ones; None if none were given."""
    given = context.settings.get("clean_texts")
    if given is None:
        return None
    read = context.read_texts(given, "clean texts in the columns that the model reads")
    return tuple(text for text in read if text.strip())
