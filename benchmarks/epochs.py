"""The choice of the epoch that a peer keeps, by the rule of ours and on the same validation rows.

Ours keeps the latest epoch whose validation score is within a standard error of the best. The peers' own trainers keep
the last epoch; here they are validated after each one and go back to the weights of the one to keep.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.task_data import SCORED, Row, TaskData, correlation, label_accuracy
from bothways.evaluation import share_error

Score = tuple[float, float]


class EpochChoice:
    """Judges a model after each epoch and holds the weights to keep.

    Args:
        module: A torch module.
        validate: The validation score of the module as it is, and its standard error.
    """

    def __init__(self, module: Any, validate: Callable[[], Score]) -> None:  # noqa: ANN401
        self._module, self._validate = module, validate
        self._weights: dict[str, Any] = {}
        self.validations: list[Any] = []

    def judge(self, epoch: int) -> None:
        """Validate after an epoch; 0 is the model before the training, which counts in full."""
        from bothways.training.record import EpochValidation

        score, error = self._validate()
        score = score if math.isfinite(score) else -math.inf
        found = EpochValidation(epoch, 0, score, {}, standard_error=error if epoch else 0.0)
        self.validations.append(found)
        if self._kept() is found:
            self._weights = {name: value.detach().clone() for name, value in self._module.state_dict().items()}

    def _kept(self) -> Any:  # noqa: ANN401
        from bothways.training.record import kept_of

        return kept_of(self.validations)

    def callback(self, transformers: Any) -> Any:  # noqa: ANN401
        """Return the callback of transformers' Trainer that judges each epoch."""

        class AfterEpoch(transformers.TrainerCallback):  # type: ignore[misc]
            """Judges at the end of each epoch."""

            def on_epoch_end(_, *__: object, **___: object) -> None:  # noqa: N805
                """Judge the epoch that has ended."""
                last = self.validations[-1].epoch if self.validations else 0
                self.judge(last + 1)

        return AfterEpoch()

    def restore(self) -> int:
        """Give the module the weights to keep; return their epoch."""
        kept = self._kept()
        if kept is None:
            raise ValueError("expected an epoch that was validated, got none")
        self._module.load_state_dict(self._weights)
        return kept.epoch


def validation_score(data: TaskData, answers: Sequence[Any]) -> Score:
    """Return the score of ours for answers to the validation rows, and its standard error."""
    from bothways.evaluation import correlation_error, mean_error

    rows = data.validation
    if data.kind in SCORED:
        errors_N = (np.array([row["score"] for row in rows]) - np.array(answers)) ** 2
        return -float(errors_N.mean()), mean_error(errors_N)
    if data.kind == "embedding":
        score = correlation(rows, answers)["Spearman"]
        return score, correlation_error(score, len(rows))
    if data.kind == "ranking":
        return _ranking_score(rows, answers)
    score = next(iter(data.score(rows, answers).values()))
    return score, share_error(score, _decisions(data, answers))


def _ranking_score(rows: Sequence[Row], answers: Sequence[Any]) -> Score:
    """Return the mean average precision of the questions with both labels, as ours is validated."""
    from bothways.data import Example
    from bothways.tasks.rankings import PairRanking
    from bothways.tasks.targets import SingleLabel

    target = SingleLabel(tuple(sorted({row["label"] for row in rows})))
    pairs = [Example((row["text_a"], row["text_b"]), row["label"], 0, "") for row in rows]
    ranking = PairRanking.of(target, pairs)
    if ranking is None:  # learnt as two labels
        score = label_accuracy(rows, answers)["accuracy"]
        return score, share_error(score, len(rows))
    odds_NC = np.array([[answer.get(label, 0.0) for label in target.labels] for answer in answers])
    return ranking.validate(odds_NC, target.encode(pairs))


def _decisions(data: TaskData, answers: Sequence[Any]) -> float:
    """How many rows, words or spans a share is of; of spans the mean of the true and the predicted ones."""
    if data.kind != "tagging":
        return len(data.validation)
    truth = [row["tags"] for row in data.validation]
    spans = [sum(tag.startswith("B-") for tags in each for tag in tags) for each in (truth, answers)]
    return sum(spans) / 2 if spans[0] else sum(map(len, truth))
