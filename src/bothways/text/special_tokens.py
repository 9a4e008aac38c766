"""Tokens with a special role, and their places around a text."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["cls", "sep", "mask", "pad", "unk"]


@dataclass(frozen=True)
class SpecialToken:
    """A token that is matched before a text is split into words.

    The match includes the white space on its left or right with `lstrip` and `rstrip`. With `normalized` it is matched
    in the normalised text instead of the original.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens by role; ``None`` if a tokenizer has no such token.

    Attributes:
        cls: Its output stands for the whole text; first token of every sequence, or last (XLNet).
        sep: Ends each text.
        mask: Hides a token in masked language modelling.
        pad: Fills up a batch; unused by packed batches, but stored with the checkpoint.
        unk: Stands for text that the vocabulary cannot spell.
        others: Further tokens that are never split.
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

XLNET_TOKENS = SpecialTokens(
    cls=SpecialToken("<cls>"),
    sep=SpecialToken("<sep>"),
    mask=SpecialToken("<mask>", lstrip=True),
    pad=SpecialToken("<pad>"),
    unk=SpecialToken("<unk>"),
    others=tuple(map(SpecialToken, ("<s>", "</s>", "<eop>", "<eod>"))),
)

# As BERT's, but that the mask takes in the space before it.
MODERNBERT_TOKENS = replace(BERT_TOKENS, mask=SpecialToken("[MASK]", lstrip=True))
DEBERTA_TOKENS = replace(BERT_TOKENS, mask=SpecialToken("[MASK]", lstrip=True))


@dataclass(frozen=True)
class Template:
    """Places of the special tokens around one text and around a pair.

    Each item is the text (``$A``, ``$B``) or the role of a special token, a colon, and the token type.
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
