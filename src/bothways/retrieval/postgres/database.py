"""Connections to a PostgreSQL database: transactions, lost connections, and errors without passwords."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, TypeVar

from bothways.errors import MissingDependency, OutOfDisk, StoreUnavailable
from bothways.retrieval.address import TableAddress

if TYPE_CHECKING:
    from psycopg import Connection, Cursor, Error

T = TypeVar("T")

# The classes of states in which the server ends a connection, or refuses all of them: on its way down or up.
_LOST = ("08", "57P")
# Searches of one index at the same time; further ones wait.
CONNECTIONS = 8


class Database:
    """A database that an index reads and changes, several threads at once; each change has a connection of its own.

    A pool of psycopg_pool would open connections in threads of its own, and answer a wrong password by a timeout.
    """

    def __init__(self, address: TableAddress) -> None:
        self.address = address
        # A thread that reads takes one; None stands for a connection that is not open. The last one used comes first.
        self._connections: LifoQueue[Connection | None] = LifoQueue()
        for _ in range(CONNECTIONS):
            self._connections.put(None)

    def read(self, function: "Callable[[Cursor], T]") -> T:
        """Call a function with a cursor of a read-only snapshot; call it again if the connection was lost.

        Raises:
            StoreUnavailable: The database cannot be reached, or refuses a statement.
            MissingDependency: psycopg is not installed.
        """
        connection = self._connections.get()
        try:
            with explained(self.address):
                if connection is not None and not connection.closed:
                    try:
                        return _in_snapshot(connection, function)
                    except _operational_error():
                        if not connection.closed:
                            raise
                # There is no connection yet, or the server has ended it, for example by a restart.
                connection = connect(self.address)
                return _in_snapshot(connection, function)
        finally:
            self._connections.put(connection)

    @contextmanager
    def writing(self) -> "Iterator[Cursor]":
        """Open a transaction, which is committed at the end, or rolled back after an error.

        Raises:
            StoreUnavailable: The database cannot be reached, refuses a statement, or lost the connection.
            OutOfDisk: The disk of the database is full.
            MissingDependency: psycopg is not installed.
        """
        with explained(self.address), connect(self.address) as connection, connection.transaction():
            cursor = connection.cursor()
            # Texts are embedded within the transaction, and an index of many vectors takes long.
            cursor.execute("set local statement_timeout = 0")
            cursor.execute("set local idle_in_transaction_session_timeout = 0")
            # If this process is killed, the server ends a long statement soon, and with it the lock on the index.
            cursor.execute(
                "select set_config(name, '2s', true) from pg_settings "
                "where name = 'client_connection_check_interval' and version() ~ 'linux'"
            )
            yield cursor

    def close(self) -> None:
        """Close the connections that no search is using; the next search opens one again."""
        idle = []
        with suppress(Empty):
            while True:
                idle.append(self._connections.get_nowait())
        for connection in idle:
            if connection is not None:
                connection.close()
            self._connections.put(None)

    def __del__(self) -> None:
        self.close()


def connect(address: TableAddress) -> "Connection":
    """Connect to the database of an address.

    Raises:
        StoreUnavailable: The database cannot be reached, or refuses the user.
        MissingDependency: psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingDependency.of("psycopg", extra="postgres", purpose="an index in PostgreSQL") from error
    try:
        # A plan that is made for all values of a LIMIT may leave the index of the vectors unused.
        return psycopg.connect(
            address.url,
            autocommit=True,
            prepare_threshold=None,
            fallback_application_name="bothways",
            client_encoding="utf8",
        )
    except psycopg.OperationalError as error:
        raise StoreUnavailable(
            f"cannot connect to {address.database}: {_one_line(error, address)}. Check that the server runs, and the "
            "address, the user and the password (of the URL, of $PGPASSWORD or of ~/.pgpass)."
        ) from None
    except psycopg.Error:
        # Such messages quote parts of the URL.
        raise StoreUnavailable(
            f"cannot connect to {address.database}: its port or its options are none that libpq knows. Check the URL."
        ) from None


@contextmanager
def explained(address: TableAddress) -> Iterator[None]:
    """Turn errors of psycopg into errors of this package."""
    try:
        yield
    except Exception as error:
        problem = _explanation(error, address)
        if problem is None:
            raise
        raise problem from error


def _explanation(error: Exception, address: TableAddress) -> OutOfDisk | StoreUnavailable | None:
    try:
        from psycopg import Error, OperationalError, errors
    except ImportError:
        return None
    match error:
        case errors.DiskFull():
            return OutOfDisk(f"the disk of {address.database} is full; nothing was written. Free some space there.")
        case OperationalError(sqlstate=state) if state is None or state.startswith(_LOST):
            return StoreUnavailable(
                f"lost the connection to {address.database}: {_one_line(error, address)}. An unfinished change is "
                "rolled back as a whole. Wait until the server runs, and try again."
            )
        case Error():
            may_not = isinstance(error, errors.InsufficientPrivilege)
            advice = " Use another user, or let the owner grant this one the right." if may_not else ""
            return StoreUnavailable(
                f"{address.database} refused a statement about the table {address.name!r}: "
                f"{_one_line(error, address)}. Nothing was changed.{advice}"
            )
    return None


def _one_line(error: "Error", address: TableAddress) -> str:
    """Return the words of the server, without our statement and those of the URL that are not shown."""
    parts = (error.diag.message_primary, error.diag.message_detail)
    words = " ".join(part if part.endswith(".") else f"{part}." for part in parts if part) or str(error)
    return " ".join(words.split()).rstrip(".?").replace(address.url, address.database)


def _operational_error() -> type[Exception]:
    from psycopg import OperationalError

    return OperationalError


def _in_snapshot(connection: "Connection", function: "Callable[[Cursor], T]") -> T:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("set transaction isolation level repeatable read, read only")
        return function(cursor)
