"""Checks on the way from files to a tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tokenizers

from bothways.errors import BothwaysError, CorruptCheckpoint
from bothways.text.special_tokens import Role, SpecialToken, SpecialTokens

_T = TypeVar("_T")


def checked(path: Path, read: Callable[[], _T]) -> _T:
    """Run ``read`` and turn the library's bare exceptions and panics into `CorruptCheckpoint`.

    Raises:
        CorruptCheckpoint: It did.
    """
    try:
        return read()
    except BaseException as error:
        # A panic in Rust code is no Exception, and its class cannot be imported.
        panic = type(error).__name__ == "PanicException"
        if isinstance(error, BothwaysError) or not (panic or isinstance(error, Exception)):
            raise
        raise CorruptCheckpoint(
            f"{path} is not a tokenizer file that can be read ({error}); fetch the checkpoint again."
        ) from error


def needed(special: SpecialTokens, role: Role, path: Path) -> SpecialToken:
    """Return the special token of this role.

    Raises:
        CorruptCheckpoint: The settings say that there is none.
    """
    token = special.named()[role]
    if token is None:
        raise CorruptCheckpoint(
            f"the tokenizer settings beside {path} say that there is no {role} token; it needs one."
        )
    return token


def token_id(tokenizer: tokenizers.Tokenizer, token: str, path: Path) -> int:
    """Return the id of a token that the tokenizer must have.

    Raises:
        CorruptCheckpoint: The vocabulary lacks it.
    """
    found = tokenizer.token_to_id(token)
    if found is None:
        raise CorruptCheckpoint(
            f"{path} has no token {token!r}, which the template needs: the file is truncated, "
            "or tokenizer_config.json does not name its special tokens."
        )
    return found


def library_token(token: SpecialToken, *, special: bool) -> tokenizers.AddedToken:
    """Convert a token to the library's type."""
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )
