"""Marks in the pieces of a vocabulary that say where a word begins.

WordPiece marks the pieces that go on with a word (``##ing``), byte-level BPE and SentencePiece those that begin one
(``Ġthe``, ``▁the``: the space before the word is part of the piece). A vocabulary of whole words marks neither.
"""

import json
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, pre_tokenizers


@dataclass(frozen=True, slots=True)
class MarkedContinuations:
    """Pieces with this prefix continue a word; all others begin one."""

    prefix: str

    def continues(self, piece: str) -> bool:
        """Test whether the piece continues the word before it."""
        return piece.startswith(self.prefix)

    def unmarked(self, text: str) -> str:
        """Remove the mark, which the decoder leaves on a word's first piece."""
        return text.removeprefix(self.prefix)


@dataclass(frozen=True, slots=True)
class MarkedBeginnings:
    """Pieces with this first character begin a word; all others continue one."""

    mark: str

    def continues(self, piece: str) -> bool:
        """Test whether the piece continues the word before it."""
        return not piece.startswith(self.mark)

    def unmarked(self, text: str) -> str:
        """Return the text: the decoder has turned the mark into a space."""
        return text


@dataclass(frozen=True, slots=True)
class WholeWords:
    """Each piece is a word."""

    def continues(self, piece: str) -> bool:
        """Return False: every piece begins a word."""
        del piece
        return False

    def unmarked(self, text: str) -> str:
        """Return the text, which has no marks."""
        return text


WordMarks = MarkedContinuations | MarkedBeginnings | WholeWords

_BYTE_LEVEL_SPACE = "Ġ"


def word_marks(tokenizer: tokenizers.Tokenizer) -> WordMarks:
    """Find the marks of a tokenizer's vocabulary."""
    model = tokenizer.model
    if isinstance(model, models.WordPiece):
        return MarkedContinuations(model.continuing_subword_prefix)
    if isinstance(model, models.WordLevel):
        return WholeWords()
    mark = _mark(tokenizer.pre_tokenizer) or _mark(tokenizer.decoder)
    return WholeWords() if mark is None else MarkedBeginnings(mark)


def _mark(part: pre_tokenizers.PreTokenizer | decoders.Decoder | None) -> str | None:
    """Return the replacement of a space in a pre-tokenizer or decoder, or a step of one."""
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
