"""Training of tokenizers on raw text: WordPiece, byte-level BPE and Unigram, with the library ``tokenizers``.

A trained tokenizer has the special tokens of BERT under ids 0 to 4 and is one file, ``tokenizer.json``, that
``transformers`` opens as well. It serves models of any family: the special tokens around a text are decided when
a model is pre-trained with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bothways.choices import TokenizerKind
from bothways.errors import InvalidInput
from bothways.storage import FolderKind
from bothways.text.files import CONFIG_FILE, SPECIAL_MAP_FILE, TOKENIZER_FILE, write_tokenizer
from bothways.text.recipes import TRAINED, Role

_FILES = frozenset({TOKENIZER_FILE, CONFIG_FILE, SPECIAL_MAP_FILE})
TOKENIZER = FolderKind("a tokenizer alone", _FILES, alone=True)

# In ascending order of the ids.
_SPECIAL: dict[Role, str] = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_AT_ONCE = 1000
_CONTINUED = "##"

# A vocabulary holds the special tokens and, for BPE, all bytes, or else the letters that are kept.
LEAST_VOCABULARY: Mapping[TokenizerKind, int] = {"wordpiece": 64, "bpe": 256 + len(_SPECIAL), "unigram": 64}
MOST_LETTERS = 1000
LONGEST_TEXT = 100_000


def train_tokenizer(
    texts: Iterable[str], kind: TokenizerKind, vocabulary: int, *, lowercase: bool | None = None
) -> tokenizers.Tokenizer:
    """Train a tokenizer on texts.

    The same texts in the same order give the same WordPiece or BPE tokenizer. Unigram's scores may differ in the third
    decimal from run to run, as the library sums them in no fixed order.

    Kinds are ``"wordpiece"`` (Schuster and Nakajima 2012; as BERT), ``"bpe"`` over bytes (Radford et al. 2019; as
    RoBERTa) and ``"unigram"`` (Kudo 2018, arXiv:1804.10959; as ALBERT, XLNet and DeBERTa-v3). WordPiece reads the texts
    twice, first to collect the letters. By default, only WordPiece removes capitals and accents. ``vocabulary``
    includes special tokens; the result is smaller if the texts do not yield that many.
    """
    check_vocabulary(kind, vocabulary)
    if kind == "wordpiece" and isinstance(texts, Iterator):
        raise InvalidInput("WordPiece reads the texts twice, got an iterator, which can be read once: give a list.")
    lowered = kind == "wordpiece" if lowercase is None else lowercase
    tokenizer = _TRAINED[kind](_Blocks(texts), vocabulary, lowered)
    tokenizer.add_special_tokens(_special_tokens(lstrip=kind != "wordpiece"))
    ids = [(_SPECIAL[role], tokenizer.token_to_id(_SPECIAL[role])) for role in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def check_vocabulary(kind: TokenizerKind, vocabulary: int) -> None:
    """Check that a vocabulary is large enough for the special tokens and the letters, or bytes."""
    if vocabulary < LEAST_VOCABULARY[kind]:
        raise InvalidInput(
            f"a {kind} tokenizer needs a vocabulary of at least {LEAST_VOCABULARY[kind]} tokens, got {vocabulary}."
        )


def write_trained_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Write a trained tokenizer into a folder, for `TextTokenizer.from_folder` and ``transformers``."""
    write_tokenizer(folder, tokenizer, TRAINED, {}, types=True)


class _Blocks:
    """An iterable of blocks of texts, with long texts split, for the trainers of the library."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        texts, words = iter(self._texts), False
        while block := list(islice(texts, _AT_ONCE)):
            words = words or any(text.strip() for text in block)
            # A text without a space would be one word of its whole length, which takes quadratic time.
            yield [text[at : at + LONGEST_TEXT] for text in block for at in range(0, len(text), LONGEST_TEXT)]
        if not words:
            raise InvalidInput("expected texts to learn a vocabulary from, but all of them are empty.")


def _special_tokens(*, lstrip: bool = False) -> list[AddedToken]:
    """Return the special tokens; with ``lstrip``, a match of the mask includes the space before it."""
    return [
        AddedToken(content, lstrip=lstrip and role == "mask", normalized=False, special=True)
        for role, content in _SPECIAL.items()
    ]


def _wordpiece(blocks: _Blocks, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    The library numbers the pieces ``##letter`` in the order of a hash table, and breaks ties by that number. Passing
    them in a fixed order, as temporary special tokens, makes the result reproducible.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=_SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUED)
    counts = Counter[str]()
    for block in blocks:
        counts.update(tokenizer.normalizer.normalize_str("\n".join(block)))
    common = sorted((letter for letter in counts if not letter.isspace()), key=lambda each: (-counts[each], each))
    letters = sorted(common[: min(MOST_LETTERS, vocabulary // 4)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*_special_tokens(), *(_CONTINUED + letter for letter in letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(blocks, trainer)
    tokens = tokenizer.get_vocab()
    tokenizer.model = models.WordPiece(vocab=tokens, unk_token=_SPECIAL["unk"], max_input_chars_per_word=100)
    # Special tokens cannot be removed from a tokenizer, so a new one is built without them.
    plain = tokenizers.Tokenizer(tokenizer.model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    plain.decoder = tokenizer.decoder
    return plain


def _byte_level(blocks: _Blocks, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([*_lowercased(lowercase), normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=_special_tokens(),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(blocks, trainer)
    return tokenizer


def _unigram(blocks: _Blocks, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), *_lowercased(lowercase), spaces]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=_special_tokens(), unk_token=_SPECIAL["unk"], show_progress=False
    )
    tokenizer.train_from_iterator(blocks, trainer)
    return tokenizer


def _lowercased(lowercase: bool) -> list[normalizers.Normalizer]:
    return [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()] if lowercase else []


_TRAINED: Mapping[TokenizerKind, Callable[[_Blocks, int, bool], tokenizers.Tokenizer]] = {
    "wordpiece": _wordpiece,
    "bpe": _byte_level,
    "unigram": _unigram,
}
