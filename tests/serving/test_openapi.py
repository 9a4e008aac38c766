"""The OpenAPI document, and requests that are made from it: none is answered with a fault of the server."""

import math
import random
from collections import Counter

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from serving_cases import running

from bothways.serving.openapi import document
from bothways.serving.tables import ROUTES
from task_cases import CASES

EVERYDAY = ("/v1/predict", "/v1/embeddings", "/v1/rerank")
FORMS = [(route, mode) for route in ROUTES for mode in GenerationMode if route.method == "POST" or mode.is_positive]
# Requests without a parameter are all the same: the others share the many requests.
VARIED = [each for each in FORMS if each[0].method == "POST" or "{" in each[0].path]
SHARE = math.ceil(100_000 / len(VARIED))


def every_form(forms):
    """Run a test with requests to each route that fit the document, and with others that do not."""
    return pytest.mark.parametrize(
        ("route", "mode"), forms, ids=[f"{route.method} {route.path} {mode.value}" for route, mode in forms]
    )


@pytest.fixture(scope="module")
def described(folders, composed):
    """The document of a server of all tasks, a judge and an index, as schemathesis reads it."""
    with running(*folders.values(), composed / "judge", indexes=[str(composed / "index")]) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def ask_at_random(described, route, mode, count):
    """Send requests that fit the document, or not, and compare the answers with what the document says.

    Returns the number of answers of each status.
    """
    operation = described[route.path.replace(":path", "")][route.method]
    names, statuses = [*CASES, "judge", "index", "no model"], Counter()
    documented = operation.definition.raw["responses"].keys() | {"405", "421"}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        # Nearly all names are not those of models.
        for part, key in ((case.body, "model"), (case.body, "index"), (case.path_parameters, "name")):
            if isinstance(part, dict) and isinstance(part.get(key), str):
                part[key] = names[len(part[key]) % len(names)]
        answer = case.call(session=session)
        statuses[answer.status_code] += 1
        assert answer.status_code != 500, answer.text
        assert str(answer.status_code) in documented, answer.text
        assert answer.headers["content-type"] == ["application/json"]
        if answer.status_code != 200:
            assert answer.json()

    with requests.Session() as session:
        check()
    return statuses


@every_form([each for each in FORMS if each[0].path in EVERYDAY])
def test_requests_made_from_the_document_are_no_faults(described, route, mode):
    assert ask_at_random(described, route, mode, 5).total() >= 5


@every_form([each for each in FORMS if each not in VARIED])
def test_a_request_without_a_parameter_is_answered(described, route, mode):
    assert ask_at_random(described, route, mode, 1) == {200: 1}


@pytest.mark.slow
@every_form(VARIED)
def test_a_hundred_thousand_requests_made_from_the_document_are_no_faults(described, route, mode):
    """Each of these tests makes its share of 100,000 requests, so that ten parts of the slow tests make all of them."""
    assert ask_at_random(described, route, mode, SHARE).total() >= SHARE


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_inputs_and_options_that_fit_the_schemas_of_a_model_are_answered_or_refused(everything, name):
    schemas = everything.get(f"/v1/models/{name}").json()["schemas"]
    body = {
        "type": "object",
        "properties": {
            "inputs": {"type": "array", "items": schemas["input"], "minItems": 1, "maxItems": 3},
            "options": schemas["options"] or {"const": {}},
            "offsets": {"enum": ["code_points", "utf16", "bytes"]},
        },
        "required": ["inputs"],
        "additionalProperties": False,
    }
    answered = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(fitting(body))
    def check(case):
        if name == "embedding":
            answer = everything.post("/v1/embeddings", {"model": name, "input": case.body["inputs"]})
        else:
            answer = everything.post("/v1/predict", {"model": name, **case.body})
        assert answer.status_code in (200, 400, 413, 422), answer.text
        if answer.status_code == 200:
            answered.append(answer)
        if answer.status_code == 200 and name != "embedding":
            for each in answer.json()["predictions"]:
                jsonschema.validate(each, schemas["prediction"])

    check()
    assert answered or name == "masked_lm"  # which needs a mask in each text


def fitting(body):
    """Cases whose body fits a schema."""
    content = {"content": {"application/json": {"schema": body}}, "required": True}
    operation = {"post": {"requestBody": content, "responses": {"200": {"description": "The answer."}}}}
    found = schemathesis.openapi.from_dict(
        {"openapi": "3.1.0", "info": {"title": "One model", "version": "1"}, "paths": {"/": operation}}
    )
    return found["/"]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE)


# --- good requests, changed at random ---

