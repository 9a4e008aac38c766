"""Recipes, as data, for building a tokenizer from a checkpoint's vocabulary files and for placing special tokens.

A recipe is only needed in full if the checkpoint has no ``tokenizer.json``; otherwise it only gives the roles of
special tokens. The ready-made recipes at the end are the defaults of the model families; a
checkpoint's own ``tokenizer_config.json`` overrides them (``bothways.text.files``).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Role: TypeAlias = Literal["cls", "sep", "mask", "pad", "unk"]


@dataclass(frozen=True)
class SpecialToken:
    """A token that is matched before a text is split into words.

    With `lstrip` and `rstrip`, the match includes white space on its left or right. With `single_word`, it must be a
    whole word. With `normalized`, it is matched in the normalised text instead of the original.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens by role; ``None`` if a tokenizer has no such token.

    `cls` represents the whole text: first in every sequence, or last (XLNet). `sep` ends each text. `others` are
    more tokens that are never split.
    """

    cls: SpecialToken | None
    sep: SpecialToken | None
    mask: SpecialToken | None
    pad: SpecialToken | None
    unk: SpecialToken | None
    others: tuple[SpecialToken, ...] = ()

    def named(self) -> dict[Role, SpecialToken | None]:
        """Return the tokens by role, in the order of the fields."""
        return {"cls": self.cls, "sep": self.sep, "mask": self.mask, "pad": self.pad, "unk": self.unk}

    def all(self) -> tuple[SpecialToken, ...]:
        """Return every token, in the order of the fields."""
        return tuple(token for token in self.named().values() if token is not None) + self.others


def _tokens(
    cls: str, sep: str, mask: str, pad: str, unk: str, *, lstrip: bool = True, others: tuple[str, ...] = ()
) -> SpecialTokens:
    """Return special tokens without flags, except that a match of the mask usually includes the space before it."""
    around = SpecialToken(mask, lstrip=lstrip)
    named = (SpecialToken(cls), SpecialToken(sep), around, SpecialToken(pad), SpecialToken(unk))
    return SpecialTokens(*named, others=tuple(map(SpecialToken, others)))


BERT_TOKENS = _tokens("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", lstrip=False)
# RoBERTa and the models after it were trained with the space as part of the masked word.
DEBERTA_TOKENS = _tokens("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
ROBERTA_TOKENS = _tokens("<s>", "</s>", "<mask>", "<pad>", "<unk>")
ALBERT_TOKENS = _tokens("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>")
XLNET_TOKENS = _tokens("<cls>", "<sep>", "<mask>", "<pad>", "<unk>", others=("<s>", "</s>", "<eop>", "<eod>"))


@dataclass(frozen=True)
class Template:
    """Positions of the special tokens around one text and around a pair.

    Each item is a text (``$A``, ``$B``) or the role of a special token, followed by a colon and the token type.
    """

    single: tuple[str, ...]
    pair: tuple[str, ...]


BERT_TEMPLATE = Template(
    single=("cls:0", "$A:0", "sep:0"),
    pair=("cls:0", "$A:0", "sep:0", "$B:1", "sep:1"),
)
ROBERTA_TEMPLATE = Template(
    single=("cls:0", "$A:0", "sep:0"),
    pair=("cls:0", "$A:0", "sep:0", "sep:0", "$B:0", "sep:0"),
)
XLNET_TEMPLATE = Template(
    single=("$A:0", "sep:0", "cls:2"),
    pair=("$A:0", "sep:0", "$B:1", "sep:1", "cls:2"),
)


# The class of transformers that reads tokenizer.json without changes.
GENERIC_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True)
class WordPiece:
    """Greedy longest-match-first pieces (Devlin et al. 2019) from ``vocab.txt``, one token a line.

    Attributes:
        lowercase: Lower-case the text first (``do_lower_case``).
        strip_accents: Remove accents; ``None`` follows ``lowercase``.
        split_chinese: Make a word of each CJK character (``tokenize_chinese_chars``).
    """

    lowercase: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True
    special: SpecialTokens = BERT_TOKENS
    template: Template = BERT_TEMPLATE
    tokenizer_class: str = "BertTokenizer"

    files: ClassVar[tuple[str, ...]] = ("vocab.txt",)


@dataclass(frozen=True)
class ByteLevelBPE:
    """Byte-pair merges over UTF-8 bytes (Radford et al. 2019) from ``vocab.json`` and ``merges.txt``.

    Attributes:
        add_prefix_space: Put a space before the text, so that its first word gets the same pieces as elsewhere.
        trim_offsets: Exclude the space before a word from the token's offsets.
    """

    add_prefix_space: bool = False
    trim_offsets: bool = True
    special: SpecialTokens = ROBERTA_TOKENS
    template: Template = ROBERTA_TEMPLATE
    tokenizer_class: str = "RobertaTokenizer"

    files: ClassVar[tuple[str, ...]] = ("vocab.json", "merges.txt")


@dataclass(frozen=True)
class SpacedWords:
    """Words end at white space; only the character map of the model file changes the text."""


@dataclass(frozen=True)
class CleanedWords:
    """Words end at white space; quotes become ASCII, accents and capitals may be removed (XLNet, ALBERT)."""

    lowercase: bool
    keep_accents: bool = False


@dataclass(frozen=True)
class RunningText:
    """The whole text is split into pieces at once, without words; runs of spaces become one space (DeBERTa).

    `split_punctuation` makes a word of each punctuation mark (``split_by_punct``).
    """

    lowercase: bool = False
    split_punctuation: bool = False


Preparation: TypeAlias = SpacedWords | CleanedWords | RunningText


@dataclass(frozen=True)
class Unused:
    """A vocabulary entry that is no special token and that texts do not contain, with its score."""

    content: str
    score: float = 0.0


@dataclass(frozen=True)
class PieceOrder:
    """Numbering of the pieces of a model file as token ids.

    The head (roles of special tokens, and unused entries) replaces the first ``skipped`` pieces of the file; the tail
    follows the last piece.
    """

    head: tuple[Role | Unused, ...] = ()
    skipped: int = 0
    tail: tuple[Role, ...] = ()


@dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226), Unigram or BPE.

    Attributes:
        file: Name of the model file.
        special: The special tokens. A mask that the model file lacks gets the next free id.
        preparation: Treatment of the text before it is split into pieces.
        order: Numbering of the pieces as ids.
        split_digit_comma: Avoid pieces that end in a digit and a comma, as XLNet and ALBERT do.
        add_prefix_space: Put a space before the text, so that its first word gets the same pieces as elsewhere.
        padding_side: The side on which ``transformers`` pads.
    """

    file: str
    special: SpecialTokens
    template: Template
    tokenizer_class: str
    preparation: Preparation
    order: PieceOrder = PieceOrder()
    split_digit_comma: bool = False
    add_prefix_space: bool = True
    padding_side: Literal["left", "right"] = "right"

    @property
    def files(self) -> tuple[str, ...]:
        """Files that the tokenizer is built from."""
        return (self.file,)


