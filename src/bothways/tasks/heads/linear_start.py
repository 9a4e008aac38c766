"""The linear model that a head starts from, fitted to a frozen encoder's hidden states.

The gradients of a random head distort the pre-trained encoder until the head is trained; a head that starts as the best
linear model of the hidden states avoids this (Kumar et al. 2022, arXiv:2202.10054). Measured before the first update,
this model is also the baseline of the training, which is calibrated on the held-out rows and saved with the model.

Shapes: W windows, M rows that a head reads (windows, or their tokens), H hidden, R principal directions, C outputs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import LBFGS

from bothways.checkpoints.hub import LocatedModel
from bothways.data.windows import WindowStore
from bothways.encoder.heads import read_rows
from bothways.evaluation.report import Validation
from bothways.inference.runner import Runner, counted, row_answers
from bothways.packing import Packed
from bothways.progress import Progress, stage
from bothways.tasks.card import BaseModel, SavedBaseline
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.objective import LabelLoss, StoredInputs
from bothways.tasks.heads.target_training import unstandardize
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import AnyOutputs, TrainedHead, outputs_type
from bothways.tasks.scores import Scores
from bothways.tasks.torch_backend import HeadModel, TorchBackend, head_config, opened_beside, stored_head
from bothways.training.stages import ROWS, TENSORS, Part, Tensors, kept

STRENGTH = 10.0
"""Inverse of the penalty on the weights, for hidden states of mean squared length 1 (scikit-learn's C)."""

# Cross-validation: the multiples of the default strength to try, the number of folds, and the minimum number of inputs.
# Maximum rows times outputs to use (a sample is drawn from more), and maximum to hold out every fold instead of one.
_TRIED, _FOLDS, _FEWEST = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0), 4, 50
_MOST_TRIED, _MOST_IN_TURN = 3e5, 2e4

# Maximum rows, and maximum rows times outputs, to fit the linear model to; a sample is drawn from more.
_MOST_ROWS, _MOST_SCORES = 40_000, 5e7

# Maximum steps of the fit, maximum steps times scores, and maximum scores of a fit in float64.
_STEPS, _MOST_WORK, _EXACT = 200, 2e9, 5e6

# Maximum rows to measure a fit with; usual numbers of evaluations of the loss in a fit to texts, and in one to tokens.
_FEW_ROWS, _OF_TEXTS, _OF_TOKENS = 2000, 60, 200


@dataclass(frozen=True, slots=True)
class LinearStart:
    """Options for fitting a head's linear model.

    ``strength`` is the default inverse penalty of the weights; if ``searched`` is True, cross-validation may choose
    another. ``seed`` determines folds and, with too many windows, the sample; a batch has at most ``tokens`` tokens.
    """

    strength: float
    seed: int
    tokens: int
    searched: bool = True


def start_head(
    model: HeadModel, store: WindowStore, targets: LabelLoss, start: LinearStart, identity: str = "", taught: Part = ""
) -> None:
    """Set the last linear map of a head to the best linear model of its inputs, in place, as a stage of the training.

    ``identity`` names everything besides weights, tokens and targets that determines the loss.
    """

    def compute(bar: Progress) -> Tensors:
        data = _Rows.read(model, store, targets, start, bar)
        weight_CH, bias_C = data.fitted(chosen_strength(data, start))
        return {"weight": weight_CH.contiguous(), "bias": bias_C}

    output, windows = model.head.output, _windows(model, store, start)
    settings = f"{store.digest} {targets.digest} {start} {identity}"
    name = "fitting a linear model to the encoder's hidden states"
    found = kept(name, TENSORS, compute, model, settings, taught, total=len(windows))
    with torch.no_grad():
        output.weight.copy_(found["weight"])
        output.bias.copy_(found["bias"])


