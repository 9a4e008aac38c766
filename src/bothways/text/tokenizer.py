"""Texts to token ids and back, without silent truncation.

A thin layer over the ``tokenizers`` library. A tokenizer never changes after its construction, so several threads may
use it at once; the library releases the interpreter lock while it works.

Memory: BPE and Unigram models cache the pieces of words, at most 10,000 words of under 256 bytes per model, so the
memory of a long-lived process levels off (tens of MB on ordinary text, at most 200 MB). A call's texts go
to the library in blocks of at most about two million characters, which bounds its temporary memory.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import tokenizers

from bothways.errors import CorruptCheckpoint, IncompatibleWeights, InvalidInput, UnknownModel
from bothways.text.building import WordMarks, build_tokenizer, framed, word_marks
from bothways.text.files import (
    CONFIG_FILE,
    SPECIAL_MAP_FILE,
    apply_settings,
    read_files,
    read_settings,
    write_tokenizer,
)
from bothways.text.recipes import GENERIC_CLASS, SpecialToken, Template, TokenizerFileOnly, TokenizerRecipe
from bothways.text.windows import (
    Cut,
    EncodedText,
    Overflow,
    Text,
    Window,
    WindowLimits,
    blocks,
    check_overflow,
    check_text,
    encoded_text,
)

__all__ = ["EncodedText", "Text", "TextTokenizer", "Window"]


class TextTokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        recipe: Its recipe, with the checkpoint's own settings applied.
        model_max_length: The length in ``tokenizer_config.json``, or ``None``. For information only:
            ``encode`` reads up to its own ``max_length``.
        special_ids: Ids of every special token.
        cls_is_last: True if the token that represents the whole text ends a sequence instead of beginning it.
        word_marks: The marks of pieces that begin or continue a word, such as ``##``.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        recipe: TokenizerRecipe,
        *,
        files: Mapping[str, bytes],
        model_max_length: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._files = dict(files)
        self._source: tuple[Path, TokenizerRecipe] | None = None
        self._special_count = {pair: tokenizer.num_special_tokens_to_add(pair) for pair in (False, True)}
        # Without a template, `encode_batch_fast` of the library loses the token types of pairs.
        self._has_template = tokenizer.post_processor is not None
        single, pair = tokenizer.encode(""), tokenizer.encode("", "")
        # The template has ids too, which may differ from those of the vocabulary.
        self._largest_id = max(*tokenizer.get_vocab(with_added_tokens=True).values(), *single.ids, *pair.ids, -1, -1)
        self._largest_types = max(single.type_ids, default=0), max(pair.type_ids, default=0)
        added = tokenizer.get_added_tokens_decoder().items()
        named = (tokenizer.token_to_id(token.content) for token in recipe.special.all())
        cls, ids = recipe.special.cls, single.ids
        self.cls_is_last = cls is not None and bool(ids) and tokenizer.token_to_id(cls.content) == ids[-1] != ids[0]
        self.recipe = recipe
        self.model_max_length = model_max_length
        self.word_marks: WordMarks = word_marks(tokenizer)
        self.special_ids: frozenset[int] = frozenset(
            [found for found in named if found is not None] + [number for number, token in added if token.special]
        )

    @classmethod
    def from_folder(cls, folder: Path, recipe: TokenizerRecipe) -> "TextTokenizer":
        """Read the tokenizer of a checkpoint folder.

        ``tokenizer.json`` is read if there is one; otherwise the recipe builds the tokenizer from its vocabulary
        files. Settings in ``tokenizer_config.json`` and ``special_tokens_map.json`` override both.

        Raises:
            UnknownModel: There is no such folder, or no tokenizer file in it.
            UnsupportedConfig: There is no ``tokenizer.json``, and a vocabulary file needs an unsupported feature.
            MissingDependency: A SentencePiece file must be read, but the extra ``spm`` is not installed.
            CorruptCheckpoint: A file is broken, or makes texts grow without bound.
        """
        if not folder.is_dir():
            raise UnknownModel(f"expected a checkpoint folder, but there is none at {str(folder)!r}.")
        files = read_files(folder)
        settings = read_settings(files)
        own = apply_settings(recipe, settings)
        tokenizer = build_tokenizer(folder, own, settings, files)
        made = cls(tokenizer, own, files=files, model_max_length=settings.model_max_length)
        made._source = (folder.absolute(), recipe)
        return made

    def with_template(self, template: Template) -> "TextTokenizer":
        """Return a tokenizer with the same vocabulary and another family's special tokens around a text."""
        if self.recipe.template == template:
            return self
        special = self.recipe.special
        recipe = TokenizerFileOnly("its special tokens were moved", special=special, template=template)
        return TextTokenizer(framed(self._tokenizer, recipe), recipe, files={})

    def __reduce__(self) -> tuple[Callable[..., "TextTokenizer"], tuple[object, ...]]:
        """Pickle only the folder's path and a checksum of its files if they are unchanged, else the whole tokenizer."""
        if self._source is not None and read_files(self._source[0]) == self._files:
            return _from_same_folder, (*self._source, _checksum(self._files))
        return reduce_whole(self)

    def vocabulary_digest(self) -> str:
        """Return the SHA-256 of all tokens in the order of their ids; equal digests mean equal ids."""
        ordered = sorted((number, token) for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items())
        return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()

    @property
    def encoding_digest(self) -> str:
        """SHA-256 of everything that determines the ids of a text without special tokens."""
        content = json.loads(self.to_json())
        del content["post_processor"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def cls_id(self) -> int:
        """Id of the token whose output represents the whole text: first in a sequence, or last (XLNet)."""
        return self._special_id("cls", self.recipe.special.cls)

    @property
    def sep_id(self) -> int:
        """Id of the token that ends a text."""
        return self._special_id("sep", self.recipe.special.sep)

    @property
    def mask_id(self) -> int:
        """Id of the mask token of masked language modelling."""
        return self._special_id("mask", self.recipe.special.mask)

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return self._special_id("pad", self.recipe.special.pad)

    @property
    def unk_id(self) -> int:
        """Id of the unknown token."""
        return self._special_id("unk", self.recipe.special.unk)

    def vocabulary(self) -> dict[int, str]:
        """Return every token by its id, added ones included."""
        return {number: token for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}

    def check_vocabulary(self, rows: int, types: int = 0) -> None:
        """Check that token ids are below ``rows`` and token types below ``types``, the sizes of a model's tables.

        With 0 types, any type is allowed. With 1, pairs, whose second text has type 1, are refused only on use.
        """
        single, pair = self._largest_types
        if types and (single >= types or pair >= max(types, 2)):
            raise IncompatibleWeights(
                f"the tokenizer's template uses types up to {max(single, pair)}, but the model has {types} types, "
                "counted from 0: the tokenizer and the weights are of different checkpoints."
            )
        if self._largest_id >= rows:
            raise IncompatibleWeights(
                f"the tokenizer's ids go up to {self._largest_id} ({self._tokenizer.id_to_token(self._largest_id)!r}), "
                f"but the model has {rows} embedding rows, for ids 0 to {rows - 1}: the tokenizer and the weights are "
                "of different checkpoints, or tokens were added without training rows for them."
            )

    def special_count(self, *, pair: bool) -> int:
        """Return the number of special tokens in a window of a text, or of a pair of texts."""
        return self._special_count[pair]

    def token(self, id: int) -> str:  # noqa: A002
        """Return the token with this id, as it stands in the vocabulary."""
        found = self._tokenizer.id_to_token(id) if id >= 0 else None
        if found is None:
            raise InvalidInput(f"no token has the id {id}: ids go from 0 to {self._largest_id}.")
        return found

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens with these ids, as they stand in the vocabulary."""
        return [self.token(number) for number in ids]

    def spellings(self, words: Sequence[Sequence[int]]) -> list[str]:
        """Decode the ids of words or parts of words, without surrounding white space or the mark ``##``.

        A byte-level token that holds only part of a character gives U+FFFD.
        """
        texts = self._tokenizer.decode_batch(list(map(list, words)), skip_special_tokens=True)
        return [self.word_marks.unmarked(text.strip()) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Decode ids to text; capitals, accents and spaces that the tokenizer removed are not restored."""
        numbers = [int(number) for number in ids]
        self.tokens(numbers)
        return self._tokenizer.decode(numbers, skip_special_tokens=skip_special)

    def encode(
        self,
        texts: Sequence[Text],
        *,
        max_length: int,
        on_overflow: Overflow = "window",
        stride: int | None = None,
        offsets: bool = False,
        first: int = 0,
        cut: Cut = "longer",
    ) -> list[EncodedText]:
        """Encode texts, or pairs of texts, with the special tokens that the model expects.

        Args:
            texts: Strings, or tuples of two strings. An empty string gives the special tokens alone.
            max_length: Maximum tokens of a window, special ones included.
            on_overflow: Policy for longer texts, see `bothways.text.windows`.
            stride: Tokens that neighbouring windows share. Default: a quarter of a window's text tokens.
            offsets: Also return the offsets, words and sequences of the tokens.
            first: Index of the first text, from 0, for error messages about a block of a longer list.
            cut: The text of a pair that is split into windows or truncated, see `bothways.text.windows`.

        Returns:
            One ``EncodedText`` for each text, in order.

        Raises:
            InvalidInput: A text is not a string or cannot be encoded as UTF-8, or an argument is out of range.
            TextTooLong: A text is too long and ``on_overflow`` is ``"error"``; or a window cannot hold tokens of
                both texts of a pair.
        """
        limits = WindowLimits(max_length, check_overflow(on_overflow), stride, offsets, cut)
        if isinstance(texts, str):
            raise InvalidInput("expected a sequence of texts, got one string: put it into a list.")
        texts = list(texts)
        pairs = [check_text(index, text) for index, text in enumerate(texts, start=first)]
        special = self._special_count[any(pairs)]
        room = max_length - special
        if room <= 0:
            raise InvalidInput(
                f"expected max_length above {special}, as a window holds {special} special tokens besides the text, "
                f"got {max_length}."
            )
        if stride is not None and not 0 <= stride < room:
            raise InvalidInput(
                f"expected stride from 0 to {room - 1}, as a window of {max_length} tokens holds {room} of the text, "
                f"got {stride}."
            )
        if offsets or (any(pairs) and not self._has_template):
            batch = self._tokenizer.encode_batch
        else:
            batch = self._tokenizer.encode_batch_fast
        encoded: list[EncodedText] = []
        for block in blocks(texts):
            for raw in batch(block):
                index, pair = first + len(encoded), pairs[len(encoded)]
                encoded.append(encoded_text(raw, limits, index=index, pair=pair, special=self._special_count[pair]))
        return encoded

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts without special tokens, not truncated or split into windows."""
        return [
            encoding.ids
            for block in blocks(texts)
            for encoding in self._tokenizer.encode_batch_fast(block, add_special_tokens=False)
        ]

    def to_json(self) -> str:
        """Return a ``tokenizer.json`` that gives the same ids to programs that read no other file.

        It includes the settings of the other files, and neither truncation nor padding.
        """
        content: str = self._tokenizer.to_str(pretty=False)
        return content

    def save(self, folder: Path, *, types: bool = False) -> None:
        """Write the tokenizer so that ``transformers.AutoTokenizer`` opens it with the same ids.

        Files that the tokenizer was read from are written unchanged; ``tokenizer.json``, ``tokenizer_config.json``
        and ``special_tokens_map.json`` are written if they were missing.

        Args:
            folder: The folder, created if missing; files of the same names in it are replaced.
            types: True for a model that reads token types; the tokenizer then returns them in ``transformers`` too.
        """
        write_tokenizer(folder, self._tokenizer, self.recipe, self._files, types=types)

    def _special_id(self, role: str, token: SpecialToken | None) -> int:
        found = None if token is None else self._tokenizer.token_to_id(token.content)
        if found is None:
            expected = "names none" if token is None else f"names {token.content!r}, which is not in the vocabulary"
            raise InvalidInput(f"this tokenizer has no {role} token: its configuration {expected}.")
        return found


def lowercased(tokenizer: TextTokenizer) -> TextTokenizer:
    """Return a tokenizer that converts texts to lower case before its other steps.

    It is saved for the generic class of ``transformers``, since the others build these steps themselves.
    """
    content = json.loads(tokenizer.to_json())
    normalizer = content["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    if {"type": "Lowercase"} in steps:
        return tokenizer
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    lowering = tokenizers.Tokenizer.from_str(json.dumps(content))
    kept = {name: stored for name, stored in tokenizer._files.items() if name in (CONFIG_FILE, SPECIAL_MAP_FILE)}
    if CONFIG_FILE in kept:
        gone = ("tokenizer_class", "do_lower_case")
        options = {name: value for name, value in json.loads(kept[CONFIG_FILE]).items() if name not in gone}
        kept[CONFIG_FILE] = json.dumps(options).encode()
    recipe = replace(tokenizer.recipe, tokenizer_class=GENERIC_CLASS)
    return TextTokenizer(lowering, recipe, files=kept, model_max_length=tokenizer.model_max_length)


def reduce_whole(tokenizer: TextTokenizer) -> tuple[Callable[..., TextTokenizer], tuple[object, ...]]:
    """Implement ``__reduce__`` with the whole content of a tokenizer, so that unpickling needs no folder."""
    make = partial(TextTokenizer, files=tokenizer._files, model_max_length=tokenizer.model_max_length)
    return make, (tokenizer._tokenizer, tokenizer.recipe)


def _from_same_folder(folder: Path, recipe: TokenizerRecipe, checksum: str) -> TextTokenizer:
    """Open the tokenizer of a folder, and check that its files are the same as when it was pickled."""
    tokenizer = TextTokenizer.from_folder(folder, recipe)
    if _checksum(tokenizer._files) != checksum:
        raise CorruptCheckpoint(
            f"this pickle refers to the tokenizer in {str(folder)!r}, whose files have changed since it was pickled. "
            "Restore the files, or open the model again and pickle it again."
        )
    return tokenizer


def _checksum(files: Mapping[str, bytes]) -> str:
    digests = sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files.items())
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
