"""A classifier's answers to many texts, and rates with intervals: shared by the detectors that ask a model.

Shapes: N texts, C labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.audit.context import Context, NeedUnmet
from bothways.errors import InvalidInput
from bothways.evaluation.intervals import Estimate
from bothways.tasks.predict import score_inputs

if TYPE_CHECKING:
    from bothways.tasks import TextClassifier

Numbers = NDArray[np.float64]

# Texts asked at once; the time limit is looked at between.
_CHUNK = 64
# The quantile of a normal distribution for an interval of 95 %.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierAnswers:
    """A classifier's answers to N texts.

    Attributes:
        scores: Output of the head for each text.
        probabilities_NC: Probabilities of the labels, calibrated where the model is.
    """

    scores: tuple[Any, ...]
    probabilities_NC: Numbers

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


def answers(context: Context, classifier: "TextClassifier", texts: Sequence[str]) -> ClassifierAnswers:
    """Return the answers to texts, none of them blank.

    Raises:
        OutOfTime: The detector's time is over.
    """
    scores: list[Any] = []
    for start in range(0, len(texts), _CHUNK):
        context.check_time()
        scores += score_inputs(classifier.fitted, texts[start : start + _CHUNK], show_progress=False)
    labels = len(classifier.labels)
    probabilities_NC = classifier.outputs.class_probabilities(scores) if scores else np.zeros((0, labels))
    return ClassifierAnswers(tuple(scores), np.asarray(probabilities_NC, dtype=np.float64))


def drawn(rows: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the numbers of at most so many rows, in order."""
    return np.sort(rng.permutation(rows)[:most])


def drawn_texts(context: Context, most: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Return at most so many of the user's texts, without blank ones.

    Raises:
        NeedUnmet: There are no texts, or all are blank.
    """
    return tuple(text for _, text in drawn_rows(context, most, rng))


def drawn_rows(context: Context, most: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Return at most so many of the user's texts, without blank ones, each with the number of its row from 1.

    Raises:
        NeedUnmet: There are no texts, or all are blank.
    """
    numbers = [row.number for row in context.rows or ()]
    rows = [(number, text) for number, text in zip(numbers, context.texts, strict=True) if text.strip()]
    if not rows:
        raise NeedUnmet("texts, and those of the data are all blank.")
    return [rows[place] for place in drawn(len(rows), most, rng)]


def clean_texts(context: Context) -> tuple[str, ...] | None:
    """Return the clean texts that the user gave, without blank ones; None where none were given.

    Raises:
        NeedUnmet: One has no text.
    """
    given = context.settings.get("clean_texts")
    if given is None:
        return None
    try:
        read = [each if isinstance(each, str) else str(context.reader.read(each)) for each in given]
    except InvalidInput as error:
        raise NeedUnmet(f"clean texts in the columns that the model reads: {error}") from error
    return tuple(text for text in read if text.strip())


def share(found: int, of: int) -> Estimate:
    """Return a share with its 95 % interval (Wilson 1927); from 0 to 1 where there is nothing to count."""
    if not of:
        return Estimate(0.0, 0.0, 1.0)
    middle = (found + _Z**2 / 2) / (of + _Z**2)
    half = _Z / (of + _Z**2) * math.sqrt(found * (of - found) / of + _Z**2 / 4)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(found / of, low if found else 0.0, high if found < of else 1.0)


def quantiles(values_N: Numbers) -> dict[str, float]:
    """Return the quantiles that describe a distribution."""
    points = (0.05, 0.25, 0.5, 0.75, 0.95)
    return {f"q{round(100 * each):02d}": float(np.quantile(values_N, each)) for each in points}
