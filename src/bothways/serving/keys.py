"""API keys: named, read from a file, compared in constant time."""

import hmac
from collections.abc import Mapping
from pathlib import Path

from bothways.errors import InvalidInput
from bothways.reading import read_bytes
from bothways.serving.errors import Refused

_SHORTEST = 8
_MOST_BYTES = 1_000_000


class ApiKeys:
    """The API keys of a file with a ``name:key`` in each line; empty lines and lines that begin with # are skipped.

    Args:
        path: The file; None if the server needs no key.

    Raises:
        InvalidInput: The file cannot be read or has no key, a line is not ``name:key``, or a name occurs twice. No
            message has a key.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._keys: Mapping[str, bytes] = {} if path is None else _read(path)

    def reload(self) -> None:
        """Read the file again; if it is not usable, raise `InvalidInput` and keep the keys."""
        if self._path is not None:
            self._keys = _read(self._path)

    def name_of(self, authorization: str | None, header: str | None = None) -> str:
        """Return the name of the key in ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``; "" if none is needed."""
        if self._path is None:
            return ""
        scheme, _, token = (authorization or "").partition(" ")
        spelt = token.strip() if scheme.lower() == "bearer" else header or ""
        given = spelt.encode("latin-1", "replace")  # the bytes that came
        found = None
        for name, key in self._keys.items():  # all of them, so that the time does not tell which one is near
            if hmac.compare_digest(key, given):
                found = name
        if found is None:
            raise Refused(
                401,
                "expected an API key that this server knows, as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found


def _read(path: Path) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InvalidInput(f"the file of API keys cannot be read: {error.strerror}. Check its name.") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not colon or not name or len(key) < _SHORTEST:
            raise InvalidInput(
                f"line {number} of the API keys: expected name:key with a key of at least {_SHORTEST} characters."
            )
        if name in found:
            raise InvalidInput(f"line {number} of the API keys: the name {name!r} occurs twice.")
        found[name] = key.encode()
    if not found:
        raise InvalidInput("expected at least one name:key in the file of API keys, got none.")
    return found
