"""Checks of a model's JSON settings: bombs, hooks that run code, templates, paths outside the folder, false claims."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from bothways.audit.finding import Finding
from bothways.audit.provenance.files import FilePart, bad_path
from bothways.audit.provenance.rules import fault
from bothways.audit.provenance.weights import LAYER, HeaderTensor
from bothways.reading import MIB, JsonTooLarge, parse_json

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value from a file that is not trusted."""

_MAX_JSON = 64 * MIB

# Names by which a template escapes its sandbox, also if split up or written as escape sequences.
_TEMPLATE_CODE = re.compile(
    r"__(?:class|bases?|mro|subclasses|globals|builtins|init|import|getattribute|getitem|dict|code|call|reduce|self)__|\\x5f\\x5f|\\u005f\\u005f|\|\s*attr\b|\bformat_map\b|\blipsum\b|\bcycler\b|\bjoiner\b"
    r"|_TemplateReference|\bgi_frame\b|\bf_globals\b|\bpopen\s*\(|\bos\.system\b|\bimport_module\b"
    r"|\.\s*mro\s*\(|\bself\s*\._|['\"]_+['\"]\s*[~+*]"
)
_TEMPLATE_LOOP = re.compile(r"\brange\s*\(\s*(?:\d[\d_]*\s*,\s*)?(\d[\d_]{6,})|\*\*\s*\d{2,}|['\"]\s*\*\s*\d{7,}")
_TEMPLATE_FIELDS = ("chat_template", "default_chat_template", "prompt_template")
# Fields that make a loader import code.
_KERNEL_FIELDS = ("_attn_implementation_internal", "_experts_implementation_internal")
SHARD_LISTS = (".safetensors.index.json", ".bin.index.json", ".h5.index.json", ".msgpack.index.json")
_MODULES = ("sentence_transformers.",)
_KERAS = frozenset({"keras", "keras_nlp", "keras_hub", "tf_keras", "tensorflow", "builtins"})

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_WORD_TABLE = re.compile(r"(word_embeddings|tok_embeddings|embed_tokens|wte|shared|token_embedding)\.weight$")
_HEAD = re.compile(r"^(?:classifier|classifier\.out_proj|classification_head\.out_proj)\.weight$")
_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "num_labels"),
    *("n_layers", "dim", "d_model", "n_positions", "embedding_size", "type_vocab_size", "num_attention_heads"),
)
# No model has a vocabulary as large as this, or as many layers.
_MAX_SIZE = 10**8
_MAX_TOKENS = 10**7


class _Twice(dict[str, Json]):
    """A JSON object with a duplicate key."""


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    return dict(pairs) if len(dict(pairs)) == len(pairs) else _Twice(pairs)


def read_settings(part: FilePart) -> Json:
    """Parse the JSON in a file; raise ValueError if it is invalid, too large or too deep, or a number is too long."""
    if part.size > _MAX_JSON:
        raise JsonTooLarge(f"more than {_MAX_JSON // MIB} MiB")
    content: Json = parse_json(part.at(0, part.size), _pairs)
    return content


def scan_json(part: FilePart, place: str) -> Iterator[Finding]:
    """Yield the faults of a JSON file."""
    try:
        content = read_settings(part)
    except JsonTooLarge as error:
        yield fault("json-bomb", place, str(error))
        return
    except ValueError as error:
        yield fault("json-broken", place, f"a JSON file that cannot be parsed: {error}")
        return
    if isinstance(content, _Twice):
        yield fault("json-duplicate-key", place)
    # Hooks can occur at any depth.
    left = [content]
    while left:
        each = left.pop()
        if isinstance(each, list | dict):
            left.extend(value for value in _values(each) if isinstance(value, list | dict))
        if isinstance(each, dict):
            yield from _hooks(each, place)
    name = place.rpartition("/")[2].rpartition("!")[2]
    if name.endswith(SHARD_LISTS):
        yield from _shards(content, place)
    if name == "modules.json":
        yield from _modules(content, place)


def scan_template(text: str, place: str) -> Iterator[Finding]:
    """Yield the faults of a Jinja template."""
    if match := _TEMPLATE_CODE.search(text):
        yield fault("template-code", place, repr(match[0]))
    if match := _TEMPLATE_LOOP.search(text):
        yield fault("template-bomb", place, repr(match[0][:60]))


def _values(value: list[Json] | dict[str, Json]) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else value


