"""The positions of pipes whose targets can't keep them, in the Redis of the cluster."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ..analytics.log.connection import Connection
from ..follow.target import Progress
from ..redis.clients import RedisAddress
from ..tables.table import Overtaken

PATIENCE = 60.0  # seconds of retries while Redis is away


@dataclass(frozen=True)
class Record:
    """The record of a pipe.

    Attributes:
        id: of the pipe's beginning: another one after the record was lost.
        done: the newest batch that was sent.
        planned: the batch after it, if it was begun.
    """

    id: str
    done: Progress
    planned: Progress | None = None

    @classmethod
    def parse(cls, text: bytes | None) -> "Record":
        """From JSON; None: a new record."""
        if text is None:
            return cls(uuid.uuid4().hex[:12], Progress())
        found = json.loads(text)
        done, planned = found["done"], found["planned"]
        return cls(
            found["id"],
            Progress() if done is None else Progress.parse(done),
            None if planned is None else Progress.parse(planned),
        )

    def __bytes__(self) -> bytes:
        done = None if self.done.offsets is None else str(self.done)
        planned = None if self.planned is None else str(self.planned)
        return json.dumps({"id": self.id, "done": done, "planned": planned}).encode()


class Journal:
    """The record of a pipe.

    Args:
        redis: of the cluster.
        pipe: its name.

    All methods raise RedisAway.
    """

    def __init__(self, redis: RedisAddress, pipe: str) -> None:
        self._connection = Connection(redis, PATIENCE)
        self._key = redis.keys.analytics_pipes
        self._pipe = pipe.encode()
        self.id = ""  # of the record, after it was read

    def read(self) -> Record:
        """The record."""
        record = Record.parse(self._connection.ask("HGET", self._key, self._pipe))
        self.id = record.id
        return record

    def plan(self, progress: Progress) -> None:
        """A batch begins. Raises Overtaken: another process has ended it."""
        self._change(progress.number - 1, lambda record: Record(self.id, record.done, progress))

    def finish(self, progress: Progress) -> None:
        """A batch has ended. Raises Overtaken: another process has ended it."""
        self._change(progress.number - 1, lambda _: Record(self.id, progress))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _change(self, number: int, edit: Callable[[Record], Record]) -> None:
        """Change the record, if `number` is the number of its newest batch."""

        def change(text: bytes | None) -> bytes:
            found = Record.parse(text)
            if found.done.number != number or (text is not None and found.id != self.id):
                raise Overtaken(f"the pipe is at batch {found.done.number}, not {number}")
            return bytes(edit(found))

        self._connection.change(self._key, self._pipe, change)
