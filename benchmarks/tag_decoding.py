"""Valid sequences of tags from scores, for every peer that tags."""

from collections.abc import Sequence

import numpy as np


def valid_tags(labels: Sequence[str], scores_NC: np.ndarray, lengths: Sequence[int]) -> list[list[str]]:
    """Return the best sequence of BIO tags of each text in which no span begins inside.

    Args:
        labels: Names of the C tags.
        scores_NC: Logits or log probabilities of N words.
        lengths: Words of each text.
    """
    from bothways.tasks.tagging.tag_set import TagSet

    # A tag of probability 0 must not make all sequences equally bad.
    best_N = TagSet(tuple(labels), "BIO").decode(np.maximum(scores_NC, -1e4), lengths)
    ends = np.cumsum(lengths)
    return [[labels[tag] for tag in best_N[end - length : end]] for end, length in zip(ends, lengths, strict=True)]
