"""Tagged texts as the training loop sees them, and how good a tagger is on held-out ones.

Shapes: M words of several texts, C tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.data import TaggedRow
from bothways.evaluation import apply_temperature, negative_log_likelihood, span_counts
from bothways.tasks.fitting import FitPlan
from bothways.tasks.objective import HeadModel, WindowObjective, window_scores
from bothways.tasks.opening import OpenedModel
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.word_windows import TagAnswers, WordWindows
from bothways.text import ReadWords
from bothways.training.objective import Validation

# Small enough that one more word right among 100,000 outweighs any usual difference in likelihood.
_BREAKS_TIES = 1e-6


@dataclass(frozen=True, slots=True)
class TaggedTexts:
    """Tokenised texts, and the numbers of their words' tags.

    Attributes:
        windows: The texts.
        truth: For each text the number of each word's tag.
    """

    windows: WordWindows
    truth: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, opened: OpenedModel, tag_set: TagSet, rows: Sequence[TaggedRow]) -> "TaggedTexts":
        """Tokenise rows.

        Raises:
            InvalidInput: A tag is none of the set's; the message names the row.
        """
        read = [ReadWords.of(row.words) for row in rows]
        store = opened.stored([each.text for each in read], offsets=True)
        return cls(WordWindows.of(store, read), tuple(tag_set.encode(rows)))

    @property
    def truth_M(self) -> NDArray[np.int64]:
        """The tags of all words, end to end."""
        return np.concatenate(self.truth)

    def scores(self, model: HeadModel, tag_set: TagSet, tokens: int) -> NDArray[np.float64]:
        """What a model says of all words, end to end (M, C)."""
        return self.windows.scores(window_scores(model, self.windows.store, tokens), tag_set.unseen_C)


def tag_objective(
    model: HeadModel, tag_set: TagSet, training: TaggedTexts, held: TaggedTexts, plan: FitPlan
) -> WindowObjective:
    """Training on tagged texts, judged on others."""
    answers, held_answers = TagAnswers(training.windows, training.truth), TagAnswers(held.windows, held.truth)

    def validate() -> Validation:
        return validated(tag_set, held, held.scores(model, tag_set, plan.settings.tokens))

    return WindowObjective(
        model,
        training.windows.store,
        answers,
        validate,
        batch_size=plan.batch_size,
        tokens=plan.settings.tokens,
        seed=plan.seed,
        identity={
            "validation data": f"{held.windows.store.digest} {held_answers.digest}",
            "scheme": tag_set.scheme,
            "labels": " ".join(tag_set.labels),
        },
    )


def validated(tag_set: TagSet, held: TaggedTexts, scores_MC: NDArray[np.float64]) -> Validation:
    """Metrics on held-out texts; the best epoch is that of the best span F1, or accuracy, of equals the lower NLL."""
    truth_M, lengths = held.truth_M, held.windows.lengths
    predicted_M = tag_set.decode(scores_MC, lengths)
    nll = negative_log_likelihood(truth_M, apply_temperature(scores_MC, 1.0))
    metrics = {"accuracy": float((predicted_M == truth_M).mean()), "nll": nll}
    if tag_set.scheme == "plain":
        return Validation(metrics, metrics["accuracy"] - _BREAKS_TIES * nll)
    truth, predicted = tag_set.spans_of_texts(truth_M, lengths), tag_set.spans_of_texts(predicted_M, lengths)
    right, there, said = span_counts(truth, predicted, tag_set.span_labels).sum(axis=(0, 2)).tolist()
    span_f1 = 2 * right / max(1, there + said)
    return Validation({"span_f1": span_f1, **metrics}, span_f1 - _BREAKS_TIES * nll)
