"""The users of the cluster that a node has read: those with a connection are never forgotten."""

import asyncio
from typing import Any, cast

import pytest

from flockmq.cluster.replication import users
from flockmq.cluster.replication.users import Users


class Link:
    """A link to a Redis with these users, which replies at once."""

    def __init__(self) -> None:
        self.connected = True
        self.keys = self
        self.users: dict[str, bytes] = {}

    def call(self, reply: Any, command: str, key: object, *names: str) -> None:
        found = [self.users.get(name) for name in names]
        reply(found[0] if command == "HGET" else found)


def log_in(cache: Users, link: Link) -> None:
    """All users log in, in order."""

    async def find() -> None:
        for name in link.users:
            assert await cache.find(name) == link.users[name]

    asyncio.run(find())


def test_a_change_of_a_connected_user_is_noticed_after_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten in the end, and a client whose user had been disabled kept its rights."""
    monkeypatch.setattr(users, "MAX_CACHED", 20)
    link, changed = Link(), list[set[str]]()
    cache = Users(cast(Any, link))
    cache.attach(changed.append, lambda: {"pump"})
    link.users = {"pump": b"1"} | {f"other{number}": b"1" for number in range(200)}
    log_in(cache, link)
    link.users["pump"] = b"2"
    cache.refresh(b"pump")
    assert (changed, cache.known("pump")) == ([{"pump"}], b"2")
    known = [name for name in link.users if cache.known(name)]
    assert known[:1] == ["pump"] and 20 <= len(known) - 1 <= 23 and known[-1] == "other199"


def test_many_connected_users_do_not_cost_a_search_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_CACHED", 20)
    link, searches = Link(), 0
    cache = Users(cast(Any, link))

    def connected() -> set[str]:
        nonlocal searches
        searches += 1
        return set(link.users)

    cache.attach(lambda names: None, connected)
    link.users = {f"pump{number}": b"1" for number in range(200)}
    log_in(cache, link)
    assert all(map(cache.known, link.users))
    assert searches < 100
