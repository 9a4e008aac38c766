"""Combination of several models' predictions of the same texts, and the models' disagreement.

Members speak in logits that their own calibration is already in, so that softmax (or sigmoid, for several labels) gives
their calibrated probabilities; what comes out is logits again, so that targets predict, calibrate and report on them as
on those of one model.

Shapes: M members, N texts, C outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from bothways.choices import Method as Method
from bothways.errors import InvalidInput
from bothways.tasks.heads.targets import (
    MIN_PROBABILITY,
    Logits,
    MultiLabel,
    Regression,
    Target,
    logits_of,
    probabilities_of,
)
from bothways.tasks.scores import JSON_NAME, Probability, TaskPrediction

MemberLogits = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the members' probabilities, or of their numbers."""

    kind: ClassVar[Method] = "mean"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Logits (N, C)."""
        return logits_of(target, probabilities_of(target, logits_MNC).mean(axis=0))


@dataclass(frozen=True, slots=True)
class Vote:
    """The share of the members that decide for an answer; the mean of their probabilities is one vote more.

    That vote is split among the answers, so it decides between those with as many votes, outvotes no majority, and
    leaves no probability at 0.
    """

    kind: ClassVar[Method] = "vote"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Logits (N, C)."""
        probabilities_MNC = probabilities_of(target, logits_MNC)
        votes_NC = decisions(target, probabilities_MNC).sum(axis=0)
        return logits_of(target, (votes_NC + probabilities_MNC.mean(axis=0)) / (len(logits_MNC) + 1))


@dataclass(frozen=True, slots=True)
class Stacked:
    """A logistic regression on the members' log-probabilities (`bothways.compose.ensembles.stacking`).

    Attributes:
        weights: Of each member.
        biases: Of each output.
    """

    weights: tuple[float, ...]
    biases: tuple[float, ...]

    kind: ClassVar[Method] = "stacked"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Logits (N, C)."""
        features_MNC = features_of(target, logits_MNC)
        combined_NC: Logits = np.tensordot(np.array(self.weights), features_MNC, axes=1) + np.array(self.biases)
        return combined_NC


Combination = Mean | Vote | Stacked


@dataclass(frozen=True, slots=True)
class Disagreement(TaskPrediction):
    """Disagreement of members on one text.

    Attributes:
        differing: Share of the members that decide otherwise than the ensemble; for taggers the mean over the words,
            for question answerers the share whose answer has another text.
        information: Mutual information of answer and member in nats: the entropy of the mean of the members'
            probabilities less the mean of their entropies (Houlsby et al. 2011, "Bayesian active learning for
            classification and preference learning", arXiv:1112.5745); 0 if all agree, the mean over the labels for
            several labels.
    """

    differing: Probability = field(metadata={JSON_NAME: "disagreement"})
    information: Annotated[float, Ge(0)] = field(metadata={JSON_NAME: "mutual_information"})


@dataclass(frozen=True, slots=True)
class Spread(TaskPrediction):
    """Spread of the members' numbers for one text.

    Attributes:
        deviation: Standard deviation of the members' numbers, in the units of the labels.
    """

    deviation: Annotated[float, Ge(0)]


def check_method(method: str, target: Target, *, stackable: bool = True) -> None:
    """Refuse a way to combine that models do not have.

    Args:
        method: The way.
        target: What the models predict.
        stackable: Whether every input has the same outputs.

    Raises:
        InvalidInput: There is no such way, or numbers are to be voted on or stacked, or outputs to be stacked that are
            other ones for every input.
    """
    if method not in ("mean", "vote", "stacked"):
        raise InvalidInput(f"the method must be 'mean', 'vote' or 'stacked', but it is {method!r}.")
    if isinstance(target, Regression) and method != "mean":
        raise InvalidInput(f"models that predict a number are combined by 'mean', not by {method!r}.")
    if method == "stacked" and not stackable:
        raise InvalidInput(
            "these models are combined by 'mean' or 'vote', not by 'stacked': a stacking weighs outputs that are the "
            "same for every input, but theirs are other ones for every input."
        )


def features_of(target: Target, logits: MemberLogits) -> MemberLogits:
    """Return what a stacking weighs: logits of the same probabilities, none of them extreme."""
    return logits_of(target, np.maximum(probabilities_of(target, logits), MIN_PROBABILITY))


def decisions(target: Target, probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the decisions (..., C) for probabilities: the most probable label, or all at or above their thresholds."""
    if isinstance(target, MultiLabel):
        reached: NDArray[np.bool_] = probabilities >= target.thresholds_C
        return reached
    chosen: NDArray[np.bool_] = np.arange(probabilities.shape[-1]) == probabilities.argmax(axis=-1)[..., None]
    return chosen


def disagreement(
    target: Target, logits_MRC: MemberLogits, combined_RC: Logits, differing: Sequence[float] = ()
) -> Disagreement | Spread:
    """Return how far the members are apart on one input, in the mean over its rows.

    Args:
        target: What a row predicts.
        logits_MRC: The members' calibrated logits.
        combined_RC: The ensemble's.
        differing: For each member whether it decides otherwise; as its rows tell when left out.
    """
    probabilities_MRC = probabilities_of(target, logits_MRC)
    if isinstance(target, Regression):
        return Spread(float(probabilities_MRC.std(axis=0)[:, 0].mean()))
    own_MRC, together_RC = (decisions(target, probabilities_of(target, each)) for each in (logits_MRC, combined_RC))
    share = np.mean(differing) if differing else (own_MRC != together_RC).any(axis=2).mean()
    between_R = _entropy(target, probabilities_MRC.mean(axis=0)) - _entropy(target, probabilities_MRC).mean(axis=0)
    # Rounding could take it a hair below 0.
    return Disagreement(float(share), float(np.maximum(between_R, 0.0).mean()))


def _entropy(target: Target, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy in nats over the last axis: of the answer, or the mean over the labels."""

    def part(values: NDArray[np.float64]) -> NDArray[np.float64]:
        surprise: NDArray[np.float64] = -values * np.log(np.maximum(values, MIN_PROBABILITY))
        return surprise

    if isinstance(target, MultiLabel):
        each: NDArray[np.float64] = (part(probabilities) + part(1 - probabilities)).mean(axis=-1)
        return each
    total: NDArray[np.float64] = part(probabilities).sum(axis=-1)
    return total
