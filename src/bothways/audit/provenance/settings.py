"""JSON files of a model: bombs, hooks that run code, templates, and paths that lead out of the folder."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bothways.audit.provenance.archives import bad_path
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import FilePart
from bothways.reading import MIB, parse_json

_MOST_JSON = 64 * MIB

# Names by which a template leaves the sandbox that it is rendered in, also in pieces and escapes.
_TEMPLATE_CODE = re.compile(
    r"__(?:class|bases?|mro|subclasses|globals|builtins|init|import|getattribute|getitem|dict|code|call|reduce|self)__|\\x5f\\x5f|\\u005f\\u005f|\|\s*attr\b|\bformat_map\b|\blipsum\b|\bcycler\b|\bjoiner\b"
    r"|_TemplateReference|\bgi_frame\b|\bf_globals\b|\bpopen\s*\(|\bos\.system\b|\bimport_module\b"
    r"|\.\s*mro\s*\(|\bself\s*\._|['\"]_+['\"]\s*[~+*]"
)
_TEMPLATE_LOOP = re.compile(r"\brange\s*\(\s*(?:\d[\d_]*\s*,\s*)?(\d[\d_]{6,})|\*\*\s*\d{2,}|['\"]\s*\*\s*\d{7,}")
_TEMPLATE_FIELDS = ("chat_template", "default_chat_template", "prompt_template")
# Fields by which settings make a loader import code.
_KERNEL_FIELDS = ("_attn_implementation_internal", "_experts_implementation_internal")
# Names of the lists of shards.
SHARD_LISTS = (".safetensors.index.json", ".bin.index.json", ".h5.index.json", ".msgpack.index.json")
_MODULES = ("sentence_transformers.",)


_KERAS = frozenset({"keras", "keras_nlp", "keras_hub", "tf_keras", "tensorflow", "builtins"})


class _Twice(dict[str, Any]):
    """An object of JSON with a key in it twice."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs) if len(dict(pairs)) == len(pairs) else _Twice(pairs)


def read_settings(window: FilePart) -> Any:  # noqa: ANN401 (JSON)
    """Return the JSON in a file.

    Raises:
        ValueError: It is none, or too large, too deep, or with a number too long.
    """
    if window.size > _MOST_JSON:
        raise ValueError(f"more than {_MOST_JSON // MIB} MiB, too many bytes")
    return parse_json(window.at(0, window.size), _pairs)


def scan_json(window: FilePart, place: str) -> Iterator[Fault]:
    """Yield the faults of a JSON file."""
    try:
        content = read_settings(window)
    except ValueError as error:
        bomb = any(word in str(error) for word in ("deep", "digits", "values", "too many"))
        yield Fault("json-bomb" if bomb else "json-broken", f"a JSON file that no program should read: {error}", place)
        return
    if isinstance(content, _Twice):
        yield Fault("json-duplicate-key", "settings with the same key in them twice", place)
    yield from _hooks(content, place)
    name = place.rpartition("/")[2].rpartition("!")[2]
    if name.endswith(SHARD_LISTS):
        yield from _shards(content, place)
    if name == "modules.json":
        yield from _modules(content, place)


def scan_template(text: str, place: str) -> Iterator[Fault]:
    """Yield the faults of a Jinja template."""
    if found := _TEMPLATE_CODE.search(text):
        yield Fault("template-code", f"a template that reaches for Python by {found[0]!r}", place)
    if found := _TEMPLATE_LOOP.search(text):
        yield Fault("template-bomb", f"a template with a loop or power without end: {found[0][:60]!r}", place)


def _hooks(content: Any, place: str) -> Iterator[Fault]:  # noqa: ANN401 (JSON)
    """Find fields at any depth that make loaders run code."""
    left = [content]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(value for value in each if isinstance(value, list | dict))
        if not isinstance(each, dict):
            continue
        left.extend(value for value in each.values() if isinstance(value, list | dict))
        yield from _code_fields(each, place)
        for field in _TEMPLATE_FIELDS:
            for text in _texts(each.get(field)):
                yield from scan_template(text, f"{place}, {field}")


def _code_fields(each: Mapping[str, Any], place: str) -> Iterator[Fault]:
    if "auto_map" in each:
        named = [text for text in _texts(each["auto_map"]) if text]
        other = " of another repository" if any("--" in text for text in named) else ""
        yield Fault("remote-code", f"auto_map names code{other} that loaders may run", place, {"auto_map": named[:20]})
    if "custom_pipelines" in each:
        yield Fault("remote-code", "custom_pipelines names code that loaders may run", place)
    if each.get("trust_remote_code") is True:
        yield Fault("remote-code", "settings that switch trust_remote_code on by themselves", place)
    for field in _KERNEL_FIELDS:
        if isinstance(each.get(field), str) and "/" in each[field]:
            yield Fault("remote-kernel", f"{field} names a repository whose code is run", place, {field: each[field]})
    attention = each.get("_attn_implementation") or each.get("attn_implementation")
    if isinstance(attention, str) and "/" in attention:
        yield Fault("remote-kernel", "the attention names a repository whose code is run", place, {"value": attention})
    yield from _keras(each, place)


def _keras(each: Mapping[str, Any], place: str) -> Iterator[Fault]:
    """Keras settings name Python objects by module and class."""
    module = each.get("module")
    if "class_name" not in each or not ("config" in each or "module" in each):
        return
    if each["class_name"] in ("Lambda", "__lambda__"):
        yield Fault("keras-code", "a Lambda layer of Keras, which holds code", place)
    elif isinstance(module, str) and module.split(".")[0] not in _KERAS:
        yield Fault("keras-code", f"settings of Keras that import {module}", place, {"class": str(each["class_name"])})


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 (JSON)
    """Yield the strings in a value, which is a string, or holds some."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _shards(content: Any, place: str) -> Iterator[Fault]:  # noqa: ANN401 (JSON)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        yield Fault("json-broken", "a list of shards that names no files", place)
        return
    for name in sorted(set(shards.values())):
        if bad_path(name):
            yield Fault("path-traversal", f"a list of shards that leads out of the folder: {name[:200]!r}", place)


def _modules(content: Any, place: str) -> Iterator[Fault]:  # noqa: ANN401 (JSON)
    for each in content if isinstance(content, list) else ():
        kind, path = (each.get("type"), each.get("path")) if isinstance(each, dict) else (None, None)
        if not isinstance(kind, str) or not kind.startswith(_MODULES):
            yield Fault("module-type", f"modules.json names a class of other code: {kind!r}", place)
        if isinstance(path, str) and bad_path(path):
            yield Fault("path-traversal", f"modules.json leads out of the folder: {path[:200]!r}", place)
