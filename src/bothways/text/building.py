"""From a checkpoint folder to the ``tokenizers`` library's tokenizer.

``tokenizer.json`` is used where there is one; otherwise the tokenizer is built from the vocabulary files as the recipe
says. Either way the truncation and padding that a file may carry are switched off, so nothing is cut unseen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bothways.errors import CorruptCheckpoint, UnknownModel, UnsupportedConfig
from bothways.text.recipes import ByteLevelBPE, Recipe, SpecialToken, TokenizerFileOnly, WordPiece
from bothways.text.settings import Settings

TOKENIZER_FILE = "tokenizer.json"

_SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "sentencepiece.model", "tokenizer.model")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Built:
    """A tokenizer that cuts and pads nothing.

    Attributes:
        tokenizer: The tokenizer.
        stored_length: The truncation length that ``tokenizer.json`` carried, for information.
    """

    tokenizer: tokenizers.Tokenizer
    stored_length: int | None


def build_tokenizer(folder: Path, recipe: Recipe, settings: Settings) -> Built:
    """Read or build the tokenizer of a checkpoint folder.

    Args:
        folder: The checkpoint.
        recipe: The recipe, with the settings already applied.
        settings: The checkpoint's settings; those that it states outright also overrule ``tokenizer.json``.

    Raises:
        UnknownModel: The folder has no tokenizer files.
        UnsupportedConfig: It has only files that this recipe cannot be built from.
        CorruptCheckpoint: A file is broken, or lacks a special token that the template needs.
    """
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = _read(folder / TOKENIZER_FILE)
        _overrule(tokenizer, recipe, settings)
    else:
        tokenizer = _build(folder, recipe)
        _add_tokens(tokenizer, settings)
    _declare_special(tokenizer, recipe)
    stored = tokenizer.truncation
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Built(tokenizer, int(stored["max_length"]) if stored else None)


def _read(path: Path) -> tokenizers.Tokenizer:
    tokenizer = _checked(path, lambda: tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
    # A template that names tokens which the file does not define is only noticed when it is used.
    _checked(path, lambda: (tokenizer.encode(""), tokenizer.encode("", "")))
    return tokenizer


def _build(folder: Path, recipe: Recipe) -> tokenizers.Tokenizer:
    """Build from vocabulary files, or say which were expected."""
    missing = [name for name in recipe.files if not (folder / name).is_file()]
    sentencepiece = [name for name in _SENTENCEPIECE_FILES if (folder / name).is_file()]
    match recipe:
        case WordPiece() if not missing:
            return _word_piece(folder, recipe)
        case ByteLevelBPE() if not missing:
            return _byte_level(folder, recipe)
        case TokenizerFileOnly(reason=reason) if sentencepiece:
            raise UnsupportedConfig(
                f"{folder} has {sentencepiece[0]} but no {TOKENIZER_FILE}: {reason}, and such files are not read yet. "
                f"Write a {TOKENIZER_FILE} into the folder, once, with transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
    expected = " or ".join([TOKENIZER_FILE, *([" + ".join(recipe.files)] if recipe.files else [])])
    raise UnknownModel(f"no tokenizer in {folder}: expected {expected}. Is this the folder of a checkpoint?")


def _word_piece(folder: Path, recipe: WordPiece) -> tokenizers.Tokenizer:
    """The BERT tokenizer: clean, split at white space and punctuation, then word pieces."""
    path = folder / "vocab.txt"
    unk = _needed(recipe.special.unk, "unk", path)
    model = _checked(path, lambda: models.WordPiece.from_file(str(path), unk_token=unk))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=recipe.split_chinese,
        strip_accents=recipe.strip_accents,
        lowercase=recipe.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    cls, sep = _needed(recipe.special.cls, "cls", path), _needed(recipe.special.sep, "sep", path)
    ids = {token: _id(tokenizer, token, path) for token in (unk, cls, sep)}
    tokenizer.post_processor = processors.TemplateProcessing(
        # Given as lists: inside one string a token with a space would be taken apart.
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    return tokenizer


def _byte_level(folder: Path, recipe: ByteLevelBPE) -> tokenizers.Tokenizer:
    """The RoBERTa tokenizer: GPT-2's byte-level merges with ``<s>`` and ``</s>`` around."""
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    # Empty affixes, not absent ones: what RoBERTa's own files say.
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    model = _checked(vocab, lambda: models.BPE.from_file(str(vocab), str(merges), fuse_unk=False, **affixes))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=recipe.add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    cls, sep = _needed(recipe.special.cls, "cls", vocab), _needed(recipe.special.sep, "sep", vocab)
    tokenizer.post_processor = processors.RobertaProcessing(
        (sep, _id(tokenizer, sep, vocab)),
        (cls, _id(tokenizer, cls, vocab)),
        trim_offsets=recipe.trim_offsets,
        add_prefix_space=recipe.add_prefix_space,
    )
    return tokenizer


def _overrule(tokenizer: tokenizers.Tokenizer, recipe: Recipe, settings: Settings) -> None:
    """Let options that ``tokenizer_config.json`` states win over ``tokenizer.json``, as ``transformers`` does."""
    match recipe, tokenizer.normalizer, tokenizer.pre_tokenizer:
        case WordPiece(), normalizers.BertNormalizer() as normalizer, _:
            if "do_lower_case" in settings.options:
                normalizer.lowercase = recipe.lowercase
            if "strip_accents" in settings.options:
                normalizer.strip_accents = recipe.strip_accents
            if "tokenize_chinese_chars" in settings.options:
                normalizer.handle_chinese_chars = recipe.split_chinese
        case ByteLevelBPE(), _, pre_tokenizers.ByteLevel() as splitter:
            if "add_prefix_space" in settings.options:
                splitter.add_prefix_space = recipe.add_prefix_space


def _add_tokens(tokenizer: tokenizers.Tokenizer, settings: Settings) -> None:
    """Add the checkpoint's further tokens, and check that each gets the id that the checkpoint gives it."""
    for added in settings.added:
        tokenizer.add_tokens([_library_token(added.token, special=added.special)])
        if (given := tokenizer.token_to_id(added.token.content)) != added.id:
            raise CorruptCheckpoint(
                f"the tokenizer settings give the added token {added.token.content!r} the id {added.id}, but after "
                f"the vocabulary it comes to {given}: the vocabulary and the settings are of different checkpoints."
            )


def _declare_special(tokenizer: tokenizers.Tokenizer, recipe: Recipe) -> None:
    """Have special tokens of the vocabulary found whole in a text; none gets a new id by this."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in recipe.special.all():
        if token.content not in known and tokenizer.token_to_id(token.content) is not None:
            tokenizer.add_special_tokens([_library_token(token, special=True)])


def _library_token(token: SpecialToken, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )


def _needed(token: SpecialToken | None, role: str, path: Path) -> str:
    if token is None:
        raise CorruptCheckpoint(
            f"the tokenizer settings beside {path} say that there is no {role} token; it needs one."
        )
    return token.content


def _id(tokenizer: tokenizers.Tokenizer, token: str, path: Path) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise CorruptCheckpoint(
            f"{path} has no token {token!r}, which the template needs: the file is truncated, "
            "or tokenizer_config.json does not name its special tokens."
        )
    return found


def _checked(path: Path, read: Callable[[], _T]) -> _T:
    """Run ``read``; the library raises a bare ``Exception`` whatever is wrong with a file, or panics."""
    try:
        return read()
    except BaseException as error:
        # A panic in Rust code is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CorruptCheckpoint(
            f"{path} is not a tokenizer file that can be read ({error}); fetch the checkpoint again."
        ) from error
