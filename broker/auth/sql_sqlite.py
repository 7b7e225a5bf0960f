"""A file of SQLite with users, opened for reading only."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from ..config.placeholders import Template
from ..config.sql_url import SqlUrl
from ..errors import ConfigError
from .connections import Connections, Lost, Refused
from .sql_database import MAX_ROWS, Rows, Value

STEPS = 100_000  # of SQLite's machine, some milliseconds, after which it looks at the clock


class Sqlite:
    """A file of SQLite.

    Args:
        url: as configured.
        password: unused: a file has none.
        timeout: of a call, in seconds.

    Raises:
        ConfigError: the file is missing, or can't be read.
    """

    def __init__(self, url: str, password: str, timeout: float) -> None:
        self.place = url
        self._path = Path(SqlUrl.parse(url).database)
        self._timeout = timeout
        self._connections = Connections(self._connect, sqlite3.Connection.close)
        try:
            self._path.open("rb").close()
        except OSError as error:
            raise ConfigError(
                f"auth.sql_url = {url!r} can't be read: {error.strerror}",
                "check the path, and that the node may read the file",
            ) from error

    def _connect(self) -> sqlite3.Connection:
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            return sqlite3.connect(uri, self._timeout, isolation_level=None, check_same_thread=False, uri=True)
        except sqlite3.Error as error:
            raise Lost(str(error)) from None

    def rows(self, query: Template, values: Sequence[Value]) -> Rows:
        text = query.filled(*("?" for _ in query.names))
        return self._connections.call(lambda connection: self._ask(connection, text, values))

    def _ask(self, connection: sqlite3.Connection, text: str, values: Sequence[Value]) -> Rows:
        end = time.monotonic() + self._timeout
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            cursor = connection.execute(text, values)
            columns = tuple(str(column[0]).lower() for column in cursor.description or ())
            return Rows(columns, cursor.fetchmany(MAX_ROWS))
        except (sqlite3.Error, UnicodeError) as error:
            raise Refused(str(error)) from None

    def close(self) -> None:
        self._connections.close()


open_database = Sqlite
