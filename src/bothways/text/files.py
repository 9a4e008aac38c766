"""Read a tokenizer's files, with limits on size, and write them with the settings that ``transformers`` needs.

A checkpoint's own settings override those of a recipe.
``tokenizer_config.json`` holds options and the special tokens, each as a string or as ``{"content": ...}`` with its
matching flags. Older checkpoints keep the special tokens in ``special_tokens_map.json`` and added tokens in
``added_tokens.json``; as in ``transformers``, these two are used only if the configuration has no
``added_tokens_decoder``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import tokenizers
from tokenizers import models

from bothways.errors import BothwaysError, CorruptCheckpoint
from bothways.reading import MIB, parse_json, read_bytes
from bothways.storage import new_file
from bothways.text.recipes import (
    GENERIC_CLASS,
    ByteLevelBPE,
    CleanedWords,
    Preparation,
    Role,
    RunningText,
    SentencePiece,
    SpacedWords,
    SpecialToken,
    SpecialTokens,
    TokenizerFileOnly,
    TokenizerRecipe,
    WordPiece,
)

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_MAP_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
# All files that a tokenizer is read from.
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

# The largest published file (XLM-V's, of 900,000 pieces) has 54 MiB.
_MAX_BYTES, _MAX_ENTRIES = 128 * MIB, 8_000_000
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# transformers writes int(1e30) for "no limit".
_NO_LIMIT = 10**9

_Json: TypeAlias = str | bool | list[str] | dict[str, str | bool] | None
_T = TypeVar("_T")
_R = TypeVar("_R", WordPiece, ByteLevelBPE, SentencePiece, TokenizerFileOnly)


@dataclass(frozen=True)
class AddedToken:
    """A token added to the model's vocabulary, with its id in the checkpoint."""

    id: int
    token: SpecialToken
    special: bool


@dataclass(frozen=True)
class Settings:
    """A checkpoint's tokenizer settings: ``tokenizer_config.json``, overridden by ``special_tokens_map.json``.

    `added` has the tokens added to the vocabulary, in ascending order of their ids.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    added: tuple[AddedToken, ...] = ()

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean option."""
        value = self.options.get(name, default)
        if isinstance(value, bool):
            return value
        raise CorruptCheckpoint(f"{CONFIG_FILE}: expected {name!r} to be true or false, got {value!r}.")

    def optional_flag(self, name: str, default: bool | None) -> bool | None:
        """Return an option that may be true, false or null."""
        return None if self.options.get(name, default) is None else self.flag(name, False)

    @property
    def model_max_length(self) -> int | None:
        """Maximum number of tokens, special ones included; None for no limit."""
        value = self.options.get("model_max_length")
        return int(value) if isinstance(value, int | float) and 0 < value < _NO_LIMIT else None

    @property
    def tokenizer_class(self) -> str | None:
        """The ``transformers`` class for this tokenizer, if the settings name one."""
        value = self.options.get("tokenizer_class")
        return value if isinstance(value, str) else None


def checked(path: Path, read: Callable[[], _T]) -> _T:
    """Run ``read``; raise `CorruptCheckpoint` for any exception or panic of the ``tokenizers`` library."""
    try:
        return read()
    except BaseException as error:
        # A panic in Rust code is no Exception, and its class cannot be imported.
        panic = type(error).__name__ == "PanicException"
        if isinstance(error, BothwaysError) or not (panic or isinstance(error, Exception)):
            raise
        raise CorruptCheckpoint(
            f"{path} is not a tokenizer file that can be read ({error}); fetch the checkpoint again."
        ) from error


def needed(special: SpecialTokens, role: Role, path: Path) -> SpecialToken:
    """Return the special token for a role, or raise an error if it is missing."""
    token = special.named()[role]
    if token is None:
        raise CorruptCheckpoint(
            f"the settings beside the tokenizer file {path} name no {role} token, but the tokenizer needs one. Fetch "
            "the checkpoint again."
        )
    return token


