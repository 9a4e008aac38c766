"""Stacking: a small logistic regression over the log-probabilities of several models.

The logit of an output is a weighted sum of what the members say of that same output, and a bias: M + C numbers, which a
few hundred held-out rows can carry (Ting and Witten 1999, "Issues in stacked generalization", JAIR 10, section 3, find
that class probabilities are what to stack, and few weights for each class enough). An L2 penalty holds the weights near
1 / M and the biases near 0, which is the geometric mean of the members; cross-validation chooses how strongly. What the
rows are calibrated and judged by comes from folds that the fit did not see.

Shapes: M members, N texts, C outputs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.compose.ensembles.combining import MemberLogits, Stacked, features_of
from bothways.errors import InvalidInput
from bothways.tasks.heads.target_training import losses
from bothways.tasks.heads.targets import Logits, Target, Truth

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5
LEAST_ROWS = 10
_STEPS = 100


@dataclass(frozen=True, slots=True)
class StackedFit:
    """A stacking, and what it says of each row when that row is not fitted on.

    Attributes:
        combination: Fitted on all rows.
        penalty: The strength that cross-validation chose.
        unseen_NC: Logits of each row from the fold that it was left out of.
    """

    combination: Stacked
    penalty: float
    unseen_NC: Logits


def fit_stacking(
    target: Target,
    logits_MNC: MemberLogits,
    truth: Truth,
    text_N: NDArray[np.int64] | None = None,
    *,
    seed: int = 0,
) -> StackedFit:
    """Fit on held-out rows; the penalty is that of least loss in five-fold cross-validation.

    Args:
        target: What the members predict.
        logits_MNC: Their calibrated logits.
        truth: The rows' encoded labels.
        text_N: Number of the text that each row is of, from 0 on, where rows are the words of texts: those of one text
            stay in one fold, and ten texts are the least. Each row by itself when left out.
        seed: Draws the folds.

    Raises:
        InvalidInput: There are fewer than ten rows, or all have the same label.
    """
    text_N = np.arange(logits_MNC.shape[1]) if text_N is None else text_N
    texts = int(text_N.max(initial=-1)) + 1
    if texts < LEAST_ROWS:
        raise InvalidInput(f"stacking is fitted on at least {LEAST_ROWS} held-out rows, but got {texts}.")
    if truth.ndim == 1 and len(np.unique(truth)) < 2:
        label = target.labels[int(truth[0])]
        raise InvalidInput(f"stacking is fitted on held-out rows of several labels, but all {texts} have {label!r}.")
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
    """Return the least penalised loss, a convex function, by L-BFGS."""
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
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return Stacked(tuple(weights_M.detach().tolist()), tuple(biases_C.detach().tolist()))