GOOD = [
    *(("/v1/predict", {"model": name, "inputs": case.questions()[:3], "options": {}}) for name, case in CASES.items()),
    ("/v1/predict", {"model": "tagging", "inputs": ["w5 w6"], "offsets": "utf16", "errors": "per_item"}),
    ("/v1/predict", {"model": "classification", "inputs": ["w5"], "options": {"top": 2, "calibrated": True}}),
    *(
        ("/v1/explain", {"model": name, "input": CASES[name].values(CASES[name].questions()[:1])[0], "label": None})
        for name in ("classification", "pairs", "tagging", "question-answering", "multiple_choice")
    ),
    ("/v1/judge", {"inputs": [{"query": "w5", "passage": "w6", "answer": "w7"}]}),
    ("/v1/search", {"query": "w5", "top": 3, "mode": "dense", "filters": ["a>=1"]}),
    ("/v1/embeddings", {"input": ["w5", "w6 w7"], "dimensions": 8, "encoding_format": "float", "embed_dtype": "int8"}),
    ("/v1/embeddings", {"model": "embedding", "input": [[5, 6], [7]], "encoding_format": "base64"}),
    ("/v1/rerank", {"query": "w5", "documents": ["w6", {"text": "w7"}], "top_n": 1, "return_documents": True}),
    ("/classify", {"model": "classification", "input": ["w5", "w6"]}),
    ("/score", {"text_1": ["w5", "w6"], "text_2": ["w7", "w8"]}),
    ("/embed", {"inputs": ["w5", "w6"], "truncate": True, "normalize": False, "dimensions": 4}),
    ("/embed_all", {"inputs": ["w5 w6", "w7"], "truncate": False}),
    ("/predict", {"model": "classification", "inputs": [["w5"], ["w6"]], "raw_scores": True}),
    ("/rerank", {"query": "w5", "texts": ["w6", "w7"], "return_text": True}),
    ("/similarity", {"inputs": {"source_sentence": "w5", "sentences": ["w6", "w7"]}, "parameters": {"truncate": True}}),
    ("/tokenize", {"inputs": ["w5 w6"], "add_special_tokens": True}),
    ("/decode", {"ids": [[5, 6, 7]], "skip_special_tokens": False}),
    ("/", {"inputs": "w5 w6", "truncate": True, "truncation_direction": "left"}),
    ("/vertex", {"instances": [{"inputs": [["w5"], ["w6"]]}, {"query": "w5", "texts": ["w6"], "model": "embedding"}]}),
    ("/models/classification", {"inputs": ["w5"], "parameters": {"top_k": 2, "function_to_apply": "softmax"}}),
    ("/models/pairs", {"inputs": [{"text": "w5", "text_pair": "w6"}], "parameters": {"top_k": 1}}),
    ("/models/tagging", {"inputs": "w5 w6", "parameters": {"aggregation_strategy": "none", "offsets": "bytes"}}),
    ("/models/question-answering", {"inputs": {"question": "w5", "context": "w5 w6"}, "parameters": {"top_k": 2}}),
    ("/models/masked_lm", {"inputs": "w5 [MASK]", "parameters": {"top_k": 3, "targets": ["w6", "w7"]}}),
    ("/models/embedding", {"inputs": {"source_sentence": "w5", "sentences": ["w6"]}}),
]
WORDS = ["", " ", "w5", "\u200b", "\x00", "👩\u200d👧 é w5", "[MASK]", "[CLS] w5 [SEP]", "w5 " * 60]
NAMES = ["embedding", "error", "bytes", "integrated-gradients", "lexical", "nothing"]
VALUES = [None, True, False, 0, -1, 1, 7, 10**6, 2**31, 2**63, 10**40, 0.0, -0.5, 1e300, 1e-320, [], {}, [[]], [None]]


def changed(draw, value):
    """A JSON value with something in it replaced, left out, doubled, put into a list, or given another name."""
    match value:
        case dict() if value and draw.random() < 0.85:
            name = draw.choice(list(value))
            match draw.randrange(6):
                case 0:
                    return {key: each for key, each in value.items() if key != name}
                case 1:
                    return value | {draw.choice([name + "s", "model", "options", "text", "on_overflow"]): value[name]}
                case _:
                    return value | {name: changed(draw, value[name])}
        case list() if value and draw.random() < 0.85:
            place = draw.randrange(len(value))
            match draw.randrange(5):
                case 0:
                    return value[:place] + value[place + 1 :]
                case 1:
                    return value + value[place:] * draw.choice([1, 1, 40])
                case _:
                    return [*value[:place], changed(draw, value[place]), *value[place + 1 :]]
    junk = draw.choice([*WORDS, *NAMES, *VALUES])
    return draw.choice([junk, [value], {"text": value}, [junk, value], value])


def ask_changed(server, seed, count):
    """Send good requests after one to three changes; how many answers were given with each status."""
    draw, statuses = random.Random(seed), Counter()
    for _ in range(count):
        path, body = draw.choice(GOOD)
        for _ in range(draw.randrange(4)):
            body = changed(draw, body)
        answer = server.post(path, body)
        assert answer.status_code != 500, (path, body, answer.text)
        assert answer.json() is not None
        assert "NaN" not in answer.text
        statuses[answer.status_code] += 1
    return statuses


def test_good_requests_are_answered(everything):
    for path, body in GOOD:
        answer = everything.post(path, body)
        able = path not in ("/v1/judge", "/v1/search")
        assert answer.status_code in ((200,) if able else (404, 422)), (path, body, answer.text)


def test_good_requests_that_are_changed_at_random_are_no_faults(everything):
    statuses = ask_changed(everything, 1, 300)
    assert statuses[200] > 60
    assert sum(statuses[each] for each in (400, 422)) > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_good_requests_that_are_changed_at_random_are_no_faults(everything, seed):
    ask_changed(everything, seed, 5000)


# --- the document ---


def test_the_document_is_valid_and_lists_every_route(everything):
    found = everything.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    for each in ROUTES:
        path = each.path.replace(":path", "")
        assert each.method.lower() in found["paths"][path], path
        operation = found["paths"][path][each.method.lower()]
        assert operation["summary"]
        assert ("requestBody" in operation) == (each.method == "POST")
    names = [each["operationId"] for path in found["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))
    assert found == document((*ROUTES, everything.server.routes[-1]), everything.server.models)


def test_every_schema_of_the_document_is_one_and_every_reference_leads_somewhere(everything):
    found = everything.get("/openapi.json").json()
    components = found["components"]["schemas"]
    for each in components.values():
        jsonschema.Draft202012Validator.check_schema(each)
    for name in ("classification", "tagging", "masked_lm"):
        assert {f"{name}.input", f"{name}.options", f"{name}.prediction"} <= components.keys()

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    for each in references(found):
        if each.startswith("#/components/"):
            assert each.removeprefix("#/components/schemas/") in components
