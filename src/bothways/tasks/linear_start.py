"""The linear model that a head begins with: what a frozen encoder's hidden states tell of the answers.

A head whose last map is drawn at random sends noise into the encoder until it has been learnt; one that begins at the
best linear model of the hidden states as they are does not, and keeps what pre-training knows (Kumar et al. 2022,
arXiv:2202.10054). Measured before the first update, that model is also the baseline of the training.

Shapes: W windows, M rows that a head reads (windows, or their tokens), H hidden, C outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import LBFGS

from bothways.data.windows import WindowStore
from bothways.encoder.heads import EachToken, read_rows
from bothways.inference.runner import Runner, row_answers
from bothways.packing import Packed
from bothways.tasks.objective import Answers, HeadModel

STRENGTH = 10.0
"""Inverse of the penalty on the weights, for hidden states of mean squared length 1 (scikit-learn's C)."""

# What the linear model is fitted to, drawn from more: rows, and rows times outputs.
_MOST_ROWS, _MOST_SCORES = 40_000, 5e7

# Steps of the fit, fewer where many outputs make each of them long; and scores up to which it is one in float64.
_STEPS, _MOST_WORK, _EXACT = 200, 2e9, 5e6


@dataclass(frozen=True, slots=True)
class LinearStart:
    """Options of the fit of a head's linear model.

    Attributes:
        strength: How little the weights are held back.
        seed: Draws windows where there are too many.
        tokens: Token budget of a batch.
    """

    strength: float
    seed: int
    tokens: int


def start_head(model: HeadModel, store: WindowStore, answers: Answers, start: LinearStart) -> None:
    """Make a head's last map the best linear model of what it reads; nothing else is changed.

    Args:
        model: Encoder and head.
        store: Windows to learn from.
        answers: Their answers.
        start: How.
    """
    output, per_token = model.head.output, isinstance(model.head.kind.read, EachToken)
    windows = _drawn(store.lengths if per_token else np.ones(len(store.lengths)), output.out_features, start.seed)

    def features(packed: Packed) -> Tensor:
        hidden_MH = read_rows(model.head.kind.read, model.encoder, packed).to(output.weight.dtype)
        features_MH: Tensor = model.head.transform(hidden_MH)
        return features_MH.float()

    model.eval()
    runner = Runner(row_answers(features, per_token=per_token), model.device, start.tokens)
    rows = [each if per_token else each[None] for each in runner.run(store.windows(windows))]
    numbers = windows.tolist()
    weight_CH, bias_C = fit_linear(
        torch.from_numpy(np.concatenate(rows)),
        output.out_features,
        lambda scores_MC: answers.loss(scores_MC, numbers),
        units=float(answers.weights(numbers).sum()),
        strength=start.strength,
    )
    with torch.no_grad():
        output.weight.copy_(weight_CH)
        output.bias.copy_(bias_C)


def fit_linear(
    vectors_MH: Tensor, outputs: int, loss: Callable[[Tensor], Tensor], *, units: float, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Return weights (C, H) and biases (C) of the linear model of least loss, with a penalty on its weights.

        minimise  loss(V W^T + b) + |W|^2 s / (2 strength)

    where s is the mean squared length of the vectors, so that their scale does not matter (Hastie, Tibshirani and
    Friedman 2009, section 4.4). The problem is convex for the losses of labels and numbers; L-BFGS begins at zero.

    Args:
        vectors_MH: What the answers are told from.
        outputs: C.
        loss: The sum of the losses, given scores (M, C).
        units: How many losses that is a sum of.
        strength: How little the weights are held back.
    """
    work = float(len(vectors_MH) * outputs)
    vectors_MH = vectors_MH.double() if work <= _EXACT else vectors_MH
    mean_H = vectors_MH.mean(0)
    scale = vectors_MH.square().sum(1).mean().sqrt().clamp(min=1e-12)
    scaled_MH = (vectors_MH - mean_H) / scale
    weight_CH = scaled_MH.new_zeros((outputs, scaled_MH.shape[1]), requires_grad=True)
    bias_C = scaled_MH.new_zeros(outputs, requires_grad=True)
    steps = int(min(_STEPS, max(10.0, _MOST_WORK / work)))
    options = {"max_iter": steps, "history_size": 20, "tolerance_grad": 1e-7, "line_search_fn": "strong_wolfe"}
    solver = LBFGS([weight_CH, bias_C], **options)  # type: ignore[arg-type]

    def value() -> Tensor:
        solver.zero_grad()
        # Of one unit: the solver's tolerances are meant for losses of about 1.
        mean = (loss(scaled_MH @ weight_CH.T + bias_C) + weight_CH.square().sum() / (2 * strength)) / units
        mean.backward()  # type: ignore[no-untyped-call]
        return mean

    solver.step(value)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        weight_CH = weight_CH / scale
        return weight_CH, bias_C - weight_CH @ mean_H


def _drawn(rows_W: NDArray[Any], outputs: int, seed: int) -> NDArray[np.int64]:
    """Numbers of the windows to fit to, ascending: all, or as many as have so many rows."""
    most = min(_MOST_ROWS, _MOST_SCORES / outputs)
    order = np.random.default_rng(seed).permutation(len(rows_W))
    kept = max(1, int(np.searchsorted(np.cumsum(rows_W[order]), most, side="right")))
    return np.sort(order[:kept])