def held_out_scores(
    model: HeadModel,
    store: WindowStore,
    targets: LabelLoss,
    start: LinearStart,
    folds_N: NDArray[np.int64],
    identity: str = "",
) -> list[NDArray[np.float64]]:
    """Return the scores (C) of each window, from a linear model fitted to the other folds, as a stage of the training.

    The head is not changed. The number of windows must not exceed the maximum for fitting a linear model. ``identity``
    names everything besides weights, tokens and targets that determines the loss.
    """

    def compute(bar: Progress) -> list[NDArray[np.float64]]:
        data = _Rows.read(model, store, targets, start, bar)
        folds_W = folds_N[data.inputs]
        scores: list[NDArray[np.float64]] = [np.empty(0)] * len(folds_W)
        for fold in np.unique(folds_W):
            weight_CH, bias_C = data.part(folds_W != fold).fitted(start.strength)
            for window in np.flatnonzero(folds_W == fold).tolist():
                scores[window] = (data.rows[window][0].to(weight_CH.dtype) @ weight_CH.T + bias_C).double().numpy()
        return scores

    settings = f"{store.digest} {targets.digest} {start} {identity}"
    return kept("cross-validation of the linear model", ROWS, compute, model, settings, total=len(store.lengths))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that a head reads for each window, as inputs of a linear model, and their targets.

    ``inputs`` has the index of each window's input; windows of one input are held out together. ``outputs`` is C.
    """

    rows: Sequence[Tensor]
    windows: NDArray[np.int64]
    inputs: NDArray[np.int64]
    targets: LabelLoss
    outputs: int

    @classmethod
    def read(
        cls, model: HeadModel, store: WindowStore, targets: LabelLoss, start: LinearStart, bar: Progress | None = None
    ) -> "_Rows":
        """Run the encoder on all windows, or on a sample if there are many."""
        output, per_token, windows = model.head.output, model.per_token, _windows(model, store, start)

        def features(packed: Packed) -> Tensor:
            hidden_MH = read_rows(model.head.kind.read, model.encoder, packed).to(output.weight.dtype)
            features_MH: Tensor = model.head.transform(hidden_MH)
            return features_MH.float()

        model.eval()
        runner = Runner(counted(row_answers(features, per_token=per_token), bar), model.device, start.tokens)
        rows = [torch.from_numpy(each if per_token else each[None]) for each in runner.run(store.windows(windows))]
        return cls(rows, windows, store.text_of_window[windows], targets, output.out_features)

    @property
    def size(self) -> int:
        """The number of scores, M C."""
        return self.outputs * sum(map(len, self.rows))

    def part(self, chosen_W: NDArray[np.bool_]) -> "_Rows":
        """Return the rows of the chosen windows."""
        rows = [row for row, chosen in zip(self.rows, chosen_W, strict=True) if chosen]
        return _Rows(rows, self.windows[chosen_W], self.inputs[chosen_W], self.targets, self.outputs)

    def units(self) -> float:
        """Return the sum of the loss weights."""
        return float(self.targets.weights_W[self.windows].sum())

    def loss(self, scores_MC: Tensor) -> Tensor:
        """Return the sum of the losses."""
        return self.targets.loss(scores_MC, self.windows.tolist())

    def held_out_losses(self, held_W: NDArray[np.bool_], strengths: Sequence[float]) -> list[float]:
        """Return, for each strength, the mean held-out loss of a linear model fitted to the other windows."""
        held = self.part(held_W)
        vectors_MH, units = torch.cat(list(held.rows)), max(held.units(), 1e-12)
        models = self.part(~held_W).path(strengths)
        return [float(held.loss(vectors_MH.to(w_CH.dtype) @ w_CH.T + b_C)) / units for w_CH, b_C in models]

    def fitted(self, strength: float) -> tuple[Tensor, Tensor]:
        """Return the weights and biases of the linear model."""
        return next(self.path([strength]))

    def path(self, strengths: Iterable[float]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the weights and biases at each strength."""
        vectors_MH = torch.cat(list(self.rows))
        return linear_path(vectors_MH, self.outputs, self.loss, units=self.units(), strengths=strengths)


