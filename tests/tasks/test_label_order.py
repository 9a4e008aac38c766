"""The order of labels: numbers by their value, as in scikit-learn; names as text; as before if a head is continued."""

import numpy as np
import pytest

from bothways import TextClassifier
from bothways.data import read_examples
from bothways.tasks.heads.target_training import target_of
from bothways.tasks.heads.targets import MultiLabel, SingleLabel, converter


def labels_of(kind, labels, before=None):
    rows = [{"text": "w5", "label": label} for label in labels]
    return target_of(kind, read_examples(rows, convert=converter(kind).convert), before).labels


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (range(11, -1, -1), [str(number) for number in range(12)]),
        (["10", "9", "2", "0"], ["0", "2", "9", "10"]),
        ([10, -2, -10, 3.0], ["-10", "-2", "3", "10"]),
        (["1.5", "10", "2"], ["1.5", "2", "10"]),
        (["02", "2", "10"], ["02", "2", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        ([True, False], ["False", "True"]),
    ],
)
def test_numbers_sort_as_numbers(labels, order):
    assert list(labels_of("single", labels)) == order
    assert list(labels_of("multi", [[each] for each in labels])) == order


def test_a_head_that_is_continued_keeps_its_order():
    assert labels_of("single", [2, 10], SingleLabel(("10", "2"))) == ("10", "2")
    assert labels_of("multi", [["2"], ["10"]], MultiLabel(("10", "2"))) == ("10", "2")


def test_columns_of_probabilities_are_in_the_order_of_scikit_learn(tiny_bert, tmp_path):
    texts, labels = [f"w{5 + number % 12} w20" for number in range(24)], [number % 12 for number in range(24)]
    model = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    model.fit(texts, labels, validation=(texts, labels), epochs=1, batch_size=24)
    assert list(model.labels) == np.unique(labels).tolist()
    probabilities_NC = model.predict_proba(texts)
    for found, row in zip(model.predict(texts), probabilities_NC, strict=True):
        assert found.label == row.argmax()
        assert found.probability == row.max()
    model.save(tmp_path / "saved")
    assert TextClassifier.from_pretrained(tmp_path / "saved", device="cpu").labels == model.labels
