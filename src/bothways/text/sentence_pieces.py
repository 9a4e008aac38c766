"""SentencePiece models: read from their files, and rebuilt from the parts of the ``tokenizers`` library.

The ids are those that the model was trained with: SentencePiece's own on ordinary text, after the family's
preparation of the text. White space that SentencePiece would keep or drop by its character map is treated as in the
published ``tokenizer.json`` files.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsupportedConfig
from bothways.text.files import checked, library_token, needed
from bothways.text.recipes import CleanedWords, Role, RunningText, SentencePiece, SpacedWords, SpecialToken, Unused

PieceKind: TypeAlias = Literal["normal", "unknown", "control", "user_defined", "unused", "byte"]
Algorithm: TypeAlias = Literal["unigram", "bpe"]

# Numbers of the enumerations ModelProto.SentencePiece.Type and TrainerSpec.ModelType of the file format.
_KINDS: dict[int, PieceKind] = {1: "normal", 2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte"}
_ALGORITHMS: dict[int, Algorithm] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of a model file; U+2581 stands for a space.

    Its score is a log-probability (Unigram), or minus the number of the merge that made it (BPE). Texts produce normal
    and user-defined pieces.
    """

    content: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class PieceModel:
    """A model file; an entry's place is its id.

    With `byte_fallback`, text that no piece spells is spelt byte by byte instead of by `unk_id`. An empty `charsmap`
    leaves text unchanged.
    """

    pieces: tuple[Piece, ...]
    algorithm: Algorithm
    unk_id: int
    byte_fallback: bool
    charsmap: bytes


def read_piece_model(path: Path) -> PieceModel:
    """Read a SentencePiece model file."""
    proto = _parsed(path)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type not in _ALGORITHMS:
        raise UnsupportedConfig(f"{path}: expected a Unigram or BPE model, got model type {trainer.model_type}.")
    if trainer.treat_whitespace_as_suffix or not (normalizer.add_dummy_prefix and normalizer.escape_whitespaces):
        raise UnsupportedConfig(
            f"{path}: expected a model that marks the space before a word, the first word included; this one has "
            f"treat_whitespace_as_suffix={trainer.treat_whitespace_as_suffix}, "
            f"add_dummy_prefix={normalizer.add_dummy_prefix}, escape_whitespaces={normalizer.escape_whitespaces}."
        )
    pieces = tuple(Piece(entry.piece, entry.score, _KINDS[entry.type]) for entry in proto.pieces)
    if not 0 <= trainer.unk_id < len(pieces) or not all(math.isfinite(piece.score) for piece in pieces):
        raise CorruptCheckpoint(
            f"{path}: expected finite scores, and an id below {len(pieces)} for the unknown piece, got unk_id="
            f"{trainer.unk_id}: the file is truncated or altered. Fetch the checkpoint again."
        )
    return PieceModel(
        pieces, _ALGORITHMS[trainer.model_type], trainer.unk_id, trainer.byte_fallback, normalizer.precompiled_charsmap
    )


class _Entry(Protocol):
    piece: str
    score: float
    type: int


class _Trainer(Protocol):
    model_type: int
    unk_id: int
    byte_fallback: bool
    treat_whitespace_as_suffix: bool


class _Normalizer(Protocol):
    add_dummy_prefix: bool
    escape_whitespaces: bool
    precompiled_charsmap: bytes


class _ModelProto(Protocol):
    """A model file in the classes of its format, which are generated and have no types."""

    pieces: Sequence[_Entry]
    trainer_spec: _Trainer
    normalizer_spec: _Normalizer

    def SerializeToString(self) -> bytes: ...


def _parsed(path: Path) -> _ModelProto:
    purpose = f"reading {path.name}"
    try:
        from google.protobuf.message import DecodeError
        from google.protobuf.runtime_version import VersionError
    except ImportError as error:
        raise MissingDependency.of("protobuf", extra="spm", purpose=purpose) from error
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise MissingDependency.of("sentencepiece", extra="spm", purpose=purpose) from error
    except VersionError as error:
        raise MissingDependency(
            f"{purpose} needs a newer protobuf than the installed one ({error}): pip install -U 'bothways[spm]'"
        ) from error
    try:
        proto: _ModelProto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
        proto.SerializeToString()  # meets text that is not UTF-8
    except (DecodeError, ValueError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a SentencePiece model that can be read ({error}); fetch the checkpoint again."
        ) from error
    return proto


SPACE = "\u2581"

# Far below any log-probability, so that other pieces spell the text if all of its characters are known.
_NEVER = -1000.0
_DIGIT_COMMA = -100.0


