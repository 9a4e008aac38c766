"""Shadow models: linear heads on frozen vectors, each of half of the rows, so that each row is in one of every two.

Likelihood ratio attack (LiRA; Carlini et al. 2022, arXiv:2112.03570), with few shadows and so with one variance for all
rows. Shadows are weaker than a fine-tuned model and less sure: the model's scores are first brought to their scale by a
line that is fitted to all rows, and which uses no membership.

Shapes: N rows, S shadows, C labels, H hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bothways.tasks.heads.linear_start import fit_linear

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """The answers of shadow models to rows.

    Attributes:
        out_N: Mean score of each row by the shadows that did not learn it.
        in_N: Mean score by those that did.
        spread: Standard deviation of the former around their means.
    """

    out_N: Numbers
    in_N: Numbers
    spread: float

    def offline(self, scores_N: Numbers) -> Numbers:
        """Return how far the model's scores are above those of models that did not learn the rows."""
        return (self._scaled(scores_N) - self.out_N) / self.spread

    def online(self, scores_N: Numbers) -> Numbers:
        """Return the log likelihood ratios of having learnt the rows, with normal distributions of one variance."""
        gap_N = self.in_N - self.out_N
        ratios_N: Numbers = (self._scaled(scores_N) - (self.in_N + self.out_N) / 2) * gap_N / self.spread**2
        return ratios_N

    def _scaled(self, scores_N: Numbers) -> Numbers:
        """Return the model's scores on the shadows' scale: those of all rows have their mean and deviation."""
        deviation = max(float(scores_N.std()), 1e-12)
        scaled_N: Numbers = (scores_N - scores_N.mean()) / deviation * self.out_N.std() + self.out_N.mean()
        return scaled_N


def train_shadows(
    vectors_NH: Numbers,
    labels_N: NDArray[np.int64],
    labels: int,
    count: int,
    rng: np.random.Generator,
    check_time: Callable[[], None],
) -> Shadows:
    """Train shadow models, two and two on halves that complete each other.

    Args:
        vectors_NH: Vectors of the rows.
        labels_N: Indices of their labels.
        labels: C.
        count: S, an even number.
        rng: Draws halves.
        check_time: Called before each.
    """
    vectors, truth = torch.from_numpy(vectors_NH), torch.from_numpy(labels_N)
    learnt_SN, scores_SN = [], []
    for _ in range(count // 2):
        half_N = rng.permutation(len(labels_N)) < len(labels_N) // 2
        for inside_N in (half_N, ~half_N):
            check_time()
            chosen = torch.from_numpy(inside_N)
            wanted = truth[chosen]
            weight_CH, bias_C = fit_linear(
                vectors[chosen],
                labels,
                lambda scores_MC, wanted=wanted: cross_entropy(scores_MC, wanted, reduction="sum"),  # type: ignore[misc]
                units=float(inside_N.sum()),
            )
            logits_NC = (vectors.to(weight_CH.dtype) @ weight_CH.T + bias_C).double().numpy()
            learnt_SN.append(inside_N)
            scores_SN.append(scaled_confidence(logits_NC, labels_N))
    learnt, scores = np.stack(learnt_SN), np.stack(scores_SN)
    out_N = np.where(learnt, 0.0, scores).sum(0) / (~learnt).sum(0)
    in_N = np.where(learnt, scores, 0.0).sum(0) / learnt.sum(0)
    spread = float(np.sqrt(((scores - out_N) ** 2)[~learnt].mean()))
    return Shadows(out_N, in_N, max(spread, 1e-6))


def scaled_confidence(logits_NC: Numbers, labels_N: NDArray[np.int64]) -> Numbers:
    """Return log(p / (1 - p)) of the right labels (N), which is nearly normal (Carlini et al. 2022, section V-A).

    It rises as the loss falls, so that it ranks rows as the loss does, without the ties of probabilities near 1.
    """
    rows = np.arange(len(labels_N))
    others_NC = logits_NC.astype(np.float64).copy()
    right_N = others_NC[rows, labels_N]
    others_NC[rows, labels_N] = -np.inf
    confidence_N: Numbers = right_N - np.logaddexp.reduce(others_NC, axis=1)
    return confidence_N