def library_token(token: SpecialToken, *, special: bool) -> tokenizers.AddedToken:
    """Convert a token to the type of the ``tokenizers`` library."""
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )


def read_settings(files: Mapping[str, bytes]) -> Settings:
    """Read a checkpoint's tokenizer settings from its files, by name; missing ones count as empty."""
    config = _read_object(files, CONFIG_FILE)
    if "added_tokens_decoder" in config:
        return Settings(config, _decoder_tokens(config["added_tokens_decoder"]))
    options = config | _read_object(files, SPECIAL_MAP_FILE)
    return Settings(options, _legacy_tokens(_read_object(files, ADDED_TOKENS_FILE), _contents(options)))


def apply_settings(recipe: TokenizerRecipe, settings: Settings) -> TokenizerRecipe:
    """Override the defaults of a recipe with the checkpoint's settings."""
    match recipe:
        case WordPiece():
            changed = replace(
                recipe,
                lowercase=settings.flag("do_lower_case", recipe.lowercase),
                strip_accents=settings.optional_flag("strip_accents", recipe.strip_accents),
                split_chinese=settings.flag("tokenize_chinese_chars", recipe.split_chinese),
            )
            return _with_tokens(changed, settings)
        case ByteLevelBPE():
            changed_bpe = replace(
                recipe,
                add_prefix_space=settings.flag("add_prefix_space", recipe.add_prefix_space),
                trim_offsets=settings.flag("trim_offsets", recipe.trim_offsets),
            )
            return _with_tokens(changed_bpe, settings)
        case SentencePiece():
            changed_pieces = replace(
                recipe,
                preparation=_preparation(recipe.preparation, settings),
                add_prefix_space=settings.flag("add_prefix_space", recipe.add_prefix_space),
            )
            return _with_tokens(changed_pieces, settings)
        case TokenizerFileOnly():
            return _with_tokens(recipe, settings)


def _preparation(preparation: Preparation, settings: Settings) -> Preparation:
    match preparation:
        case SpacedWords():
            return preparation
        case CleanedWords(lowercase=lowercase, keep_accents=keep_accents):
            return CleanedWords(
                lowercase=settings.flag("do_lower_case", lowercase),
                keep_accents=settings.flag("keep_accents", keep_accents),
            )
        case RunningText(lowercase=lowercase, split_punctuation=split):
            return RunningText(
                lowercase=settings.flag("do_lower_case", lowercase),
                split_punctuation=settings.flag("split_by_punct", split),
            )


def _with_tokens(recipe: _R, settings: Settings) -> _R:
    """Override special tokens and tokenizer class of a recipe with the checkpoint's."""
    flags = {added.token.content: added.token for added in settings.added}
    special = recipe.special
    roles = {role: _role(token, f"{role}_token", settings.options) for role, token in special.named().items()}
    named = {role: flags.get(token.content, token) if token else None for role, token in roles.items()}
    others = [_token(name, settings.options[name]) for name in ("bos_token", "eos_token") if settings.options.get(name)]
    for name in _LISTS:
        value = settings.options.get(name)
        others += [_token(name, item) for item in value] if isinstance(value, list) else []
    merged = SpecialTokens(**named, others=special.others + tuple(others))
    return replace(recipe, special=merged, tokenizer_class=settings.tokenizer_class or recipe.tokenizer_class)


def _role(default: SpecialToken | None, key: str, options: Mapping[str, object]) -> SpecialToken | None:
    """Return the token under ``key``: None for null, ``default`` if ``key`` is missing or only names it."""
    if key not in options:
        return default
    value = options[key]
    if value is None:
        return None
    if default is not None and value == default.content:
        return default
    return _token(key, value)


def _token(where: str, value: object) -> SpecialToken:
    """Read a token given as a string or as an object with a ``content``."""
    if isinstance(value, str):
        return SpecialToken(value)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return SpecialToken(value["content"], **{flag: bool(value.get(flag, False)) for flag in _FLAGS})
    raise CorruptCheckpoint(
        f"{CONFIG_FILE}: expected {where!r} to be a token (a string, or an object with a 'content'), got {value!r}."
    )


