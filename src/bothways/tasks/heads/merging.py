"""Rules that merge the logits of a text's windows into one row.

All rules agree on a text that is read in one window.

Shapes: W windows, C outputs, K numbers of a window: its logits, and perhaps hidden states behind them.
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
    rows_WK: NDArray[np.floating], lengths_W: NDArray[np.int64], merge: Merge, outputs: int
) -> NDArray[np.float64]:
    """Merge the rows of a text's windows into one (K).

    Args:
        rows_WK: For each window its logits, and hidden states behind them.
        lengths_W: Tokens of each window.
        merge: The rule.
        outputs: Number of logits, C.
    """
    rows = rows_WK.astype(np.float64)
    merged_K: NDArray[np.float64]
    match merge:
        case "first":
            merged_K = rows[0]
        case "max":
            merged_K = rows.max(axis=0)
        case "maxp":
            merged_K = rows[_most_probable(rows[:, :outputs])]
        case "mean":
            merged_K = rows.sum(axis=0) / len(rows)
        case "weighted_mean":
            merged_K = (rows * lengths_W[:, None]).sum(axis=0) / lengths_W.sum()
    return merged_K


def _most_probable(logits_WC: NDArray[np.float64]) -> int:
    """Return the window in which the last output has the highest odds.

    MaxP of Dai and Callan (2019), "Deeper text understanding for IR with contextual neural language modeling": a
    document is as relevant as its most relevant passage.
    """
    odds_W = logits_WC[:, -1]
    if logits_WC.shape[1] > 1:
        odds_W = odds_W - np.logaddexp.reduce(logits_WC[:, :-1], axis=1)
    return int(odds_W.argmax())
