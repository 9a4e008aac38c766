"""A tokenizer's files: kept as they were read, and written with the settings that ``transformers`` needs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import tokenizers
from tokenizers import models

from bothways.errors import CorruptCheckpoint
from bothways.reading import MIB, read_bytes
from bothways.storage import new_file
from bothways.text.building import TOKENIZER_FILE
from bothways.text.recipes import (
    GENERIC_CLASS,
    ByteLevelBPE,
    CleanedWords,
    Preparation,
    RunningText,
    SentencePiece,
    SpacedWords,
    TokenizerFileOnly,
    TokenizerRecipe,
    WordPiece,
)
from bothways.text.settings import ADDED_TOKENS_FILE, CONFIG_FILE, SPECIAL_MAP_FILE

_Json: TypeAlias = str | bool | list[str] | dict[str, str | bool] | None

# Those that a tokenizer is read from.
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    SPECIAL_MAP_FILE,
    ADDED_TOKENS_FILE,
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)


# The largest published one (XLM-V's, of 900,000 pieces) has 54 MiB; and lines or values as many times.
_MOST_BYTES, _MOST_ENTRIES = 128 * MIB, 8_000_000


def read_files(folder: Path) -> dict[str, bytes]:
    """Read every tokenizer file in a checkpoint folder by name."""
    return {name: _content(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}


def _content(path: Path) -> bytes:
    content = read_bytes(path, _MOST_BYTES)
    if max(content.count(b","), content.count(b"\n")) > _MOST_ENTRIES:
        raise CorruptCheckpoint(
            f"expected {str(path)!r} to have at most {_MOST_ENTRIES} entries, but it has more: it is damaged. Get the "
            "tokenizer again from where it came."
        )
    return content


def write_tokenizer(
    folder: Path,
    tokenizer: tokenizers.Tokenizer,
    recipe: TokenizerRecipe,
    originals: Mapping[str, bytes],
    *,
    types: bool,
) -> None:
    """Write a tokenizer's files into ``folder``, which is created if missing.

    Args:
        folder: The target; files of the same names are replaced.
        tokenizer: The tokenizer, to write a ``tokenizer.json`` if there was none.
        recipe: Its recipe, for settings if there were none.
        originals: The files that it was read from, written unchanged.
        types: Whether the model reads token types.
    """
    files = {**originals, CONFIG_FILE: _config_file(tokenizer, recipe, originals, types=types)}
    if TOKENIZER_FILE not in originals:
        files[TOKENIZER_FILE] = tokenizer.to_str(pretty=False).encode()
    if SPECIAL_MAP_FILE not in originals:
        files[SPECIAL_MAP_FILE] = _json(_special_map(tokenizer, recipe))
    for name, content in files.items():
        with new_file(folder / name, binary=True) as stream:
            stream.write(content)


def _config_file(
    tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe, originals: Mapping[str, bytes], *, types: bool
) -> bytes:
    """Return ``tokenizer_config.json``: the original, with the tokenizer class added if it had none."""
    if CONFIG_FILE not in originals:
        # No class of transformers is known to rebuild an unlabelled tokenizer.json alike; the generic one reads it.
        generic: dict[str, _Json] = {"tokenizer_class": GENERIC_CLASS}
        options = generic if TOKENIZER_FILE in originals else _options(tokenizer, recipe)
        options = _defaults(options["tokenizer_class"], recipe, types=types) | options
        # In this file, unlike in the map, transformers knows a token with flags only by this mark.
        mark = {"__type": "AddedToken"}
        tokens = {role: {**mark, **token} for role, token in _special_map(tokenizer, recipe).items()}
        return _json({**options, **tokens})
    content = json.loads(originals[CONFIG_FILE])
    if content.get("tokenizer_class") is not None:
        return originals[CONFIG_FILE]
    named = _tokenizer_class(tokenizer, recipe)
    return _json({**_defaults(named, recipe, types=types), **content, "tokenizer_class": named})


def _defaults(tokenizer_class: _Json, recipe: TokenizerRecipe, *, types: bool) -> dict[str, _Json]:
    """Return the settings that a family's class has built in and the generic class lacks.

    These are the padding side, and token types.
    """
    if tokenizer_class != GENERIC_CLASS:
        return {}
    left = isinstance(recipe, SentencePiece) and recipe.padding_side == "left"
    side: dict[str, _Json] = {"padding_side": "left"} if left else {}
    return side | ({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if types else {})


def _tokenizer_class(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> str:
    """Return the class of ``transformers`` that gives the same ids.

    The SentencePiece classes of ``transformers`` support plain Unigram models only.
    """
    plain = isinstance(tokenizer.model, models.Unigram) and tokenizer.token_to_id("<0x00>") is None
    return GENERIC_CLASS if isinstance(recipe, SentencePiece) and not plain else recipe.tokenizer_class


def _options(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> dict[str, _Json]:
    """Return a recipe in terms of ``tokenizer_config.json``."""
    named: dict[str, _Json] = {"tokenizer_class": _tokenizer_class(tokenizer, recipe)}
    match recipe:
        case WordPiece():
            return named | {
                "do_lower_case": recipe.lowercase,
                "strip_accents": recipe.strip_accents,
                "tokenize_chinese_chars": recipe.split_chinese,
            }
        case ByteLevelBPE():
            return named | {"add_prefix_space": recipe.add_prefix_space, "trim_offsets": recipe.trim_offsets}
        case SentencePiece(preparation=preparation):
            common: dict[str, _Json] = {
                "add_prefix_space": recipe.add_prefix_space,
                "padding_side": recipe.padding_side,
            }
            return named | common | _preparation_options(preparation)
        case TokenizerFileOnly():
            return named


def _preparation_options(preparation: Preparation) -> dict[str, _Json]:
    match preparation:
        case SpacedWords():
            return {}
        case CleanedWords():
            return {"do_lower_case": preparation.lowercase, "keep_accents": preparation.keep_accents}
        case RunningText():
            return {"do_lower_case": preparation.lowercase, "split_by_punct": preparation.split_punctuation}


def _special_map(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> dict[str, dict[str, str | bool]]:
    """Return the named special tokens that are in the vocabulary, with their flags."""
    return {
        f"{role}_token": asdict(token)
        for role, token in recipe.special.named().items()
        if token is not None and tokenizer.token_to_id(token.content) is not None
    }


def _json(value: Mapping[str, _Json]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
