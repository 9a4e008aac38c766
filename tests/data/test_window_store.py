"""A store holds the windows of texts in flat arrays, and gives out those of any texts."""

import numpy as np

from bothways.data.windows import WindowStore
from bothways.text import EncodedText, Window

TEXTS = (([5, 6, 7], [8]), ([9, 9],), ([4, 4], [3], [2, 2, 2]))


def store_of(texts):
    return WindowStore.of(
        EncodedText(tuple(Window(ids, [0] * len(ids)) for ids in windows), sum(map(len, windows)), len(windows))
        for windows in texts
    )


def test_a_store_of_some_texts_is_the_store_that_they_would_make_alone():
    chosen = [2, 0]
    found, expected = store_of(TEXTS).take(chosen), store_of([TEXTS[each] for each in chosen])
    for name in ("ids_T", "types_T", "starts", "text_of_window", "dropped_tokens"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert (found.digest, store_of(TEXTS).digest == found.digest) == (expected.digest, False)
    assert found.shares_W.tolist() == [1 / 3] * 3 + [1 / 2] * 2
    assert np.diff(found.starts).tolist() == found.lengths.tolist()
