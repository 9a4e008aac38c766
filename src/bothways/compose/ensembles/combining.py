"""Combination of several models' predictions for the same texts, and the models' disagreement.

Each member's calibration is already applied to its logits, so softmax (or sigmoid, for multi-label models) gives
calibrated probabilities. The combined values are logits too, so targets treat them like the logits of a single model.

Stacking is a small logistic regression over the members' log-probabilities. The logit of an output is a bias plus a
weighted sum of the members' log-probabilities of that output. These M + C parameters need only a few hundred held-out
rows (Ting and Witten 1999, "Issues in stacked generalization", JAIR 10, section 3, recommend stacking class
probabilities with few weights per class). An L2 penalty pulls the weights towards 1 / M and the biases towards 0: these
values give the geometric mean of the members' probabilities. Cross-validation chooses the strength of the penalty. The
calibration is fitted on out-of-fold logits.

Shapes: M members, N texts, C outputs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints.schema import StoredEnsemble, damaged
from bothways.choices import Method as Method
from bothways.confidence.fitting import temperature_settings
from bothways.errors import InvalidInput
from bothways.evaluation.temperature import Temperature
from bothways.tasks.heads.target_training import losses
from bothways.tasks.heads.targets import (
    MIN_PROBABILITY,
    Logits,
    MultiLabel,
    Regression,
    Target,
    Truth,
    logits_of,
    probabilities_of,
)
from bothways.tasks.scores import JSON_NAME, Probability, TaskPrediction

MemberLogits = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the members' probabilities, or of their predicted values."""

    kind: ClassVar[Method] = "mean"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Combine the members' logits (M, N, C) into logits (N, C)."""
        return logits_of(target, probabilities_of(target, logits_MNC).mean(axis=0))


@dataclass(frozen=True, slots=True)
class Vote:
    """The share of members that vote for each label; the mean of their probabilities counts as one more vote.

    This extra vote is divided among the labels: it breaks ties, never outvotes a majority, and leaves no label at 0.
    """

    kind: ClassVar[Method] = "vote"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Combine the members' logits (M, N, C) into logits (N, C)."""
        probabilities_MNC = probabilities_of(target, logits_MNC)
        votes_NC = decisions(target, probabilities_MNC).sum(axis=0)
        return logits_of(target, (votes_NC + probabilities_MNC.mean(axis=0)) / (len(logits_MNC) + 1))


@dataclass(frozen=True, slots=True)
class Stacked:
    """A logistic regression on the members' log-probabilities; see `fit_stacking`."""

    weights: tuple[float, ...]  # one for each member
    biases: tuple[float, ...]  # one for each output

    kind: ClassVar[Method] = "stacked"

    def combine(self, target: Target, logits_MNC: MemberLogits) -> Logits:
        """Combine the members' logits (M, N, C) into logits (N, C)."""
        features_MNC = features_of(target, logits_MNC)
        combined_NC: Logits = np.tensordot(np.array(self.weights), features_MNC, axes=1) + np.array(self.biases)
        return combined_NC


Combination = Mean | Vote | Stacked


@dataclass(frozen=True, slots=True)
class Disagreement(TaskPrediction):
    """The disagreement of the members on one text.

    Attributes:
        differing: Share of the members whose decision differs from the ensemble's. Taggers: the mean over the words.
            Question answerers: the share of members with another answer text.
        information: Mutual information of prediction and member, in nats: the entropy of the members' mean
            probabilities minus the mean of their entropies (Houlsby et al. 2011, "Bayesian active learning for
            classification and preference learning", arXiv:1112.5745). 0 if all members have the same probabilities.
            Multi-label models: the mean over the labels.
    """

    differing: Probability = field(metadata={JSON_NAME: "disagreement"})
    information: Annotated[float, Ge(0)] = field(metadata={JSON_NAME: "mutual_information"})


@dataclass(frozen=True, slots=True)
class Spread(TaskPrediction):
    """The spread of the members' predicted values for one text.

    Attributes:
        deviation: Standard deviation of the members' predicted values, in the units of the labels.
    """

    deviation: Annotated[float, Ge(0)]


def check_method(method: str, target: Target, *, stackable: bool = True) -> None:
    """Refuse a method that is unknown or does not fit the target.

    ``stackable`` is True if every input has the same outputs.
    """
    if method not in ("mean", "vote", "stacked"):
        raise InvalidInput(f"the method must be 'mean', 'vote' or 'stacked', got {method!r}.")
    if isinstance(target, Regression) and method != "mean":
        raise InvalidInput(f"regression models can only be combined by 'mean', not by {method!r}.")
    if method == "stacked" and not stackable:
        raise InvalidInput(
            "these models can be combined by 'mean' or 'vote', not by 'stacked': stacking needs the same outputs for "
            "every input, and these models' outputs differ between inputs."
        )


def features_of(target: Target, logits: MemberLogits) -> MemberLogits:
    """Return the features for stacking: logits of the members' probabilities, clipped to at least `MIN_PROBABILITY`."""
    return logits_of(target, np.maximum(probabilities_of(target, logits), MIN_PROBABILITY))


