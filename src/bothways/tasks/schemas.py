"""JSON schemas (draft 2020-12) of a task's inputs and predictions, made from its dataclasses. Does not import torch.

Types and bounds come from annotations (`annotated_types`), descriptions from docstrings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

from bothways.lazy import imported
from bothways.tasks.columns import AnyColumns, column_settings
from bothways.tasks.scores import JSON_NAME, TokensRead
from bothways.tasks.spec import Pattern, TaskSpec, attribute_docs

Schema: TypeAlias = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_BOUNDS = {Ge: "minimum", Gt: "exclusiveMinimum", Le: "maximum", Lt: "exclusiveMaximum", Pattern: "pattern"}
_CLOSED: Schema = {"additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Schemas:
    """The JSON schemas of a task, or of a trained model.

    Attributes:
        input: Schema of an input: a row as an object, as in JSON Lines, or its values without column names.
        options: Schema of the options of `predict`; null stands for None.
        prediction: Schema of a prediction, as returned by `to_dict`.
    """

    input: Schema
    options: Schema
    prediction: Schema

    @classmethod
    def of(cls, spec: TaskSpec, columns: AnyColumns | None = None) -> Self:
        """Return the schemas of a task, with the columns of a trained model or the default ones."""
        options = {name: part | {"default": each} for name, (part, each) in _parts(spec.predict_options).items()}
        return cls(
            any_of([form for kind in variants(spec.input) for form in _forms(kind, columns or spec.columns)]),
            _object(spec.predict_options, options, ()) | _CLOSED,
            any_of([prediction_schema(kind) for kind in variants(imported(spec.prediction))]),
        )


def variants(kind: object) -> tuple[type, ...]:
    """Return the members of a union, or the class itself as the only one."""
    return get_args(kind) or (kind,)


def prediction_schema(*kinds: type) -> Schema:
    """Return the schema of a prediction with the fields of all variants; for optional fields see `TaskPrediction`."""
    parts = _parts(*kinds)
    # Optional fields are omitted instead of being null.
    given = {name: {} if default is not None else {"type": part["type"][0]} for name, (part, default) in parts.items()}
    properties = {name: part | given[name] for name, (part, _) in parts.items()}
    return _object(kinds[0], properties, [name for name in parts if not given[name]]) | _CLOSED


def _parts(*kinds: type) -> dict[str, tuple[Schema, object]]:
    """Return the schema and the default value of each field, by its name in JSON."""
    found: dict[str, tuple[Schema, object]] = {}
    read: dict[str, tuple[Schema, object]] = {}
    for kind in kinds:
        hints, texts = get_type_hints(kind, include_extras=True), attribute_docs(kind)
        for each in fields(kind):
            if hints[each.name] is TokensRead:
                read = _parts(TokensRead)
                continue
            text = {"description": texts[each.name].replace("``", "`")} if each.name in texts else {}
            found[each.metadata.get(JSON_NAME, each.name)] = value_schema(hints[each.name]) | text, each.default
    return found | read


def _object(kind: type, properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    return _title(kind) | {"type": "object", "properties": dict(properties), "required": list(required)}


def _title(kind: type) -> Schema:
    return {"title": kind.__name__, "description": (kind.__doc__ or "").partition("\n")[0]}


def _forms(kind: type, columns: AnyColumns) -> Iterator[Schema]:
    """Yield the schemas of an input: its values without column names, and a row, which may have further columns."""
    parts, named = {name: schema for name, (schema, _) in _parts(kind).items()}, column_settings(columns)
    yield next(iter(parts.values())) if len(parts) == 1 else _title(kind) | _tuple_of(list(parts.values()))
    properties: dict[str, Schema] = {}
    for place, (part, schema) in enumerate(parts.items()):
        match named[part] if part in named else columns.input_columns[place]:
            case (str() as name) | [str() as name]:
                properties[name] = schema
            case [*names]:
                # Each column holds an item of a list, or a part of one text; some of these parts may be empty.
                properties |= {str(name): schema.get("items", {"type": "string"}) for name in names}
    yield _object(kind, properties, list(properties))


def value_schema(annotation: Any) -> Schema:  # noqa: ANN401 (any annotation)
    """Return the schema of a value, such as ``{"type": "integer", "minimum": 1}`` for ``Annotated[int, Ge(1)]``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        schema = value_schema(parts[0])
        length = "minLength" if schema.get("type") == "string" else "minItems"
        for bound in parts[1:]:
            keyword = length if type(bound) is MinLen else _BOUNDS[type(bound)]
            schema = schema | {keyword: next(iter(asdict(bound).values()))}
        return schema
    if origin in (Union, UnionType):
        return any_of([value_schema(part) for part in parts])
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is tuple and Ellipsis not in parts:
        return _tuple_of([value_schema(part) for part in parts])
    if origin in (tuple, Sequence):
        return {"type": "array", "items": value_schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": value_schema(parts[1])}
    return {"type": _TYPES[annotation]} if annotation in _TYPES else prediction_schema(annotation)


def any_of(schemas: Sequence[Schema]) -> Schema:
    """Return the schema of a value that matches one of several schemas."""
    null = {"type": "null"}
    others = [each for number, each in enumerate(schemas) if each not in (null, *schemas[:number])]
    if len(others) > 1:
        return {"anyOf": [*others, *(each for each in schemas if each == null)]}
    (only,) = others
    if null not in schemas:
        return only
    return only | ({"enum": [*only["enum"], None]} if "enum" in only else {"type": [only["type"], "null"]})


def _tuple_of(parts: Sequence[Schema]) -> Schema:
    return {"type": "array", "prefixItems": list(parts), "items": False, "minItems": len(parts)}