@dataclass(frozen=True)
class TokenizerFileOnly:
    """A tokenizer that can only be read from ``tokenizer.json``.

    Attributes:
        reason: The reason, for error messages, such as "its vocabulary was published in no other form".
    """

    reason: str
    special: SpecialTokens = ROBERTA_TOKENS
    template: Template = ROBERTA_TEMPLATE
    tokenizer_class: str = GENERIC_CLASS

    files: ClassVar[tuple[str, ...]] = ()


TokenizerRecipe: TypeAlias = WordPiece | ByteLevelBPE | SentencePiece | TokenizerFileOnly
"""Every recipe has special tokens, their template, and the ``transformers`` class for the saved tokenizer."""

BERT = WordPiece()
ROBERTA = ByteLevelBPE()
# transformers 5 puts two [SEP] between the texts of a pair; the model was trained with one, as transformers 4 had it.
# A saved tokenizer names the class that reads tokenizer.json without changes, so that transformers 5 puts one too.
DEBERTA = ByteLevelBPE(
    trim_offsets=False,
    special=DEBERTA_TOKENS,
    template=BERT_TEMPLATE,
    tokenizer_class=GENERIC_CLASS,
)
XLM_ROBERTA = SentencePiece(
    file="sentencepiece.bpe.model",
    special=ROBERTA_TOKENS,
    template=ROBERTA_TEMPLATE,
    tokenizer_class="XLMRobertaTokenizer",
    preparation=SpacedWords(),
    order=PieceOrder(head=("cls", "pad", "sep", "unk"), skipped=3, tail=("mask",)),
)
CAMEMBERT = SentencePiece(
    file="sentencepiece.bpe.model",
    special=ROBERTA_TOKENS,
    template=ROBERTA_TEMPLATE,
    tokenizer_class="CamembertTokenizer",
    preparation=SpacedWords(),
    order=PieceOrder(
        head=(Unused("<s>NOTUSED"), "pad", Unused("</s>NOTUSED"), "unk", Unused("<unk>NOTUSED", -100.0)),
        skipped=1,
        tail=("mask",),
    ),
)
ALBERT = SentencePiece(
    file="spiece.model",
    special=ALBERT_TOKENS,
    template=BERT_TEMPLATE,
    tokenizer_class="AlbertTokenizer",
    preparation=CleanedWords(lowercase=True),
    split_digit_comma=True,
)
XLNET = SentencePiece(
    file="spiece.model",
    special=XLNET_TOKENS,
    template=XLNET_TEMPLATE,
    tokenizer_class="XLNetTokenizer",
    preparation=CleanedWords(lowercase=False),
    split_digit_comma=True,
    padding_side="left",
)
# The class in transformers 5 skips the model file's character map, with which DeBERTa was trained.
DEBERTA_V2 = SentencePiece(
    file="spm.model",
    special=BERT_TOKENS,
    template=BERT_TEMPLATE,
    tokenizer_class=GENERIC_CLASS,
    preparation=RunningText(),
)
MODERNBERT = TokenizerFileOnly(
    "its vocabulary was published in no other form", special=DEBERTA_TOKENS, template=BERT_TEMPLATE
)
# Tokenizers that `bothways.text.training` writes: any kind of vocabulary, with the special tokens of BERT.
TRAINED = TokenizerFileOnly("a tokenizer that was trained here has no other file", BERT_TOKENS, BERT_TEMPLATE)
