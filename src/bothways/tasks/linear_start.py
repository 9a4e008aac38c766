"""The linear model that a classifier begins with: what a frozen encoder's vectors tell of the labels.

A head whose last map is drawn at random sends noise into the encoder until it has been learnt; one that begins at the
best linear model of the vectors as they are does not, and keeps what pre-training knows (Kumar et al. 2022,
arXiv:2202.10054). Measured before the first update, that model is also the baseline of the training.

Shapes: N texts, B windows of a batch, H hidden, C outputs.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import LBFGS

from bothways.encoder.heads import read_rows
from bothways.inference.runner import Runner, row_answers
from bothways.packing import Packed
from bothways.tasks.head import StoredInputs
from bothways.tasks.merging import merge_windows
from bothways.tasks.objective import HeadModel
from bothways.tasks.targets import MultiLabel, SingleLabel, Target, Truth

MOST_ROWS = 20_000
"""Rows that the linear model is fitted to, drawn from more."""

STRENGTH = 10.0
"""How little the weights are held back, for vectors of mean squared length 1 (scikit-learn's C)."""

# Steps of the fit, fewer where thousands of labels make each of them long.
_STEPS, _WORK = 200, 2e9


def start_head(model: HeadModel, stored: StoredInputs, target: Target, seed: int, tokens: int) -> None:
    """Make a head's last map the best linear model of what it reads of the training texts.

    Args:
        model: Encoder and head; only the last map of the head is changed.
        stored: Training texts and their truth.
        target: What is predicted, and its loss.
        seed: Draws texts where there are more than `MOST_ROWS`.
        tokens: Token budget of a batch.
    """
    numbers_N = _drawn(target, stored.truth, seed)
    part = stored if len(numbers_N) == stored.store.texts else stored.take(numbers_N)
    store = part.store

    def features(packed: Packed) -> Tensor:
        features_BH: Tensor = model.head.transform(read_rows(model.head.kind.read, model.encoder, packed))
        return features_BH.float()

    model.eval()
    rows = Runner(row_answers(features, per_token=False), model.device, tokens).run(store.windows())
    vectors_NH = merge_windows(np.stack(list(rows)), store.lengths, store.text_of_window)
    weight_CH, bias_C = fit_linear(torch.from_numpy(vectors_NH), part.truth, target)
    with torch.no_grad():
        model.head.output.weight.copy_(weight_CH)
        model.head.output.bias.copy_(bias_C)


def fit_linear(
    vectors_NH: Tensor, truth: Truth, target: Target, *, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Return weights (C, H) and biases (C) of the linear model of least loss, with a penalty on its weights.

        minimise  sum_n loss(W v_n + b, y_n) + |W|^2 s / (2 strength)

    where s is the mean squared length of the vectors, so that their scale does not matter (Hastie, Tibshirani and
    Friedman 2009, section 4.4). Of several labels the loss is that of a model for each. The problem is convex, and
    solved from zero with L-BFGS.

    Args:
        vectors_NH: What to tell the truth from.
        truth: Encoded labels.
        target: What is predicted, and its loss.
        strength: How little the weights are held back.
    """
    vectors_NH = vectors_NH.double()
    mean_H = vectors_NH.mean(0)
    scale = vectors_NH.square().sum(1).mean().sqrt().clamp(min=1e-12)
    scaled_NH = (vectors_NH - mean_H) / scale
    known = torch.from_numpy(np.asarray(truth))
    weight_CH = torch.zeros(target.outputs, scaled_NH.shape[1], dtype=torch.float64, requires_grad=True)
    bias_C = torch.zeros(target.outputs, dtype=torch.float64, requires_grad=True)
    labels = target.outputs if isinstance(target, MultiLabel) else 1  # whose losses it gives the mean of
    rows = len(scaled_NH)
    steps = int(min(_STEPS, max(10.0, _WORK / (rows * target.outputs))))
    options = {"max_iter": steps, "history_size": 20, "tolerance_grad": 1e-7, "line_search_fn": "strong_wolfe"}
    solver = LBFGS([weight_CH, bias_C], **options)  # type: ignore[arg-type]

    def loss() -> Tensor:
        solver.zero_grad()
        losses_N = target.losses(scaled_NH @ weight_CH.T + bias_C, known).double() * labels
        # Over the number of rows: the solver's tolerances are meant for losses of about 1.
        value = (losses_N.sum() + weight_CH.square().sum() / (2 * strength)) / rows
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        weight_CH = weight_CH / scale
        return weight_CH, bias_C - weight_CH @ mean_H


def _drawn(target: Target, truth: Truth, seed: int) -> NDArray[np.int64]:
    """Numbers of the texts to fit the model to: all, or so many, with one of each label among them."""
    texts = len(truth)
    if texts <= MOST_ROWS:
        return np.arange(texts)
    order = np.random.default_rng(seed).permutation(texts)
    if isinstance(target, SingleLabel):
        firsts = np.unique(truth[order], return_index=True)[1]
        order = np.concatenate([order[firsts], np.delete(order, firsts)])
    return np.sort(order[:MOST_ROWS])
