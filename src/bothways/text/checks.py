"""Checks on the way from files to a tokenizer.

Files that would make texts grow without bound are refused before the library runs any of their rules. A rule that puts
ten million letters in place of one, or 36 rules that each double a text, fill any memory from a file of a kilobyte.
The library has no limit for this, so the rules are checked: the characters that one character may become in a step,
multiplied over the steps.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypedDict, TypeVar

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from bothways.errors import BothwaysError, CorruptCheckpoint
from bothways.reading import parse_json
from bothways.text.special_tokens import Role, SpecialToken, SpecialTokens

_T = TypeVar("_T")
_Part: TypeAlias = normalizers.Normalizer | pre_tokenizers.PreTokenizer | decoders.Decoder | processors.PostProcessor

MAX_EXPANSION = 256
"""Characters that one may become. Published tokenizers need at most 72: a compiled map (18), a run of spaces (2) and
the mark of a word (2)."""

# Steps that make more characters of one than Unicode does, where the step has no setting that says so.
_EXPANSION = {
    "ByteLevel": 4.0,
    "BertNormalizer": 3.0,
    "Metaspace": 2.0,
    "WordPiece": 2.0,
    "BPEDecoder": 2.0,
    "CTC": 2.0,
}
_NORMALIZER = re.compile(r'"normalizer"\s*:\s*')
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")


class _Step(TypedDict, total=False):
    """A step of a tokenizer as JSON, with the settings that can lengthen texts; or several steps in one."""

    type: str
    content: str
    pattern: Mapping[str, str]
    prepend: str
    precompiled_charsmap: str
    single: Sequence[Mapping[str, Mapping[str, object]]] | None
    pair: Sequence[Mapping[str, Mapping[str, object]]] | None
    normalizers: Sequence["_Step"]
    pretokenizers: Sequence["_Step"]
    decoders: Sequence["_Step"]
    processors: Sequence["_Step"]


def checked(path: Path, read: Callable[[], _T]) -> _T:
    """Run ``read`` and turn the library's bare exceptions and panics into `CorruptCheckpoint`."""
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
            f"the tokenizer settings beside {path} say that there is no {role} token; it needs one."
        )
    return token


def token_id(tokenizer: tokenizers.Tokenizer, token: str, path: Path) -> int:
    """Return the id of a token that the tokenizer must have."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise CorruptCheckpoint(
            f"{path} has no token {token!r}, which the template needs: the file is truncated, "
            "or tokenizer_config.json does not name its special tokens."
        )
    return found


def library_token(token: SpecialToken, *, special: bool) -> tokenizers.AddedToken:
    """Convert a token to the library's type."""
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )


def check_added(content: bytes, path: Path) -> None:
    """Refuse a ``tokenizer.json`` whose normalizer expands texts: the library applies it to added tokens on reading.

    Only the normalizer is parsed, since the vocabulary would take longer than reading the file.
    """
    text = content.decode("utf-8")
    if _ESCAPED_LETTER.search(text):  # the key itself may be spelt so
        found = [parse_json(content)["normalizer"]]
    else:
        decode = json.JSONDecoder().raw_decode
        found = [decode(text, place.end())[0] for place in _NORMALIZER.finditer(text)]
    for normalizer in found:
        _check((normalizer,), path)


def check_expansion(tokenizer: tokenizers.Tokenizer, path: Path) -> None:
    """Refuse a tokenizer whose rules or template make texts many times longer."""
    _check((_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)), path)
    _check((_state(tokenizer.decoder),), path)
    for step in _steps(_state(tokenizer.post_processor)):
        for template in (step.get("single"), step.get("pair")):
            texts = [json.dumps(piece["Sequence"]["id"]) for piece in template or () if "Sequence" in piece]
            if len(set(texts)) < len(texts):
                raise _refused(path, "its template repeats a text")


def _check(parts: Sequence[_Step | None], path: Path) -> None:
    expansion = 1.0
    for part in parts:
        for step in _steps(part):
            expansion *= _expansion(step)
            if not expansion <= MAX_EXPANSION:
                raise _refused(path, f"its rules may make more than {MAX_EXPANSION} characters of one")


def _expansion(step: _Step) -> float:
    match step.get("type"):
        case "Replace":
            content, pattern = len(step["content"]), step["pattern"]
            # A regular expression, and an empty string, may match between any two characters.
            return max(1.0, content / len(literal)) if (literal := pattern.get("String")) else 1.0 + content
        case "Prepend":
            return 1.0 + len(step["prepend"])
        case "Precompiled":
            charsmap = base64.b64decode(step["precompiled_charsmap"])
            texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
            return max(1.0, *map(len, texts.decode("utf-8", "replace").split("\0")))
        case kind:
            return _EXPANSION.get(str(kind), 1.0)


def _steps(part: _Step | None) -> Iterator[_Step]:
    if isinstance(part, dict):
        yield part
        for inner in (part.get("normalizers"), part.get("pretokenizers"), part.get("decoders"), part.get("processors")):
            for step in inner or ():
                yield from _steps(step)


def _state(part: _Part | None) -> _Step | None:
    state: _Step | None = None if part is None else json.loads(part.__getstate__())
    return state


def _refused(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{path} is not a tokenizer that is safe to run: {problem}, which could fill the memory. Get the tokenizer "
        "from where the model was published."
    )
