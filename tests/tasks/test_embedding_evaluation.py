"""What vectors are measured by: who finds whom, and which rows tell nothing."""

import numpy as np
import pytest

from bothways.tasks.embedding.outputs import EmbeddingRow, RowTexts, found_at, without_contrast
from bothways.tasks.embedding.spec import LabelledTexts, Pairs, Triplets

# Texts of one letter point the same way, and their digits nearly so.
LETTERS = "abcdef"


def vector(text):
    made = np.zeros(2 * len(LETTERS), dtype=np.float32)
    made[LETTERS.index(text[0])] = 1.0
    if len(text) > 1:
        made[len(LETTERS) + int(text[1])] = 0.1
    return made


def ranks(columns, rows, labels=None):
    """1 / rank, for rows of texts whose vectors are as they should be."""
    read = [
        EmbeddingRow(texts, label, "a row", columns)
        for texts, label in zip(rows, labels or [None] * len(rows), strict=True)
    ]
    vectors_PH = np.stack([vector(text) for texts in rows for text in texts])
    return found_at(vectors_PH, RowTexts.of(read), "cosine").tolist()


def test_a_text_that_is_also_the_positive_of_another_is_no_wrong_answer_to_itself():
    assert ranks(Pairs(), [("a1", "a2"), ("a2", "a1"), ("b1", "b2"), ("b2", "b1")]) == [1.0] * 4
    assert ranks(Triplets(), [("a1", "a2", "a1"), ("b1", "b2", "a1")]) == [1.0, 1.0]


def test_a_positive_that_is_its_anchor_is_found():
    assert ranks(Pairs(), [("a", "a"), ("b1", "b2"), ("b2", "b2")]) == [1.0] * 3


def test_wrong_texts_still_come_before_the_right_one():
    assert ranks(Pairs(), [("a1", "b"), ("a2", "a3"), ("c", "a1")]) == [1 / 2, 1 / 2, 1 / 3]


def test_a_copy_with_another_label_is_no_wrong_answer():
    rows = [("a1",), ("a2",), ("a1",), ("b1",)]
    assert ranks(LabelledTexts(), rows, ["x", "x", "y", "y"]) == [1.0, 1 / 2, 1 / 2, 1 / 2]
    assert ranks(LabelledTexts(), rows, ["x", "y", "x", "y"]) == [1.0, 1 / 3, 1.0, 1 / 3]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("xyz", "every label occurs once, and ranking needs a label with at least two texts"),
        ("xxx", "all texts have the same label, so every ranking is correct"),
        ("xxy", None),
    ],
)
def test_labels_tell_something_where_there_is_a_right_and_a_wrong_answer(labels, words):
    assert without_contrast(LabelledTexts(), labels) == words
    assert without_contrast(Pairs(), [None]) is None
