"""The target of messages: a table of a lake, or a system behind a connector."""

import json
from abc import ABC, abstractmethod
from typing import NamedTuple

import pyarrow as pa

from ...broker.errors import FlockError
from ..analytics.log.offsets import Offsets, format_offsets, parse_offsets


class TargetError(FlockError):
    """The target can't be read or written now."""


class Progress(NamedTuple):
    """How far a target has come.

    Attributes:
        number: of the batch, among the batches that have a position; 0: there is none.
        offsets: of the log, by node.
    """

    number: int = 0
    offsets: Offsets | None = None

    @classmethod
    def parse(cls, text: str) -> "Progress":
        """From its text."""
        found = json.loads(text)
        return cls(found["number"], parse_offsets(found["offsets"]))

    def __str__(self) -> str:
        assert self.offsets is not None
        return json.dumps({"number": self.number, "offsets": format_offsets(self.offsets)})


class Target(ABC):
    """A target. All methods raise TargetError: it can't be reached, or refuses."""

    @abstractmethod
    def progress(self) -> Progress:
        """Read the position behind the newest batch of the target."""

    def planned(self) -> Progress | None:
        """The batch that was begun after `progress` and perhaps not ended: it is repeated up to the same position."""
        return None

    @abstractmethod
    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Add rows, and the position behind them.

        Raises:
            Overtaken: the target has changed after `progress` was read last.
        """

    def tidy(self) -> str:
        """Do what is due once an hour. Returns a sentence for the log; empty: nothing was done."""
        return ""

    def close(self) -> None:  # noqa: B027, most have none
        """Close connections."""