def chosen_strength(data: _Rows, start: LinearStart) -> float:
    """Return the strength (inverse penalty) with the lowest loss on held-out inputs, or the default if it is as good.

    "As good" means within a standard error over the folds. With many inputs, a sample is drawn and a quarter of it is
    held out once; with few inputs, the default is returned. A low value, thus a strong penalty, is best if the hidden
    states do not predict the targets: the model then predicts little more than the class frequencies.
    """
    strengths = [start.strength * part for part in _TRIED]
    if not start.searched or len(np.unique(data.inputs)) < _FEWEST:
        return start.strength
    order = np.random.default_rng([start.seed, 1]).permutation(int(data.inputs.max()) + 1)
    ranks_W = np.unique(order[data.inputs], return_inverse=True)[1]
    kept_W = ranks_W < max(_FOLDS, (ranks_W.max() + 1) * min(1.0, _MOST_TRIED / data.size))
    data, folds_W = data.part(kept_W), ranks_W[kept_W] % _FOLDS
    folds = range(_FOLDS if data.size <= _MOST_IN_TURN else 1)
    losses_SF = np.array([data.held_out_losses(folds_W == fold, strengths) for fold in folds]).T
    best, usual = int(losses_SF.mean(1).argmin()), _TRIED.index(1.0)
    gains_F = losses_SF[usual] - losses_SF[best]
    error = 0.0 if len(folds) == 1 else gains_F.std(ddof=1) / np.sqrt(len(folds))
    return strengths[usual if gains_F.mean() <= error else best]