def _texts(value: Json) -> Iterator[str]:
    """Yield the strings in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in _values(value):
            yield from _texts(each)


def _hooks(each: Mapping[str, Json], place: str) -> Iterator[Finding]:
    """Yield the faults of an object: fields that make loaders run code, and templates."""
    if "auto_map" in each:
        named = [text for text in _texts(each["auto_map"]) if text]
        other = " of another repository" if any("--" in text for text in named) else ""
        what = f"auto_map names code{other} that loaders may run"
        yield fault("remote-code", place, what, details={"auto_map": named[:20]})
    if "custom_pipelines" in each:
        yield fault("remote-code", place, "custom_pipelines names code that loaders may run")
    if each.get("trust_remote_code") is True:
        yield fault("remote-code", place, "settings that turn on trust_remote_code")
    for field in _KERNEL_FIELDS:
        kernel = each.get(field)
        if isinstance(kernel, str) and "/" in kernel:
            yield fault("remote-kernel", place, field, details={field: kernel})
    attention = each.get("_attn_implementation") or each.get("attn_implementation")
    if isinstance(attention, str) and "/" in attention:
        yield fault("remote-kernel", place, "the attention implementation", details={"value": attention})
    # Keras settings name Python objects by module and class.
    module, kind = each.get("module"), each.get("class_name")
    if "class_name" in each and ("config" in each or "module" in each):
        if kind in ("Lambda", "__lambda__"):
            yield fault("keras-code", place, "a Lambda layer of Keras, which holds code")
        elif isinstance(module, str) and module.split(".")[0] not in _KERAS:
            what = f"settings of Keras that import {module}"
            yield fault("keras-code", place, what, details={"class": str(kind)})
    for field in _TEMPLATE_FIELDS:
        for text in _texts(each.get(field)):
            yield from scan_template(text, f"{place}, {field}")


def _shards(content: Json, place: str) -> Iterator[Finding]:
    shards = content.get("weight_map") if isinstance(content, dict) else None
    names = [name for name in shards.values() if isinstance(name, str)] if isinstance(shards, dict) else []
    if not isinstance(shards, dict) or len(names) < len(shards):
        yield fault("json-broken", place, "a shard index that names no files")
        return
    for name in sorted(set(names)):
        if bad_path(name):
            yield fault("path-traversal", place, f"a shard index with a path out of the folder: {name[:200]!r}")


def _modules(content: Json, place: str) -> Iterator[Finding]:
    for each in content if isinstance(content, list) else ():
        kind, path = (each.get("type"), each.get("path")) if isinstance(each, dict) else (None, None)
        if not isinstance(kind, str) or not kind.startswith(_MODULES):
            yield fault("module-type", place, repr(kind))
        if isinstance(path, str) and bad_path(path):
            yield fault("path-traversal", place, f"modules.json with a path out of the folder: {path[:200]!r}")


# --- claims ---


def check_claims(config: Json, tokenizer: Json, tensors: Mapping[str, HeaderTensor]) -> Iterator[Finding]:
    """Yield contradictions between settings and weights.

    ``config`` and ``tokenizer`` are None if missing or invalid; ``tensors`` is empty if the headers cannot be read.
    """
    config = config if isinstance(config, dict) else {}
    tokenizer = tokenizer if isinstance(tokenizer, dict) else {}
    for key in _SIZES:
        value = config.get(key)
        if isinstance(value, int | float) and not -1 <= value <= _MAX_SIZE and value < 10**29:
            what = f"settings that claim {key} = {value:.3g}, more than fits into memory"
            yield fault("claim-bomb", _CONFIG, what, statistic=key, value=float(value), threshold=_MAX_SIZE)
    padding = tokenizer.get("padding")
    strategy = padding.get("strategy") if isinstance(padding, dict) else None
    fixed = strategy.get("Fixed") if isinstance(strategy, dict) else 0
    if isinstance(fixed, int) and fixed > _MAX_TOKENS:
        what = f"every text is padded to {fixed:,} tokens"
        yield fault("claim-bomb", _TOKENIZER, what, value=fixed, threshold=_MAX_TOKENS)
    words = [tensors[name] for name in sorted(tensors) if _WORD_TABLE.search(name) and len(tensors[name].shape) == 2]
    if words:
        rows, width = words[0].shape
        hidden = config.get("embedding_size", config.get("hidden_size", config.get("dim", config.get("d_model"))))
        yield from _compared("vocabulary", config.get("vocab_size"), rows)
        yield from _compared("width of the word embeddings", hidden, width)
        highest = max(_ids(tokenizer), default=-1)
        if highest >= rows:
            yield from _compared("highest id of the tokenizer", highest, rows - 1, _TOKENIZER)
    layers = {int(match[1]) for name in tensors if (match := LAYER.search(name))}
    if layers and not any("albert_layer_groups" in name for name in tensors):
        yield from _compared("layers", config.get("num_hidden_layers", config.get("n_layers")), max(layers) + 1)
    architectures, labels = config.get("architectures"), config.get("id2label")
    classifier = isinstance(architectures, list) and any(
        str(each).endswith(("ForSequenceClassification", "ForTokenClassification")) for each in architectures
    )
    if classifier and isinstance(labels, dict):
        for name, stored in tensors.items():
            if _HEAD.match(name) and len(stored.shape) == 2:
                yield from _compared("labels", len(labels), stored.shape[0])


def _compared(what: str, claimed: Json, stored: int, place: str = _CONFIG) -> Iterator[Finding]:
    if type(claimed) is int and claimed != stored:
        yield fault(
            "claim-differs",
            place,
            f"{what}: {claimed:,} claimed, {stored:,} in the weights",
            statistic=what,
            value=claimed,
            threshold=stored,
            null="settings and weights of one model, which agree",
        )


def _ids(tokenizer: Mapping[str, Json]) -> Iterator[int]:
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (value for value in vocabulary.values() if type(value) is int)
    elif isinstance(vocabulary, list):
        yield len(vocabulary) - 1
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict) and isinstance(number := each.get("id"), int) and not isinstance(number, bool):
            yield number
