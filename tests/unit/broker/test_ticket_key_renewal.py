"""The keys of session tickets: when they are made, which of them seals, and when they end."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from flockmq._speedups.net.ticket_keys import KEY_SIZE, TicketKeyRing
from flockmq.broker.core.hidden_messages import HiddenMessages
from flockmq.broker.core.ticket_keys import RENEW_SECONDS, SETTLE_SECONDS, TIME_SIZE, TicketKeys
from tests.harness.inprocess import KeepingStore, Node

HOUR = 3600
START = 1_800_000_000
TICKS = 4  # per second


class Ring(TicketKeyRing):
    """Notes what it is given."""

    def use(self, keys: Iterable[bytes]) -> None:
        self.keys = list(keys)
        super().use(self.keys)


class Keeper:
    """The keys of a node, whose wall clock is `now`."""

    def __init__(
        self,
        store: KeepingStore | None = None,
        listen: str = "mqtts://127.0.0.1:0",
        lifetime: float = HOUR,
        **limits: int,
    ) -> None:
        self.node = Node(store, **limits)
        plane = self.node.broker.data_plane
        plane.config = replace(plane.config, listen=(listen,), tls=replace(plane.config.tls, session_lifetime=lifetime))
        self.messages = HiddenMessages(plane, "tickets")
        self.ring = Ring()
        self.initial = self.ring.keys
        self.now = START
        self.keys = TicketKeys(plane, self.ring, lambda: self.now)

    def refresh(self) -> list[bytes]:
        """The keys in use, the sealing one first."""
        self.keys.refresh()
        return self.ring.keys

    def put(self, age: float, byte: int) -> bytes:
        """Another node has made a key so many seconds ago."""
        key = bytes((byte,)) * KEY_SIZE
        self.messages.put(f"of another node {byte}", int(self.now - age).to_bytes(TIME_SIZE, "big") + key)
        return key


def test_a_key_is_made_once_and_found_after_a_restart() -> None:
    first = Keeper()
    (key,) = first.refresh()
    assert [key] != first.initial
    assert first.refresh() == [key]
    second = Keeper(KeepingStore(first.node.store.after(len(first.node.store.told))))
    second.now += HOUR
    assert second.refresh() == [key]


def test_a_new_key_seals_when_others_have_it() -> None:
    keeper = Keeper()
    (old,) = keeper.refresh()
    keeper.now += RENEW_SECONDS - 1
    assert keeper.refresh() == [old]
    keeper.now += 1
    first, new = keeper.refresh()
    assert first == old
    keeper.now += SETTLE_SECONDS - 1
    assert keeper.refresh() == [old, new]
    keeper.now += 1
    assert keeper.refresh() == [new, old]
    assert len(keeper.messages.all()) == 2


def test_the_keys_of_other_nodes() -> None:
    keeper = Keeper()
    first = keeper.put(HOUR, 1)
    assert keeper.refresh() == [first]  # none is made
    second = keeper.put(5, 2)
    third = keeper.put(5, 3)  # made at the same time
    assert keeper.refresh() == [first, third, second]
    keeper.now += SETTLE_SECONDS
    assert keeper.refresh() == [third, second, first]


def test_the_first_key_seals_at_once() -> None:
    keeper = Keeper()
    only = keeper.put(0, 1)
    assert keeper.refresh() == [only]


@pytest.mark.parametrize("ahead", [60, 100 * 365 * 24 * HOUR])
def test_a_key_of_a_clock_that_is_ahead(ahead: int) -> None:
    keeper = Keeper()
    theirs = keeper.put(-ahead, 1)
    keys = keeper.refresh()
    assert theirs in keys
    if ahead > RENEW_SECONDS:  # it must not keep the nodes from making keys
        keeper.now += SETTLE_SECONDS
        own, _ = keeper.refresh()
        assert own != theirs
    assert len(keeper.refresh()) == 1 + (ahead > RENEW_SECONDS)


def test_a_key_expires_after_the_last_ticket_that_it_seals() -> None:
    keeper = Keeper(lifetime=HOUR)
    (old,) = keeper.refresh()
    keeper.now += RENEW_SECONDS
    assert len(keeper.refresh()) == 2
    keeper.node.reactor.advance((RENEW_SECONDS + HOUR) * TICKS)
    keeper.node.router.expire_retained()
    assert old in keeper.refresh()
    keeper.node.reactor.advance((2 * SETTLE_SECONDS + 1) * TICKS)
    keeper.node.router.expire_retained()
    assert old not in keeper.refresh()


@pytest.mark.parametrize("settings", [{"listen": "127.0.0.1:0"}, {"lifetime": 0}], ids=str)
def test_no_key_is_made_in_vain(settings: dict[str, str | int]) -> None:
    keeper = Keeper(**settings)  # type: ignore[arg-type]
    assert keeper.refresh() == keeper.initial
    assert keeper.messages.all() == {}


def test_retained_messages_have_no_room_for_it() -> None:
    keeper = Keeper(max_retained_bytes=1)
    (key,) = keeper.refresh()
    assert keeper.messages.all() == {}
    assert keeper.refresh() == [key]
    keeper.now += RENEW_SECONDS
    (renewed,) = keeper.refresh()
    assert renewed != key


def test_what_is_no_key_is_not_used() -> None:
    keeper = Keeper()
    keeper.messages.put("odd", b"x")
    keeper.messages.put("long", bytes(TIME_SIZE + KEY_SIZE + 1))
    assert len(keeper.refresh()) == 1
