"""The interface of a store, which keeps the state of a node.

A store keeps blocks of the journal (`_speedups/session/journal.pyx`), in order, each whole or not at all, and does not
read them. `commit` never waits: it takes a block, and `confirm` is called on the loop's thread when the block is as
durable as the store promises. Acknowledgements are sent after that and not before (guarantee G1).
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ..._speedups.log.message_log import MessageLog
from ..errors import StoreFailure
from . import access_table

T = TypeVar("T")


class Store(ABC):
    """Stores blocks. Used from one thread, the loop's."""

    durable: bool  # blocks survive the process; else the node keeps no journal
    failure: StoreFailure | None = None  # why it stores nothing more: the node must end
    trouble = ""  # why the disk takes nothing for now, as a sentence; the store tries again

    @abstractmethod
    def open(self) -> Iterator[bytes]:
        """Open the store and yield the blocks it holds, oldest first.

        Raises:
            StoreError: it can't be used: no permission, in use, damaged, or of another layout. Nothing is changed.
        """

    @abstractmethod
    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        """Prepare for `commit`.

        Args:
            confirm: called with the number of blocks, in the order of their commits, that are now stored.
            call: calls a function with arguments on the loop's thread, from any thread.
        """

    @abstractmethod
    def commit(self, block: bytes) -> None:
        """Store a block."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of the next block."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of all blocks, commits under way included."""

    @abstractmethod
    def forget_before(self, position: int) -> None:
        """Drop the blocks before this position: later ones repeat their content. Takes effect after earlier commits."""

    @property
    def file(self) -> Path | None:
        """The file that has the state, which `copy` copies; None: there is none at this node."""
        return None

    def copy(self, path: Path, done: Callable[[Exception | None], object]) -> None:
        """Copy `file` to a new file, as it is when the copy ends. Blocks are stored at the same time.

        Args:
            path: of the new file.
            done: called on the loop's thread with the error, if there was one.
        """
        raise NotImplementedError

    def ask(self, work: Callable[[sqlite3.Connection], T], then: Callable[[T | Exception], object]) -> None:
        """Run a function of `access_table.py` on the database with users and roles, after all earlier ones.

        A change that it makes is as durable as a block when `then` is called; without a file it ends with the process.

        Args:
            work: gets the database.
            then: called on the loop's thread with the result or the exception of `work`, in the order of the calls.
        """
        try:
            result: T | Exception = work(self._access)
        except Exception as error:
            result = error
        then(result)

    def ask_at_start(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of such a function, between `open` and `start`."""
        return work(self._access)

    @cached_property
    def _access(self) -> sqlite3.Connection:
        """A database without a file."""
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        access_table.create(database)
        return database

    @abstractmethod
    def close(self) -> None:
        """Store all committed blocks, then close the store. Blocks; nothing is confirmed after it.

        Sets `failure` if blocks could not be stored.
        """

    @abstractmethod
    def describe(self) -> str:
        """Where state is stored, as a sentence for the operator."""


class LogStore(Store):
    """A store that keeps the log of messages, too: entries alone, or with the records of a turn."""

    @abstractmethod
    def follow(self, log: MessageLog) -> None:
        """Suspend this log while too much of it waits to be stored."""

    @abstractmethod
    def bound_log(self, max_bytes: int, max_seconds: float, max_waiting: int) -> None:
        """Bound the log of messages: bytes and seconds that are kept, bytes that may wait to be stored."""

    @property
    @abstractmethod
    def log_size(self) -> int:
        """Bytes of the log that is kept."""

    @property
    @abstractmethod
    def log_waiting(self) -> int:
        """Bytes of the log that wait to be stored."""

    @abstractmethod
    def log(self, entry_id: bytes, block: bytes) -> None:
        """Store an entry of the log that no acknowledgement waits for."""
