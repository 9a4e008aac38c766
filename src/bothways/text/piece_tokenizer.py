"""A SentencePiece model rebuilt from the parts of the ``tokenizers`` library.

The ids are those that the model was trained with: SentencePiece's own on ordinary text, with what the family did to a
text before. White space that SentencePiece would keep or drop by its character map is treated as in the published
``tokenizer.json`` files.
"""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bothways.errors import UnsupportedConfig
from bothways.text.checks import checked, library_token, needed
from bothways.text.piece_model import Piece, PieceModel, read_piece_model
from bothways.text.recipes import CleanedWords, RunningText, SentencePiece, SpacedWords, Unused
from bothways.text.special_tokens import Role, SpecialToken

SPACE = "\u2581"

# So far below any log-probability that text is spelt otherwise, if all of its characters are known.
_NEVER = -1000.0
_DIGIT_COMMA = -100.0


def piece_tokenizer(path: Path, recipe: SentencePiece) -> tokenizers.Tokenizer:
    """Build a tokenizer from a SentencePiece model file, without the template for special tokens.

    Raises:
        MissingDependency: The extra ``spm`` is not installed.
        CorruptCheckpoint: The file is not such a model.
        UnsupportedConfig: It cuts text in a way that is not built.
    """
    model = read_piece_model(path)
    tokenizer = tokenizers.Tokenizer(_library_model(model, recipe, path))
    if steps := checked(path, lambda: _normalizers(recipe, model.charsmap)):
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_splitters(recipe))
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme=_prepend_scheme(recipe))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace]) if model.byte_fallback else metaspace
    # Those that the recipe names are declared with its flags.
    named = {token.content for token in recipe.special.all()}
    for piece in model.pieces:
        if piece.kind == "control" and piece.content not in named and tokenizer.token_to_id(piece.content) is not None:
            tokenizer.add_special_tokens([library_token(SpecialToken(piece.content), special=True)])
    return tokenizer


def _library_model(model: PieceModel, recipe: SentencePiece, path: Path) -> models.Model:
    vocabulary = _vocabulary(model, recipe, path)
    if model.algorithm == "unigram":
        unk_id = recipe.order.head.index("unk") if "unk" in recipe.order.head else model.unk_id
        return checked(path, lambda: models.Unigram(vocabulary, unk_id=unk_id, byte_fallback=model.byte_fallback))
    unk = needed(recipe.special, "unk", path).content
    ids = {content: number for number, (content, _) in enumerate(vocabulary)}
    merges = _merges(model, ids, path)
    return checked(
        path,
        lambda: models.BPE(vocab=ids, merges=merges, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback),
    )


def _vocabulary(model: PieceModel, recipe: SentencePiece, path: Path) -> list[tuple[str, float]]:
    """Return every token with its score, by rising id."""

    def entry(token: Role | Unused) -> tuple[str, float]:
        if isinstance(token, Unused):
            return token.content, token.score
        return needed(recipe.special, token, path).content, 0.0

    order = recipe.order
    pieces = [(piece.content, _score(piece, recipe)) for piece in model.pieces[order.skipped :]]
    return [*map(entry, order.head), *pieces, *map(entry, order.tail)]


def _score(piece: Piece, recipe: SentencePiece) -> float:
    if piece.kind in ("byte", "unused"):
        # SentencePiece never finds these in a text; the library looks for every entry.
        return _NEVER
    if recipe.split_digit_comma and piece.content.endswith(",") and piece.content[-2:-1].isdigit():
        return piece.score + _DIGIT_COMMA
    return piece.score


def _merges(model: PieceModel, ids: dict[str, int], path: Path) -> list[tuple[str, str]]:
    """Return all ways to join two pieces into a third, the best piece first.

    Raises:
        UnsupportedConfig: The model has pieces that are not made by merges.
    """
    if any(piece.kind == "user_defined" for piece in model.pieces):
        raise UnsupportedConfig(f"{path}: a SentencePiece model of type BPE with user-defined symbols is not built.")
    normal = sorted((piece for piece in model.pieces if piece.kind == "normal"), key=lambda piece: -piece.score)
    known = {piece.content for piece in normal}
    merges: list[tuple[str, str]] = []
    for piece in normal:
        cuts = [(piece.content[:cut], piece.content[cut:]) for cut in range(1, len(piece.content))]
        ways = [(left, right) for left, right in cuts if left in known and right in known]
        merges += sorted(ways, key=lambda way: (ids[way[0]], ids[way[1]]))
    return merges


def _normalizers(recipe: SentencePiece, charsmap: bytes) -> list[normalizers.Normalizer]:
    """Return the steps of normalisation, in order; one is the character map of the model file."""
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
            # Once more after the map, which makes spaces of other characters.
            spaces = [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
            return [*before, normalizers.Strip(), *mapped, *spaces]


def _splitters(recipe: SentencePiece) -> list[pre_tokenizers.PreTokenizer]:
    """Return the steps that split the text before the pieces do, in order."""
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
