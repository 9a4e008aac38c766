"""Membership scores and how well they separate members from non-members, with bootstrap intervals.

Carlini et al. 2022, arXiv:2112.03570: a mean over all rows hides an attack that is sure of a few, so the true positive
rate at low false positive rates is reported beside the AUC.

Shapes: M members, N non-members or rows, F features, S shadow models, C labels, H hidden.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bothways.evaluation.intervals import Estimate
from bothways.evaluation.out_of_domain import auroc, out_of_domain_report
from bothways.tasks.heads.linear_start import fit_linear
from bothways.text import Words

Numbers = NDArray[np.float64]

_RESAMPLES = 500
_RATES = (0.01, 0.001)
_FEATURES, _FOLDS = 512, 5


@dataclass(frozen=True, slots=True)
class Separation:
    """The measures of one score."""

    auc: Estimate  # area under the ROC curve
    rates: dict[float, Estimate]  # True positive rate at each false positive rate
    chance: float  # AUC that 99 % of random memberships stay below

    @classmethod
    def of(cls, members_M: Numbers, others_N: Numbers, rng: np.random.Generator) -> "Separation":
        """Measure the scores of members and of non-members; higher ones mean "member"."""
        seed = int(rng.integers(2**31))
        report = out_of_domain_report(others_N, members_M, resamples=_RESAMPLES, seed=seed)
        resampled = [
            (rng.choice(members_M, len(members_M)), rng.choice(others_N, len(others_N))) for _ in range(_RESAMPLES)
        ]
        rates = {}
        for rate in _RATES:
            values_R = [true_positives(some, others, rate) for some, others in resampled]
            low, high = np.quantile(values_R, [0.025, 0.975])
            rates[rate] = Estimate(true_positives(members_M, others_N, rate), float(low), float(high))
        everyone, cut = np.concatenate([members_M, others_N]), len(members_M)
        mixed = (rng.permutation(everyone) for _ in range(_RESAMPLES))
        chance = float(np.quantile([auroc(each[cut:], each[:cut]) for each in mixed], 0.99))
        return cls(report.auroc, rates, chance)

    def details(self) -> dict[str, float]:
        """Return the numbers as flat JSON values."""
        numbers = self.auc.named("auc")
        for rate, each in self.rates.items():
            numbers |= each.named(f"tpr_at_{100 * rate:g}_percent_fpr")
        return numbers


def true_positives(members_M: Numbers, others_N: Numbers, rate: float) -> float:
    """Return the share of members above the threshold that at most this share of non-members exceeds."""
    passing = int(rate * len(others_N))
    threshold = np.sort(others_N)[::-1][passing]
    return float((members_M > threshold).mean())


def blind_scores(texts: Sequence[str], member_N: NDArray[np.bool_], rng: np.random.Generator) -> Numbers:
    """Return cross-validated membership scores from the words alone, without the model.

    If these separate the two sets, the sets differ by themselves and attacks say little (Das et al. 2024, Blind
    baselines beat membership inference attacks for foundation models, arXiv:2406.16201).
    """
    features_NF = np.zeros((len(texts), _FEATURES + 1))
    for row, text in enumerate(texts):
        words = [word.lower() for word in Words.of_text(text).listed()]
        for word in words:
            features_NF[row, crc32(word.encode()) % _FEATURES] = 1.0
        features_NF[row, _FEATURES] = np.log1p(len(words))
    features_NF -= features_NF.mean(axis=0)
    fold_N = rng.permutation(len(texts)) % _FOLDS
    scores_N = np.zeros(len(texts))
    for fold in range(_FOLDS):
        held_N = fold_N == fold
        inside = features_NF[~held_N]
        target = member_N[~held_N] - member_N[~held_N].mean()
        kernel = inside @ inside.T + 10.0 * np.eye(len(inside))
        scores_N[held_N] = features_NF[held_N] @ (inside.T @ np.linalg.solve(kernel, target))
    return scores_N


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """The scores of shadow models: linear heads on frozen vectors, each trained on half of the rows.

    This is the likelihood ratio attack (LiRA; Carlini et al. 2022, arXiv:2112.03570), with few shadows and therefore
    one variance for all rows. Shadows are weaker and less sure than a fine-tuned model, so its scores are first brought
    to their scale by a line that is fitted to all rows and uses no membership.
    """

    out_N: Numbers  # mean score of each row by the shadows that were not trained on it
    in_N: Numbers  # mean score by those that were
    spread: float  # standard deviation of the former around their means

    def offline(self, scores_N: Numbers) -> Numbers:
        """Compare the scores with those of models that were not trained on the rows, in units of their spread."""
        return (self._scaled(scores_N) - self.out_N) / self.spread

    def online(self, scores_N: Numbers) -> Numbers:
        """Return the log likelihood ratios of membership, for normal distributions with one variance."""
        gap_N = self.in_N - self.out_N
        ratios_N: Numbers = (self._scaled(scores_N) - (self.in_N + self.out_N) / 2) * gap_N / self.spread**2
        return ratios_N

    def _scaled(self, scores_N: Numbers) -> Numbers:
        """Bring the scores to the mean and deviation of the shadows' scores."""
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
    """Train ``count`` shadow models in pairs, each pair on two complementary halves of the rows."""
    vectors, truth = torch.from_numpy(vectors_NH), torch.from_numpy(labels_N)
    member_SN, scores_SN = [], []
    for _ in range(count // 2):
        half_N = rng.permutation(len(labels_N)) < len(labels_N) // 2
        for inside_N in (half_N, ~half_N):
            check_time()
            chosen = torch.from_numpy(inside_N)
            targets = truth[chosen]
            weight_CH, bias_C = fit_linear(
                vectors[chosen],
                labels,
                lambda scores_MC, targets=targets: cross_entropy(scores_MC, targets, reduction="sum"),  # type: ignore[misc]
                units=float(inside_N.sum()),
            )
            logits_NC = (vectors.to(weight_CH.dtype) @ weight_CH.T + bias_C).double().numpy()
            member_SN.append(inside_N)
            scores_SN.append(scaled_confidence(logits_NC, labels_N))
    member, scores = np.stack(member_SN), np.stack(scores_SN)
    out_N = np.where(member, 0.0, scores).sum(0) / (~member).sum(0)
    in_N = np.where(member, scores, 0.0).sum(0) / member.sum(0)
    spread = float(np.sqrt(((scores - out_N) ** 2)[~member].mean()))
    return Shadows(out_N, in_N, max(spread, 1e-6))


def scaled_confidence(logits_NC: Numbers, labels_N: NDArray[np.int64]) -> Numbers:
    """Return log(p / (1 - p)) of the right labels (N), which is nearly normal (Carlini et al. 2022, section V-A).

    It ranks rows as the loss does, without the ties of probabilities near 1.
    """
    rows = np.arange(len(labels_N))
    others_NC = logits_NC.astype(np.float64).copy()
    right_N = others_NC[rows, labels_N]
    others_NC[rows, labels_N] = -np.inf
    confidence_N: Numbers = right_N - np.logaddexp.reduce(others_NC, axis=1)
    return confidence_N
