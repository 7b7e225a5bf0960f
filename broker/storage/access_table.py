"""The table of users and roles in the database of a node: documents by kind and name, which this module does not read.

The store runs these functions where its database may be used (`Store.ask`).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LAST = "\U0010ffff"  # behind all names with the same beginning


class Change(NamedTuple):
    """A document is replaced, if it is still as it was read."""

    name: str
    before: bytes | None  # None: there must be none
    after: bytes | None  # None: it is removed


def create(database: sqlite3.Connection) -> None:
    """Make the empty table."""
    database.execute(
        "CREATE TABLE access (kind TEXT NOT NULL, name TEXT NOT NULL, document BLOB NOT NULL, "
        "PRIMARY KEY (kind, name)) WITHOUT ROWID"
    )


def find(database: sqlite3.Connection, kind: str, names: Sequence[str]) -> list[bytes | None]:
    """The documents with these names; None: there is none."""
    return [_document(database, kind, name) for name in names]


def page(database: sqlite3.Connection, kind: str, after: str, beginning: str, limit: int) -> list[tuple[str, bytes]]:
    """The first documents behind a name whose names have a beginning, in the order of their names."""
    return database.execute(
        "SELECT name, document FROM access WHERE kind = ? AND name > ? AND name >= ? AND name < ? "
        "ORDER BY name LIMIT ?",
        (kind, after, beginning, beginning + LAST, limit),
    ).fetchall()


def all_of(database: sqlite3.Connection, kind: str) -> dict[str, bytes]:
    """All documents of a kind."""
    return dict(database.execute("SELECT name, document FROM access WHERE kind = ?", (kind,)))


def change(database: sqlite3.Connection, kind: str, changes: Sequence[Change]) -> list[bool]:
    """Make changes in one transaction; whether each was made."""
    database.execute("BEGIN IMMEDIATE")
    try:
        made = [_make(database, kind, each) for each in changes]
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return made


def replace_all(database: sqlite3.Connection, kind: str, documents: Iterable[tuple[str, bytes]]) -> None:
    """Replace all documents of a kind, within the caller's transaction."""
    database.execute("DELETE FROM access WHERE kind = ?", (kind,))
    database.executemany("INSERT INTO access VALUES (?, ?, ?)", ((kind, *each) for each in documents))


def _make(database: sqlite3.Connection, kind: str, found: Change) -> bool:
    if _document(database, kind, found.name) != found.before:
        return False
    if found.after is None:
        database.execute("DELETE FROM access WHERE kind = ? AND name = ?", (kind, found.name))
    else:
        database.execute("REPLACE INTO access VALUES (?, ?, ?)", (kind, found.name, found.after))
    return True


def _document(database: sqlite3.Connection, kind: str, name: str) -> bytes | None:
    row = database.execute("SELECT document FROM access WHERE kind = ? AND name = ?", (kind, name)).fetchone()
    return None if row is None else bytes(row[0])
