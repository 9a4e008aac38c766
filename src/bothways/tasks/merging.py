"""Merging of several windows' outputs into one per text.

All ways agree on a text that is read in one window. ``"attention"`` is learnt (`bothways.tasks.window_attention`): the
model then gives one number more for each window, and windows count by the softmax of these over their text.

Shapes: N texts, W windows, C outputs, K numbers that the model gives for a window: C, and one more with attention.
"""

from typing import TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Merge
from bothways.errors import InvalidInput

MERGES: tuple[Merge, ...] = get_args(Merge)


def check_merge(value: object) -> Merge:
    """Return ``value`` if it names a way to merge windows.

    Raises:
        InvalidInput: It is none of ``MERGES``.
    """
    if _is_merge(value):
        return value
    raise InvalidInput(
        f"expected merge to be one of {', '.join(map(repr, MERGES))}, got {value!r}: 'weighted_mean' weighs each "
        "window with its length, 'mean' all alike, 'max' takes the largest logit of each output, 'maxp' those of "
        "the window where the last label is most probable, 'first' that of the "
        "first window, 'attention' weighs each as training has learnt to."
    )


def merge_windows(
    rows_WK: NDArray[np.floating],
    lengths_W: NDArray[np.int64],
    text_W: NDArray[np.int64],
    merge: Merge = "weighted_mean",
) -> NDArray[np.float64]:
    """Logits of each text (N, C) from those of its windows.

    Args:
        rows_WK: The logits of all windows, those of one text together; for ``"attention"`` with a last column that
            says, up to a constant of the text, the logarithm of the weight of each window.
        lengths_W: Tokens of each window.
        text_W: The text of each window, ascending from 0.
        merge: How.
    """
    starts_N = np.flatnonzero(np.diff(text_W, prepend=-1))
    match merge:
        case "first":
            merged_NC: NDArray[np.float64] = rows_WK[starts_N].astype(np.float64)
        case "max":
            merged_NC = np.maximum.reduceat(rows_WK.astype(np.float64), starts_N)
        case "maxp":
            merged_NC = _most_probable(rows_WK.astype(np.float64), starts_N)
        case "mean":
            merged_NC = _weighted(rows_WK, np.ones(len(text_W)), starts_N)
        case "weighted_mean":
            merged_NC = _weighted(rows_WK, lengths_W.astype(np.float64), starts_N)
        case "attention":
            scores_W = rows_WK[:, -1].astype(np.float64)
            greatest_N = np.maximum.reduceat(scores_W, starts_N)
            merged_NC = _weighted(rows_WK[:, :-1], np.exp(scores_W - greatest_N[text_W]), starts_N)
    return merged_NC


def _most_probable(logits_WC: NDArray[np.float64], starts_N: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the logits of the window of each text in which the last output has the highest odds.

    MaxP of Dai and Callan (2019), "Deeper text understanding for IR with contextual neural language modeling": a
    document is as relevant as its most relevant passage.
    """
    odds_W = logits_WC[:, -1]
    if logits_WC.shape[1] > 1:
        odds_W = odds_W - np.logaddexp.reduce(logits_WC[:, :-1], axis=1)
    windows = np.split(np.arange(len(odds_W)), starts_N[1:])
    return logits_WC[[each[odds_W[each].argmax()] for each in windows]]


def _weighted(
    logits_WC: NDArray[np.floating], weights_W: NDArray[np.float64], starts_N: NDArray[np.intp]
) -> NDArray[np.float64]:
    totals_NC = np.add.reduceat(logits_WC * weights_W[:, None], starts_N)
    merged_NC: NDArray[np.float64] = totals_NC / np.add.reduceat(weights_W, starts_N)[:, None]
    return merged_NC


def _is_merge(value: object) -> TypeGuard[Merge]:
    return isinstance(value, str) and value in MERGES
