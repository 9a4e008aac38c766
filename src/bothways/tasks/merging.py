"""Rules that merge the logits of a text's windows into one row per text.

All rules agree on a text that is read in one window.

Shapes: N texts, W windows, C outputs.
"""

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Merge
from bothways.errors import InvalidInput

MERGES: tuple[Merge, ...] = get_args(Merge)


def check_merge(value: object) -> Merge:
    """Return ``value`` if it is one of ``MERGES``.

    Raises:
        InvalidInput: It is another value.
    """
    for merge in MERGES:
        if merge == value:
            return merge
    raise InvalidInput(
        f"expected merge to be one of {', '.join(map(repr, MERGES))}, got {value!r}: 'weighted_mean' weights windows "
        "by their length, 'mean' weights all alike, 'max' takes the largest logit of each output, 'maxp' the logits of "
        "the window where the last label is most probable, 'first' those of the first window."
    )


def merge_windows(
    logits_WC: NDArray[np.floating],
    lengths_W: NDArray[np.int64],
    text_W: NDArray[np.int64],
    merge: Merge = "weighted_mean",
) -> NDArray[np.float64]:
    """Merge the logits of windows into those of their texts (N, C).

    Args:
        logits_WC: The logits of all windows, those of one text together.
        lengths_W: Tokens of each window.
        text_W: The text of each window, ascending from 0.
        merge: The rule.
    """
    starts_N = np.flatnonzero(np.diff(text_W, prepend=-1))
    match merge:
        case "first":
            merged_NC: NDArray[np.float64] = logits_WC[starts_N].astype(np.float64)
        case "max":
            merged_NC = np.maximum.reduceat(logits_WC.astype(np.float64), starts_N)
        case "maxp":
            merged_NC = _most_probable(logits_WC.astype(np.float64), starts_N)
        case "mean":
            merged_NC = _weighted(logits_WC, np.ones(len(text_W)), starts_N)
        case "weighted_mean":
            merged_NC = _weighted(logits_WC, lengths_W.astype(np.float64), starts_N)
    return merged_NC


def _most_probable(logits_WC: NDArray[np.float64], starts_N: NDArray[np.intp]) -> NDArray[np.float64]:
    """Pick, for each text, the logits of the window in which the last output has the highest odds.

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
