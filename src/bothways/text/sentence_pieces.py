"""SentencePiece models: read from their files, and rebuilt from the parts of the ``tokenizers`` library.

The ids are those that the model was trained with: on ordinary text, those that SentencePiece gives after the family's
preparation of the text. White space is treated as in the published
``tokenizer.json`` files, even where SentencePiece's character map would treat it differently.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsupportedConfig
from bothways.text.files import checked, library_token, needed
from bothways.text.recipes import CleanedWords, Role, RunningText, SentencePiece, SpacedWords, SpecialToken, Unused

# Values of the enumerations ModelProto.SentencePiece.Type and TrainerSpec.ModelType of the file format.
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 3, 4, 5, 6
_UNIGRAM, _BPE = 1, 2


class _Piece(Protocol):
    """One entry of a model file. Its index is its id; U+2581 stands for a space.

    Its score is a log-probability (Unigram), or minus the index of the merge that formed it (BPE). Only
    normal and user-defined pieces occur in texts.
    """

    piece: str
    score: float
    type: int


class _Trainer(Protocol):
    """The settings of the training; with `byte_fallback`, text that no piece matches is split into bytes."""

    model_type: int
    unk_id: int
    byte_fallback: bool
    treat_whitespace_as_suffix: bool


class _Normalizer(Protocol):
    """The preparation of text; an empty `precompiled_charsmap` changes no character."""

    add_dummy_prefix: bool
    escape_whitespaces: bool
    precompiled_charsmap: bytes


class _ModelProto(Protocol):
    """A parsed model file. The classes of its format are generated code without type hints."""

    pieces: Sequence[_Piece]
    trainer_spec: _Trainer
    normalizer_spec: _Normalizer

    def SerializeToString(self) -> bytes: ...


def _checked_model(path: Path) -> _ModelProto:
    """Read and check a SentencePiece model file."""
    proto = _parsed(path)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise UnsupportedConfig(f"{path}: expected a Unigram or BPE model, got model type {trainer.model_type}.")
    if trainer.treat_whitespace_as_suffix or not (normalizer.add_dummy_prefix and normalizer.escape_whitespaces):
        raise UnsupportedConfig(
            f"{path}: expected a model that marks the space before a word, the first word included; this one has "
            f"treat_whitespace_as_suffix={trainer.treat_whitespace_as_suffix}, "
            f"add_dummy_prefix={normalizer.add_dummy_prefix}, escape_whitespaces={normalizer.escape_whitespaces}."
        )
    if not 0 <= trainer.unk_id < len(proto.pieces) or not all(math.isfinite(piece.score) for piece in proto.pieces):
        raise CorruptCheckpoint(
            f"{path}: expected finite scores, and an id below {len(proto.pieces)} for the unknown piece, got unk_id="
            f"{trainer.unk_id}: the file is truncated or altered. Fetch the checkpoint again."
        )
    return proto


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
        proto.SerializeToString()  # fails for text that is not UTF-8
    except (DecodeError, ValueError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a SentencePiece model that can be read ({error}); fetch the checkpoint again."
        ) from error
    return proto


SPACE = "\u2581"

# Far below any log-probability, so that other pieces are chosen wherever they can spell the text.
_NEVER = -1000.0
_DIGIT_COMMA = -100.0


def piece_tokenizer(path: Path, recipe: SentencePiece) -> tokenizers.Tokenizer:
    """Build a tokenizer from a SentencePiece model file, without the template for special tokens."""
    model = _checked_model(path)
    tokenizer = tokenizers.Tokenizer(_library_model(model, recipe, path))
    if steps := checked(path, lambda: _normalizers(recipe, model.normalizer_spec.precompiled_charsmap)):
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_splitters(recipe))
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme=_prepend_scheme(recipe))
    falls_back = model.trainer_spec.byte_fallback
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace]) if falls_back else metaspace
    # Special tokens of the recipe are declared with the recipe's flags.
    named = {token.content for token in recipe.special.all()}
    for piece in model.pieces:
        content = piece.piece
        if piece.type == _CONTROL and content not in named and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([library_token(SpecialToken(content), special=True)])
    return tokenizer


def _library_model(model: _ModelProto, recipe: SentencePiece, path: Path) -> models.Model:
    vocabulary, trainer = _vocabulary(model, recipe, path), model.trainer_spec
    if trainer.model_type == _UNIGRAM:
        unk_id = recipe.order.head.index("unk") if "unk" in recipe.order.head else trainer.unk_id
        return checked(path, lambda: models.Unigram(vocabulary, unk_id=unk_id, byte_fallback=trainer.byte_fallback))
    unk = needed(recipe.special, "unk", path).content
    ids = {content: number for number, (content, _) in enumerate(vocabulary)}
    merges = _merges(model, ids, path)
    return checked(
        path,
        lambda: models.BPE(vocab=ids, merges=merges, unk_token=unk, fuse_unk=True, byte_fallback=trainer.byte_fallback),
    )


def _vocabulary(model: _ModelProto, recipe: SentencePiece, path: Path) -> list[tuple[str, float]]:
    """Return every token with its score, in ascending order of the ids."""

    def entry(token: Role | Unused) -> tuple[str, float]:
        if isinstance(token, Unused):
            return token.content, token.score
        return needed(recipe.special, token, path).content, 0.0

    order = recipe.order
    pieces = [(piece.piece, _score(piece, recipe)) for piece in model.pieces[order.skipped :]]
    return [*map(entry, order.head), *pieces, *map(entry, order.tail)]


def _score(piece: _Piece, recipe: SentencePiece) -> float:
    if piece.type in (_BYTE, _UNUSED):
        # SentencePiece never finds these in a text, but the library looks for every entry.
        return _NEVER
    if recipe.split_digit_comma and piece.piece.endswith(",") and piece.piece[-2:-1].isdigit():
        return piece.score + _DIGIT_COMMA
    return piece.score


def _merges(model: _ModelProto, ids: dict[str, int], path: Path) -> list[tuple[str, str]]:
    """Return all ways to join two pieces into a third, the best piece first."""
    if any(piece.type == _USER_DEFINED for piece in model.pieces):
        raise UnsupportedConfig(
            f"{path}: SentencePiece models of type BPE with user-defined symbols are not supported."
        )
    pieces = sorted((piece for piece in model.pieces if piece.type == _NORMAL), key=lambda piece: -piece.score)
    normal = [piece.piece for piece in pieces]
    known = set(normal)
    merges: list[tuple[str, str]] = []
    for content in normal:
        cuts = [(content[:cut], content[cut:]) for cut in range(1, len(content))]
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
    """Return the steps that split the text into words before words are split into pieces, in order."""
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
