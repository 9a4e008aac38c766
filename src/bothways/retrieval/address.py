"""The address of an index in a database, such as ``postgresql://localhost/demo#docs``."""

import re
from dataclasses import dataclass, field
from typing import TypeGuard

from bothways.errors import InvalidInput

EXAMPLE = "postgresql://localhost/demo#docs"

# A scheme that is nearly ours is that of no folder: its path would be shown in errors, with the password.
_SCHEME = re.compile(r"p\w*://", re.IGNORECASE)
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?://)(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^@/?#]*))?@)?"
    r"(?P<place>[^@?#]*)(?:\?(?P<options>[^@?#]*))?"
)
_NAME = r"[^\W\d][\w$-]*"
_LONGEST = 63  # bytes of a name; PostgreSQL cuts longer ones off, so that two may be the same
_TABLE = re.compile(rf"(?:(?P<schema>{_NAME})\.)?(?P<table>{_NAME})")
# Options of a URL that are not shown.
_SECRET = ("password", "sslpassword")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table of a PostgreSQL database; ``str`` shows it without the password.

    Attributes:
        url: The URL of the database, with the password if it has one.
        database: The URL without the password.
        schema: The schema of the table; None for the first of the search path that has it.
        table: The name of the table.
    """

    url: str = field(repr=False)
    database: str
    schema: str | None
    table: str

    @classmethod
    def parse(cls, address: str) -> "TableAddress":
        """Parse an address; error messages show no part of it that may be a password.

        Raises:
            InvalidInput: The address is none of a table, or its parts are not percent-encoded where they have to be.
        """
        url, _, name = address.partition("#")
        found = _URL.fullmatch(url)
        table = _TABLE.fullmatch(name)
        if found is None or (table is None and re.search("[@/:?#]", name)):
            raise InvalidInput(
                "expected the address of a table, postgresql://user@host:port/database#table, such as "
                f"{EXAMPLE!r}, got another form, which is not shown because it may hold a password. Write the "
                "characters @ : / ? # of a user or password as %40 %3A %2F %3F %23."
            )
        shown = _without_password(found)
        if not name:
            raise InvalidInput(f"expected a table of {shown!r}, got none. Add its name: {f'{shown}#docs'!r}.")
        if table is None:
            raise InvalidInput(
                f"expected a table as table or schema.table, in letters, digits, - and _, got {name!r:.80}."
            )
        for part in name.split("."):
            if (length := len(part.encode("utf-8", "replace"))) > _LONGEST:
                raise InvalidInput(f"expected a name of at most {_LONGEST} bytes in UTF-8, got {length}: {part!r:.80}.")
        return cls(url, shown, table["schema"], table["table"])

    def __str__(self) -> str:
        return f"{self.database}#{self.name}"

    @property
    def name(self) -> str:
        """The name of the table, with its schema if that is known."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def is_database(address: object) -> TypeGuard[str]:
    """Return True for the address of a database, False for a folder.

    >>> is_database("postgresql://localhost/demo#docs"), is_database("index/")
    (True, False)
    """
    return isinstance(address, str) and _SCHEME.match(address) is not None


def shown_address(address: object) -> str:
    """Return a folder as it is, and the address of a database without its password.

    >>> shown_address("postgresql://me:secret@localhost/demo#docs")
    'postgresql://me@localhost/demo#docs'
    """
    return str(TableAddress.parse(str(address))) if is_database(address) else str(address)


def _without_password(found: re.Match[str]) -> str:
    user = f"{found['user']}@" if found["user"] else ""
    options = [each for each in (found["options"] or "").split("&") if each and each.partition("=")[0] not in _SECRET]
    return f"{found['scheme']}{user}{found['place']}{'?' if options else ''}{'&'.join(options)}"
