"""A checkpoint's own tokenizer settings, which override those of a recipe.

``tokenizer_config.json`` holds options and the special tokens, each as a string or as ``{"content": ...}`` with its
matching flags. Older checkpoints keep the special tokens in ``special_tokens_map.json`` and added tokens in
``added_tokens.json``; as in ``transformers``, these two count only if the configuration has no
``added_tokens_decoder``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bothways.errors import CorruptCheckpoint
from bothways.reading import parse_json
from bothways.text.recipes import (
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
from bothways.text.special_tokens import SpecialToken, SpecialTokens

CONFIG_FILE = "tokenizer_config.json"
SPECIAL_MAP_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# transformers writes int(1e30) for "no limit".
_NO_LIMIT = 10**9

_R = TypeVar("_R", WordPiece, ByteLevelBPE, SentencePiece, TokenizerFileOnly)


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary, with its id in the checkpoint."""

    id: int
    token: SpecialToken
    special: bool


@dataclass(frozen=True)
class Settings:
    """A checkpoint's tokenizer settings.

    Attributes:
        options: ``tokenizer_config.json``, overridden by the special tokens of ``special_tokens_map.json``.
        added: Tokens beside the vocabulary, by rising id.
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
        """Class that ``transformers`` opens this tokenizer with, if stated."""
        value = self.options.get("tokenizer_class")
        return value if isinstance(value, str) else None


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
    """Return the token under ``key``; null means none, and a name alone keeps the default's flags."""
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
    tokens = [
        AddedToken(int(key), _token("added_tokens_decoder", value), _is_special(value))
        for key, value in decoder.items()
    ]
    return tuple(sorted(tokens, key=lambda token: token.id))


def _is_special(value: object) -> bool:
    return isinstance(value, dict) and bool(value.get("special", False))


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
    """Return the content of every special token in the options."""
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
