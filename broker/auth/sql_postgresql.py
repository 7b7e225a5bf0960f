"""PostgreSQL with users, by libpq: prepared statements, whose parameters are the values of a client.

Each call ends after a timeout, also if the server accepts connections and is silent.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from ..config.placeholders import Template
from ..config.redis_url import masked
from ..config.sql_url import SqlUrl
from ..errors import ConfigError
from .connections import Connections, Lost, Refused
from .sql_database import MAX_ROWS, Rows, Value


class Timely(psycopg.Connection[Any]):
    """A connection whose calls end in time."""

    seconds = 2.0

    def wait(self, gen: Any, *arguments: Any, **more: Any) -> Any:
        """Consume a generator that operates on the connection. Raises Lost: it has taken too long."""
        return super().wait(_until(gen, time.monotonic() + self.seconds), *arguments, **more)


def _until(gen: Generator[Any, Any, Any], end: float) -> Generator[Any, Any, Any]:
    """A generator of psycopg that ends in time: it is woken ten times a second while it waits."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > end:
                raise Lost("no answer in time")
            state = gen.send(ready)
    except StopIteration as found:
        return found.value


class PostgreSql:
    """A PostgreSQL.

    Args:
        url: as configured.
        password: empty: as in the URL.
        timeout: of a call, in seconds.

    Raises:
        ConfigError: libpq refuses the URL.
    """

    def __init__(self, url: str, password: str, timeout: float) -> None:
        self.place = masked(url)
        self._timeout = timeout
        parsed = SqlUrl.parse(url)
        options: dict[str, Any] = {"connect_timeout": max(1, round(timeout))}
        if password:
            options["password"] = password
        if not parsed.is_local and not parsed.option("sslmode"):
            options["sslmode"] = "verify-full"
        try:
            self._conninfo = make_conninfo(url, **options)
        except psycopg.Error as error:
            raise ConfigError(f"auth.sql_url = {self.place}: {_line(error)}", "its options are libpq's") from None
        self._connections = Connections(self._connect, psycopg.Connection.close)

    def _connect(self) -> Timely:
        try:
            connection = Timely.connect(self._conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
        except (psycopg.Error, OSError) as error:
            raise Lost(_line(error)) from None
        connection.seconds = self._timeout
        return connection

    def rows(self, query: Template, values: Sequence[Value]) -> Rows:
        text, order = _numbered(query)
        return self._connections.call(lambda connection: self._ask(connection, text, [values[at] for at in order]))

    def _ask(self, connection: Timely, text: str, values: Sequence[Value]) -> Rows:
        try:
            cursor = connection.execute(text.encode(), values, prepare=True)
            columns = tuple(column.name.lower() for column in cursor.description or ())
            return Rows(columns, cursor.fetchmany(MAX_ROWS) if columns else [])
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg.errors.FeatureNotSupported,  # the table has changed, and the plan of the statement has not
            psycopg.errors.InvalidSqlStatementName,  # a proxy has another connection behind it than before
        ) as error:
            raise Lost(_line(error)) from None
        except Lost:
            with suppress(Exception):
                connection.cancel_safe(timeout=1.0)  # the server would go on with the query
            raise
        except (psycopg.Error, UnicodeError) as error:
            raise Refused(_line(error)) from None

    def close(self) -> None:
        self._connections.close()


open_database = PostgreSql


@cache
def _numbered(query: Template) -> tuple[str, tuple[int, ...]]:
    """A query with $1, $2, ..., and the places of their values among those of the placeholders."""
    names = list(dict.fromkeys(query.names))
    text = query.filled(*(f"${names.index(name) + 1}" for name in query.names))
    return text, tuple(query.names.index(name) for name in names)


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
