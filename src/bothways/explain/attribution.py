"""Attribution of a score to the words of an input: integrated gradients, gradient times input, and leave-one-out.

Each method has its own definition of a word's contribution; no method tells why a model decides as it does. Deletion
curves measure how well an attribution ranks words: the score should fall faster if the words with the highest
contributions are deleted first than if words are deleted in random order.

Shapes: N inputs, F fractions of words, R resamples, S steps of an integral, T packed tokens, H hidden, W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.choices import AttributionMethod, LabelValue
from bothways.errors import InvalidInput
from bothways.evaluation.intervals import Interval, bootstrap_values, percentile_interval
from bothways.explain.gradients import Entrance, Read
from bothways.explain.scoring import explain_targets, scores_of
from bothways.explain.targets import NO_WORD, ExplainTarget, Target, Word
from bothways.tasks.task import AnyTask

STEPS = 32
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
# Maximum tokens in a batch of interpolated inputs.
_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Contributions of the words of an input to a score."""

    method: AttributionMethod  # method of attribution
    score_name: str  # name of the score, in words
    score: float
    words: tuple[Word, ...]  # the words of the input
    # Contribution of each word, in units of the score; NaN for words that cannot be left out.
    weights_W: NDArray[np.float64]
    rest: float = 0.0  # contribution of all tokens that belong to no word, such as special tokens
    baseline_score: float | None = None  # the score of the baseline; None for methods without one
    label: LabelValue | None = None  # the label that the score is for; None for another score
    tokens: int = 0  # tokens that were computed for gradients, in all passes

    @property
    def completeness_error(self) -> float | None:
        """The sum of all contributions, minus the difference between the scores of input and baseline.

        It is zero for the exact integral (Sundararajan et al. 2017, proposition 1); None for methods without this
        guarantee.
        """
        if self.baseline_score is None:
            return None
        return float(self.weights_W.sum() + self.rest - (self.score - self.baseline_score))

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; null for words that cannot be left out."""
        words = [
            {
                "word": word.text,
                "part": word.part,
                "start": word.start,
                "end": word.end,
                "weight": None if np.isnan(weight) else float(weight),
            }
            for word, weight in zip(self.words, self.weights_W, strict=True)
        ]
        return {
            "method": self.method,
            "score_of": self.score_name,
            **({} if self.label is None else {"label": self.label}),
            "score": self.score,
            "words": words,
            "rest": self.rest,
            "baseline_score": self.baseline_score,
            "completeness_error": self.completeness_error,
        }


def attribute(
    model: AnyTask,
    inputs: Sequence[object],
    method: AttributionMethod = "integrated-gradients",
    *,
    target: Target | None = None,
    steps: int = STEPS,
) -> list[Attribution]:
    """Return the contribution of each word of the inputs to a score.

    - ``"integrated-gradients"``: the integral of the gradient along the line from a baseline to the input (Sundararajan
      et al. 2017, arXiv:1703.01365, equation 1), by Gauss-Legendre quadrature, for the encoder's first hidden states.
      The baseline replaces every token except special ones by the padding token.
    - ``"gradient-x-input"``: the gradient at the input, times the difference between the input and that baseline.
    - ``"leave-one-out"``: the score minus the score of the input without the word. It needs no gradients, and works for
      ensembles and texts of several windows too.

    Args:
        model: A trained model of one task.
        inputs: A list of the task's inputs.
        method: Method of attribution, see above.
        target: The score to explain. Default: that of the model's own prediction.
        steps: Number of points of the quadrature.

    Raises:
        NotFitted: The model was not trained.
        InvalidInput: The method is unknown or does not work for this model, or an input or the target is invalid.
        TextTooLong: A text does not fit into one window, and the method uses gradients.
    """
    if isinstance(inputs, str):
        raise InvalidInput("expected a list of inputs, got one string: put it into a list.")
    if steps < 1:
        raise InvalidInput(f"expected steps of at least 1, got {steps}.")
    targets = explain_targets(model, inputs, target)
    match method:
        case "leave-one-out":
            return _leave_one_out(model, targets)
        case "integrated-gradients":
            # The Gauss-Legendre points and weights are for -1 to 1; `_integrated` gets them for 0 to 1.
            points_S, weights_S = np.polynomial.legendre.leggauss(steps)
            entrance = Entrance.of(model)
            return [_integrated(method, entrance, each, (points_S + 1) / 2, weights_S / 2) for each in targets]
        case "gradient-x-input":
            entrance = Entrance.of(model)
            return [_integrated(method, entrance, each, np.ones(1), np.ones(1)) for each in targets]
    raise InvalidInput(
        f"expected one of the methods 'integrated-gradients', 'gradient-x-input', 'leave-one-out', got {method!r}."
    )


def _integrated(
    method: AttributionMethod,
    entrance: Entrance,
    target: ExplainTarget,
    points_S: NDArray[np.float64],
    shares_S: NDArray[np.float64],
) -> Attribution:
    """Sum the gradients at points between baseline and input, weighted by ``shares_S``, times their difference."""
    once = entrance.read([target])
    tokens = sum(once.packed.lengths)
    total_T, size, computed = np.zeros(tokens), max(1, _TOKENS // tokens), 0
    for start in range(0, len(points_S), size):
        points = points_S[start : start + size]
        run = entrance.run(entrance.read([target], len(points)), points.tolist())
        computed += run.tokens
        ways = [entrance.way(each.batch) for each in run.readings]
        parts = [(gradient * way).sum(-1).double() for gradient, way in zip(run.gradients(), ways, strict=True)]
        total_T += shares_S[start : start + size] @ run.on_tokens(parts).cpu().numpy().reshape(len(points), tokens)
    run, score, baseline = entrance.run(once), target.score_name, None
    computed += run.tokens
    if method == "integrated-gradients":
        bare = entrance.run(once, [0.0])
        baseline, computed = bare.scores_N.item(), computed + bare.tokens
    weights_W, rest = _on_words(target, once, total_T)
    found = run.scores_N.item()
    return Attribution(method, score, found, target.words, weights_W, rest, baseline, target.label, computed)


def _on_words(target: ExplainTarget, read: Read, values_T: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the sum of values over the tokens of each word, and the sum over all other tokens."""
    words_T = np.concatenate([target.words_of_tokens(text, each) for text, each in enumerate(read.places)])
    inside = words_T != NO_WORD
    weights_W = np.bincount(words_T[inside], values_T[inside], minlength=len(target.words))
    return weights_W.astype(np.float64), float(values_T[~inside].sum())


