"""Build the ``tokenizers`` library's tokenizer from a checkpoint folder.

``tokenizer.json`` is used if there is one; otherwise the tokenizer is built from the vocabulary files by the recipe.
Either way the truncation and padding in a file are switched off, so nothing is truncated silently.

Pieces of a vocabulary mark where a word begins: WordPiece marks those that continue a word (``##ing``), byte-level
BPE and SentencePiece those that begin one (``Ġthe``, ``▁the``: the space before the word is part of the piece). A
vocabulary of whole words marks neither.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypedDict

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.reading import parse_json
from bothways.text.files import TOKENIZER_FILE, Settings, checked, library_token, needed
from bothways.text.recipes import (
    ROBERTA_TEMPLATE,
    ByteLevelBPE,
    Role,
    SentencePiece,
    TokenizerFileOnly,
    TokenizerRecipe,
    WordPiece,
)
from bothways.text.sentence_pieces import piece_tokenizer

_TEMPLATE_ROLES: tuple[Role, ...] = ("cls", "sep")


def build_tokenizer(
    folder: Path, recipe: TokenizerRecipe, settings: Settings, files: Mapping[str, bytes]
) -> tokenizers.Tokenizer:
    """Read or build the tokenizer of a checkpoint folder, without truncation and padding.

    The recipe already includes the settings; explicit settings also override ``tokenizer.json``.
    """
    if TOKENIZER_FILE in files:
        tokenizer = _read(folder / TOKENIZER_FILE, files[TOKENIZER_FILE])
        _overrule(tokenizer, recipe, settings)
    else:
        tokenizer = _build(folder, recipe, files)
        check_expansion(tokenizer, folder / recipe.files[0])
        _add_tokens(tokenizer, settings)
        _add_mask(tokenizer, recipe)
        tokenizer.post_processor = _post_processor(tokenizer, recipe, folder / recipe.files[0])
    _declare_special(tokenizer, recipe)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Encode once: only then does the library notice that a template names undefined tokens.
    checked(folder / TOKENIZER_FILE, lambda: (tokenizer.encode(""), tokenizer.encode("", "")))
    return tokenizer


def framed(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> tokenizers.Tokenizer:
    """Return a copy of a tokenizer that puts the recipe's special tokens around a text."""
    copied = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copied.post_processor = _post_processor(copied, recipe, Path(TOKENIZER_FILE))
    return copied


def _read(path: Path, content: bytes) -> tokenizers.Tokenizer:
    checked(path, lambda: check_added(content, path))
    tokenizer = checked(path, lambda: tokenizers.Tokenizer.from_buffer(content))
    check_expansion(tokenizer, path)
    tokenizer.no_padding()  # padding would start a pool of threads, which loading avoids
    return tokenizer


