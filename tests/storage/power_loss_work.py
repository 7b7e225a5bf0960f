"""Work for an embedded store whose power is lost: `python -m tests.storage.power_loss_work STORE SYNC SEED FIRST`.

Or with a log of messages alone: `python -m tests.storage.power_loss_work log FOLDER`, or `equal` in place of `log`.

The work of a seed is always the same, so that the test can compute the content of a store. The process marks its notes
(`power_loss.py`) before each piece of work, and when the store has confirmed one.
"""

import ctypes
import os
import queue
import struct
import sys
import zlib
from pathlib import Path
from random import Random
from typing import NamedTuple

from flockmq._speedups.log.journal import Block
from flockmq.broker.storage.log_files import LogEntry, LogFiles
from flockmq.broker.storage.sqlite import SqliteStore
from tests.model.log_block import Row, encode

PIECES = 60
NUMBER = struct.Struct("<Q")
LOG_BYTES = 1 << 20  # more than the work has; a segment has a sixteenth
CHECKPOINT_PAGES = 20  # of the write-ahead log, after which SQLite copies them into the database


class Piece(NamedTuple):
    """A piece of work.

    Attributes:
        number: of this piece over all runs of the store.
        size: bytes of its records; 0 = it has none.
        logged: bytes of the message in its entry of the log; 0 = it has none.
        is_waited_for: the store confirms it.
        forgets: how many of the newest blocks stay, of those before; None: it drops none.
        waits: whether the process waits then until all is confirmed.
    """

    number: int
    size: int = 0
    logged: int = 0
    is_waited_for: bool = True
    forgets: int | None = None
    waits: bool = False

    @property
    def records(self) -> bytes:
        """The content of its block."""
        return NUMBER.pack(self.number) + Random(self.number).randbytes(self.size) if self.size else b""


def pieces_of(seed: int, first: int) -> list[Piece]:
    """The work of a seed, numbered from `first` on."""
    rng = Random(seed)
    found = []
    for number in range(first, first + PIECES):
        size, logged = rng.choice((10, 500, 9000, 40_000)), rng.choice((10, 500, 9000))
        waits = rng.random() < 0.4
        piece = rng.choices(
            (
                Piece(number, size, waits=waits),
                Piece(number, size, logged, waits=waits),
                Piece(number, 0, logged, waits=waits),
                Piece(number, 0, logged, is_waited_for=False, waits=waits),
                Piece(number, is_waited_for=False, forgets=rng.choice((0, 0, 1, 5)), waits=waits),
            ),
            (40, 30, 10, 10, 10),
        )[0]
        found.append(piece)
    return found


def number_of(records: bytes) -> int:
    """The number of the piece that a block is of."""
    (number,) = NUMBER.unpack_from(records)
    return int(number)


def asked(piece: Piece) -> int:
    """The mark before a piece."""
    return piece.number << 1


def confirmed(piece: Piece) -> int:
    """The mark after its confirmation."""
    return piece.number << 1 | 1


class Worker:
    """Does the work with a store.

    Args:
        path: of the store.
        sync: as for SqliteStore.
    """

    def __init__(self, path: Path, sync: str) -> None:
        self.store = SqliteStore(path, sync=sync)
        for _ in self.store.open():
            pass
        self.store._database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self.store.bound_log(LOG_BYTES, 1e12, 1 << 40)
        self._calls: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
        self._waiting: list[Piece] = []
        self._mark = ctypes.CDLL(None).power_loss_mark
        self._mark.argtypes = [ctypes.c_uint64]
        self._total, self._ms = self.store.log_files.end, self.store.log_files.reached.ms
        self.store.start(self._confirm, lambda *call: self._calls.put(call))

    def _confirm(self, blocks: int) -> None:
        for piece in self._waiting[:blocks]:
            self._mark(confirmed(piece))
        del self._waiting[:blocks]

    def do(self, piece: Piece) -> None:
        """Give a piece to the store."""
        self._mark(asked(piece))
        entry = self._entry(piece) if piece.logged else (b"", b"")
        if piece.forgets is not None:
            self.store.forget_before(self.store.position - piece.forgets)
        elif not piece.is_waited_for:
            self.store.log(*entry)
        else:
            self._waiting.append(piece)
            self.store.commit(Block(piece.records, entry) if piece.logged else piece.records)
        while self._waiting and (piece.waits or not self._calls.empty()):
            function, *arguments = self._calls.get()
            function(*arguments)  # type: ignore[operator]

    def _entry(self, piece: Piece) -> tuple[bytes, bytes]:
        self._ms += 1
        payload = b"#%08d#" % piece.number + bytes(piece.logged)
        block = encode([Row(self._ms * 1000, "c", "t", 1, False, False, payload)], bytes_before=self._total)
        self._total += len(block)
        return b"%d-%d" % (self._ms, self._total), block


class Entries:
    """Makes entries of a log, each with a name.

    Attributes:
        total: bytes of the log so far.
    """

    def __init__(self) -> None:
        self.total = 0

    def make(self, *names: str, size: int, is_bound: bool = True) -> list[LogEntry]:
        """Entries with messages of this size."""
        found = []
        for name in names:
            block = encode([Row(1000, "c", name, 1, False, False, bytes(size))], bytes_before=self.total)
            self.total += len(block)
            found.append(LogEntry(1, self.total, block, is_bound=is_bound))
        return found


def write_log(folder: str) -> None:
    """Write entries whose records the store does not get, one of them in a new segment; start again, and write others.

    The new entry is as long as the entries that are cut off. The mark has the bytes of the log then.
    """
    entries = Entries()
    files = LogFiles(Path(folder), sync=True)
    files.open(None)
    files.bound(LOG_BYTES, 1e12)
    files.append(entries.make("known", size=(1 << 16) - 2000), durable=True)
    known = entries.total
    files.append(entries.make("cut off", "cut off, in a new segment", size=1000), durable=True)
    files.close()
    entries.total = known
    files = LogFiles(Path(folder), sync=True)
    files.open(known)
    files.append(entries.make("new", size=5000), durable=True)
    ctypes.CDLL(None).power_loss_mark(ctypes.c_uint64(entries.total))


def write_equal(folder: str) -> None:
    """Write entries that are cut off at the next start, then one that is as long as the first of these, unsynced."""
    entries = Entries()
    files = LogFiles(Path(folder), sync=True)
    files.open(None)
    files.append(entries.make("known", size=100), durable=True)
    known = entries.total
    files.append(entries.make("cut", size=1000) + entries.make("end", size=1000, is_bound=False), durable=True)
    files.close()
    entries.total = known
    files = LogFiles(Path(folder), sync=False)
    files.open(known)
    files.append(entries.make("new", size=1000), durable=True)


def main(path: str, sync: str, seed: str, first: str) -> None:
    """Do the work; half of all processes close their store."""
    worker = Worker(Path(path), sync)
    for piece in pieces_of(int(seed), int(first)):
        worker.do(piece)
    if zlib.crc32(seed.encode()) % 2:
        worker.store.close()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] in ("log", "equal"):
        (write_log if sys.argv[1] == "log" else write_equal)(sys.argv[2])
    else:
        main(*sys.argv[1:])
