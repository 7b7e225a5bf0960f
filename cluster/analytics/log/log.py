"""The logs of messages in Redis: their list, the ends of each, and reading a range of one.

This module is independent of Spark and Arrow, because `flockmq replay` uses it too. Positions are exact: `before` of an
entry and the entry before it stand for the same place. A range whose blocks do not follow one another byte for byte
lacks data. Replies are small: pieces of a range have some megabytes, regardless of the size of its blocks.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...redis.keys import Keys
from ..errors import BlockError, RedisAway
from ..position import MAX, START, Position
from .connection import Connection
from .header import Header, parse_header

FIELD = b"b"
PIECE = 2 << 20  # bytes of a reply, at most: larger ones are no faster
FIRST_COUNT = 8  # entries per command while their size is unknown
MAX_COUNT = 4096
GROWTH = 4


class Entry(NamedTuple):
    """An entry of a log."""

    position: Position
    block: bytes

    @property
    def before(self) -> Position:
        """The place right before it."""
        return Position(self.position.ms, self.position.total - len(self.block))

    def header(self) -> Header:
        """Its block's header. Raises BlockError, also if its position differs from the id's."""
        header = parse_header(self.block)
        if header.bytes_before != self.before.total:
            raise BlockError(f"the block {self.position} has {header.bytes_before} as the bytes before it")
        return header


class Gap(NamedTuple):
    """Missing entries of a log: all after `start` up to `end`."""

    node: str
    start: Position
    end: Position

    @property
    def bytes(self) -> int:
        """The missing bytes; 0 if the log has been wound back."""
        return max(0, self.end.total - self.start.total)

    def __str__(self) -> str:
        return f"{self.bytes} bytes of the log of node {self.node}, after {self.start} up to {self.end}"


class KnownLog(NamedTuple):
    """The record of a log, which may be deleted."""

    node: str  # the node's id
    name: str  # of the node, the same after a restart; its id if it has none
    began: int  # ms since 1970
    last: Position | None  # of a log that was deleted: its last entry


class Log:
    """One node's log.

    Args:
        connection: to Redis.
        keys: of the cluster.
        node: id of the node.
    """

    def __init__(self, connection: Connection, keys: Keys, node: str) -> None:
        self.node = node
        self.key = keys.message_log(node.encode())
        self._connection = connection

    def first(self) -> Entry | None:
        """The oldest remaining entry."""
        return self.after(None)

    def last(self) -> Entry | None:
        """The newest entry."""
        return self.until(None)

    def start(self) -> Position:
        """The place before the oldest entry; `end` if no entry remains."""
        first = self.first()
        return self.end() if first is None else first.before

    def end(self) -> Position:
        """The place after the newest entry, trimmed or not; START if there was none, or the log was deleted."""
        return ended(self._connection.ask("XINFO STREAM", self.key))

    def after(self, position: Position | None) -> Entry | None:
        """The first entry after a place."""
        return one_entry(self._connection.ask(*after_command(self.key, position)))

    def until(self, position: Position | None) -> Entry | None:
        """The last entry up to a place, included."""
        return one_entry(self._connection.ask(*until_command(self.key, position)))

    def at_time(self, ms: int) -> Position:
        """The place before the first entry whose block was closed at `ms` or later; it may have older messages."""
        entry = self.until(Position(ms - 1, MAX)) if ms > 0 else None
        return self.start() if entry is None else entry.position

    def further(self, start: Position, end: Position, size: int, least: int) -> Position:
        """A place of at least `least` and at most `size` bytes after `start`, if there is one, but one entry at least.

        Args:
            start, end: a range without gaps, of more than `size` bytes; `end` is an entry's position.
        """
        low, high = start, end
        target = start.total + size
        share = size / max(1, end.total - start.total)
        while low.total < start.total + max(1, least):
            # Interpolate as if all seconds had the same number of bytes; every other time bisect, for bursts.
            guess = Position(min(high.ms, low.ms + int((high.ms - low.ms) * share)), target)
            replies = self._connection.ask_all([until_command(self.key, guess), after_command(self.key, guess)])
            places = [entry.position for entry in map(one_entry, replies) if entry is not None]
            inside = [place for place in places if low < place < high]
            if not inside:
                break
            low = max([low, *(place for place in inside if place.total <= target)])
            high = min([high, *(place for place in inside if place.total > target)])
            share = 0.5 if share != 0.5 else (target - low.total) / max(1, high.total - low.total)
        return low if low > start else high

    def read(self, start: Position, end: Position, lost: Callable[[Gap], None]) -> Iterator[list[Entry]]:
        """The entries of a range, some megabytes at a time; `lost` is called for each gap, and may raise.

        Args:
            start: the reader's place.
            end: an entry's position.
        """
        position, count = start, FIRST_COUNT
        while position < end:
            reply = self._connection.ask("XRANGE", self.key, f"({position}", str(end), "COUNT", count)
            entries = parse_entries(reply)
            if not entries:
                break
            for entry in entries:
                if entry.before.total != position.total:
                    lost(Gap(self.node, position, entry.before))
                position = entry.position
            yield entries
            largest = max(len(entry.block) for entry in entries)
            count = max(1, min(PIECE // largest, GROWTH * count, MAX_COUNT))
        if position < end:
            lost(Gap(self.node, position, end))


class Logs:
    """All logs of a cluster.

    Args:
        connection: to Redis.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.keys = connection.address.keys

    def log(self, node: str) -> Log:
        """The log of a node."""
        return Log(self.connection, self.keys, node)

    def known(self) -> dict[str, KnownLog]:
        """The logs that exist or were deleted in the last weeks, by the node's id."""
        found = self.connection.ask("HGETALL", self.keys.analytics_logs)
        return {node.decode(): _known(node.decode(), text) for node, text in found.items()}

    def ask(self, command: Callable[..., tuple[Any, ...]], arguments: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Replies by node to `command(key, *arguments of the node)`, sent as one pipeline."""
        commands = [command(self.keys.message_log(node.encode()), *more) for node, more in arguments.items()]
        return dict(zip(arguments, self.connection.ask_all(commands) if commands else [], strict=True))


def after_command(key: bytes, position: Position | None) -> tuple[Any, ...]:
    """The command for the first entry after a place, or the first of all."""
    return ("XRANGE", key, "-" if position is None else f"({position}", "+", "COUNT", 1)


def until_command(key: bytes, position: Position | None) -> tuple[Any, ...]:
    """The command for the last entry up to a place, or the last of all."""
    return ("XREVRANGE", key, "+" if position is None else str(position), "-", "COUNT", 1)


def info_command(key: bytes) -> tuple[Any, ...]:
    """The command for the record of a log; for `ended`."""
    return ("XINFO STREAM", key)


def ended(info: Any) -> Position:
    """The place after the newest entry, trimmed or not, in the reply to XINFO STREAM."""
    return START if info is None else Position.parse(info["last-generated-id"])


def one_entry(reply: Any) -> Entry | None:
    """The entry of a reply with at most one."""
    entries = parse_entries(reply)
    return entries[0] if entries else None


def parse_entries(reply: Any) -> list[Entry]:
    """The entries of a reply to XRANGE. Raises BlockError for one without a block."""
    try:
        return [Entry(Position.parse(entry_id), fields[FIELD]) for entry_id, fields in reply or ()]
    except (KeyError, TypeError):
        raise BlockError("an entry of a log of messages has no block") from None


def _known(node: str, text: bytes) -> KnownLog:
    try:
        said = json.loads(text)
        last = said.get("last")
        return KnownLog(
            node, str(said.get("name") or node), int(said.get("began", 0)), Position.parse(last) if last else None
        )
    except (ValueError, TypeError, AttributeError):
        raise RedisAway(f"the record of the log of node {node} is no JSON of a node: {text[:80]!r}") from None
