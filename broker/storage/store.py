"""What a node asks of the place that keeps its state.

A store keeps blocks of the journal (`_speedups.journal`), in order, each whole or not at all. It does not look into
them. `commit` never waits: it takes a block, and `confirm` is called on the loop's thread when the block will survive
what the store promises to survive. Acknowledgements leave after that and not before (guarantee G1).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator


class Store(ABC):
    """Keeps blocks. Used from one thread, the loop's."""

    durable: bool  # whether blocks survive the process; a node keeps no journal for a store where they don't

    @abstractmethod
    def open(self) -> Iterator[bytes]:
        """Open the store and yield the blocks it holds, oldest first.

        Raises:
            StoreError: it can't be used: no permission, in use, damaged, or of another layout. Nothing is changed.
        """

    @abstractmethod
    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        """Be ready for `commit`.

        Args:
            confirm: called with the number of blocks, in the order of their commits, that are now kept.
            call: calls a function with arguments on the loop's thread, from any thread.
        """

    @abstractmethod
    def commit(self, block: bytes) -> None:
        """Keep a block."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of the next block."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of all blocks that are kept, or will be when commits under way are done."""

    @abstractmethod
    def forget_before(self, position: int) -> None:
        """Drop the blocks before this position: what they say is said again in later ones. Follows earlier commits."""

    @abstractmethod
    def close(self) -> None:
        """Keep everything that was committed, then let go of the store. Waits; nothing is confirmed after it."""

    @abstractmethod
    def describe(self) -> str:
        """What is kept where, in words for the operator."""
