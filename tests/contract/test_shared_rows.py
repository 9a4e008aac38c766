"""Rows of validation and test data that are training rows: every task tells them, and drops them on request."""

import functools
import warnings

import pytest

from bothways import compare
from bothways.data.known_rows import KNOWN_ROWS
from bothways.errors import InvalidInput, RowsLeftOut, RowsShared
from bothways.tasks.registry import SPECS, task_class
from task_cases import CASES, QUICK, fitted

every_task = pytest.mark.parametrize("name", list(SPECS))
SHARED = 3


def loud(value):
    """The same texts in capital letters, with more white space."""
    if isinstance(value, list):
        return [each.upper() for each in value]
    return f" {value.upper()}  " if isinstance(value, str) else value


def training(name):
    return CASES[name].rows(16)


def fresh(name):
    """Rows that are none of the training."""
    return CASES[name].rows(30)[16:]


def some_shared(name):
    """New rows, and after them training rows in another spelling."""
    case = CASES[name]
    columns = () if name == "question-answering" else case.inputs  # answers stand at their offsets in the context
    return fresh(name) + [{**row, **{each: loud(row[each]) for each in columns}} for row in training(name)[:SHARED]]


@pytest.fixture(scope="module")
def trained(bert):
    """A factory: a model of a task that was validated on some of its training rows, and the warning."""

    def train(name):
        with pytest.warns(RowsShared, match=rf"^{SHARED} of \d+ validation rows are training rows: metrics and cal"):
            return fitted(bert, name, training(name), some_shared(name), epochs=1)

    return functools.cache(train)


@every_task
def test_validation_rows_that_are_training_rows_are_noted_or_dropped(trained, bert, name):
    (note,) = [each for each in trained(name).card["notes"] if "training rows" in each]
    assert note.endswith("Leave them out with shared='drop' (--shared drop).")
    with pytest.warns(RowsLeftOut, match=rf"^Left out {SHARED} of \d+ validation rows: they are training rows"):
        dropped = fitted(bert, name, training(name), some_shared(name), epochs=1, shared="drop")
    assert not any("training rows" in each for each in dropped.card["notes"])
    plain = fitted(bert, name, training(name), fresh(name), epochs=1)
    assert dropped.card["data"] == plain.card["data"]
    assert dropped.card["metrics"] == plain.card["metrics"]
    with pytest.raises(InvalidInput, match="all 3 validation rows are training rows"):
        fitted(bert, name, training(name), training(name)[:3], shared="drop")


@every_task
def test_an_evaluation_knows_the_training_rows_of_a_saved_model(trained, name, tmp_path):
    trained(name).save(tmp_path / "saved", golden="validation")
    model = type(trained(name)).from_pretrained(tmp_path / "saved", device="cpu")
    data, few = some_shared(name), {"resamples": 5, "show_progress": False}
    report = model.evaluate(data, **few)
    counts = {"rows": len(data), "checked": len(data), "shared": SHARED, "other_label": 0, "left_out": False}
    assert report.to_dict()["training_rows"] == counts
    assert f"{SHARED} of {len(data)} rows are training rows" in report.summary()
    assert report.to_dict() == trained(name).evaluate(data, **few).to_dict()
    dropped, alone = model.evaluate(data, shared="drop", **few), model.evaluate(fresh(name), **few)
    assert dropped.estimates == alone.estimates
    assert dropped.shared.left_out
    assert "are training rows" not in alone.summary()
    if SPECS[name].comparable:
        compared = compare(model, trained(name), data, shared="drop", **few)
        assert compared.to_dict()["training_rows_b"] == {**counts, "left_out": True}
        assert compared.n == compare(model, model, fresh(name), **few).n


@every_task
def test_without_quotes_no_checksums_are_saved(trained, name, tmp_path):
    trained(name).save(tmp_path / "saved", golden=None)
    assert not list((tmp_path / "saved").rglob(KNOWN_ROWS))
    model = type(trained(name)).from_pretrained(tmp_path / "saved", device="cpu")
    assert model.evaluate(some_shared(name), resamples=5, show_progress=False).shared is None


@every_task
def test_rows_held_out_of_the_training_data_are_none_of_them(bert, name):
    case = CASES[name]
    columns = () if name == "question-answering" else case.inputs
    twice = [row for each in training(name) for row in (each, {**each, **{part: loud(each[part]) for part in columns}})]
    model = task_class(SPECS[name]).from_pretrained(bert, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RowsShared)
        model.fit(twice, **{**QUICK, "epochs": 1})
    assert model.card["validation"] == "a tenth of the training data"
