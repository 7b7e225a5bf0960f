"""The embedded store: blocks of the journal in one SQLite file, in WAL mode.

One thread owns the database. It commits all blocks since its last transaction in one transaction, so that a slow disk
makes groups larger instead of queues longer; the loop never waits for it. A block is one row, whatever number of
messages it holds: SQLite costs nothing per message.

The file has an application id, a layout version, and a checksum per block. A file that doesn't fit is refused with a
reason and left unchanged: a store is never emptied because it could not be read.
"""

import contextlib
import os
import queue
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from broker import logs
from broker.errors import StoreError
from broker.storage.store import Store

APPLICATION_ID = 0x464C4D51  # "FLMQ"
LAYOUT = 1  # of the tables; that of the blocks is in each block
RETRY_SECONDS = 1.0  # between attempts when the disk is full or broken
WAL_BYTES = 32 * 1024 * 1024  # size of the -wal file after a checkpoint
LOG_SECONDS = 60.0  # between lines in the log about it
BUSY_SECONDS = 2.0  # to wait for a process that is about to close the file
SET_ASIDE = "restore a backup, or move the file away to begin with an empty store"

log = logs.get("flockmq.store")


class SqliteStore(Store):
    """Blocks in a SQLite file.

    Args:
        path: of the database; `-wal` and `-shm` files stand beside it while it is open.
        sync: "full": a confirmed block survives the loss of power. "normal": it survives the death of the process.
    """

    durable = True

    def __init__(self, path: Path, *, sync: str = "full") -> None:
        self.path = path
        self.sync = sync
        self._size = 0
        self._position = 1
        self._work: queue.SimpleQueue[bytes | int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._log_at = 0.0  # when an error is logged again; 0 = there is none

    # ---- opening ----

    def open(self) -> Iterator[bytes]:
        try:
            if not self.path.exists():
                self._create()
            self._database = self._connect(self.path)
            yield from self._blocks()
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise StoreError(
                    f"{self.path} is in use by another process", "stop it, or choose another store"
                ) from error
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(
                    f"{self.path} can't be opened: {error}", "check the path and its permissions"
                ) from error
            raise StoreError(f"{self.path} is damaged: {error}", SET_ASIDE) from error
        except OSError as error:
            raise StoreError(
                f"{self.path} can't be written: {error.strerror}", "check the path and its permissions"
            ) from error

    def _create(self) -> None:
        """Make a whole, empty store under another name, then give it its own: no half-made file is ever found."""
        fresh = self.path.with_name(self.path.name + f".new-{os.getpid()}")
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # only its owner may read it
        try:
            database = sqlite3.connect(fresh, isolation_level=None)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {LAYOUT}")
            database.execute("PRAGMA page_size = 8192")
            database.execute(
                "CREATE TABLE block (position INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, records BLOB NOT NULL)"
            )
            database.execute("PRAGMA journal_mode = WAL")
            database.close()
            try:
                os.link(fresh, self.path)
            except FileExistsError:
                pass  # another process was faster: its store is the one to open
            except OSError:
                fresh.rename(self.path)  # a file system without links
        finally:
            fresh.unlink(missing_ok=True)

    def _connect(self, path: Path) -> sqlite3.Connection:
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
            if layout != LAYOUT:
                raise StoreError(
                    f"{path} has layout {layout}, this version reads layout {LAYOUT}",
                    "use the version that wrote it, or choose another store",
                )
            found = [row[0] for row in database.execute("PRAGMA quick_check(3)")]
            if found != ["ok"]:
                raise StoreError(f"{path} is damaged: {'; '.join(found).replace(chr(10), '; ')}", SET_ASIDE)
            database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            database.execute(f"PRAGMA synchronous = {self.sync.upper()}")
        except BaseException:
            database.close()
            raise
        return database

    def _blocks(self) -> Iterator[bytes]:
        expected: int | None = None
        for position, checksum, records in self._database.execute(
            "SELECT position, checksum, records FROM block ORDER BY position"
        ):
            if not isinstance(records, bytes) or zlib.crc32(records) != checksum or expected not in (None, position):
                raise StoreError(
                    f"{self.path} is damaged: block {expected or position} is missing or changed", SET_ASIDE
                )
            expected = position + 1
            self._position = expected
            self._size += len(records)
            yield records

    # ---- writing ----

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        self._call = call
        self._written = self._position  # position of the next block that the thread writes
        self._thread = threading.Thread(target=self._write, name="flockmq-store", daemon=True)
        self._thread.start()

    def commit(self, block: bytes) -> None:
        self._position += 1
        self._size += len(block)
        self._work.put(block)

    @property
    def position(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        return self._size

    def forget_before(self, position: int) -> None:
        self._work.put(position)

    def close(self) -> None:
        if self._thread is not None:
            self._closing.set()
            self._work.put(None)
            self._thread.join()
            self._thread = None
        if hasattr(self, "_database"):
            self._database.close()

    def describe(self) -> str:
        kept = "survives the loss of power" if self.sync == "full" else "survives kill -9, not the loss of power"
        return f"persistent sessions, queues and retained messages are in {self.path}; an acknowledged message {kept}"

    def _write(self) -> None:
        """The thread: one transaction for all blocks in the queue."""
        items: list[bytes | int | None] = []
        while None not in items:
            items = [self._work.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._work.get_nowait())
            blocks = [item for item in items if isinstance(item, bytes)]
            forget = max((item for item in items if isinstance(item, int)), default=0)
            while not self._transaction(blocks, forget):
                if self._closing.is_set():
                    log.error("store closed with blocks that could not be written", blocks=len(blocks))
                    return
                time.sleep(RETRY_SECONDS)
            if blocks:
                self._written += len(blocks)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._call(self._confirm, len(blocks))

    def _transaction(self, blocks: list[bytes], forget: int) -> bool:
        try:
            self._database.execute("BEGIN")
            for position, block in enumerate(blocks, self._written):
                self._database.execute("INSERT INTO block VALUES (?, ?, ?)", (position, zlib.crc32(block), block))
            if forget:
                (gone,) = self._database.execute(
                    "SELECT coalesce(sum(length(records)), 0) FROM block WHERE position < ?", (forget,)
                ).fetchone()
                self._database.execute("DELETE FROM block WHERE position < ?", (forget,))
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if time.monotonic() >= self._log_at:
                log.error("store can't write: no message is acknowledged until it can", path=self.path, error=error)
                self._log_at = time.monotonic() + LOG_SECONDS
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            return False
        if self._log_at:
            log.info("store can write again", path=self.path)
            self._log_at = 0.0
        if forget:
            with contextlib.suppress(RuntimeError):
                self._call(self._forgotten, gone)
        return True

    def _forgotten(self, size: int) -> None:
        self._size -= size


def _quoted(path: Path) -> str:
    """The path as part of a URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
