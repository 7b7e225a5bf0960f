"""Routes: which changes they make. A route whose last session may come back lingers."""

from collections.abc import Callable
from typing import Any

import pytest

from flockmq.cluster.replication import routes as module
from flockmq.cluster.replication.routes import LINGER_SECONDS, WITHDRAWN_AT_ONCE, Routes

SHARED = b"$share/g/t"


class World:
    """Routes of a node, with a clock of the test, and the changes that they have made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.changes: list[tuple[Any, ...]] = []
        self.routes = Routes(self)  # type: ignore[arg-type]

    def change(self, record: tuple[Any, ...]) -> None:
        self.changes.append(record)

    def made_by(self, step: Callable[[], None]) -> list[tuple[Any, ...]]:
        self.changes.clear()
        step()
        return list(self.changes)

    def comes(self, *names: bytes, qos: int = 1) -> list[tuple[Any, ...]]:
        """A persistent session with these filters."""
        return self.made_by(lambda: [self.routes.add(name, qos, clean=False) for name in names] and None)

    def goes(self, *names: bytes, qos: int = 1) -> list[tuple[Any, ...]]:
        return self.made_by(lambda: self.routes.remove([(name, qos) for name in names], clean=False, linger=True))

    def after(self, seconds: float) -> list[tuple[Any, ...]]:
        self.now += seconds
        return self.made_by(lambda: self.routes.tick(self.now))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_session_that_comes_back_makes_no_change(world: World) -> None:
    assert world.comes(b"a", b"b") == [("route", b"a", 0, 1, 1, 0), ("route", b"b", 0, 1, 1, 0)]
    for _ in range(3):
        assert world.goes(b"a", b"b") == []
        assert world.after(LINGER_SECONDS - 1) == []
        assert world.comes(b"a", b"b") == []
    assert world.after(LINGER_SECONDS + 1) == []
    assert len(world.routes) == 2


def test_a_session_that_stays_away_leaves_nothing(world: World) -> None:
    world.comes(b"a")
    world.goes(b"a")
    assert world.after(LINGER_SECONDS) == [("unroute", b"a")]
    assert len(world.routes) == 0
    assert world.comes(b"a") == [("route", b"a", 0, 1, 1, 0)]


def test_the_time_begins_again_with_each_end(world: World) -> None:
    for name in (b"a", b"b"):
        world.comes(name)
        world.goes(name)
        world.after(10)
    world.comes(b"a")
    world.goes(b"a")
    assert world.after(LINGER_SECONDS - 10) == [("unroute", b"b")]
    assert world.after(10) == [("unroute", b"a")]


def test_other_options_are_announced_when_it_comes_back(world: World) -> None:
    world.comes(b"a", qos=1)
    world.goes(b"a", qos=1)
    assert world.comes(b"a", qos=0) == [("route", b"a", 0, 0, 1, 0)]


def test_a_clean_session_takes_a_lingering_route_over(world: World) -> None:
    """It can't come back, so its route goes with it."""
    world.comes(b"a")
    world.goes(b"a")
    assert world.made_by(lambda: world.routes.add(b"a", 2, clean=True)) == [("route", b"a", 2, 0, 0, 0)]
    assert world.after(LINGER_SECONDS + 1) == []
    assert world.made_by(lambda: world.routes.remove([(b"a", 2)], clean=True)) == [("unroute", b"a")]


def test_a_route_by_which_messages_of_qos_1_come_goes_at_once(world: World) -> None:
    """The session gets them with QoS 0, from no queue."""
    world.comes(b"a", qos=0)
    assert world.goes(b"a", qos=0) == [("unroute", b"a")]


def test_the_route_of_a_shared_subscription_goes_at_once(world: World) -> None:
    assert world.comes(SHARED) == [("route", SHARED, 0, 0, 0, 1)]
    assert world.goes(SHARED) == [("unroute", SHARED)]


def test_many_routes_go_a_piece_at_a_time(world: World) -> None:
    names = [b"%d" % number for number in range(WITHDRAWN_AT_ONCE + 1)]
    world.comes(*names)
    world.goes(*names)
    assert len(world.after(LINGER_SECONDS)) == WITHDRAWN_AT_ONCE
    assert len(world.after(0)) == 1
