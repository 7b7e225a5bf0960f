"""The embedded store: blocks of the journal in one SQLite file, in WAL mode.

One thread owns the database. It commits all blocks since its last transaction in one transaction, so that a slow disk
makes groups larger instead of queues longer; the loop never waits for it. A block is one row, whatever number of
messages it holds: SQLite costs nothing per message.

The log of messages is files beside it. The same thread appends to them before the transaction, which notes the bytes of
the log. So an entry of the log and the records of its turn are kept both, or none of them.

`broker/storage/sqlite_file.py` has the file: its layout, and the reasons to refuse one. `log_files.py` has the log.

The same thread copies the database (`copy`), in parts between transactions, and reads and changes users and roles
(`ask`), each change in a transaction.

An error that may pass, such as a full disk, is retried. Any other exception ends the thread: `failure` has the reason,
and the node ends.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._speedups.log.journal import Block
from ..._speedups.log.message_log import MessageLog
from .. import logs
from ..errors import StoreError, StoreFailure
from . import sqlite_file
from .confirmed_note import ConfirmedNote
from .log_files import LogEntry, LogFiles
from .log_segments import folder_of
from .store import LogStore, T

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


@dataclass(frozen=True)
class Copy:
    """A request for a copy of the database."""

    path: Path  # of the new file
    done: Callable[[Exception | None], object]  # called on the loop's thread with the error, if there was one


@dataclass(frozen=True)
class Question:
    """A function on the table of users and roles."""

    work: Callable[[sqlite3.Connection], Any]
    then: Callable[[Any], object]  # called on the loop's thread with its result or its exception

    def result(self, database: sqlite3.Connection) -> Any:
        """The result or the exception of the function."""
        try:
            return self.work(database)
        except Exception as error:
            return error


# A block of a turn, perhaps with an entry of the log of messages; such an entry alone; a position, before which blocks
# are dropped; a copy; a question; None: the end.
Work = bytes | Block | tuple[bytes, bytes] | int | Copy | Question | None


class CopyEnded(Exception):
    """The store was closed during a copy, or has failed: the cause is its error."""


class SqliteStore(LogStore):
    """Blocks in a SQLite file, and the log of messages in files beside it.

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
        self.log_files = LogFiles(folder_of(path), sync=sync == "full")
        self._noted: int | None = None  # bytes of the log, as the database has them
        self._on_logged: Callable[[list[LogEntry]], object] = lambda entries: None
        self._message_log: MessageLog | None = None
        self._unlogged = 0  # bytes of the log that wait
        self._max_unlogged = 0
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._ended = False  # the thread has stored the last block, or can't store one
        self._copies: deque[Copy] = deque()
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
            self._noted = sqlite_file.noted_log(self._database)
            self.log_files.open(self._noted)

    # ---- the log of messages ----

    def follow(self, log: MessageLog) -> None:
        reached = self.log_files.reached
        log.continue_after(ms=reached.ms, size=reached.total, rows=reached.rows, lacking=reached.lacking)
        self._message_log = log

    def on_logged(self, callback: Callable[[list[LogEntry]], object]) -> None:
        """Call this function on the loop's thread with the entries of the log that are stored."""
        self._on_logged = callback

    def bound_log(self, max_bytes: int, max_seconds: float, max_waiting: int) -> None:
        self.log_files.bound(max_bytes, max_seconds)
        self._max_unlogged = max_waiting
        self._weigh(0)

    @property
    def log_size(self) -> int:
        return self.log_files.size

    @property
    def log_waiting(self) -> int:
        return self._unlogged

    def log(self, entry_id: bytes, block: bytes) -> None:
        self._weigh(len(block))
        self._work.put((entry_id, block))

    def _logged(self, entries: list[LogEntry]) -> None:
        self._weigh(-sum(len(entry.block) for entry in entries))
        self._on_logged(entries)

    def _weigh(self, change: int) -> None:
        self._unlogged += change
        if self._message_log is not None:
            self._message_log.suspended = self._unlogged > self._max_unlogged

    # ---- writing ----

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        self._call = call
        self._written = self._position  # position of the next block that the thread writes
        self._thread = threading.Thread(target=self._run, name="flockmq-store", daemon=True)
        self._thread.start()

    def commit(self, block: bytes | Block) -> None:
        records = block
        if isinstance(block, Block):
            self._weigh(len(block.entry[1]))
            records = block.records
        if records:
            self._position += 1
            self._size += len(records)
        self._work.put(block)

    @property
    def position(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        return self._size

    def forget_before(self, position: int) -> None:
        self._work.put(position)

    @property
    def file(self) -> Path:
        return self.path

    def copy(self, path: Path, done: Callable[[Exception | None], object]) -> None:
        self._work.put(Copy(path, done))

    def ask(self, work: Callable[[sqlite3.Connection], T], then: Callable[[T | Exception], object]) -> None:
        self._work.put(Question(work, then))

    def ask_at_start(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with sqlite_file.reported(self.path):
            return work(self._database)

    def close(self) -> None:
        if self._thread is not None:
            self._closing.set()
            self._work.put(None)
            self._thread.join()
            self._thread = None
        if hasattr(self, "_database"):
            self._database.close()
        self.log_files.close()
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
        """Until `close`: store the blocks in the queue, and make copies."""
        while not self._ended:
            self._store([self._work.get(), *self._waiting()])
            while self._copies:
                self._copy(self._copies.popleft())

    def _waiting(self) -> list[Work]:
        """Take all items out of the queue."""
        items: list[Work] = []
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self._work.get_nowait())
        return items

    def _copy(self, copy: Copy) -> None:
        """Make a copy. An error of the new file ends the copy; an error of the store ends the thread."""
        failure: Exception | None = None
        try:
            self._go_on()
            sqlite_file.copy(self._database, copy.path, self._go_on)
        except CopyEnded as end:
            if end.__cause__ is not None:
                raise end.__cause__ from None
            failure = StoreError("the node stops")
        except (sqlite3.Error, OSError) as error:
            failure = error
        with contextlib.suppress(RuntimeError):
            self._call(copy.done, failure)

    def _go_on(self) -> None:
        """Between two parts of a copy: store the blocks in the queue. Raises CopyEnded."""
        try:
            if items := self._waiting():
                self._store(items)
        except Exception as error:
            raise CopyEnded from error
        if self._ended:
            raise CopyEnded

    def _store(self, items: list[Work]) -> None:
        """Store all blocks among the items, in one transaction."""
        self._answer([item for item in items if isinstance(item, Question)])
        self._ended |= None in items
        self._copies += [item for item in items if isinstance(item, Copy)]
        entries = [_entry(item) for item in items if isinstance(item, tuple | Block)]
        blocks = [
            item.records if isinstance(item, Block) else item for item in items if isinstance(item, bytes | Block)
        ]
        stored = [block for block in blocks if block]
        forget = max((item for item in items if isinstance(item, int)), default=0)
        is_emptied = forget >= self._written + len(stored)
        if is_emptied:
            self._note.write(0)  # an empty table has no positions
        is_waited_for = bool(blocks or forget)
        if not (
            self._until_done(self._append, entries, is_waited_for) and self._until_done(self._commit, stored, forget)
        ):
            if blocks:
                self.failure = StoreFailure(
                    f"the store {self.path} was closed with {len(blocks)} blocks that could not be written",
                    "messages in them were not acknowledged; make room, or mend the disk",
                )
            log.error("store closed with blocks that could not be written", blocks=len(blocks))
            self._ended = True
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if entries:
                self._call(self._logged, entries)
            if blocks:
                self._call(self._confirm, len(blocks))
        if stored and not is_emptied:
            self._note.write(self._written - 1)

    def _answer(self, questions: list[Question]) -> None:
        """Answer questions about users and roles before the blocks, which wait while the disk is full."""
        for question in questions:
            result = question.result(self._database)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._call(question.then, result)

    def _until_done(self, step: Callable[..., None], *arguments: object) -> bool:
        """Repeat a step until it succeeds; False: the store is closed instead."""
        while True:
            try:
                step(*arguments)
            except (sqlite3.Error, OSError, MemoryError) as error:
                if not _may_pass(error):
                    raise
                self.trouble = f"the store can't write: {error}"
                if time.monotonic() >= self._log_at:
                    log.error("store can't write: no message is acknowledged until it can", path=self.path, error=error)
                    self._log_at = time.monotonic() + LOG_SECONDS
            else:
                self.trouble = ""
                return True
            if self._closing.is_set():
                return False
            time.sleep(RETRY_SECONDS)

    def _append(self, entries: list[LogEntry], is_waited_for: bool) -> None:
        """Append to the log; before blocks are committed or confirmed, the disk has all of the log."""
        if entries and self._noted is None:  # else a first entry without its records would not be cut off
            sqlite_file.note_log(self._database, self.log_files.end)
            self._noted = self.log_files.end
        if entries or self._is_longer():
            self.log_files.append(entries, durable=is_waited_for)

    def _is_longer(self) -> bool:
        """Whether the log has more than the database has noted."""
        return self._noted is not None and self.log_files.end != self._noted

    def _commit(self, blocks: list[bytes], forget: int) -> None:
        """One transaction for all blocks."""
        if blocks or forget:
            try:
                gone = self._transaction(blocks, forget)
            except (sqlite3.Error, MemoryError):
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
            self._written += len(blocks)
            if forget:
                with contextlib.suppress(RuntimeError):
                    self._call(self._forgotten, gone)
        if self._log_at:
            log.info("store can write again", path=self.path)
            self._log_at = 0.0

    def _transaction(self, blocks: list[bytes], forget: int) -> int:
        """Insert blocks, note the bytes of the log, drop the blocks before a position; returns the bytes of these."""
        self._database.execute("BEGIN")
        for position, block in enumerate(blocks, self._written):
            sqlite_file.insert(self._database, position, block)
        if is_longer := self._is_longer():
            sqlite_file.note_log(self._database, self.log_files.end)
        gone = 0
        if forget:
            (gone,) = self._database.execute(
                "SELECT coalesce(sum(length(records)), 0) FROM block WHERE position < ?", (forget,)
            ).fetchone()
            self._database.execute("DELETE FROM block WHERE position < ?", (forget,))
        self._database.execute("COMMIT")
        if is_longer:
            self._noted = self.log_files.end
        return int(gone)

    def _forgotten(self, size: int) -> None:
        self._size -= size


def _entry(item: tuple[bytes, bytes] | Block) -> LogEntry:
    """The entry of the log in a piece of work."""
    entry_id, block = item.entry if isinstance(item, Block) else item
    ms, _, total = entry_id.partition(b"-")
    return LogEntry(int(ms), int(total), block, isinstance(item, Block) and bool(item.records))


def _may_pass(error: sqlite3.Error | OSError | MemoryError) -> bool:
    """Whether the same write may succeed later."""
    return not isinstance(error, sqlite3.Error) or getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING
