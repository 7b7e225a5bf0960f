"""The places that a migration moves state between; Redis is in `redis_place.py`.

A mark at each place has the id of the migration, so that a command that is repeated goes on where the last one was.
"""

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ...broker.auth.access_store import Kind
from ...broker.config.schema import Config
from ...broker.errors import FlockError
from ...broker.storage import access_table, sqlite_file
from ...broker.storage.confirmed_note import ConfirmedNote
from .mosquitto_file import CutFile, DamagedFile, chunks
from .mosquitto_state import MosquittoState
from .sqlite_state import RecordWriter, SqliteState
from .state import Access, Moved, State

SQLITE, MOSQUITTO = "sqlite:", "mosquitto:"  # before the path of a file


class Stage(Enum):
    """Which state a place has."""

    OWN = "own"  # a node's, or none
    ARRIVING = "arriving"  # a part of a migration
    MOVED = "moved"  # none any more: it was moved away


class Mark(NamedTuple):
    """The notes of a migration at a place."""

    stage: Stage
    id: str = ""
    place: str = ""  # the other one
    options: str = ""  # of the command line


class Source(ABC):
    """A place that has the state of a broker. Use it as `with source.opened():`."""

    name: str  # as on the command line; without passwords
    options: str = ""  # of the command line that belong to it
    mark: Mark

    @abstractmethod
    def opened(self, *, create: bool) -> contextlib.AbstractContextManager[bool]:
        """Open the place; whether there is one. `create`: make it if there is none.

        Raises:
            FlockError: a node uses it, it is of a layout that is not known, or can't be reached.
        """

    @abstractmethod
    def read(self) -> State:
        """Its state. Raises FlockError."""

    def access(self) -> Access:
        """Its users and roles."""
        return {}

    @abstractmethod
    def set_mark(self, mark: Mark) -> None:
        """Note what a migration has done, if nothing has changed here since the place was opened."""

    def losses(self) -> list[str]:
        """The parts that stay behind when the state is moved away, or are at risk here, in sentences. After `read`."""
        return []


class Place(Source):
    """A source that can be a target, too."""

    @property
    @abstractmethod
    def has_state(self) -> bool:
        """Whether a node would find state here."""

    @abstractmethod
    def write(self, state: State, access: Access, mark: Mark) -> Moved:
        """Replace all by the state of another place, and set the mark; returns when all of it is durable.

        Users or roles that are here stay if the other place has none.
        """


class SqlitePlace(Place):
    """A SQLite store.

    Args:
        path: of its file.
        config: of the node.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self._path = path.absolute()
        self._config = config
        self.name = f"{SQLITE}{self._path}"

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[bool]:
        with sqlite_file.reported(self._path):
            if not self._path.exists():
                if not create:
                    yield False
                    return
                sqlite_file.create(self._path)
            self._database = sqlite_file.connect(self._path, marked=True)
            try:
                self._read_mark()
                yield True
            finally:
                self._database.close()

    def _read_mark(self) -> None:
        found = sqlite_file.mark_of(self._database)
        stages = {sqlite_file.MOVED: Stage.MOVED, sqlite_file.ARRIVING: Stage.ARRIVING}
        self.mark = Mark(Stage.OWN) if found is None else Mark(stages.get(found.state, Stage.OWN), *found[1:])

    def read(self) -> State:
        return SqliteState(block for _, block in sqlite_file.blocks(self._database, self._path))

    @property
    def has_state(self) -> bool:
        return self.mark.stage == Stage.OWN and not self.read().is_empty

    def access(self) -> Access:
        found = {kind: list(access_table.all_of(self._database, kind).items()) for kind in Kind}
        return {kind: documents for kind, documents in found.items() if documents}

    def write(self, state: State, access: Access, mark: Mark) -> Moved:
        writer = RecordWriter(state)
        ConfirmedNote(self._path, self._config.store.sync).remove()
        with self._transaction() as database:
            database.execute("DELETE FROM block")
            for position, block in enumerate(writer.blocks(), 1):
                sqlite_file.insert(database, position, block)
            for kind, documents in access.items():
                access_table.replace_all(database, kind, documents)
            self._mark(mark)
        return writer.moved

    def set_mark(self, mark: Mark) -> None:
        with self._transaction():
            self._mark(mark)

    def _mark(self, mark: Mark) -> None:
        states = {Stage.MOVED: sqlite_file.MOVED, Stage.ARRIVING: sqlite_file.ARRIVING, Stage.OWN: sqlite_file.LAYOUT}
        noted = sqlite_file.Mark(states[mark.stage], *mark[1:]) if mark.id else None
        sqlite_file.set_mark(self._database, noted)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise


class MosquittoFile(Source):
    """A persistence file of Mosquitto. It is only read: Mosquitto, and a repeated migration, find it as it was.

    Args:
        path: of the file.
        config: of the nodes to be.
        keeps_users: whether a session belongs to the user name that its client gave.
        takes_part: whether a file that ends within a chunk is read up to there.
    """

    def __init__(self, path: Path, config: Config, *, keeps_users: bool = True, takes_part: bool = False) -> None:
        self._path = path.absolute()
        self._config = config
        self._keeps_users = keeps_users
        self._takes_part = takes_part
        self.name = f"{MOSQUITTO}{self._path}"
        self.options = f"{'' if keeps_users else ' --no-users'}{' --partial' if takes_part else ''}"
        self.mark = Mark(Stage.OWN)

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[bool]:
        try:
            self._data = self._path.read_bytes()
        except OSError as error:
            raise FlockError(f"{self._path} can't be read: {error.strerror}") from error
        yield True

    def read(self) -> State:
        options = {"keeps_users": self._keeps_users, "takes_part": self._takes_part}
        try:
            self._state = MosquittoState(chunks(self._data), self._config, **options)
        except CutFile as cut:
            raise FlockError(
                f"{self._path} is cut {cut}",
                "restore it from a backup, or import what is before that place: --partial",
            ) from cut
        except DamagedFile as damage:
            raise FlockError(f"{self._path} is damaged {damage}", "restore it from a backup") from damage
        return self._state

    def set_mark(self, mark: Mark) -> None:
        """None: the imported state stays, too."""

    def losses(self) -> list[str]:
        return self._state.losses()


def is_sqlite(text: str) -> bool:
    """Whether this names a SQLite store."""
    return text.startswith(SQLITE) and len(text) > len(SQLITE)


def is_mosquitto(text: str) -> bool:
    """Whether this names a persistence file of Mosquitto."""
    return text.startswith(MOSQUITTO) and len(text) > len(MOSQUITTO)