def _build(folder: Path, recipe: TokenizerRecipe, files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    """Build a tokenizer from the vocabulary files that the recipe needs."""
    missing = [name for name in recipe.files if name not in files]
    match recipe:
        case WordPiece() if not missing:
            return _word_piece(folder / "vocab.txt", recipe)
        case ByteLevelBPE() if not missing:
            return _byte_level(folder / "vocab.json", folder / "merges.txt", recipe)
        case SentencePiece() if not missing:
            return piece_tokenizer(folder / recipe.file, recipe)
        case TokenizerFileOnly(reason=reason):
            expected = f"{TOKENIZER_FILE}, as {reason}"
        case _:
            expected = f"{TOKENIZER_FILE} or {' + '.join(recipe.files)}"
    raise UnknownModel(f"no tokenizer in {folder}: expected {expected}. Is this the folder of a checkpoint?")


def _word_piece(path: Path, recipe: WordPiece) -> tokenizers.Tokenizer:
    """Build the BERT tokenizer: clean, split at white space and punctuation, then word pieces."""
    unk = needed(recipe.special, "unk", path).content
    model = checked(path, lambda: models.WordPiece.from_file(str(path), unk_token=unk))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=recipe.split_chinese,
        strip_accents=recipe.strip_accents,
        lowercase=recipe.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    token_id(tokenizer, unk, path)
    return tokenizer


def _byte_level(vocab: Path, merges: Path, recipe: ByteLevelBPE) -> tokenizers.Tokenizer:
    # Empty affixes rather than None, as in RoBERTa's own files.
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    model = checked(vocab, lambda: models.BPE.from_file(str(vocab), str(merges), fuse_unk=False, **affixes))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=recipe.add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _post_processor(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe, path: Path) -> processors.PostProcessor:
    """Build the template of special tokens around a text."""
    tokens: dict[str, str] = {role: needed(recipe.special, role, path).content for role in _TEMPLATE_ROLES}
    ids = {token: token_id(tokenizer, token, path) for token in tokens.values()}
    template = recipe.template

    def spelt(items: tuple[str, ...]) -> list[str]:
        named = (item.rsplit(":", 1) for item in items)
        return [f"{tokens.get(part, part)}:{token_type}" for part, token_type in named]

    # Lists, since the library would split a token with a space in a single string.
    around = processors.TemplateProcessing(
        single=spelt(template.single), pair=spelt(template.pair), special_tokens=list(ids.items())
    )
    match recipe:
        case ByteLevelBPE(trim_offsets=trim, add_prefix_space=prefix) if template == ROBERTA_TEMPLATE:
            sep, cls = ((tokens[role], ids[tokens[role]]) for role in ("sep", "cls"))
            return processors.RobertaProcessing(sep, cls, trim_offsets=trim, add_prefix_space=prefix)
        case ByteLevelBPE(trim_offsets=True, add_prefix_space=prefix):
            trim_spaces = processors.ByteLevel(trim_offsets=True, add_prefix_space=prefix)
            return processors.Sequence([trim_spaces, around])
        case _:
            return around


def _overrule(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe, settings: Settings) -> None:
    """Let options in ``tokenizer_config.json`` override ``tokenizer.json``, as ``transformers`` does."""
    match recipe, tokenizer.normalizer, tokenizer.pre_tokenizer:
        case WordPiece(), normalizers.BertNormalizer() as normalizer, _:
            if "do_lower_case" in settings.options:
                normalizer.lowercase = recipe.lowercase
            if "strip_accents" in settings.options:
                normalizer.strip_accents = recipe.strip_accents
            if "tokenize_chinese_chars" in settings.options:
                normalizer.handle_chinese_chars = recipe.split_chinese
        case ByteLevelBPE(), _, pre_tokenizers.ByteLevel() as splitter:
            if "add_prefix_space" in settings.options:
                splitter.add_prefix_space = recipe.add_prefix_space


def _add_tokens(tokenizer: tokenizers.Tokenizer, settings: Settings) -> None:
    """Add the tokens that the settings list, and check that each gets the id that they give."""
    # In one call: the library rebuilds its search for all added tokens after each call.
    tokenizer.add_tokens([library_token(added.token, special=added.special) for added in settings.added])
    for added in settings.added:
        if (given := tokenizer.token_to_id(added.token.content)) != added.id:
            raise CorruptCheckpoint(
                f"the tokenizer settings give the added token {added.token.content!r} the id {added.id}, but its "
                f"id after the vocabulary is {given}: vocabulary and settings belong to different checkpoints."
            )


def _add_mask(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> None:
    """Add a mask token with the next free id if the SentencePiece file has none, as in DeBERTa."""
    mask = recipe.special.mask
    if isinstance(recipe, SentencePiece) and mask is not None and tokenizer.token_to_id(mask.content) is None:
        tokenizer.add_special_tokens([library_token(mask, special=True)])


def _declare_special(tokenizer: tokenizers.Tokenizer, recipe: TokenizerRecipe) -> None:
    """Declare the recipe's special tokens, so that they are never split in texts; ids do not change."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    undeclared = [
        library_token(token, special=True)
        for token in recipe.special.all()
        if token.content not in known and tokenizer.token_to_id(token.content) is not None
    ]
    tokenizer.add_special_tokens(undeclared)


def token_id(tokenizer: tokenizers.Tokenizer, token: str, path: Path) -> int:
    """Return the id of a token; raise `CorruptCheckpoint` if the tokenizer does not have it."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise CorruptCheckpoint(
            f"{path} has no token {token!r}, which the template needs: the file is truncated, "
            "or tokenizer_config.json does not name its special tokens."
        )
    return found


# --- files that would make texts grow without bound ---
# A file of a kilobyte can fill any memory: one rule may replace a letter by ten million, or 36 rules may each double a
# text. The library has no limit for this, so such files are refused before any of their rules runs. The limit is on the
# characters that one character may become in a step, multiplied over the steps.

_Part: TypeAlias = normalizers.Normalizer | pre_tokenizers.PreTokenizer | decoders.Decoder | processors.PostProcessor

MAX_EXPANSION = 256
"""Maximum characters that one character may become. Published tokenizers need at most 72: 18 for a compiled map, times
2 for a run of spaces, times 2 for the mark of a word."""

# Maximum characters that one character may become in a step whose settings do not determine this number.
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
    """A step of a tokenizer as JSON, with the settings that can lengthen texts; or a sequence of steps."""

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


def check_added(content: bytes, path: Path) -> None:
    """Refuse a ``tokenizer.json`` whose normalizer expands texts, before the library applies it to added tokens.

    Only the normalizer is parsed, since parsing the vocabulary would take longer than reading the file.
    """
    text = content.decode("utf-8")
    if _ESCAPED_LETTER.search(text):  # the key itself may be escaped
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
                raise _refused(path, f"its rules may turn one character into more than {MAX_EXPANSION} characters")


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


# --- marks of words ---


@dataclass(frozen=True, slots=True)
class WordMarks:
    """The prefix of pieces that continue a word, or the first character of those that begin one.

    Without either, each piece is a word.
    """

    continuation: str | None = None
    beginning: str | None = None

    def continues(self, piece: str) -> bool:
        """Test whether the piece continues the word before it."""
        if self.beginning is not None:
            return not piece.startswith(self.beginning)
        return self.continuation is not None and piece.startswith(self.continuation)

    def unmarked(self, text: str) -> str:
        """Remove a continuation mark, which the decoder leaves on the first of the decoded pieces.

        The decoder has already turned marks of word beginnings into spaces.
        """
        return text.removeprefix(self.continuation or "")


_BYTE_LEVEL_SPACE = "Ġ"


def word_marks(tokenizer: tokenizers.Tokenizer) -> WordMarks:
    """Return the marks with which a tokenizer's vocabulary begins or continues words."""
    model = tokenizer.model
    if isinstance(model, models.WordPiece):
        return WordMarks(continuation=model.continuing_subword_prefix)
    if isinstance(model, models.WordLevel):
        return WordMarks()
    return WordMarks(beginning=_mark(tokenizer.pre_tokenizer) or _mark(tokenizer.decoder))


def _mark(part: pre_tokenizers.PreTokenizer | decoders.Decoder | None) -> str | None:
    """Return the replacement for a space in a pre-tokenizer or decoder, or in one of its steps."""
    if part is None:
        return None
    state = json.loads(part.__getstate__())
    steps = [state, *state.get("pretokenizers", ()), *state.get("decoders", ())]
    for step in steps:
        if step["type"] == "ByteLevel":
            return _BYTE_LEVEL_SPACE
        if step["type"] == "Metaspace":
            return str(step["replacement"])
    return None
