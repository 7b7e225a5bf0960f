"""The positions of pipes whose targets can't keep them: in the Redis of the cluster, or in files."""

import fcntl
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...broker.errors import FlockError
from ..analytics.log.connection import Connection
from ..follow.target import Progress, TargetError
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
        """From JSON; None: a new record. Raises FlockError: it is damaged."""
        if text is None:
            return cls(uuid.uuid4().hex[:12], Progress())
        try:
            found = json.loads(text)
            done, planned = found["done"], found["planned"]
            return cls(
                found["id"],
                Progress() if done is None else Progress.parse(done),
                None if planned is None else Progress.parse(planned),
            )
        except (ValueError, KeyError, TypeError):
            raise FlockError(
                "the position of the pipe is damaged", "without it the pipe begins at the start of the log"
            ) from None

    def __bytes__(self) -> bytes:
        done = None if self.done.offsets is None else str(self.done)
        planned = None if self.planned is None else str(self.planned)
        return json.dumps({"id": self.id, "done": done, "planned": planned}).encode()


class Journal(ABC):
    """The record of a pipe."""

    def __init__(self) -> None:
        self.id = ""  # of the record, after it was read

    def read(self) -> Record:
        """The record."""
        record = Record.parse(self._load())
        self.id = record.id
        return record

    def plan(self, progress: Progress) -> None:
        """A batch begins. Raises Overtaken: another process has ended it."""
        self._change(progress.number - 1, lambda record: Record(self.id, record.done, progress))

    def finish(self, progress: Progress) -> None:
        """A batch has ended. Raises Overtaken: another process has ended it."""
        self._change(progress.number - 1, lambda _: Record(self.id, progress))

    @abstractmethod
    def close(self) -> None:
        """Close connections and files."""

    @abstractmethod
    def _load(self) -> bytes | None:
        """The text of the record; None: there is none."""

    @abstractmethod
    def _store(self, edit: Callable[[bytes | None], bytes]) -> None:
        """Replace the text of the record."""

    def _change(self, number: int, edit: Callable[[Record], Record]) -> None:
        """Change the record, if `number` is the number of its newest batch."""

        def change(text: bytes | None) -> bytes:
            found = Record.parse(text)
            if found.done.number != number or (text is not None and found.id != self.id):
                raise Overtaken(f"the pipe is at batch {found.done.number}, not {number}")
            return bytes(edit(found))

        self._store(change)


class RedisJournal(Journal):
    """In the Redis of the cluster. Methods raise RedisAway.

    Args:
        redis: of the cluster.
        pipe: its name.
    """

    def __init__(self, redis: RedisAddress, pipe: str) -> None:
        super().__init__()
        self._connection = Connection(redis, PATIENCE)
        self._key = redis.keys.analytics_pipes
        self._pipe = pipe.encode()

    def close(self) -> None:
        self._connection.close()

    def _load(self) -> bytes | None:
        found: bytes | None = self._connection.ask("HGET", self._key, self._pipe)
        return found

    def _store(self, edit: Callable[[bytes | None], bytes]) -> None:
        self._connection.change(self._key, self._pipe, edit)


class FileJournal(Journal):
    """In a file. Methods raise TargetError: it can't be read or written, or another process has it.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._lock: int | None = None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _load(self) -> bytes | None:
        with self._locked():
            return self._path.read_bytes() if self._path.exists() else None

    def _store(self, edit: Callable[[bytes | None], bytes]) -> None:
        with self._locked():
            text = edit(self._path.read_bytes() if self._path.exists() else None)
            new = self._path.with_name(f"{self._path.name}.new")
            with open(new, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The file is this process's from here on."""
        try:
            if self._lock is None:
                self._lock = os.open(f"{self._path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            self.close()
            raise TargetError(f"{self._path}: another process has the pipe") from None
        except OSError as error:
            raise TargetError(f"{self._path}: {error.strerror}") from None
