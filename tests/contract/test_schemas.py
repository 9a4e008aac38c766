"""JSON schemas of every task: predictions, rows and options fit them, and what is refused or broken does not."""

import functools
import json
from dataclasses import asdict, fields

import pytest
from jsonschema import Draft202012Validator

from bothways import Ensemble, MultiTask, TaggingData, TaskData
from bothways.compose import schemas_of
from bothways.data import Row
from bothways.errors import InvalidInput
from bothways.tasks.columns import renamed
from bothways.tasks.registry import SPECS
from bothways.tasks.schemas import Schemas
from contract_cases import rows as labelled
from task_cases import CASES, QUICK, fitted, texts

every_task = pytest.mark.parametrize("task", list(SPECS))
TARGETS = ("single", "multi", "regression")
# Models by task and target, and options that change the form of a prediction.
MODELS = [("classification", target) for target in TARGETS] + [(each, "") for each in SPECS if each != "classification"]
OPTIONS = {
    ("classification", "single"): [{"top": 1}, {"coverage": 0.8}, {"calibrated": False}],
    ("classification", "multi"): [{"top": 2}, {"threshold": 0.0}, {"threshold": 1}],
    ("classification", "regression"): [{"coverage": 0.8}],
    ("tagging", ""): [{"scheme": "BIOES"}],
    ("question-answering", ""): [{"top": 3}, {"threshold": 1e6}, {"max_answer_tokens": 1}],
    ("masked_lm", ""): [{"top": 1}, {"words": ["w5", "w6"]}, {"max_pieces": 2, "beam": 2}],
}
OPTIONAL = ("label_set", "out_of_domain", "out_of_domain_score", "low", "high")


@pytest.fixture(scope="module")
def trained(bert):
    """A factory: a model of a task, made once."""

    @functools.cache
    def make(task, target, seed):
        data = [labelled(target, count) for count in (24, 12)] if target else [None, None]
        return fitted(bert, task, *data, seed=seed, **({"target": target} if target else {}))

    return lambda task, target="", seed=0: make(task, target, seed)


