"""Attribution of a score to the words of an input: integrated gradients, gradient times input, and leave-one-out.

An attribution answers how the score would change, by a rule of its own; none says why a model decides as it does. How
well one ranks words is measured by `bothways.explain.deletion`.

Shapes: N inputs, S steps of an integral, T packed tokens, H hidden, W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.choices import AttributionMethod
from bothways.errors import InvalidInput
from bothways.explain.asking import AnyModel, scores_of, subjects_of
from bothways.explain.gradients import Entrance, Read
from bothways.explain.subjects import NO_WORD, Subject, Target, Word

STEPS = 32
# Tokens of a batch of interpolated inputs.
_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Contributions of the words of an input to a score.

    Attributes:
        method: Method of attribution.
        score_name: Name of the score, in words.
        score: The score.
        words: The words of the input.
        weights_W: Contribution of each, in the units of the score; not a number for words that cannot be left out.
        rest: Contribution of special tokens and of characters outside of words.
        baseline_score: The score of the baseline, where the method has one.
    """

    method: AttributionMethod
    score_name: str
    score: float
    words: tuple[Word, ...]
    weights_W: NDArray[np.float64]
    rest: float = 0.0
    baseline_score: float | None = None

    @property
    def completeness_error(self) -> float | None:
        """The sum of all contributions minus the difference of the scores of input and baseline.

        It is zero for the exact integral (Sundararajan et al. 2017, proposition 1); None for methods that promise
        nothing of the kind.
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
            "score": self.score,
            "words": words,
            "rest": self.rest,
            "baseline_score": self.baseline_score,
            "completeness_error": self.completeness_error,
        }


def attribute(
    model: AnyModel,
    inputs: Sequence[Any],
    method: AttributionMethod = "integrated-gradients",
    *,
    target: Target | None = None,
    steps: int = STEPS,
) -> list[Attribution]:
    """Return how much each word of inputs contributes to a score.

    - ``"integrated-gradients"``: the integral of the gradient along the line from a baseline to the input (Sundararajan
      et al. 2017, arXiv:1703.01365, equation 1), by Gauss-Legendre quadrature at the encoder's first hidden states.
      The baseline has the tokenizer's padding token in the place of every token but the special ones.
    - ``"gradient-x-input"``: the gradient at the input times the difference to that baseline.
    - ``"leave-one-out"``: the score minus that of the input without the word. It needs no gradients, so it serves
      ensembles and texts of several windows too.

    Args:
        model: A trained model of one task.
        inputs: A list of what the task reads.
        method: How.
        target: The score to explain; that of the model's own prediction when None.
        steps: Points of the integral.

    Raises:
        NotFitted: The model was not trained.
        InvalidInput: The method is not known or not for this model, or an input or the target is not usable.
        TextTooLong: A text does not fit into one window, and the method takes gradients.
    """
    if isinstance(inputs, str):
        raise InvalidInput("expected a list of inputs, got one string: put it into a list.")
    if steps < 1:
        raise InvalidInput(f"expected steps of at least 1, got {steps}.")
    subjects = subjects_of(model, inputs, target)
    match method:
        case "leave-one-out":
            return _leave_one_out(model, subjects)
        case "integrated-gradients":
            entrance, (points, shares) = Entrance.of(model), _quadrature(steps)
            return [_integrated(method, entrance, each, points, shares) for each in subjects]
        case "gradient-x-input":
            entrance = Entrance.of(model)
            return [_integrated(method, entrance, each, np.ones(1), np.ones(1)) for each in subjects]
    raise InvalidInput(
        f"expected a method of 'integrated-gradients', 'gradient-x-input', 'leave-one-out', got {method!r}."
    )


def _quadrature(steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points between 0 and 1 of Gauss and Legendre, and their weights, which sum to 1."""
    points_S, weights_S = np.polynomial.legendre.leggauss(steps)
    return (points_S + 1) / 2, weights_S / 2


def _integrated(
    method: AttributionMethod,
    entrance: Entrance,
    subject: Subject,
    points_S: NDArray[np.float64],
    shares_S: NDArray[np.float64],
) -> Attribution:
    """Sum gradients at points of the line from the baseline, times the way from there to the input."""
    once = entrance.read([subject])
    tokens = sum(once.packed.lengths)
    total_T, size = np.zeros(tokens), max(1, _TOKENS // tokens)
    for start in range(0, len(points_S), size):
        points = points_S[start : start + size]
        run = entrance.run(entrance.read([subject], len(points)), points.tolist())
        ways = [entrance.way(each.batch) for each in run.readings]
        parts = [(gradient * way).sum(-1).double() for gradient, way in zip(run.gradients(), ways, strict=True)]
        total_T += shares_S[start : start + size] @ run.on_tokens(parts).cpu().numpy().reshape(len(points), tokens)
    score = entrance.run(once).scores_N.item()
    baseline = entrance.run(once, [0.0]).scores_N.item() if method == "integrated-gradients" else None
    weights_W, rest = _on_words(subject, once, total_T)
    return Attribution(method, subject.score_name, score, subject.words, weights_W, rest, baseline)


def _on_words(subject: Subject, read: Read, values_T: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the sums of tokens' values over the words, and that over all other tokens."""
    words_T = np.concatenate([subject.words_of_tokens(text, each) for text, each in enumerate(read.places)])
    inside = words_T != NO_WORD
    weights_W = np.bincount(words_T[inside], values_T[inside], minlength=len(subject.words))
    return weights_W.astype(np.float64), float(values_T[~inside].sum())


def _leave_one_out(model: AnyModel, subjects: Sequence[Subject]) -> list[Attribution]:
    asked = [
        (number, word)
        for number, each in enumerate(subjects)
        for word in range(len(each.words))
        if word not in each.kept
    ]
    shorter = [subjects[number].without({word}) for number, word in asked]
    scores = scores_of(model, [*subjects, *shorter], description="leaving words out")
    weights = [np.full(len(each.words), np.nan) for each in subjects]
    for (number, word), score in zip(asked, scores[len(subjects) :], strict=True):
        weights[number][word] = scores[number] - score
    return [
        Attribution("leave-one-out", each.score_name, float(score), each.words, weights_W)
        for each, score, weights_W in zip(subjects, scores[: len(subjects)], weights, strict=True)
    ]
