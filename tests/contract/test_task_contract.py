"""What every task of the registry keeps to: one suite for all of them, and a few rows of data for each."""

import copy
import functools
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bothways.data import Row, read_rows
from bothways.errors import EmptyInput, InvalidInput, NotFitted, TrainingDiverged
from bothways.explain import attribute, input_gradients
from bothways.tasks.embedding.objective import EmbeddingObjective
from bothways.tasks.heads import training as head_training
from bothways.tasks.registry import SPECS, task_class
from bothways.training import stages
from bothways.training.objective import Baseline
from task_cases import CASES, QUICK, close, fitted, plain, texts

every_task = pytest.mark.parametrize("name", list(SPECS))


@pytest.fixture(scope="module")
def trained(bert):
    """A factory: a trained model of a task, made once; tests that change it take a copy."""
    return functools.cache(lambda name: fitted(bert, name))


def files(folder):
    """The content of every file below a folder, but for the folder's name in the card."""
    found = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    card = Path("README.md")
    if card in found:
        found[card] = found[card].replace(folder.name.encode(), b"")
    return found


# --- predictions ---


@every_task
def test_a_saved_model_is_the_one_in_memory_to_the_bit(trained, name, tmp_path):
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    model.save(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved", device="cpu")
    assert again.predict(asked) == model.predict(asked)
    assert (again.fitted.facts(), again.card, again.columns) == (model.fitted.facts(), model.card, model.columns)
    again.save(tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "saved")


@every_task
def test_the_baseline_of_a_further_training_is_the_model_before(trained, name, tmp_path, monkeypatch):
    monkeypatch.setattr(head_training, "Baseline", lambda of, _, validate: Baseline(of, -100.0, validate))
    monkeypatch.setattr(EmbeddingObjective, "baseline", Baseline("model before the training", -100.0))
    data = CASES[name].rows(24)
    trained(name).save(tmp_path / "first")
    model = type(trained(name)).from_pretrained(tmp_path / "first", device="cpu")
    before = model.evaluate(data, resamples=5)
    model.fit(data, validation=data, **QUICK)
    model.save(tmp_path / "further")
    for each in (model, type(model).from_pretrained(tmp_path / "further", device="cpu")):
        report = each.evaluate(data, resamples=5)
        if name == "masked_lm":
            assert report.baseline is None
            continue
        assert report.baseline.name == "model before the training"
        if name != "question-answering":  # its threshold is fitted anew
            metric = next(each for each in ("accuracy", "spearman") if each in report.baseline.metrics)
            assert report.baseline.metrics[metric].first.value == pytest.approx(
                before.estimates[metric].value, abs=1e-3
            )


@every_task
def test_a_prediction_depends_on_neither_its_neighbours_nor_their_order(trained, name):
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    together, backwards = model.predict(asked), model.predict(asked[::-1])[::-1]
    assert name == "masked_lm" or any(each.tokens_read.windows > 1 for each in together)
    for value, *others in zip(asked, together, backwards, strict=True):
        (alone,) = model.predict([value])
        assert all(close(plain(alone), plain(other)) for other in others)


@every_task
def test_one_input_gives_one_prediction_and_none_give_none(trained, name):
    model, (value, *_) = trained(name), CASES[name].values(CASES[name].questions())
    if not isinstance(value, list):  # the words of a text by themselves are so many texts
        assert [model.predict(value)] == model.predict([value]) == [model(value)]
    assert model.predict([]) == list(model.predict_stream([])) == []


@every_task
def test_a_stream_gives_what_a_list_gives(trained, name):
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    assert list(model.predict_stream(iter(asked))) == model.predict(asked)


@every_task
def test_rows_give_what_their_values_give(trained, name):
    model, case = trained(name), CASES[name]
    asked = case.questions()
    assert list(model.predict_stream(read_rows(asked))) == model.predict(case.values(asked))


@every_task
def test_eight_threads_at_once_get_what_one_gets(trained, name):
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    expected = model.predict(asked)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: model.predict(asked), range(8)))
    assert found == [expected] * 8


@every_task
def test_a_pickled_model_is_the_original(trained, name):
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(asked) == model.predict(asked)
    assert (again.card, again.columns, repr(again)) == (model.card, model.columns, repr(model))


# --- columns ---


def renamed(listed):
    return [{f"my_{column}": value for column, value in row.items()} for row in listed]


@every_task
def test_columns_are_named_or_the_usual_ones(bert, trained, name, tmp_path):
    usual, case = trained(name), CASES[name]
    names = {column: f"my_{column}" for column in (*case.inputs, *([case.label] if case.label else []))}
    own = fitted(bert, name, renamed(case.rows(24)), renamed(case.rows(12)), **names)
    own.save(tmp_path / "saved")
    for model in (own, type(own).from_pretrained(tmp_path / "saved", device="cpu")):
        assert list(model.predict_stream(read_rows(renamed(case.questions())))) == list(
            usual.predict_stream(read_rows(case.questions()))
        )
        expected = usual.evaluate(case.rows(12)).to_dict()
        assert model.evaluate(renamed(case.rows(12))).to_dict() == expected
        assert usual.evaluate(renamed(case.rows(12)), **names).to_dict() == expected


