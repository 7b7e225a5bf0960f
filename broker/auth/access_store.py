"""The store of users and roles, which every node of a cluster shares: the SQLite file of a node alone, or Redis.

A user or a role is a document of JSON, by its name. A change names the document that it replaces: so of two changes at
the same time the second is refused, and nothing is lost. Nodes get each change, in the order of the store.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from ..storage.access_table import Change as Change

Documents = Mapping[str, bytes | None]  # by name; None: there is none


class Kind(StrEnum):
    """The kinds of documents."""

    USER = "user"
    ROLE = "role"


class Watcher(Protocol):
    """Notified of changes. All methods are called in the order of the store."""

    def changed(self, kind: Kind, documents: Documents) -> None:
        """Documents have changed, at any node."""

    def roles_read(self, documents: Mapping[str, bytes]) -> None:
        """All roles: at the start, and after reports of changes were lost."""

    def reports_lost(self) -> None:
        """Changes of users may have been missed."""


class Nobody:
    """Watches nothing."""

    def changed(self, kind: Kind, documents: Documents) -> None:
        pass

    def roles_read(self, documents: Mapping[str, bytes]) -> None:
        pass

    def reports_lost(self) -> None:
        pass


class AccessStore(ABC):
    """Users and roles."""

    _watcher: Watcher = Nobody()

    def attach(self, watcher: Watcher) -> None:
        """Notify this watcher of changes."""
        self._watcher = watcher

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether documents can be read."""

    @abstractmethod
    def read(self, kind: Kind, names: Sequence[str], then: Callable[[list[bytes | None] | None], object]) -> None:
        """Read documents.

        Args:
            kind: of the documents.
            names: of the documents.
            then: called with the documents, None for a name without one; or with None: they can't be read for now. It
                is called after the report of each change that the documents have, and before the report of a later one.
        """

    @abstractmethod
    async def page(self, kind: Kind, after: str, beginning: str, limit: int) -> list[tuple[str, bytes]]:
        """The first documents behind the name `after` whose names begin so, in the order of their names.

        Raises:
            NotNow: the store does not reply.
        """

    @abstractmethod
    async def find(self, kind: Kind, names: Sequence[str]) -> list[bytes | None]:
        """Documents; None for a name without one. Raises NotNow as `page`."""

    @abstractmethod
    async def change(self, kind: Kind, changes: Sequence[Change]) -> list[bool]:
        """Make changes, each for itself; returns when they are as durable as an acknowledged message.

        Returns:
            Whether each was made. One that was not had another document before it.

        Raises:
            NotNow: the store does not reply: each change may have been made or not.
        """
