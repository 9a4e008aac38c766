"""Deletion curves: whether a score falls faster when the words of an attribution go first than in random order.

Shapes: N inputs, F fractions of words, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.choices import AttributionMethod
from bothways.errors import InvalidInput
from bothways.evaluation.intervals import Interval, bootstrap_values, percentile_interval
from bothways.explain.asking import AnyModel, scores_of, subjects_of
from bothways.explain.attribution import attribute
from bothways.explain.subjects import Subject, Target

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True, eq=False)
class DeletionCurves:
    """Scores as words are deleted.

    Attributes:
        fractions: Fractions of an input's words that are deleted.
        attributed_NF: Scores where the words that contribute most are deleted first.
        random_NF: Scores where words are deleted in random order, the mean over several orders.
        gain: The mean over inputs of the area under the random curve minus that under the attributed one. Above zero,
            the attribution finds words that the score rests on.
        interval: The interval of `gain`, by bootstrap over inputs.
    """

    fractions: tuple[float, ...]
    attributed_NF: NDArray[np.float64]
    random_NF: NDArray[np.float64]
    gain: float
    interval: Interval


def deletion_curves(
    model: AnyModel,
    inputs: Sequence[Any],
    method: AttributionMethod = "integrated-gradients",
    *,
    target: Target | None = None,
    fractions: Sequence[float] = FRACTIONS,
    orders: int = 3,
    resamples: int = 1000,
    seed: int = 0,
) -> DeletionCurves:
    """Delete the words of inputs by attribution and in random order, and compare the scores that remain.

    The score is the one that is explained of the whole input. The words that it is about stay.

    Args:
        model: A trained model of one task.
        inputs: Inputs of the task, each of two words at least.
        method: Method of attribution.
        target: The score; that of the model's own prediction when None.
        fractions: Fractions of the words that can be deleted, ascending, from 0 to below 1.
        orders: Random orders of each input.
        resamples: Bootstrap resamples for the interval.
        seed: Seed of orders and resamples.

    Raises:
        InvalidInput: Fractions are out of range, or as for `attribute`.
    """
    asked = np.array(fractions, dtype=np.float64)
    if len(asked) < 2 or (np.diff(asked) <= 0).any() or asked[0] < 0 or asked[-1] >= 1 or orders < 1:
        raise InvalidInput(
            f"expected ascending fractions from 0 to below 1, and orders of at least 1, got {list(fractions)} and "
            f"{orders}."
        )
    subjects = subjects_of(model, inputs, target)
    generator = np.random.default_rng(seed)
    shorter: list[Subject] = []
    for subject, found in zip(subjects, attribute(model, inputs, method, target=target), strict=True):
        free = np.array([number for number in range(len(subject.words)) if number not in subject.kept], dtype=np.int64)
        ranked = free[np.argsort(-np.nan_to_num(found.weights_W[free]), kind="stable")]
        for order in (ranked, *(generator.permutation(free) for _ in range(orders))):
            shorter += [subject.without(set(order[: round(share * len(free))].tolist())) for share in fractions]
    scores = scores_of(model, shorter, description="deleting words").reshape(len(subjects), 1 + orders, len(asked))
    attributed_NF, random_NF = scores[:, 0], scores[:, 1:].mean(1)
    apart_NF = random_NF - attributed_NF
    gains_N = (np.diff(asked) * (apart_NF[:, 1:] + apart_NF[:, :-1]) / 2).sum(1)
    values_R = bootstrap_values(
        lambda counts_RN: (counts_RN @ gains_N / counts_RN.sum(1))[:, None],
        len(gains_N),
        resamples=resamples,
        seed=seed,
    )[:, 0]
    return DeletionCurves(
        tuple(fractions), attributed_NF, random_NF, float(gains_N.mean()), percentile_interval(values_R)
    )
