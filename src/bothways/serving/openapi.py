"""The OpenAPI document of a server (3.1), made from its routes and the schemas of its models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import msgspec

from bothways.serving.api.native import schemas_of
from bothways.serving.models import Models
from bothways.serving.routes import Call, NoBody, Reply, Route, route

_NAME = re.compile(r"\{(\w+)(?::path)?\}")
_ANY_VALUE = {"$comment": "any JSON value"}
_REFERENCE = "#/components/schemas/{name}"


def document(routes: Sequence[Route], models: Models) -> dict[str, object]:
    """Return the document: a path for each route, and for each model the schemas of its inputs and predictions."""
    bodies = list(dict.fromkeys(each.body for each in routes if each.body is not NoBody))
    schemas, components = msgspec.json.schema_components(
        bodies, schema_hook=lambda _: dict(_ANY_VALUE), ref_template=_REFERENCE
    )
    schema_of = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each in routes:
        paths.setdefault(_NAME.sub(r"{\1}", each.path), {})[each.method.lower()] = _operation(each, schema_of)
    for served in models:
        components |= {f"{served.name}.{part}": schema for part, schema in schemas_of(served).items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bothways",
            "version": version("bothways"),
            "description": "Encoder-only language models over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": components | {"Problem": _PROBLEM},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(each: Route, schema_of: Mapping[type, Mapping[str, object]]) -> dict[str, object]:
    problem = {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Problem")}}}
    statuses = {str(status): {"description": text, "content": problem} for status, text in _STATUSES.items()}
    answer = {"description": "The answer.", "content": {"application/json": {"schema": dict(each.reply)}}}
    operation: dict[str, object] = {
        "summary": each.summary,
        "tags": [each.tag],
        "operationId": f"{each.method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', each.path)}",
        "responses": {"200": answer, **statuses},
    }
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAME.findall(each.path)
    ]
    if each.method == "POST":
        timeout = {"type": "integer", "minimum": 1, "maximum": 999_999_999}
        parameters.append({"name": "X-Timeout-Ms", "in": "header", "required": False, "schema": timeout})
        content = {"application/json": {"schema": dict(schema_of[each.body])}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation | ({"parameters": parameters} if parameters else {})


def document_route(routes: Sequence[Route]) -> Route:
    """Return the route of the document, which lists itself too."""

    def answer(call: Call, body: NoBody) -> Reply:
        del body
        return Reply(document((*routes, own), call.models))

    own = route("GET", "/openapi.json", answer, NoBody, "This document.", "server", reply={"type": "object"})
    return own


_STATUSES = {
    400: "The request is not JSON, or not what this API takes.",
    401: "The API key is missing or not known.",
    404: "There is no model of this name.",
    408: "The body came too slowly.",
    413: "The request is too large.",
    415: "The content type is not application/json.",
    422: "A value is not usable; the message says which one, and what was expected.",
    424: "The model cannot answer this.",
    429: "There is no room now; try again after the time in Retry-After.",
    500: "The server failed.",
    501: "A package that this needs is not installed.",
    503: "The server is starting or stopping; try again after the time in Retry-After.",
    504: "The deadline of the request passed.",
}
_PROBLEM: dict[str, object] = {"type": "object"}