def _leave_one_out(model: AnyTask, targets: Sequence[ExplainTarget]) -> list[Attribution]:
    pairs = [
        (number, word)
        for number, each in enumerate(targets)
        for word in range(len(each.words))
        if word not in each.kept
    ]
    shorter = [targets[number].without({word}) for number, word in pairs]
    scores = scores_of(model, [*targets, *shorter], description="leaving words out")
    weights = [np.full(len(each.words), np.nan) for each in targets]
    for (number, word), score in zip(pairs, scores[len(targets) :], strict=True):
        weights[number][word] = scores[number] - score
    return [
        Attribution("leave-one-out", each.score_name, float(score), each.words, weights_W, label=each.label)
        for each, score, weights_W in zip(targets, scores[: len(targets)], weights, strict=True)
    ]


# --- deletion curves ---


@dataclass(frozen=True, slots=True, eq=False)
class DeletionCurves:
    """Scores of inputs after more and more of their words are deleted."""

    fractions: tuple[float, ...]  # the deleted fraction of the words of an input
    attributed_NF: NDArray[np.float64]  # scores if the words with the highest contributions are deleted first
    random_NF: NDArray[np.float64]  # scores if words are deleted in random order, as means over several orders
    # The area under the curve of random deletion minus that of attributed deletion, as a mean over inputs. If it is
    # positive, the attribution finds words that the score depends on.
    gain: float
    interval: Interval  # the interval of `gain`, by bootstrap over inputs


def deletion_curves(
    model: AnyTask,
    inputs: Sequence[object],
    method: AttributionMethod = "integrated-gradients",
    *,
    target: Target | None = None,
    fractions: Sequence[float] = FRACTIONS,
    orders: int = 3,
    resamples: int = 1000,
    seed: int = 0,
) -> DeletionCurves:
    """Delete words of inputs by attribution and in random order, and compare the scores.

    Words that the score is defined for, such as a tagged word, are never deleted.

    Args:
        model: A trained model of one task.
        inputs: Inputs of the task, each with at least two words.
        method: Method of attribution.
        target: The score. Default: that of the model's own prediction.
        fractions: Fractions of the deletable words, ascending, from 0 to below 1.
        orders: Number of random orders for each input.
        resamples: Bootstrap resamples for the interval.
        seed: Seed of the random orders and the bootstrap.

    Raises:
        InvalidInput: The fractions are out of range; also as for `attribute`.
    """
    deleted = np.array(fractions, dtype=np.float64)
    if len(deleted) < 2 or (np.diff(deleted) <= 0).any() or deleted[0] < 0 or deleted[-1] >= 1 or orders < 1:
        raise InvalidInput(
            f"expected ascending fractions from 0 to below 1, and orders of at least 1, got {list(fractions)} and "
            f"{orders}."
        )
    targets = explain_targets(model, inputs, target)
    generator = np.random.default_rng(seed)
    shorter: list[ExplainTarget] = []
    for each, found in zip(targets, attribute(model, inputs, method, target=target), strict=True):
        free = np.array([number for number in range(len(each.words)) if number not in each.kept], dtype=np.int64)
        ranked = free[np.argsort(-np.nan_to_num(found.weights_W[free]), kind="stable")]
        for order in (ranked, *(generator.permutation(free) for _ in range(orders))):
            shorter += [each.without(set(order[: round(share * len(free))].tolist())) for share in fractions]
    scores = scores_of(model, shorter, description="deleting words").reshape(len(targets), 1 + orders, len(deleted))
    attributed_NF, random_NF = scores[:, 0], scores[:, 1:].mean(1)
    differences_NF = random_NF - attributed_NF
    gains_N = (np.diff(deleted) * (differences_NF[:, 1:] + differences_NF[:, :-1]) / 2).sum(1)
    values_R = bootstrap_values(
        lambda counts_RN: (counts_RN @ gains_N / counts_RN.sum(1))[:, None],
        len(gains_N),
        resamples=resamples,
        seed=seed,
    )[:, 0]
    return DeletionCurves(
        tuple(fractions), attributed_NF, random_NF, float(gains_N.mean()), percentile_interval(values_R)
    )
