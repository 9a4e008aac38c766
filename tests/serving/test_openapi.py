"""The OpenAPI document, and requests that are made from it: none is answered with a fault of the server."""

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from bothways.serving.openapi import document
from bothways.serving.tables import ROUTES
from task_cases import CASES

EVERYDAY = ("/v1/predict", "/v1/embeddings", "/v1/rerank")
FORMS = [(route, mode) for route in ROUTES for mode in GenerationMode if route.method == "POST" or mode.is_positive]


def every_form(forms):
    """Run a test with requests to each route that fit the document, and with others that do not."""
    return pytest.mark.parametrize(
        ("route", "mode"), forms, ids=[f"{route.method} {route.path} {mode.value}" for route, mode in forms]
    )


@pytest.fixture(scope="module")
def described(everything):
    """The document of a server of all tasks, as schemathesis reads it."""
    return schemathesis.openapi.from_url(f"{everything.url}/openapi.json")


def ask_at_random(described, route, mode, count):
    """Send requests that fit the document, or not, and compare the answers with what the document says."""
    operation = described[route.path.replace(":path", "")][route.method]
    names = [*CASES, "no model"]
    documented = operation.definition.raw["responses"].keys() | {"405", "421"}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            # Nearly all names are not those of models.
            case.body["model"] = names[len(case.body["model"]) % len(names)]
        answer = case.call()
        assert answer.status_code != 500, answer.text
        assert str(answer.status_code) in documented, answer.text
        assert answer.headers["content-type"] == ["application/json"]
        if answer.status_code != 200:
            assert answer.json()

    check()


@every_form([each for each in FORMS if each[0].path in EVERYDAY])
def test_requests_made_from_the_document_are_no_faults(described, route, mode):
    ask_at_random(described, route, mode, 5)


@pytest.mark.slow
@every_form(FORMS)
def test_many_requests_made_from_the_document_are_no_faults(described, route, mode):
    ask_at_random(described, route, mode, 400)


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
