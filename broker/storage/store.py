"""The interface of a store, which keeps the state of a node.

A store keeps blocks of the journal (`_speedups/session/journal.pyx`), in order, each whole or not at all, and does not
read them. `commit` never waits: it takes a block, and `confirm` is called on the loop's thread when the block is as
durable as the store promises. Acknowledgements are sent after that and not before (guarantee G1).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from ..._speedups.log.message_log import MessageLog
from ..errors import StoreFailure


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