def piece_tokenizer(path: Path, recipe: SentencePiece) -> tokenizers.Tokenizer:
    """Build a tokenizer from a SentencePiece model file, without the template for special tokens."""
    model = read_piece_model(path)
    tokenizer = tokenizers.Tokenizer(_library_model(model, recipe, path))
    if steps := checked(path, lambda: _normalizers(recipe, model.charsmap)):
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_splitters(recipe))
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme=_prepend_scheme(recipe))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace]) if model.byte_fallback else metaspace
    # Special tokens of the recipe are declared with the recipe's flags.
    named = {token.content for token in recipe.special.all()}
    for piece in model.pieces:
        if piece.kind == "control" and piece.content not in named and tokenizer.token_to_id(piece.content) is not None:
            tokenizer.add_special_tokens([library_token(SpecialToken(piece.content), special=True)])
    return tokenizer


def _library_model(model: PieceModel, recipe: SentencePiece, path: Path) -> models.Model:
    vocabulary = _vocabulary(model, recipe, path)
    if model.algorithm == "unigram":
        unk_id = recipe.order.head.index("unk") if "unk" in recipe.order.head else model.unk_id
        return checked(path, lambda: models.Unigram(vocabulary, unk_id=unk_id, byte_fallback=model.byte_fallback))
    unk = needed(recipe.special, "unk", path).content
    ids = {content: number for number, (content, _) in enumerate(vocabulary)}
    merges = _merges(model, ids, path)
    return checked(
        path,
        lambda: models.BPE(vocab=ids, merges=merges, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback),
    )


def _vocabulary(model: PieceModel, recipe: SentencePiece, path: Path) -> list[tuple[str, float]]:
    """Return every token with its score, by rising id."""

    def entry(token: Role | Unused) -> tuple[str, float]:
        if isinstance(token, Unused):
            return token.content, token.score
        return needed(recipe.special, token, path).content, 0.0

    order = recipe.order
    pieces = [(piece.content, _score(piece, recipe)) for piece in model.pieces[order.skipped :]]
    return [*map(entry, order.head), *pieces, *map(entry, order.tail)]


def _score(piece: Piece, recipe: SentencePiece) -> float:
    if piece.kind in ("byte", "unused"):
        # SentencePiece never finds these in a text; the library looks for every entry.
        return _NEVER
    if recipe.split_digit_comma and piece.content.endswith(",") and piece.content[-2:-1].isdigit():
        return piece.score + _DIGIT_COMMA
    return piece.score


def _merges(model: PieceModel, ids: dict[str, int], path: Path) -> list[tuple[str, str]]:
    """Return all ways to join two pieces into a third, the best piece first."""
    if any(piece.kind == "user_defined" for piece in model.pieces):
        raise UnsupportedConfig(
            f"{path}: SentencePiece models of type BPE with user-defined symbols are not supported."
        )
    normal = sorted((piece for piece in model.pieces if piece.kind == "normal"), key=lambda piece: -piece.score)
    known = {piece.content for piece in normal}
    merges: list[tuple[str, str]] = []
    for piece in normal:
        cuts = [(piece.content[:cut], piece.content[cut:]) for cut in range(1, len(piece.content))]
        ways = [(left, right) for left, right in cuts if left in known and right in known]
        merges += sorted(ways, key=lambda way: (ids[way[0]], ids[way[1]]))
    return merges


def _normalizers(recipe: SentencePiece, charsmap: bytes) -> list[normalizers.Normalizer]:
    """Return the steps of normalisation in order, one of which is the character map of the model file."""
    mapped: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    match recipe.preparation:
        case SpacedWords():
            return mapped
        case CleanedWords(lowercase=lowercase, keep_accents=keep_accents):
            quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
            accents = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
            return [*quotes, *accents, *([normalizers.Lowercase()] if lowercase else []), *mapped]
        case RunningText(lowercase=lowercase):
            before = [normalizers.Lowercase()] if lowercase else []
            # Repeated after the character map, which turns other characters into spaces.
            spaces = [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
            return [*before, normalizers.Strip(), *mapped, *spaces]


def _splitters(recipe: SentencePiece) -> list[pre_tokenizers.PreTokenizer]:
    """Return the steps that split the text before the pieces do, in order."""
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=_prepend_scheme(recipe))
    match recipe.preparation:
        case SpacedWords() | CleanedWords():
            return [pre_tokenizers.WhitespaceSplit(), metaspace]
        case RunningText(split_punctuation=True):
            return [pre_tokenizers.Punctuation(behavior="isolated"), metaspace]
        case RunningText():
            return [metaspace]


def _prepend_scheme(recipe: SentencePiece) -> str:
    if recipe.add_prefix_space:
        return "always"
    return "first" if isinstance(recipe.preparation, RunningText) else "never"
