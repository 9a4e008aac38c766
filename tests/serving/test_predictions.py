"""The answers of the server are those of the library, for every task."""

import pytest

from bothways.compose import open_trained
from task_cases import CASES, close


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_of_the_library(everything, folders, name):
    questions = CASES[name].questions()
    model = open_trained(folders[name])
    expected = [each.to_dict() for each in model.predict_stream(questions, show_progress=False)]
    answer = everything.post("/v1/predict", {"model": name, "inputs": questions})
    assert answer.status_code == 200, answer.text
    assert close(answer.json()["predictions"], _as_json(expected))


def _as_json(value):
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return [_as_json(each) for each in value] if isinstance(value, list | tuple) else value
