"""Scores of labels: the model's probabilities, or its logits and functions of them, as some APIs ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.evaluation.temperature import sigmoid, softmax
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.ranking import probabilities
from bothways.serving.routes import Call
from bothways.tasks.classification.outputs import LabelOutputs
from bothways.tasks.columns import inputs_of
from bothways.tasks.outputs import TrainedHead

LabelFunction: TypeAlias = Literal["sigmoid", "softmax", "none"]


def label_scores(
    call: Call, served: ServedModel, inputs: list[str] | list[list[str]], function: LabelFunction | None
) -> list[dict[str, float]]:
    """Return the score of each label for texts, or for pairs; without a function, the model's own probability."""
    if function is None:
        return probabilities(call, served, inputs)
    values_NC, labels = label_logits(call, served, inputs)
    if function != "none":
        values_NC = softmax(values_NC) if function == "softmax" else sigmoid(values_NC)
    return [dict(zip(labels, row, strict=True)) for row in values_NC.tolist()]


def label_logits(
    call: Call, served: ServedModel, inputs: list[str] | list[list[str]]
) -> tuple[NDArray[np.float64], Sequence[str]]:
    """Return the logits of texts, or of pairs, (N, C), and the names of the labels; note what was not read."""
    fitted = served.model.fitted
    match fitted:
        case TrainedHead(outputs=LabelOutputs() as outputs):
            pass
        case _:
            message = f"{served.name!r} has no single logit for each label: ask for its probabilities."
            raise Refused(422, message, code="wrong_task", param="model")
    parts = [[each] if isinstance(each, str) else each for each in inputs]
    check_size(call, sum(len(text) for each in parts for text in each))
    call.check_texts(["".join(each) for each in parts])
    values = list(inputs_of(fitted.columns, [each if isinstance(each, str) else tuple(each) for each in inputs]))
    scores = list(chain.from_iterable(fitted.score_blocks(values)))
    for number, each in enumerate(scores):
        call.drop(number, each.read.dropped_tokens)
    return np.concatenate([each.logits_RC for each in scores]), outputs.labels


def check_size(call: Call, characters: int) -> None:
    """Refuse inputs that are much longer than the body that they were made from."""
    limit = call.limits.body_bytes
    if characters > limit:
        message = f"the texts and labels make inputs of {characters:,} characters, more than {limit:,}: shorten them."
        raise Refused(413, message, code="text_too_long", param="inputs")


def ranked_labels(by_label: dict[str, float], top: int | None = None) -> list[tuple[str, float]]:
    """Return the labels with the highest scores, best first."""
    return sorted(by_label.items(), key=lambda pair: -pair[1])[:top]
