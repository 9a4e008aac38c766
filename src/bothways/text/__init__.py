"""Text in and out: tokenizers on top of the ``tokenizers`` library, windows over long texts.

The names are imported when they are first used (PEP 562), so that starting up loads only what is needed.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.text.characters import behind_marks, is_mark
    from bothways.text.comparison import CutWord, TokenizerSummary, compare_tokenizers, text_pieces
    from bothways.text.frames import Frame
    from bothways.text.recipes import ByteLevelBPE, SentencePiece, TokenizerFileOnly, TokenizerRecipe, WordPiece
    from bothways.text.tokenizer import TextTokenizer
    from bothways.text.windows import Cut, EncodedText, Overflow, Places, Text, Window, check_length, check_overflow
    from bothways.text.words import ReadWords, Words, WordStarts, blanked_in_front, read_as_words, word_spans

__all__ = [
    "ByteLevelBPE",
    "Cut",
    "CutWord",
    "EncodedText",
    "Frame",
    "Overflow",
    "Places",
    "ReadWords",
    "SentencePiece",
    "Text",
    "TextTokenizer",
    "TokenizerFileOnly",
    "TokenizerRecipe",
    "TokenizerSummary",
    "Window",
    "WordPiece",
    "WordStarts",
    "Words",
    "behind_marks",
    "blanked_in_front",
    "check_length",
    "check_overflow",
    "compare_tokenizers",
    "is_mark",
    "read_as_words",
    "text_pieces",
    "word_spans",
]

_MODULES = {
    "characters": ("behind_marks", "is_mark"),
    "comparison": ("CutWord", "TokenizerSummary", "compare_tokenizers", "text_pieces"),
    "frames": ("Frame",),
    "recipes": ("ByteLevelBPE", "SentencePiece", "TokenizerFileOnly", "TokenizerRecipe", "WordPiece"),
    "tokenizer": ("TextTokenizer",),
    "windows": ("Cut", "EncodedText", "Overflow", "Places", "Text", "Window", "check_length", "check_overflow"),
    "words": ("ReadWords", "Words", "WordStarts", "blanked_in_front", "read_as_words", "word_spans"),
}
__getattr__ = loader(__name__, _MODULES)
