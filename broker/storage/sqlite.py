"""The embedded store: blocks of the journal in one SQLite file, in WAL mode.

One thread owns the database. It commits all blocks since its last transaction in one transaction, so that a slow disk
makes groups larger instead of queues longer; the loop never waits for it. A block is one row, whatever number of
messages it holds: SQLite costs nothing per message.

`broker/storage/sqlite_file.py` has the file: its layout, and the reasons to refuse one.

An error that may pass, such as a full disk, is retried. Any other exception ends the thread: `failure` has the reason,
and the node ends.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker import logs
from broker.errors import StoreFailure
from broker.storage import sqlite_file
from broker.storage.confirmed_note import ConfirmedNote
from broker.storage.store import Store

RETRY_SECONDS = 1.0  # between attempts when the disk is full or broken
LOG_SECONDS = 60.0  # between lines in the log about it
PASSING = frozenset(  # errors of SQLite that the same write may not meet again
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    )
)

log = logs.get("flockmq.store")


class SqliteStore(Store):
    """Blocks in a SQLite file.

    Args:
        path: of the database; a `-wal` file stands beside it while it is open, and a `-confirmed` file from then on.
        sync: "full": a confirmed block survives the loss of power. "normal": it survives the death of the process.
    """

    durable = True

    def __init__(self, path: Path, *, sync: str = "full") -> None:
        self.path = path
        self.sync = sync
        self._note = ConfirmedNote(path, sync)
        self._size = 0
        self._position = 1
        self._work: queue.SimpleQueue[bytes | int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._log_at = 0.0  # when an error is logged again; 0 = there is none

    # ---- opening ----

    def open(self) -> Iterator[bytes]:
        with sqlite_file.reported(self.path):
            if not self.path.exists():
                sqlite_file.create(self.path)
            self._database = sqlite_file.connect(self.path, self.sync)
            for position, block in sqlite_file.blocks(self._database, self.path):
                self._position = position + 1
                self._size += len(block)
                yield block
            self._note.check(self._position - 1)

    # ---- writing ----

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        self._call = call
        self._written = self._position  # position of the next block that the thread writes
        self._thread = threading.Thread(target=self._run, name="flockmq-store", daemon=True)
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
        self._note.close()

    def describe(self) -> str:
        kept = "survives the loss of power" if self.sync == "full" else "survives kill -9, not the loss of power"
        return f"persistent sessions, queues and retained messages are in {self.path}; an acknowledged message {kept}"

    def _run(self) -> None:
        """The thread."""
        try:
            self._write()
        except BaseException as error:
            self.failure = StoreFailure(
                f"the store {self.path} has failed: {error!r}",
                "messages that it lacks were not acknowledged; start the node again, which checks the file",
            )
            log.exception("store failed: nothing more is stored or acknowledged, and the node ends", path=self.path)

    def _write(self) -> None:
        """Until `close`: one transaction for all blocks in the queue."""
        items: list[bytes | int | None] = []
        while None not in items:
            items = [self._work.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._work.get_nowait())
            blocks = [item for item in items if isinstance(item, bytes)]
            forget = max((item for item in items if isinstance(item, int)), default=0)
            is_emptied = forget >= self._written + len(blocks)
            if is_emptied:
                self._note.write(0)  # an empty table has no positions
            while not self._transaction(blocks, forget):
                if self._closing.is_set():
                    if blocks:
                        self.failure = StoreFailure(
                            f"the store {self.path} was closed with {len(blocks)} blocks that could not be written",
                            "messages in them were not acknowledged; make room, or mend the disk",
                        )
                    log.error("store closed with blocks that could not be written", blocks=len(blocks))
                    return
                time.sleep(RETRY_SECONDS)
            if blocks:
                self._written += len(blocks)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._call(self._confirm, len(blocks))
                if not is_emptied:
                    self._note.write(self._written - 1)

    def _transaction(self, blocks: list[bytes], forget: int) -> bool:
        try:
            self._database.execute("BEGIN")
            for position, block in enumerate(blocks, self._written):
                sqlite_file.insert(self._database, position, block)
            if forget:
                (gone,) = self._database.execute(
                    "SELECT coalesce(sum(length(records)), 0) FROM block WHERE position < ?", (forget,)
                ).fetchone()
                self._database.execute("DELETE FROM block WHERE position < ?", (forget,))
            self._database.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            if not _may_pass(error):
                raise
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


def _may_pass(error: sqlite3.Error | MemoryError) -> bool:
    """Whether the same transaction may succeed later."""
    return isinstance(error, MemoryError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING
