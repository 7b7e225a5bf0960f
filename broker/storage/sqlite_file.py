"""The file of the embedded store: a SQLite database of blocks, and the reasons for which this version refuses one.

The file has an application id, a layout version, and a checksum per block. A file that doesn't fit is refused with a
reason and left unchanged: a store is never emptied because it could not be read.

`flockmq migrate` marks a file: its state was moved away, or is arriving. Then the layout is none that a node reads,
and the table `migration` has one row. The state that was moved away stays in the file.
"""

import contextlib
import errno
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError
from . import access_table

APPLICATION_ID = 0x464C4D51  # "FLMQ"
LAYOUT = 1  # of the tables; each block has its own
MOVED = -1  # in place of the layout: the state was moved to another place
ARRIVING = -2  # likewise: a migration to this file has not ended
COPIED_PAGES = 256  # of 4 KiB, between which a node stores blocks
WAL_BYTES = 32 * 1024 * 1024  # size of the -wal file after a checkpoint
BUSY_SECONDS = 2.0  # to wait for a process that is about to close the file
CHECK_PATH = "check the path and its permissions"
MOSQUITTO = b"\x00\xb5\x00mosquitto db"  # how a mosquitto.db begins
SET_ASIDE = "restore a backup, or move the file away to begin with an empty store"