def fit_linear(
    vectors_MH: Tensor, outputs: int, loss: Callable[[Tensor], Tensor], *, units: float, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Return the weights (C, H) and biases (C) of the linear model with the lowest penalised loss.

        minimise  loss(V W^T + b) + |W|^2 s / (2 strength)

    where s is the mean squared length of the vectors, so that their scale does not matter (Hastie, Tibshirani and
    Friedman 2009, section 4.4). The problem is convex for classification and regression. L-BFGS starts at zero; its
    variables are coordinates along the principal directions of the vectors, scaled to similar curvature of the loss to
    need fewer steps. ``loss`` returns the weighted sum of the losses for scores (M, C); ``units`` is the total weight.
    """
    return next(linear_path(vectors_MH, outputs, loss, units=units, strengths=[strength]))


def linear_path(
    vectors_MH: Tensor, outputs: int, loss: Callable[[Tensor], Tensor], *, units: float, strengths: Iterable[float]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the result of `fit_linear` at each strength, computing the principal directions once."""
    exact = len(vectors_MH) * outputs <= _EXACT
    principal = _Principal.of(vectors_MH.double() if exact else vectors_MH)
    for strength in strengths:
        yield principal.fitted(outputs, loss, units=units, strength=strength)


@dataclass(frozen=True, slots=True)
class _Principal:
    """Coordinates of vectors along their R principal directions, after subtracting the mean and dividing by ``scale``.

    The directions are the columns of ``directions_HR``; ``squares_R`` has the sum of squares along each direction.
    """

    along_MR: Tensor
    squares_R: Tensor
    directions_HR: Tensor
    mean_H: Tensor
    scale: Tensor

    @classmethod
    def of(cls, vectors_MH: Tensor) -> "_Principal":
        """Compute the principal directions, at most as many as there are vectors."""
        mean_H = vectors_MH.mean(0)
        scale = vectors_MH.square().sum(1).mean().sqrt().clamp(min=1e-12)
        scaled_MH = (vectors_MH - mean_H) / scale
        if len(scaled_MH) < scaled_MH.shape[1]:
            _, roots_R, directions_RH = torch.linalg.svd(scaled_MH, full_matrices=False)
            squares_R, directions_HR = roots_R.square(), directions_RH.T
        else:
            values_R, vectors_HR = torch.linalg.eigh((scaled_MH.T @ scaled_MH).double())
            squares_R, directions_HR = (each.to(vectors_MH.dtype) for each in (values_R.clamp_min(0), vectors_HR))
        return cls(scaled_MH @ directions_HR, squares_R, directions_HR, mean_H, scale)

    def fitted(
        self, outputs: int, loss: Callable[[Tensor], Tensor], *, units: float, strength: float
    ) -> tuple[Tensor, Tensor]:
        """Return the linear model of the vectors; see `fit_linear`. With float64 vectors the fit converges fully."""
        # A third of the curvature of cross-entropy at equally likely labels; with more certain labels it is lower.
        share = 1 / max(outputs, 2)
        curvature = share * (1 - share) / 3
        unit_R = (curvature * self.squares_R + 1 / strength).rsqrt()
        bias_unit = (curvature * len(self.along_MR)) ** -0.5
        inputs_MR = self.along_MR * unit_R
        variables_CR = inputs_MR.new_zeros((outputs, len(unit_R)), requires_grad=True)
        biases_C = inputs_MR.new_zeros(outputs, requires_grad=True)
        exact = inputs_MR.dtype == torch.float64
        steps = int(min(_STEPS, max(10.0, _MOST_WORK / (len(inputs_MR) * outputs))))
        solver = LBFGS(
            [variables_CR, biases_C],
            max_iter=steps,
            history_size=20,
            line_search_fn="strong_wolfe",
            # Full convergence in float64, so that the result is the same on every machine.
            tolerance_grad=1e-10 if exact else 1e-7,
            tolerance_change=0.0 if exact else 1e-9,
        )

        def value() -> Tensor:
            solver.zero_grad()
            # The loss per unit, since the solver's tolerances are meant for losses of about 1.
            penalty = (variables_CR * unit_R).square().sum() / (2 * strength)
            mean = (loss(inputs_MR @ variables_CR.T + biases_C * bias_unit) + penalty) / units
            torch.autograd.backward(mean)
            return mean

        solver.step(value)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            weight_CH = (variables_CR * unit_R) @ self.directions_HR.T / self.scale
            return weight_CH, biases_C * bias_unit - weight_CH @ self.mean_H


def tokens_read(model: HeadModel, store: WindowStore, start: LinearStart) -> int:
    """Return the number of tokens that a linear model is fitted to."""
    return int(store.lengths[_windows(model, store, start)].sum())


def fitting_seconds(model: HeadModel, store: WindowStore, start: LinearStart) -> float:
    """Estimate the seconds of fitting a linear model to vectors, from a fit to a few random ones."""
    windows, outputs = _windows(model, store, start), model.head.output.out_features
    rows = int(store.lengths[windows].sum()) if model.per_token else len(windows)
    vectors_MH = torch.randn(min(rows, _FEW_ROWS), model.head.output.in_features, generator=torch.Generator())
    evaluations = 0

    def loss(scores_MC: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return (scores_MC - vectors_MH[:, :1]).square().sum()

    began = time.perf_counter()
    fit_linear(vectors_MH, outputs, loss, units=len(vectors_MH))
    seconds = (time.perf_counter() - began) / evaluations * rows / len(vectors_MH)
    tried = min(1.0, _MOST_TRIED / (rows * outputs))
    folds = _FOLDS if rows * tried * outputs <= _MOST_IN_TURN else 1
    fits = 1.0
    if start.searched and len(np.unique(store.text_of_window[windows])) >= _FEWEST:
        fits += len(_TRIED) * folds * tried * (1 - 1 / _FOLDS)
    return seconds * fits * (_OF_TOKENS if model.per_token else _OF_TEXTS)


def _windows(model: HeadModel, store: WindowStore, start: LinearStart) -> NDArray[np.int64]:
    rows_W = store.lengths if model.per_token else np.ones_like(store.lengths)
    return _drawn(rows_W, model.head.output.out_features, start.seed)


def _drawn(rows_W: NDArray[np.int64], outputs: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of the windows to fit to, ascending: all, or a sample if there are too many rows."""
    most = min(_MOST_ROWS, _MOST_SCORES / outputs)
    order = np.random.default_rng(seed).permutation(len(rows_W))
    kept = max(1, int(np.searchsorted(np.cumsum(rows_W[order]), most, side="right")))
    return np.sort(order[:kept])


# --- the model before the training as a baseline ---


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBaseline:
    """A baseline and its metrics on the held-out rows, with probabilities that are calibrated on the same rows.

    ``validation`` has its uncalibrated metrics and its score, for comparisons with the epochs of the training.
    """

    saved: SavedBaseline
    metrics: Mapping[str, float]
    validation: Validation

    @classmethod
    def of(
        cls, name: str, backend: TorchBackend, learner: AnyLearner, held: StoredInputs, tokens: int
    ) -> "MeasuredBaseline":
        """Measure a head before its training, which may change it in place."""
        head = deepcopy(backend.head_model.head)
        own = backend.with_head(head)
        learner = learner.with_target(unstandardize(learner.outputs.row_target, head))
        scores = held.scores(learner.outputs, own.head_model, tokens, "evaluating the baseline")
        return cls.scored(name, own, learner, scores, held.truth)

    @classmethod
    def scored(
        cls,
        name: str,
        backend: TorchBackend,
        learner: AnyLearner,
        scores: Sequence[Scores[object]],
        truth: object,
    ) -> "MeasuredBaseline":
        """Calibrate a head on its scores for held-out rows, and compute its metrics."""
        validation = learner.validate(scores, truth)
        with stage("calibrating the baseline"):
            outputs: AnyOutputs = learner.calibrated(scores, truth)
        values = outputs.outcomes(scores, truth).values()
        # Validations have the likelihood of uncalibrated probabilities, and a threshold for all labels.
        own = {key: value for key, value in validation.metrics.items() if key not in ("nll", "threshold")}
        metrics = own | {key: value for key, value in values.items() if key in validation.metrics}
        saved = SavedBaseline(
            name,
            (),
            BaseModel.of(backend.model),
            head_config(backend, outputs.head, outputs.settings()),
            outputs.write(Path()),
            {key: value.float().cpu().numpy().copy() for key, value in stored_head(backend, outputs.head).items()},
        )
        return cls(saved if saved.base is not None else saved.as_constant(), metrics, validation)

    def card(self, name: str | None = None) -> dict[str, object]:
        """Return the entry for the card; the name may tell more than that of the saved baseline."""
        return {"baseline": {"name": name or self.saved.name, "metrics": dict(self.metrics)}}


def saved_baseline(found: MeasuredBaseline | None, constant: tuple[float, ...]) -> SavedBaseline:
    """Return the baseline to save with a model: the one found, else the best constant prediction."""
    return replace(SavedBaseline("") if found is None else found.saved, constant=constant)


def open_baseline(saved: SavedBaseline, located: LocatedModel, model: TrainedHead) -> TrainedHead:
    """Open the base model with the saved head; it reads texts as the trained model does, on the same device."""
    spec, like = model.spec, with_weights(model.backend, "evaluate")
    backend = opened_beside(like, located)
    tensors = {name: torch.from_numpy(value) for name, value in saved.head.items()}
    settings = {**backend.files.settings, **saved.config}
    files = replace(backend.files, settings=settings, extras=dict(saved.outputs), tensors=tensors)
    kind = outputs_type(spec)
    head = files.build_score_head(kind.head)
    outputs = kind.open(replace(backend, files=files), head.output.out_features, ours=True)
    return TrainedHead(spec, backend.with_head(head), outputs, model.columns)
