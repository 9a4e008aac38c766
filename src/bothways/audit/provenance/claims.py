"""Settings beside weights: architecture, vocabulary and labels as they are claimed, and as the headers have them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.tensors import HeaderTensor

_WORDS = re.compile(r"(word_embeddings|tok_embeddings|embed_tokens|wte|shared|token_embedding)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|albert_layer_groups)\.(\d+)\.")
_HEAD = re.compile(r"^(?:classifier|classifier\.out_proj|classification_head\.out_proj)\.weight$")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "num_labels",
)
_SIZES_TOO = ("n_layers", "dim", "d_model", "n_positions", "embedding_size", "type_vocab_size", "num_attention_heads")
# A vocabulary of a billion rows, or as many layers, is no model's.
_MOST_SIZE = 10**8
_MOST_TOKENS = 10**7


def check_claims(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, tensors: Mapping[str, HeaderTensor], place: str
) -> Iterator[Fault]:
    """Yield where settings and weights are of different models.

    Args:
        config: The model's ``config.json``.
        tokenizer: Its ``tokenizer.json``, where there is one.
        tensors: All tensors of its weight files by name; none where the headers cannot be read.
        place: The file of the settings.
    """
    yield from _huge(config, place)
    if tokenizer is not None:
        yield from _padding(tokenizer)
    if not tensors:
        return
    words = next(
        (tensors[name] for name in sorted(tensors) if _WORDS.search(name) and len(tensors[name].shape) == 2), None
    )
    if words is not None:
        yield from _vocabulary(config, tokenizer, words, place)
    yield from _layers(config, tensors, place)
    yield from _labels(config, tensors, place)


def _differs(what: str, claimed: int, found: int, place: str) -> Fault:
    return Fault(
        "claim-differs",
        f"{what}: {claimed:,} claimed, {found:,} in the weights",
        place,
        {"statistic": what},
        claimed,
        found,
        "settings and weights of one model, which agree",
    )


def _huge(config: Mapping[str, Any], place: str) -> Iterator[Fault]:
    for key in (*_SIZES, *_SIZES_TOO):
        value = config.get(key)
        if isinstance(value, int | float) and not -1 <= value <= _MOST_SIZE and value < 10**29:
            title = f"settings that claim {key} = {value:.3g}, which no memory holds"
            yield Fault("claim-bomb", title, place, {"statistic": key}, float(value), _MOST_SIZE)


def _padding(tokenizer: Mapping[str, Any]) -> Iterator[Fault]:
    padding = tokenizer.get("padding")
    strategy = padding.get("strategy") if isinstance(padding, dict) else None
    fixed = strategy.get("Fixed") if isinstance(strategy, dict) else 0
    if isinstance(fixed, int) and fixed > _MOST_TOKENS:
        yield Fault(
            "claim-bomb", f"every text is padded to {fixed:,} tokens", "tokenizer.json", {}, fixed, _MOST_TOKENS
        )


def _vocabulary(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, words: HeaderTensor, place: str
) -> Iterator[Fault]:
    rows, width = words.shape
    claimed = config.get("vocab_size")
    if type(claimed) is int and claimed != rows:
        yield _differs("vocabulary", claimed, rows, place)
    hidden = config.get("embedding_size", config.get("hidden_size", config.get("dim", config.get("d_model"))))
    if type(hidden) is int and hidden != width:
        yield _differs("width of the word embeddings", hidden, width, place)
    highest = max(_ids(tokenizer or {}), default=-1)
    if highest >= rows:
        yield _differs("highest id of the tokenizer", highest, rows - 1, "tokenizer.json")


def _ids(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (value for value in vocabulary.values() if type(value) is int)
    elif isinstance(vocabulary, list):
        yield len(vocabulary) - 1
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict) and type(each.get("id")) is int:
            yield each["id"]


def _layers(config: Mapping[str, Any], tensors: Mapping[str, HeaderTensor], place: str) -> Iterator[Fault]:
    claimed = config.get("num_hidden_layers", config.get("n_layers"))
    numbers = {int(found[1]) for name in tensors if (found := _LAYER.search(name))}
    shared = any("albert_layer_groups" in name for name in tensors)
    if type(claimed) is int and numbers and not shared and max(numbers) + 1 != claimed:
        yield _differs("layers", claimed, max(numbers) + 1, place)


def _labels(config: Mapping[str, Any], tensors: Mapping[str, HeaderTensor], place: str) -> Iterator[Fault]:
    architectures, labels = config.get("architectures"), config.get("id2label")
    classifier = isinstance(architectures, list) and any(
        str(each).endswith(("ForSequenceClassification", "ForTokenClassification")) for each in architectures
    )
    if not classifier or not isinstance(labels, dict):
        return
    for name, stored in tensors.items():
        if _HEAD.match(name) and len(stored.shape) == 2 and stored.shape[0] != len(labels):
            yield _differs("labels", len(labels), stored.shape[0], place)
