"""Users and roles of a node alone, in the database of its store, or in memory if the store has no file."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from .. import logs
from ..auth.access_store import AccessStore, Change, Kind
from ..errors import NotNow
from ..storage import access_table
from ..storage.store import Store

T = TypeVar("T")

log = logs.get("flockmq.auth")


class LocalAccess(AccessStore):
    """Reads and changes documents in a store.

    Args:
        store: of the node.
    """

    connected = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self) -> None:
        """Read the roles, between `open` and `start` of the store."""
        self._watcher.roles_read(self._store.ask_at_start(partial(access_table.all_of, kind=Kind.ROLE)))

    def read(self, kind: Kind, names: Sequence[str], then: Callable[[list[bytes | None] | None], object]) -> None:
        def answered(result: list[bytes | None] | Exception) -> None:
            if isinstance(result, Exception):
                log.error("users can't be read from the store", error=result)
            then(None if isinstance(result, Exception) else result)

        self._store.ask(partial(access_table.find, kind=kind, names=names), answered)

    async def page(self, kind: Kind, after: str, beginning: str, limit: int) -> list[tuple[str, bytes]]:
        return await self._ask(
            partial(access_table.page, kind=kind, after=after, beginning=beginning, limit=limit), lambda found: None
        )

    async def find(self, kind: Kind, names: Sequence[str]) -> list[bytes | None]:
        return await self._ask(partial(access_table.find, kind=kind, names=names), lambda found: None)

    async def change(self, kind: Kind, changes: Sequence[Change]) -> list[bool]:
        def report(made: list[bool]) -> None:
            self._watcher.changed(
                kind, {each.name: each.after for each, done in zip(changes, made, strict=True) if done}
            )

        return await self._ask(partial(access_table.change, kind=kind, changes=changes), report)

    async def _ask(self, work: Callable[[sqlite3.Connection], T], report: Callable[[T], object]) -> T:
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(result: T | Exception) -> None:
            if not isinstance(result, Exception):
                report(result)  # before a later reply of the store, also if nobody waits for this one
            if not found.done():
                found.set_result(result)

        self._store.ask(work, answered)
        result = await found
        if isinstance(result, Exception):
            raise NotNow(f"the store of users and roles fails: {result}") from result
        answer: T = result
        return answer
