"""The rules of a run: cases that a seed seldom has."""

import pytest

from flockmq.cluster.redis.packed_session import LISTED, PackedSession
from flockmq.loadtest.prove.history import Connecting, Delivered, History, Published, Subscribed, Taken
from tests.simulation.checker import disordered, disordered_in_group, miscounted_for, stale
from tests.simulation.redis_types import Hash


@pytest.mark.parametrize(
    ("before", "repeats", "wanted"),
    [
        (True, True, 0),  # it came before the subscription at first, and the visitor sees the repetition only
        (True, False, 1),
        (False, True, 1),
        (False, False, 1),
    ],
)
def test_order_of_a_visitor(before: bool, repeats: bool, wanted: int) -> None:
    history = History([Connecting("visitor", True)])
    first = Published("publisher", "t/0", b"1", 1)
    subscribed = Subscribed("visitor", "t/#", 1)
    for event in (first, subscribed) if before else (subscribed, first):
        history.add(event)
    history.add(Published("publisher", "t/0", b"2", 1))
    history.add(Taken("visitor", b"2"))
    if repeats:
        history.add(first)
    history.add(Taken("visitor", b"1"))
    assert len(disordered(history, {"visitor"}, set())) == wanted


@pytest.mark.parametrize(("guests", "wanted"), [(set(), 1), ({"client"}, 0)])
def test_order_of_what_a_guest_has_got_over_an_earlier_connection(guests: set[str], wanted: int) -> None:
    first, second = (Published("publisher", "t/0", payload, 1) for payload in (b"1", b"2"))
    begin = [Connecting("client", False), Subscribed("client", "t/#", 1)]
    history = History([*begin, first, second, Taken("client", b"1"), Taken("client", b"2"), *begin])
    for payload in (b"2", b"1"):
        history.add(Taken("client", payload))
    assert len(disordered(history, {"client"} - guests, guests)) == wanted


def test_order_before_the_suback_of_a_later_connection() -> None:
    """A node without Redis delivers before SUBACK; a repeated message may have come over the earlier connection."""
    first, second = (Published("publisher", "t/0", payload, 1) for payload in (b"1", b"2"))
    begin = [Connecting("visitor", True), Subscribed("visitor", "t/#", 1), first]
    history = History([*begin, Connecting("visitor", True), second, Taken("visitor", b"2"), first])
    history.add(Taken("visitor", b"1"))
    assert disordered(history, {"visitor"}, set()) == []


@pytest.mark.parametrize(("topic", "qos", "wanted"), [("t/0", 1, 1), ("t/0", 0, 0), ("kept/0", 1, 0)])
def test_order_of_a_group_is_that_of_the_messages_which_it_keeps(topic: str, qos: int, wanted: int) -> None:
    first, second = Published("publisher", topic, b"1", qos), Published("publisher", "t/0", b"2", 1)
    later = Delivered("worker", "t/0", b"2", 1, 1, False, False, True)
    assert len(disordered_in_group(History([first, second, later]), {"worker"})) == wanted


def test_bytes_of_the_queues_of_a_tenant() -> None:
    tenant, sums = b"$tenant/acme/", Hash({b"$tenant/acme/": b"15", b"$tenant/other/": b"2"})
    keys: dict[bytes, object] = {
        b"mq:s:$tenant/acme/subscriber": PackedSession(1, 1, entries=[b"12345"]).encode(),
        b"mq:s:$tenant/other/subscriber": PackedSession(1, 1, flags=LISTED, listed_bytes=2).encode(),
        b"mq:g:$share/team/$tenant/acme/t/#": Hash({b"b": b"7"}),
        b"mq:queued:n0-1": Hash({tenant: b"3"}),
        b"mq:queued:tenants": sums,
    }
    assert not miscounted_for(tenant, keys)
    assert not miscounted_for(b"", keys)  # the clients have no tenant
    del sums[tenant]
    assert miscounted_for(tenant, keys)
    assert not miscounted_for(tenant, {b"mq:queued:tenants": sums})


@pytest.mark.parametrize(("got", "wanted"), [(b"old", 1), (b"new", 0)])
def test_what_is_retained_reaches_clients_that_have_subscribed(got: bytes, wanted: int) -> None:
    history = History([Connecting("visitor", True), Subscribed("visitor", "kept/#", 1)])
    history.add(Delivered("visitor", "kept/0", got, 1, 1, False, True, True))
    assert len(stale(history, {"visitor"}, {"kept/0": b"new", "kept/1": b""})) == wanted
