"""Groups of a configuration in a cluster: a warning if another one had other settings."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from flockmq.broker.config.declared_group import DeclaredGroup, declared, differences
from flockmq.cluster.replication import declared_groups
from flockmq.cluster.replication.declared_groups import DeclaredGroups

JOBS = "$share/workers/jobs/#"


class Redis:
    """The declarations in Redis, as a link."""

    def __init__(self) -> None:
        self.keys = SimpleNamespace(declared_groups=b"groups")
        self.stored: dict[bytes, bytes] = {}

    async def ask(self, command: str, key: bytes, name: bytes) -> bytes | None:
        assert (command, key) == ("HGET", b"groups")
        return self.stored.get(name)

    async def ask_function_first(self, replied: Any, function: str, name: bytes, settings: bytes) -> list[bytes | int]:
        assert function == "declare_group"
        self.stored[name] = settings
        return [b"ok", 0, 0, 0]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def warning(event: str, **fields: Any) -> None:
        assert "shared.groups" in event
        found.append(fields)

    monkeypatch.setattr(declared_groups, "log", SimpleNamespace(warning=warning))
    return found


def node(redis: Redis) -> DeclaredGroups:
    plane: Any = SimpleNamespace(end_turn=lambda: None)
    link: Any = redis
    barrier: Any = None
    return DeclaredGroups(plane, link, barrier, lambda number, records: None)


def apply(groups: DeclaredGroups, *configured: DeclaredGroup) -> None:
    asyncio.run(groups.declare_all(configured))


def test_only_settings_of_others_are_worth_a_warning(warnings: list[dict[str, Any]]) -> None:
    redis = Redis()
    first, second = node(redis), node(redis)
    apply(first, declared(JOBS, {"window": 3}))
    apply(first, declared(JOBS, {"window": 4}))  # its own file has changed
    apply(second, declared(JOBS, {"window": 4}))
    assert not warnings
    apply(second, declared(JOBS, {"window": 5}))  # first and second had the same: the update of the second
    assert not warnings
    apply(first, declared(JOBS, {"window": 4}))
    assert warnings == [{"group": JOBS, "changes": "window: 5 -> 4"}]
    redis.stored[JOBS.encode()] = declared(JOBS, {"window": 4, "paused": True}).stored  # by an operator
    apply(first, declared(JOBS, {"window": 4}))
    assert warnings[1:] == [{"group": JOBS, "changes": "paused: true -> as in [shared]"}]


def test_differences_name_each_setting_once() -> None:
    before = declared(JOBS, {"window": 3, "expiry": "1h", "last_value": True}).stored
    after = declared(JOBS, {"window": 3, "expiry": 60, "when_full": "drop-new"}).stored
    assert differences(before, after) == (
        'when_full: as in [shared] -> "drop-new", expiry: 3600.0 -> 60.0, last_value: true -> as in [shared]'
    )
    assert differences(before, before) == ""
