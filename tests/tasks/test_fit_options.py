"""Options of ``fit`` that there are not, or that are out of range; for each task see test_task_contract.py."""

import pytest

from bothways.errors import InvalidInput
from bothways.tasks import TextClassifier

UNUSABLE = [
    ({"seed": -1}, "`seed` must be a whole number, at least 0"),
    ({"epochs": 0}, "`epochs` must be a whole number, at least 1"),
    ({"learning_rate": 0.0}, "`learning_rate` must be a finite number above 0"),
    ({"batch_size": 8.0}, "`batch_size` must be a whole number, at least 1"),
    ({"resume": True}, "resume=True needs a checkpoint folder"),
]


@pytest.mark.parametrize(("options", "message"), UNUSABLE)
def test_an_option_out_of_range_is_refused_before_any_row_is_read(base, options, message):
    read = []
    rows = (read.append(number) for number in range(3))
    with pytest.raises(InvalidInput, match=message):
        TextClassifier.from_pretrained(base, device="cpu").fit(rows, **options)
    assert read == []
