"""How a tokenizer is built from a checkpoint's vocabulary files, as data.

A recipe is only needed in full when the checkpoint has no ``tokenizer.json``; when it has one, the recipe says which
tokens play which special part. The ready-made recipes at the end are the defaults of the model families; a
checkpoint's own ``tokenizer_config.json`` overrides them (``bothways.text.settings``).
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True)
class SpecialToken:
    """A token that is found in a text before the text is split into words.

    Attributes:
        content: The token as it stands in the vocabulary.
        lstrip: Whether the match takes in the white space on its left.
        rstrip: Whether the match takes in the white space on its right.
        single_word: Whether it matches only as a whole word.
        normalized: Whether it is looked for in the normalised text instead of the original.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that play a part of their own; ``None`` where a tokenizer has no such token.

    Attributes:
        cls: First token of every sequence; its output stands for the whole text.
        sep: Ends each text.
        mask: Hides a token in masked language modelling.
        pad: Fills a batch up; unused by packed batches, but known to the checkpoint.
        unk: Stands for what the vocabulary cannot spell.
        others: Further tokens that are never split.
    """

    cls: SpecialToken | None
    sep: SpecialToken | None
    mask: SpecialToken | None
    pad: SpecialToken | None
    unk: SpecialToken | None
    others: tuple[SpecialToken, ...] = ()

    def all(self) -> tuple[SpecialToken, ...]:
        """Every token that is there, in the order of the fields."""
        named = (self.cls, self.sep, self.mask, self.pad, self.unk)
        return tuple(token for token in named if token is not None) + self.others


BERT_TOKENS = SpecialTokens(
    cls=SpecialToken("[CLS]"),
    sep=SpecialToken("[SEP]"),
    mask=SpecialToken("[MASK]"),
    pad=SpecialToken("[PAD]"),
    unk=SpecialToken("[UNK]"),
)

# The mask takes in the space before it: RoBERTa was trained with the space as part of the hidden word.
ROBERTA_TOKENS = SpecialTokens(
    cls=SpecialToken("<s>"),
    sep=SpecialToken("</s>"),
    mask=SpecialToken("<mask>", lstrip=True),
    pad=SpecialToken("<pad>"),
    unk=SpecialToken("<unk>"),
)

ALBERT_TOKENS = SpecialTokens(
    cls=SpecialToken("[CLS]"),
    sep=SpecialToken("[SEP]"),
    mask=SpecialToken("[MASK]", lstrip=True),
    pad=SpecialToken("<pad>"),
    unk=SpecialToken("<unk>"),
)


@dataclass(frozen=True)
class WordPiece:
    """Greedy longest-match-first pieces (Devlin et al. 2019) from ``vocab.txt``, one token a line.

    Template: ``[CLS] a [SEP]``, and for a pair ``[CLS] a [SEP] b [SEP]`` with token type 1 from ``b`` on.

    Attributes:
        lowercase: Lower-case the text first (``do_lower_case``).
        strip_accents: Remove accents; ``None`` follows ``lowercase``.
        split_chinese: Make a word of each CJK character (``tokenize_chinese_chars``).
        special: The special tokens.
        tokenizer_class: The class that ``transformers`` opens a saved tokenizer with.
    """

    lowercase: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True
    special: SpecialTokens = BERT_TOKENS
    tokenizer_class: str = "BertTokenizer"

    files: ClassVar[tuple[str, ...]] = ("vocab.txt",)


@dataclass(frozen=True)
class ByteLevelBPE:
    """Byte-pair merges over UTF-8 bytes (Radford et al. 2019) from ``vocab.json`` and ``merges.txt``.

    Template: ``<s> a </s>``, and for a pair ``<s> a </s></s> b </s>``; every token type is 0.

    Attributes:
        add_prefix_space: Put a space before the text, so that its first word is spelt as any other.
        trim_offsets: Leave the space that belongs to a token out of its offsets.
        special: The special tokens.
        tokenizer_class: The class that ``transformers`` opens a saved tokenizer with.
    """

    add_prefix_space: bool = False
    trim_offsets: bool = True
    special: SpecialTokens = ROBERTA_TOKENS
    tokenizer_class: str = "RobertaTokenizer"

    files: ClassVar[tuple[str, ...]] = ("vocab.json", "merges.txt")


@dataclass(frozen=True)
class TokenizerFileOnly:
    """A tokenizer that is read from ``tokenizer.json`` and cannot be built from its other files.

    Attributes:
        reason: Why, as a clause: "its vocabulary is a SentencePiece model".
        special: The special tokens.
        tokenizer_class: The class that ``transformers`` opens a saved tokenizer with.
    """

    reason: str
    special: SpecialTokens = ROBERTA_TOKENS
    tokenizer_class: str = "PreTrainedTokenizerFast"

    files: ClassVar[tuple[str, ...]] = ()


Recipe: TypeAlias = WordPiece | ByteLevelBPE | TokenizerFileOnly

BERT = WordPiece()
ROBERTA = ByteLevelBPE()
XLM_ROBERTA = TokenizerFileOnly("the XLM-RoBERTa vocabulary is a SentencePiece model (sentencepiece.bpe.model)")
CAMEMBERT = TokenizerFileOnly("the CamemBERT vocabulary is a SentencePiece model (sentencepiece.bpe.model)")
ALBERT = TokenizerFileOnly("the ALBERT vocabulary is a SentencePiece model (spiece.model)", special=ALBERT_TOKENS)
