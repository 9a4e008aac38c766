"""Transactions on the table of an opened index, which check that it is still that index."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from bothways.errors import InvalidInput
from bothways.retrieval.address import TableAddress
from bothways.retrieval.postgres.database import Database
from bothways.retrieval.postgres.header import TableHeader, lock, read_header

if TYPE_CHECKING:
    from psycopg import Cursor

T = TypeVar("T")


class IndexSession:
    """The table of an opened index.

    Attributes:
        address: The address of the table.
        header: The comment on the table when it was opened.
    """

    def __init__(self, database: Database, header: TableHeader) -> None:
        self.address = database.address
        self.header = header
        self._database = database

    @classmethod
    def open(cls, address: TableAddress) -> "IndexSession":
        """Connect to the database and read the comment on the table; errors are those of `PostgresIndex.open`."""
        database = Database(address)
        return cls(database, database.read(lambda cursor: read_header(cursor, address)))

    def read(self, function: "Callable[[Cursor], T]") -> T:
        """Call a function with a cursor of a snapshot, again if the connection was lost, see `Database.read`."""

        def checked(cursor: "Cursor") -> T:
            self._check_header(cursor)
            return function(cursor)

        return self._database.read(checked)

    @contextmanager
    def changing(self) -> "Iterator[Cursor]":
        """Open a transaction that changes the table, see `Database.writing`; other processes cannot change it then.

        Raises:
            InvalidInput: Another process is changing the index, or built it again.
        """
        with self._database.writing() as cursor:
            lock(cursor, self.address)
            self._check_header(cursor)
            yield cursor

    def close(self) -> None:
        """Close the connections that no search is using; a later call opens one again."""
        self._database.close()

    def _check_header(self, cursor: "Cursor") -> None:
        """Raise InvalidInput if the table was built again in another way."""
        if read_header(cursor, self.address) != self.header:
            raise InvalidInput(
                f"the index {str(self.address)!r} was built again since it was opened, with another model or other "
                "options. Open it again."
            )