@every_task
def test_a_model_with_other_columns_leaves_the_original_alone(trained, name):
    model, case = trained(name), CASES[name]
    before, asked = model.columns, case.questions()
    other = model.with_columns(**{column: f"my_{column}" for column in case.inputs})
    assert type(other) is type(model)
    assert list(other.predict_stream(read_rows(renamed(asked)))) == model.predict(case.values(asked))
    assert model.columns == before != other.columns
    with pytest.raises(InvalidInput, match="'typo'"):
        model.with_columns(typo="text")


# --- what users have in their hands ---


def arrow(values):
    return pytest.importorskip("pyarrow").array(values)


def series(values):
    return pytest.importorskip("pandas").Series(values)


def numpy_array(values):
    if not any(isinstance(part, list) for each in values for part in (each, *each)):
        return np.array(values)
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


FORMS = {"tuple": tuple, "generator": iter, "NumPy": numpy_array, "Series": series, "Arrow": arrow}


@every_task
@pytest.mark.parametrize("form", FORMS)
def test_many_inputs_come_in_every_form(trained, name, form):
    if (name, form) == ("multiple_choice", "Arrow"):
        pytest.skip("an Arrow array holds no tuples of a text and a list")
    model, asked = trained(name), CASES[name].values(CASES[name].questions())
    assert model.predict(FORMS[form](asked)) == model.predict(asked)


@every_task
@pytest.mark.parametrize("library", ["pandas", "pyarrow", "datasets"])
def test_a_table_is_read_by_its_columns(trained, name, library):
    module, asked = pytest.importorskip(library), CASES[name].questions()
    make = {"pandas": "DataFrame", "pyarrow": "Table.from_pylist", "datasets": "Dataset.from_list"}[library]
    for part in make.split("."):
        module = getattr(module, part)
    assert trained(name).predict(module(asked)) == trained(name).predict(CASES[name].values(asked))


@every_task
def test_what_is_no_input_is_refused(trained, name):
    model = trained(name)
    for bad in (5, None, b"w5", {"w5"}):
        with pytest.raises(
            InvalidInput, match=rf"^expected {model.columns.one}, or a list of (such|them).*{type(bad).__name__}"
        ):
            model.predict(bad)


@every_task
def test_a_text_without_a_visible_character_is_an_empty_one(trained, name):
    columns, asked = trained(name).columns, CASES[name].questions()[0]
    texts = [column for column in columns.input_columns if isinstance(asked.get(column), str)]
    for column in texts:
        for unseen in ("", " \u00a0", "\u200b\ufeff", "\x00\ufe0f"):
            with pytest.raises(EmptyInput):
                columns.read(Row(1, {**asked, column: unseen}))
    value = columns.read(Row(1, asked))
    blank = "\u200b\ufeff" if isinstance(value, str) else (value[0], "\u200b\ufeff")
    if name != "masked_lm" and all(isinstance(part, str) for part in value):
        with pytest.raises(InvalidInput, match="empty or only white space and invisible characters"):
            trained(name).predict(blank)


@every_task
def test_inputs_with_labels_are_learnt_as_rows_are(bert, trained, name):
    case, expected = CASES[name], trained(name)
    asked, data, held = (case.values(made) for made in (case.questions(), case.rows(24), case.rows(12)))
    if case.label is None:
        model = fitted(bert, name, data, held)
    else:
        labels, held_labels = ([row[case.label] for row in case.rows(count)] for count in (24, 12))
        model = fitted(bert, name, data, (iter(held), tuple(held_labels)), labels=labels)
        with pytest.raises(InvalidInput, match="as many labels as inputs, got 23 labels and 24 inputs"):
            fitted(bert, name, data, labels=labels[1:])
    assert model.predict(asked) == expected.predict(asked)
    assert model.card["data"] == expected.card["data"]


def test_labels_may_be_an_array(bert, trained):
    data, held = texts(24), texts(12)
    model = fitted(
        bert,
        "classification",
        np.array([row["text"] for row in data]),
        held,
        labels=np.array([row["label"] for row in data]),
    )
    assert model.predict("w5 w6") == trained("classification").predict("w5 w6")


# --- options ---


