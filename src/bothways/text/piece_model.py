"""The contents of a SentencePiece model file: pieces with their scores, and the normalisation before them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsupportedConfig

PieceKind: TypeAlias = Literal["normal", "unknown", "control", "user_defined", "unused", "byte"]
Algorithm: TypeAlias = Literal["unigram", "bpe"]

# Numbers of the enumerations ModelProto.SentencePiece.Type and TrainerSpec.ModelType of the file format.
_KINDS: dict[int, PieceKind] = {1: "normal", 2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte"}
_ALGORITHMS: dict[int, Algorithm] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of a model file.

    Attributes:
        content: Its characters; U+2581 stands for a space.
        score: Log-probability (Unigram), or minus the number of the merge that made it (BPE).
        kind: Whether text may come to it (normal, user_defined), and if not, what it is for.
    """

    content: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class PieceModel:
    """A model file.

    Attributes:
        pieces: All entries; an entry's place is its id in the file.
        algorithm: How text is cut into pieces.
        unk_id: The id that stands for what no piece spells.
        byte_fallback: Whether that is spelt byte by byte instead.
        charsmap: The compiled character map, empty where text is left as it is.
    """

    pieces: tuple[Piece, ...]
    algorithm: Algorithm
    unk_id: int
    byte_fallback: bool
    charsmap: bytes


def read_piece_model(path: Path) -> PieceModel:
    """Read a SentencePiece model file.

    Raises:
        MissingDependency: The extra ``spm`` is not installed.
        CorruptCheckpoint: The file is not such a model.
        UnsupportedConfig: It cuts text in a way that is not built.
    """
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
            f"{path} has {len(pieces)} pieces, of which number {trainer.unk_id} should stand for unknown text, all "
            "with a finite score: it is truncated or altered. Fetch the checkpoint again."
        )
    return PieceModel(
        pieces, _ALGORITHMS[trainer.model_type], trainer.unk_id, trainer.byte_fallback, normalizer.precompiled_charsmap
    )


def _parsed(path: Path) -> Any:  # noqa: ANN401 (generated classes have no types)
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
        proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
        proto.SerializeToString()  # meets text that is not UTF-8
    except (DecodeError, ValueError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a SentencePiece model that can be read ({error}); fetch the checkpoint again."
        ) from error
    return proto
