"""A database with users: the interface of its kinds, and how one is opened. All calls are made in threads."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from ..config.placeholders import Template
from ..config.sql_url import SqlUrl

Value = str | int
MAX_ROWS = 10_000  # of one answer


class Rows(NamedTuple):
    """An answer."""

    columns: tuple[str, ...]  # names in small letters
    rows: list[tuple[Any, ...]]


class Database(Protocol):
    """A database with its connections."""

    place: str  # for logs, without a password

    def rows(self, query: Template, values: Sequence[Value]) -> Rows:
        """The rows of a query.

        Args:
            query: as configured.
            values: one for each of its placeholders.

        Raises:
            Lost: the database can't be reached, or had no answer in time.
            Refused: it refuses the query, or the values in it.
        """

    def close(self) -> None:
        """Close its connections."""


def open_database(url: str, password: str, timeout: float) -> Database:
    """A database; nothing is connected yet.

    Args:
        url: as configured.
        password: empty: as in the URL.
        timeout: of a call, in seconds; the connection that a call may need has as much.

    Raises:
        ConfigError: an option of the URL is invalid, or the file of SQLite can't be read.
        ModuleNotFoundError: the package for this kind of database is missing.
    """
    kind = SqlUrl.parse(url).kind
    module = import_module(f".sql_{kind}", __package__)  # only the package of this kind needs to be there
    made: Database = module.open_database(url, password, timeout)
    return made