@every_task
def test_an_option_that_there_is_not_is_refused_with_those_there_are(bert, trained, name):
    model, case = trained(name), CASES[name]
    kind, asked = type(model), case.values(case.questions())
    calls = {
        "fit": (lambda **options: kind.from_pretrained(bert, device="cpu").fit([], **options), "learning_rate"),
        "predict": (lambda **options: model.predict(asked, **options), "show_progress"),
        "evaluate": (lambda **options: model.evaluate(case.rows(4), **options), case.inputs[0]),
        "from_pretrained": (lambda **options: kind.from_pretrained(bert, **options), "max_length"),
    }
    for method, (call, known) in calls.items():
        with pytest.raises(TypeError, match=rf"^{kind.__name__}\.{method}\(\) got an unexpected .* 'typo'") as caught:
            call(typo=1)
        assert known in str(caught.value).split("Known: ")[1]
        assert "Options" not in str(caught.value)


# --- training ---


@every_task
def test_a_failed_fit_leaves_a_model_as_it_was_to_the_bit(trained, name, monkeypatch, tmp_path):
    model, case = copy.copy(trained(name)), CASES[name]
    asked = case.values(case.questions())
    before, opened, value = model.predict(asked), model.model, model.fitted
    model.save(tmp_path / "saved_first")
    shown = repr(model)
    train = stages.train

    def poisoned(objective, *given, **named):
        """Give a loss that is no number in the second epoch."""
        updates, loss, epochs = objective.updates, objective.loss, []
        objective.updates = lambda epoch, start: epochs.append(epoch) or updates(epoch, start)
        objective.loss = lambda payload: loss(payload) * (math.nan if epochs[-1] else 1.0)
        return train(objective, *given, **named)

    monkeypatch.setattr(stages, "train", poisoned)
    with pytest.raises(TrainingDiverged) as caught:
        model.fit(case.rows(24), validation=case.rows(12), **QUICK)
    assert caught.value.kept_epoch in (0, 1)  # 0 where the first epoch did worse than the start
    assert (model.model, model.fitted) == (opened, value)
    assert (model.predict(asked), repr(model)) == (before, shown)
    model.save(tmp_path / "saved_again")
    assert files(tmp_path / "saved_again") == files(tmp_path / "saved_first")


@every_task
def test_an_unfitted_model_says_to_fit_it(bert, name, tmp_path):
    case, model = CASES[name], task_class(SPECS[name]).from_pretrained(bert, device="cpu")
    value = case.values(case.questions())[0]
    if name == "embedding":  # any encoder gives vectors
        assert model.predict([value])
        return
    calls = (
        lambda: model.predict([value]),
        lambda: next(model.predict_stream([value])),
        lambda: model.evaluate(case.rows(6)),
        lambda: model.score(case.rows(6)),
        lambda: model.save(tmp_path / "saved"),
        lambda: model.fitted.facts(),
    )
    for call in calls:
        with pytest.raises(NotFitted, match=r"call fit first|train one on your texts: FillMask\.fit"):
            call()
    assert not (tmp_path / "saved").exists()
    assert repr(model) == f"{type(model).__name__}({model.name!r}, not fitted)"


@every_task
def test_a_model_shows_itself_in_a_line(trained, name):
    model = trained(name)
    shown = repr(model)
    assert "\n" not in shown
    assert shown.startswith(f"{type(model).__name__}({model.name!r}")
    assert all(repr(label) in shown for label in model.labels[:5])
    if name not in ("embedding", "masked_lm"):
        assert shown.endswith(f"calibrated={model.confidence.calibration is not None})")


# --- looking inside ---


@every_task
def test_attributions_of_every_task_are_complete_and_begin_at_the_models_own_score(trained, name):
    model, asked = trained(name), CASES[name].values(CASES[name].rows(3))
    if name == "masked_lm":
        with pytest.raises(InvalidInput, match="only its attention"):
            attribute(model, asked)
        return
    for found in attribute(model, asked, steps=64):
        assert found.score_name
        assert len(found.words) == len(found.weights_W)
        assert found.completeness_error == pytest.approx(0, abs=2e-3)
        assert np.isfinite(found.weights_W).all()
        assert found.rest == pytest.approx(0, abs=1e-6)  # special tokens are those of the baseline
    for one, other in zip(
        attribute(model, asked, "gradient-x-input"), attribute(model, asked, "leave-one-out"), strict=True
    ):
        assert (one.score_name, one.words) == (other.score_name, other.words)
        assert one.score == pytest.approx(other.score, abs=1e-4)  # by packed windows with gradients, and by predict


@every_task
def test_looking_inside_changes_no_model_nor_its_gradients(trained, name):
    if name == "masked_lm":
        return
    model, asked = trained(name), CASES[name].values(CASES[name].rows(3))
    before = model.predict(asked)
    found = input_gradients(model, asked)
    assert found.gradient_TH.shape == found.hidden_TH.shape == (sum(found.packed.lengths), 24)
    assert model.predict(asked) == before
    assert not found.gradient_TH.requires_grad
    assert not any(hooks for module in model.model.encoder.modules() for hooks in (module._forward_hooks,))
    assert all(parameter.grad is None for parameter in model.model.encoder.parameters())
