"""The log of messages, as streams read it: one log for each node, entries in the order of their places."""

import struct
from abc import ABC, abstractmethod
from typing import NamedTuple

from .start_position import Place

FIRST_ACCEPTED = struct.Struct("<q")
HEADER = 48  # bytes


class Entry(NamedTuple):
    """An entry of a node's log."""

    node: str  # id
    ms: int
    total: int  # bytes of the log up to this entry, included
    block: bytes

    @property
    def before(self) -> int:
        """Bytes of the log before this entry."""
        return self.total - len(self.block)

    @property
    def accepted(self) -> int:
        """When its first message was accepted, in microseconds since 1970."""
        if len(self.block) < HEADER + FIRST_ACCEPTED.size:
            return self.ms * 1000
        return int(FIRST_ACCEPTED.unpack_from(self.block, HEADER)[0])


class LogEnd(NamedTuple):
    """The end of a node's log."""

    name: str  # of the node; empty: of the node that is asked
    place: Place  # behind the newest entry, which may be trimmed
    is_deleted: bool = False  # no entry will follow


class LogAway(Exception):
    """The log can't be read now."""


class MessageLog(ABC):
    """Reads the logs of all nodes."""

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that changes when a log may have more entries."""

    @abstractmethod
    async def wait(self, version: int) -> None:
        """Wait until `version` is another."""

    @abstractmethod
    async def nodes(self) -> list[str]:
        """The ids of the nodes that have a log, also of nodes that have left. Raises LogAway."""

    @abstractmethod
    async def ends(self) -> dict[str, LogEnd]:
        """The ends of all logs by node id, also of logs that were deleted lately. Raises LogAway."""

    @abstractmethod
    async def read(self, node: str, place: Place | None, since: int, count: int) -> tuple[list[Entry], bool]:
        """Read entries of a log.

        Args:
            node: its id.
            place: where to begin: after an entry, or with it if only some of its messages are before the place.
                None: at `since`.
            since: microseconds since 1970.
            count: entries, at most.

        Returns:
            Entries, and whether these were all.

        Raises:
            LogAway: the log can't be read now.
        """
