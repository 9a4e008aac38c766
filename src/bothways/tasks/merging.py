"""What several windows say of one text, made one answer.

Shapes: N texts, W windows, C outputs.
"""

from typing import Literal, TypeAlias, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput

Merge: TypeAlias = Literal["weighted_mean", "mean", "max", "first"]

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
        "window with its length, 'mean' all alike, 'max' takes the largest logit of each output, 'first' that of the "
        "first window."
    )


def merge_windows(
    logits_WC: NDArray[np.floating],
    lengths_W: NDArray[np.int64],
    text_W: NDArray[np.int64],
    merge: Merge = "weighted_mean",
) -> NDArray[np.float64]:
    """Logits of each text (N, C) from those of its windows.

    Args:
        logits_WC: Of all windows, those of one text together.
        lengths_W: Tokens of each window.
        text_W: The text of each window, ascending from 0.
        merge: How.
    """
    starts_N = np.flatnonzero(np.diff(text_W, prepend=-1))
    match merge:
        case "first":
            merged_NC: NDArray[np.float64] = logits_WC[starts_N].astype(np.float64)
        case "max":
            merged_NC = np.maximum.reduceat(logits_WC.astype(np.float64), starts_N)
        case "mean" | "weighted_mean":
            weights_W = np.ones(len(text_W)) if merge == "mean" else lengths_W.astype(np.float64)
            totals_NC = np.add.reduceat(logits_WC * weights_W[:, None], starts_N)
            merged_NC = totals_NC / np.add.reduceat(weights_W, starts_N)[:, None]
    return merged_NC


def _is_merge(value: object) -> TypeGuard[Merge]:
    return isinstance(value, str) and value in MERGES
