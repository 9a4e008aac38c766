"""Tokenizer files that would make texts grow without bound, refused before the library runs any of their rules.

A rule that puts ten million letters in the place of one, or 36 rules that each double a text, fill any memory from a
file of a kilobyte. The library has no limit for this, so the rules are looked at: the characters that one character may
become in a step, multiplied over the steps.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from bothways.errors import CorruptCheckpoint
from bothways.reading import parse_json

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
_STEPS = ("normalizers", "pretokenizers", "decoders", "processors")
_NORMALIZER = re.compile(r'"normalizer"\s*:\s*')
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")


def check_added(content: bytes, path: Path) -> None:
    """Refuse a ``tokenizer.json`` whose normalizer expands texts: the library applies it to added tokens on reading.

    Only the normalizer is parsed, as the vocabulary would take longer than to read the file.

    Raises:
        CorruptCheckpoint: It does.
        ValueError: The file is not JSON.
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
    """Refuse a tokenizer whose rules or template make texts many times as long.

    Raises:
        CorruptCheckpoint: They do.
    """
    _check((_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)), path)
    _check((_state(tokenizer.decoder),), path)
    for step in _steps(_state(tokenizer.post_processor)):
        for template in (step.get("single"), step.get("pair")):
            texts = [json.dumps(piece["Sequence"]["id"]) for piece in template or () if "Sequence" in piece]
            if len(set(texts)) < len(texts):
                raise _refused(path, "its template repeats a text")


def _check(parts: tuple[Any, ...], path: Path) -> None:
    expansion = 1.0
    for part in parts:
        for step in _steps(part):
            expansion *= _expansion(step)
            if not expansion <= MAX_EXPANSION:
                raise _refused(path, f"its rules may make more than {MAX_EXPANSION} characters of one")


def _expansion(step: dict[str, Any]) -> float:
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


def _steps(part: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 (JSON)
    if isinstance(part, dict):
        yield part
        for name in _STEPS:
            for step in part.get(name) or ():
                yield from _steps(step)


def _state(part: Any) -> Any:  # noqa: ANN401 (parts of the library's tokenizer; JSON)
    return None if part is None else json.loads(part.__getstate__())


def _refused(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{path} is not a tokenizer that is safe to run: {problem}, which could fill the memory. Get the tokenizer "
        "from where the model was published."
    )