class Mark(NamedTuple):
    """The notes of `flockmq migrate` in a file."""

    state: int  # MOVED, ARRIVING or LAYOUT
    id: str  # of the migration
    place: str  # where the state was moved to, or came from
    options: str  # of the command that finds this place


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Report what SQLite and the system raise as StoreError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise StoreError(f"{path} is in use by another process", "stop it, or choose another store") from error
        if isinstance(error, sqlite3.OperationalError):
            hint = "make room" if "full" in str(error) else CHECK_PATH
            raise StoreError(f"{path} can't be opened: {error}", hint) from error
        if _begins_with(path, MOSQUITTO):
            raise StoreError(
                f"{path} is a database of Mosquitto, not a store",
                "choose another path; `flockmq import` takes it over",
            ) from error
        raise StoreError(f"{path} is damaged: {error}", SET_ASIDE) from error
    except OSError as error:
        hint = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else CHECK_PATH
        raise StoreError(f"{path} can't be written: {error.strerror}", hint) from error


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def create(path: Path) -> None:
    """Make a whole, empty store under another name, then give it its own: no half-made file is ever found."""
    fresh = path.with_name(path.name + f".new-{secrets.token_hex(4)}")  # in a container all have one process id
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # only its owner may read it
    try:
        database = sqlite3.connect(fresh, isolation_level=None)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {LAYOUT}")
        database.execute(
            "CREATE TABLE block (position INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, records BLOB NOT NULL)"
        )
        access_table.create(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.close()
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass  # another process was faster: its store is the right one
        except OSError:
            fresh.rename(path)  # a file system without links
    finally:
        fresh.unlink(missing_ok=True)


def connect(path: Path, sync: str = "full", *, marked: bool = False) -> sqlite3.Connection:
    """Open a store, for this process alone.

    Args:
        path: of the file.
        sync: as for SqliteStore.
        marked: whether a file that `flockmq migrate` has marked is opened too.

    Raises:
        StoreError: the file is no store that this version can use.
        sqlite3.DatabaseError, OSError: `reported` has the words.
    """
    if path.stat().st_size == 0:
        raise StoreError(f"{path} is empty: not a store, or one that was cut", SET_ASIDE)
    database = sqlite3.connect(
        f"file:{_quoted(path)}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")  # two nodes on one file would lose each other's blocks
        database.execute("COMMIT")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(f"{path} is a database, but not FlockMQ's", "choose another path for the store")
        if layout in (MOVED, ARRIVING):
            if not marked:
                raise _marked(path, mark_of(database))
        elif layout != LAYOUT:
            raise StoreError(
                f"{path} has layout {layout}, this version reads layout {LAYOUT}",
                "use the version that wrote it, or choose another store",
            )
        found = [row[0] for row in database.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise StoreError(f"{path} is damaged: {'; '.join(found).replace(chr(10), '; ')}", SET_ASIDE)
        database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        database.execute(f"PRAGMA synchronous = {sync.upper()}")
    except BaseException:
        database.close()
        raise
    return database


def blocks(database: sqlite3.Connection, path: Path) -> Iterator[tuple[int, bytes]]:
    """The position and the content of each block, oldest first. Raises StoreError: one is missing or changed."""
    expected: int | None = None
    for position, checksum, records in database.execute(
        "SELECT position, checksum, records FROM block ORDER BY position"
    ):
        if not isinstance(records, bytes) or zlib.crc32(records) != checksum or expected not in (None, position):
            raise StoreError(f"{path} is damaged: block {expected or position} is missing or changed", SET_ASIDE)
        expected = position + 1
        yield position, records


def insert(database: sqlite3.Connection, position: int, block: bytes) -> None:
    """Add a block."""
    database.execute("INSERT INTO block VALUES (?, ?, ?)", (position, zlib.crc32(block), block))


def copy(database: sqlite3.Connection, path: Path, between: Callable[[], object]) -> None:
    """Copy a store to a new file, which only its owner may read.

    Args:
        database: of `connect`. The blocks that it stores while the copy is made are in the copy, too.
        path: of the new file.
        between: called between two parts of the copy; not after twice the pages of the store, so that the copy of a
            store that grows as fast comes to an end.

    Raises:
        sqlite3.Error, OSError: the new file can't be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    pauses = iter(range(2 * pages // COPIED_PAGES + 1))

    def progress(status: int, remaining: int, total: int) -> None:
        if next(pauses, None) is not None:
            between()

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target:
        target.execute("PRAGMA synchronous = OFF")
        database.backup(target, pages=COPIED_PAGES, progress=progress)


# ---- the log of messages ----


def noted_log(database: sqlite3.Connection) -> int | None:
    """The bytes of the log of messages as of the last transaction; None: there was none with a log."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchone():
        return None
    found = database.execute("SELECT total FROM log").fetchone()
    return int(found[0]) if found else None


def note_log(database: sqlite3.Connection, total: int) -> None:
    """Note the bytes of the log of messages, within the caller's transaction."""
    database.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
    database.execute("REPLACE INTO log VALUES (1, ?)", (total,))


# ---- marks ----


def mark_of(database: sqlite3.Connection) -> Mark | None:
    """The mark of the last migration from or to this file, if there was one."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone():
        return None
    (layout,) = database.execute("PRAGMA user_version").fetchone()
    return Mark(layout, *database.execute("SELECT id, place, options FROM migration").fetchone())


def set_mark(database: sqlite3.Connection, mark: Mark | None) -> None:
    """Replace the mark, within the caller's transaction; None: the state in the file is a node's."""
    database.execute(f"PRAGMA user_version = {LAYOUT if mark is None else mark.state}")
    database.execute("DROP TABLE IF EXISTS migration")
    if mark is not None:
        database.execute("CREATE TABLE migration (id TEXT NOT NULL, place TEXT NOT NULL, options TEXT NOT NULL)")
        database.execute("INSERT INTO migration VALUES (?, ?, ?)", mark[1:])


def _marked(path: Path, mark: Mark | None) -> StoreError:
    """Why a node may not use a marked file."""
    if mark is None:
        return StoreError(f"{path} is damaged: it has no note of its migration", SET_ASIDE)
    here, there = f"sqlite:{path.absolute()}", f"{mark.place}{mark.options}"
    if mark.state == ARRIVING:
        return StoreError(
            f"a migration to {path} has not ended", f"`flockmq migrate {mark.place} {here}{mark.options}` completes it"
        )
    return StoreError(
        f"the state of {path} was moved to {there}",
        f"serve it there (--redis), or bring it back: `flockmq migrate {mark.place} {here}{mark.options}`",
    )


def _quoted(path: Path) -> str:
    """The path as part of a URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