def _decoder_tokens(decoder: object) -> tuple[AddedToken, ...]:
    """Read ``added_tokens_decoder``: ``{"50264": {"content": "<mask>", ..., "special": true}}``."""
    if not isinstance(decoder, dict) or not all(key.isdecimal() and len(key) < 10 for key in decoder):
        raise CorruptCheckpoint(f"{CONFIG_FILE}: expected 'added_tokens_decoder' to be an object with ids as keys.")
    tokens = []
    for key, value in decoder.items():
        special = isinstance(value, dict) and bool(value.get("special", False))
        tokens.append(AddedToken(int(key), _token("added_tokens_decoder", value), special))
    return tuple(sorted(tokens, key=lambda token: token.id))


def _legacy_tokens(ids: Mapping[str, object], special: frozenset[str]) -> tuple[AddedToken, ...]:
    """Read ``added_tokens.json``: ``{"<ent>": 30522}``."""
    tokens = []
    for content, value in ids.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise CorruptCheckpoint(f"{ADDED_TOKENS_FILE}: expected an object from tokens to their ids.")
        token = SpecialToken(content, normalized=content not in special)
        tokens.append(AddedToken(value, token, content in special))
    return tuple(sorted(tokens, key=lambda token: token.id))


def _contents(options: Mapping[str, object]) -> frozenset[str]:
    """Return the strings of all special tokens in the options."""
    named = [(key, value) for key, value in options.items() if key.endswith("_token")]
    for key in _LISTS:
        value = options.get(key)
        named += [(key, item) for item in value] if isinstance(value, list) else []
    return frozenset(_token(key, value).content for key, value in named if isinstance(value, str | dict))


def _read_object(files: Mapping[str, bytes], name: str) -> dict[str, object]:
    """Read a JSON object; a missing file counts as empty."""
    if name not in files:
        return {}
    try:
        value = parse_json(files[name])
    except ValueError as error:
        raise CorruptCheckpoint(f"{name} is not JSON in UTF-8 ({error}); fetch the checkpoint again.") from error
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{name}: expected a JSON object, got {type(value).__name__}.")
    return value


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every tokenizer file in a checkpoint folder, by name."""
    return {name: _content(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}


def _content(path: Path) -> bytes:
    content = read_bytes(path, _MAX_BYTES)
    if max(content.count(b","), content.count(b"\n")) > _MAX_ENTRIES:
        raise CorruptCheckpoint(
            f"expected {str(path)!r} to have at most {_MAX_ENTRIES} entries, but it has more: it is damaged. Get the "
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

    The files that the tokenizer was read from (``originals``) are written unchanged; missing settings and a missing
    ``tokenizer.json`` are added. ``types`` is True for a model that reads token types.
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
        # For a tokenizer.json without a class, only the generic class of transformers is known to give the same ids.
        generic: dict[str, _Json] = {"tokenizer_class": GENERIC_CLASS}
        options = generic if TOKENIZER_FILE in originals else _options(tokenizer, recipe)
        options = _defaults(options["tokenizer_class"], recipe, types=types) | options
        # In this file, unlike in special_tokens_map.json, transformers recognises a token with flags by this key only.
        mark = {"__type": "AddedToken"}
        tokens = {role: {**mark, **token} for role, token in _special_map(tokenizer, recipe).items()}
        return _json({**options, **tokens})
    content = json.loads(originals[CONFIG_FILE])
    if content.get("tokenizer_class") is not None:
        return originals[CONFIG_FILE]
    named = _tokenizer_class(tokenizer, recipe)
    return _json({**_defaults(named, recipe, types=types), **content, "tokenizer_class": named})


def _defaults(tokenizer_class: _Json, recipe: TokenizerRecipe, *, types: bool) -> dict[str, _Json]:
    """Return the padding side and the token types as settings, if the class is the generic one of ``transformers``.

    The other classes have the right values as defaults.
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
    """Return a recipe's options under their names in ``tokenizer_config.json``."""
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