def validator(schema):
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def takes(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except InvalidInput:
        return False
    return True


def broken(value, labels=False):
    """Yield copies of a JSON value with another type in one place, an entry more, or a required entry less."""
    if isinstance(value, dict):
        if not labels:
            yield {**value, "unknown": 1}
        for name, part in value.items():
            if not labels and name not in OPTIONAL:
                yield {key: other for key, other in value.items() if key != name}
            yield from ({**value, name: other} for other in broken(part, name == "probabilities"))
    elif isinstance(value, list):
        yield from ([other, *value[1:]] for other in (broken(value[0]) if value else ()))
    yield ["?"] if isinstance(value, dict) else {"?": 1}


def check(schema, predictions):
    """Hold predictions to a schema, and return the names of their entries."""
    fits, listed = validator(schema), [each.to_dict() for each in predictions]
    assert json.loads(json.dumps(listed, allow_nan=False)) == listed, "values that JSON does not have, such as tuples"
    assert [error for each in listed for error in fits.iter_errors(each)] == []
    mutants = list(broken(listed[0]))
    assert len(mutants) > 3
    assert [mutant for mutant in mutants if fits.is_valid(mutant)] == []
    return {name for each in listed for name in each}


@pytest.mark.parametrize(("task", "target"), MODELS)
def test_predictions_fit_their_schema_and_broken_ones_do_not(trained, task, target):
    model, asked = trained(task, target), CASES[task].values(CASES[task].questions())
    schemas = schemas_of(model)
    assert schemas == Schemas.of(SPECS[task])
    seen = set()
    for options in ({}, *OPTIONS.get((task, target), ())):
        validator(schemas.options).validate(options)
        seen |= check(schemas.prediction, model.predict(asked, **options))
    kinds = schemas.prediction.get("anyOf", [schemas.prediction])
    kind = next(each for each in kinds if set(each["required"]) <= seen)
    # Pairs have the predictions of texts, which are tried with every option.
    assert seen <= set(kind["properties"]) if task == "pairs" else seen == set(kind["properties"])


@pytest.mark.parametrize(
    ("task", "target"), [each for each in MODELS if SPECS[each[0]].combiner and each[0] != "pairs"]
)
def test_predictions_of_ensembles_fit_their_schema(trained, tmp_path, task, target):
    for seed in (0, 1):
        trained(task, target, seed).save(tmp_path / str(seed))
    ensemble = Ensemble.of([tmp_path / "0", tmp_path / "1"], device="cpu")
    schemas, asked = schemas_of(ensemble), CASES[task].values(CASES[task].questions())
    assert {"disagreement", "deviation"} & check(schemas.prediction, ensemble.predict(asked))
    assert (schemas.input, schemas.options) == (Schemas.of(SPECS[task]).input, Schemas.of(SPECS[task]).options)


def test_rows_of_an_ensemble_have_the_columns_of_all_members(bert, tmp_path):
    for column in ("one", "two"):
        data = [{column: row["text"], "label": row["label"]} for row in texts(24)]
        fitted(bert, "classification", data, data, text=column).save(tmp_path / column)
    fits = validator(schemas_of(Ensemble.of([tmp_path / "one", tmp_path / "two"], device="cpu")).input)
    assert fits.is_valid("w5")
    assert fits.is_valid({"one": "w5", "two": "w6"})
    assert not fits.is_valid({"one": "w5"})


def test_inputs_and_predictions_of_several_tasks_fit_their_schema(bert):
    model = MultiTask.from_pretrained(bert, device="cpu")
    tags = [{"tokens": row["text"].split(), "tags": ["X", *["Y"] * row["text"].count(" ")]} for row in texts(12)]
    model.fit({"animal": TaskData(texts(12), texts(6)), "marks": TaggingData(tags, tags[:6])}, **QUICK)
    schemas = schemas_of(model)
    assert check(schemas.prediction, model.predict(["w5 w6", "w7"])) == {"animal", "marks"}
    for value in ("w5", ["w5", "w6"], {"text": "w5"}, {"tokens": ["w5"]}, {}, {"text": ""}, 5, {"tokens": []}):
        assert validator(schemas.input).is_valid(value) == takes(model.predict, [value]), value


# --- inputs ---

PARTS = (None, "", " \n", "w5", 5, 1.5, True, [], [""], ["w5"], ["w5", "w6"], ["w5", 5], {}, {"a": 1})


@every_task
@pytest.mark.parametrize("before", ["", "my_"], ids=["usual columns", "other columns"])
def test_rows_fit_the_schema_of_inputs_where_the_reader_takes_them(task, before):
    columns = renamed(SPECS[task].columns, {name: before + name for name in CASES[task].inputs})
    row = {before + name: CASES[task].questions()[0][name] for name in CASES[task].inputs}
    fits = validator(Schemas.of(SPECS[task], columns).input)
    assert fits.is_valid({**row, "id": 5})
    for column in row:
        assert not fits.is_valid({name: value for name, value in row.items() if name != column})
        for value in PARTS:
            other = {**row, column: value}
            assert fits.is_valid(other) == takes(columns.read, Row(1, other, "row 1")), other


@every_task
def test_values_fit_the_schema_of_inputs_where_a_model_takes_them(trained, task):
    model, fits = trained(task), validator(Schemas.of(SPECS[task]).input)
    sound = json.loads(json.dumps(CASES[task].values(CASES[task].questions())[0]))
    parts = sound if isinstance(sound, list) and task != "tagging" else [sound]
    lists = (["w5", ["w6", "w7"]], ["w5", ["w6"]], ["w5", ""], ["w5", ["w6", " "]])
    unmasked = (each for each in PARTS if task != "masked_lm" or each != "w5")  # no schema knows a tokenizer's mask
    for value in (*unmasked, *lists, [*parts, "w5"], sound):
        assert fits.is_valid(value) == takes(model.predict, [value]), value


@pytest.mark.parametrize(
    ("task", "names", "row", "refused"),
    [
        ("classification", {"text": ("title", "body")}, {"title": "", "body": "w5"}, {"body": "w5"}),
        ("multiple_choice", {"choices": ("a", "b")}, {"context": "w5", "a": "w6", "b": "w7"}, {"b": ""}),
    ],
)
def test_a_part_in_several_columns_is_all_in_the_schema(task, names, row, refused):
    fits = validator(Schemas.of(SPECS[task], renamed(SPECS[task].columns, names)).input)
    assert fits.is_valid(row)
    assert not fits.is_valid({**row, **refused} if len(refused) < len(row) - 1 else refused)


# --- options, and descriptions ---


@every_task
def test_options_fit_their_schema_where_a_prediction_takes_them(task):
    kind, schema = SPECS[task].predict_options, Schemas.of(SPECS[task]).options
    fits = validator(schema)
    assert {name: each["default"] for name, each in schema["properties"].items()} == asdict(kind())
    assert not fits.is_valid({"unknown": 1})
    for each in fields(kind):
        for value in (None, 0, 1, 2, -1, 0.5, 1.5, 100_000, 100_001, True, False, "", "w5", "BIO", "plain", [], ["w5"]):
            assert fits.is_valid({each.name: value}) == takes(kind, **{each.name: value}), (each.name, value)


def undescribed(schema):
    """Yield the properties in a schema without a description."""
    for name, each in schema.get("properties", {}).items():
        yield from () if each.get("description") else (name,)
        yield from (*undescribed(each), *undescribed(each.get("items") or {}))
    for each in schema.get("anyOf", []):
        yield from undescribed(each)


@every_task
def test_every_entry_is_described_without_words_of_python(task):
    schemas = Schemas.of(SPECS[task])
    assert [name for schema in asdict(schemas).values() for name in undescribed(schema)] == []
    assert "None" not in json.dumps(schemas.prediction)
    del next(iter(schemas.prediction.get("anyOf", [schemas.prediction])))["properties"]["dropped_tokens"]["description"]
    assert list(undescribed(schemas.prediction)) == ["dropped_tokens"]
