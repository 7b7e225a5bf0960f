"""Spark's offset of the source: by node the position in its log, `<ms>-<bytes>`, and sometimes its meaning.

    "1770000000010-4711"            everything up to that entry has been read
    "1770000000010-4711 earliest"   nothing has been read, and begins there or later: trimmed entries were not requested
    "1770000000010-4711 ended"      everything has been read, and the log was deleted: no entry will follow

`ended` distinguishes a log that was deleted from one that was lost.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..position import START, Position

EARLIEST, ENDED = "earliest", "ended"


class Offset(NamedTuple):
    """The source's place in one log."""

    position: Position
    mark: str = ""  # "", EARLIEST or ENDED

    @classmethod
    def parse(cls, text: str) -> "Offset":
        """From Spark's text."""
        entry_id, _, mark = text.partition(" ")
        return cls(Position.parse(entry_id), mark)

    def __str__(self) -> str:
        return f"{self.position} {self.mark}" if self.mark else str(self.position)


NEW = Offset(START)  # of a log that is not in the checkpoint: all of it is read
Offsets = dict[str, Offset]


def parse_offsets(texts: Mapping[str, str]) -> Offsets:
    """From Spark's dict."""
    return {node: Offset.parse(text) for node, text in texts.items()}


def format_offsets(offsets: Mapping[str, Offset]) -> dict[str, str]:
    """As Spark's dict; in a fixed order, because Spark compares its JSON."""
    return {node: str(offsets[node]) for node in sorted(offsets)}


def positions(offsets: Mapping[str, Offset]) -> dict[str, Position]:
    """The positions, without their marks."""
    return {node: offset.position for node, offset in offsets.items()}