def decisions(target: Target, probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the predicted labels (..., C): the most probable label, or all that reach their thresholds."""
    if isinstance(target, MultiLabel):
        reached: NDArray[np.bool_] = probabilities >= target.thresholds_C
        return reached
    chosen: NDArray[np.bool_] = np.arange(probabilities.shape[-1]) == probabilities.argmax(axis=-1)[..., None]
    return chosen


def disagreement(
    target: Target, logits_MRC: MemberLogits, combined_RC: Logits, differing: Sequence[float] = ()
) -> Disagreement | Spread:
    """Return the members' disagreement on one input, averaged over its rows, from their calibrated logits.

    ``differing`` has a 1 for each member whose decision differs from the ensemble's and a 0 for each other member. If
    it is empty, decisions are compared row by row.
    """
    probabilities_MRC = probabilities_of(target, logits_MRC)
    if isinstance(target, Regression):
        return Spread(float(probabilities_MRC.std(axis=0)[:, 0].mean()))
    own_MRC, ensemble_RC = (decisions(target, probabilities_of(target, each)) for each in (logits_MRC, combined_RC))
    share = np.mean(differing) if differing else (own_MRC != ensemble_RC).any(axis=2).mean()
    between_R = _entropy(target, probabilities_MRC.mean(axis=0)) - _entropy(target, probabilities_MRC).mean(axis=0)
    # Rounding errors could make it negative.
    return Disagreement(float(share), float(np.maximum(between_R, 0.0).mean()))


def _entropy(target: Target, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy over the last axis, in nats; for multi-label targets, the mean entropy of the labels."""

    def part(values: NDArray[np.float64]) -> NDArray[np.float64]:
        surprise: NDArray[np.float64] = -values * np.log(np.maximum(values, MIN_PROBABILITY))
        return surprise

    if isinstance(target, MultiLabel):
        each: NDArray[np.float64] = (part(probabilities) + part(1 - probabilities)).mean(axis=-1)
        return each
    total: NDArray[np.float64] = part(probabilities).sum(axis=-1)
    return total


# --- stacking ---

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5
MIN_ROWS = 10
_STEPS = 100


@dataclass(frozen=True, slots=True)
class StackedFit:
    """The result of `fit_stacking`, with out-of-fold logits."""

    combination: Stacked  # fitted on all rows
    penalty: float  # strength of the penalty, chosen by cross-validation
    unseen_NC: Logits  # out-of-fold logits: each row's logits are from a fit without its fold


def fit_stacking(
    target: Target,
    logits_MNC: MemberLogits,
    truth: Truth,
    text_N: NDArray[np.int64] | None = None,
    *,
    seed: int = 0,
) -> StackedFit:
    """Fit a stacking regression on held-out rows; five-fold cross-validation chooses the penalty with the lowest loss.

    ``text_N`` has the index of each row's text, if rows are the words of texts; the rows of a text stay in one fold.
    ``seed`` assigns the folds. Raises `InvalidInput` for fewer than ten rows (or texts) or two labels.
    """
    text_N = np.arange(logits_MNC.shape[1]) if text_N is None else text_N
    texts = int(text_N.max(initial=-1)) + 1
    if texts < MIN_ROWS:
        raise InvalidInput(f"stacking needs at least {MIN_ROWS} held-out rows, but got {texts}. Give more rows.")
    if truth.ndim == 1 and len(np.unique(truth)) < 2:
        label = target.labels[int(truth[0])]
        raise InvalidInput(f"stacking needs held-out rows of at least two labels, but all {texts} have {label!r}.")
    features_MNC = torch.from_numpy(features_of(target, logits_MNC))
    known = torch.from_numpy(truth.astype(np.float64) if truth.dtype.kind == "f" else truth)
    fold_N = (np.random.default_rng(seed).permutation(texts) % FOLDS)[text_N]
    unseen = {penalty: np.empty(features_MNC.shape[1:]) for penalty in PENALTIES}
    for penalty, logits_NC in unseen.items():
        for fold in range(FOLDS):
            left_out, seen = fold_N == fold, torch.from_numpy(fold_N != fold)
            made = _fitted(target, features_MNC[:, seen], known[seen], penalty)
            logits_NC[left_out] = made.combine(target, features_MNC[:, ~seen].numpy())
    best = min(PENALTIES, key=lambda each: losses(target, torch.from_numpy(unseen[each]), known).mean().item())
    return StackedFit(_fitted(target, features_MNC, known, best), best, unseen[best])


def _fitted(target: Target, features_MNC: Tensor, truth: Tensor, penalty: float) -> Stacked:
    """Fit weights and biases: minimise the penalised loss, a convex function, by L-BFGS."""
    members, outputs = features_MNC.shape[0], features_MNC.shape[2]
    weights_M = torch.full((members,), 1.0 / members, dtype=torch.float64, requires_grad=True)
    biases_C = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights_M, biases_C], max_iter=_STEPS, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits_NC = torch.tensordot(weights_M, features_MNC, dims=1) + biases_C
        away = ((weights_M - 1.0 / members) ** 2).sum() + (biases_C**2).sum()
        total: Tensor = losses(target, logits_NC, truth).mean() + penalty * away
        torch.autograd.backward(total)
        return total

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return Stacked(tuple(weights_M.detach().tolist()), tuple(biases_C.detach().tolist()))


# --- on disk ---


def combination_settings(combination: Combination, temperature: Temperature | None) -> dict[str, object]:
    """Return the combination and the temperature of the ensemble as entries of ``bothways.json``."""
    return {
        "method": combination.kind,
        **{name: list(values) for name, values in asdict(combination).items()},
        **temperature_settings(temperature),
    }


def stored_combination(stored: StoredEnsemble, members: int, outputs: int | None) -> Combination:
    """Return the combination stored in ``bothways.json``; refuse a wrong number of weights or biases.

    ``outputs`` is None if the number of outputs differs between inputs.
    """
    match stored.method:
        case "mean":
            return Mean()
        case "vote":
            return Vote()
        case "stacked" if outputs is None:
            raise damaged("method", "'mean' or 'vote'", stored.method)
        case "stacked":
            for name, values, count in (("weights", stored.weights, members), ("biases", stored.biases, outputs)):
                if len(values) != count:
                    raise damaged(name, f"{count} finite numbers", values)
            return Stacked(tuple(stored.weights), tuple(stored.biases))
