"""The checker finds what is wrong: each rule with a faulty history, and a faultless one beside it."""

import pytest

from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import (
    Acknowledged,
    Connected,
    Connecting,
    Delivered,
    Ended,
    Event,
    History,
    Leaving,
    Published,
    Subscribed,
    Taken,
)


def session(client: str, *, present: bool = False, clean: bool = False, will: bytes | None = None) -> list[Event]:
    return [Connecting(client, clean, will), Connected(client, clean, present, will)]


def publish(payload: bytes, qos: int = 1, by: str = "PUBACK", **more: bool) -> list[Event]:
    return [Published("p", "t", payload, qos, **more), Acknowledged("p", payload, by)]


def take(payload: bytes, qos: int = 1, packet_id: int = 1, *, dup: bool = False) -> list[Event]:
    return [Delivered("s", "t", payload, qos, packet_id, dup, False), Taken("s", payload)]


SUBSCRIBER: list[Event] = [*session("s"), Subscribed("s", "t", 2)]
PUBLISHER: list[Event] = session("p", clean=True)
BEGIN = SUBSCRIBER + PUBLISHER
WATCHED: list[Event] = [*SUBSCRIBER, *session("w", clean=True, will=b"will")]

GOOD: dict[str, list[Event]] = {
    "delivered": [*BEGIN, *publish(b"1"), *take(b"1")],
    "lost, but never acknowledged": [*BEGIN, Published("p", "t", b"1", 1)],
    "lost, but only PUBREC came": [*BEGIN, *publish(b"1", 2, "PUBREC")],
    "nobody was subscribed": [*session("s"), *PUBLISHER, *publish(b"1")],
    "subscribed too late": [
        *session("s"),
        *PUBLISHER,
        Published("p", "t", b"1", 1),
        Subscribed("s", "t", 1),
        Acknowledged("p", b"1", "PUBACK"),
    ],
    "sent before SUBACK, and again": [
        *session("s"),
        *PUBLISHER,
        Published("p", "t", b"1", 1),
        Subscribed("s", "t", 1),
        *publish(b"2"),
        *take(b"2"),
        *publish(b"1"),
        *take(b"1"),
    ],
    "granted QoS 0": [*session("s"), Subscribed("s", "t", 0), *PUBLISHER, *publish(b"1")],
    "QoS 1 twice": [*BEGIN, *publish(b"1"), *take(b"1"), *take(b"1", dup=True)],
    "again with DUP": [*BEGIN, *publish(b"1"), *take(b"1"), *take(b"1", dup=True)],
    "an identifier used again": [*BEGIN, *publish(b"1"), *take(b"1"), *publish(b"2"), *take(b"2")],
    "a copy after another": [*BEGIN, *publish(b"1"), *publish(b"2"), *take(b"1"), *take(b"2"), *take(b"1", dup=True)],
    "will after a lost connection": [*WATCHED, Ended("w", "lost"), Taken("s", b"will")],
    "no will after DISCONNECT": [*WATCHED, Leaving("w"), Ended("w", "disconnect")],
    "killed while DISCONNECT was on its way": [*WATCHED, Leaving("w"), Ended("w", "lost"), Taken("s", b"will")],
    "killed while CONNECT was on its way": [*SUBSCRIBER, Connecting("w", True, b"will"), Ended("w", "lost")],
    "still connected": WATCHED,
    "session present": [*session("s"), *session("s", present=True), *session("s", clean=True), *session("s")],
    "nobody knows whether CONNECT arrived": [Connecting("s", False), *session("s", present=True)],
    "nobody knows whether a clean CONNECT arrived": [*session("s"), Connecting("s", True), *session("s")],
}
FAULTY: dict[str, tuple[str, list[Event]]] = {
    "lost after PUBACK": ("I1", [*BEGIN, *publish(b"1")]),
    "lost after PUBCOMP": ("I1", [*BEGIN, *publish(b"1", 2, "PUBREC"), Acknowledged("p", b"1", "PUBCOMP")]),
    "one of two sessions": ("I1", [*BEGIN, *session("x"), Subscribed("x", "#", 1), *publish(b"1"), *take(b"1")]),
    "QoS 2 twice": ("I2", [*BEGIN, *publish(b"1", 2, "PUBCOMP"), *take(b"1", 2), *take(b"1", 2, dup=True)]),
    "out of order": ("I3", [*BEGIN, *publish(b"1"), *publish(b"2"), *take(b"2", packet_id=2), *take(b"1")]),
    "again without DUP": ("I3", [*BEGIN, *publish(b"1"), *take(b"1"), *take(b"1")]),
    "a will after DISCONNECT": ("I6", [*WATCHED, Leaving("w"), Ended("w", "disconnect"), Taken("s", b"will")]),
    "no will": ("I6", [*WATCHED, Ended("w", "lost")]),
    "no will at take-over": ("I6", [*WATCHED, *session("w", clean=True)]),
    "two wills": ("I6", [*WATCHED, Ended("w", "lost"), Taken("s", b"will"), Taken("s", b"will")]),
    "the will of a connected client": ("I6", [*WATCHED, Taken("s", b"will")]),
    "a session that was never there": ("I8", session("s", present=True)),
    "a session forgotten": ("I8", [*session("s"), *session("s")]),
    "a session present after clean start": ("I8", [*session("s"), *session("s", clean=True, present=True)]),
    "a clean session kept": ("I8", [*session("s", clean=True), *session("s", present=True)]),
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    assert checker.check(History(GOOD[name])) == []


@pytest.mark.parametrize("name", FAULTY)
def test_what_is_wrong_is_found_once(name: str) -> None:
    rule, events = FAULTY[name]
    findings = checker.check(History(events))
    assert [finding[:2] for finding in findings] == [rule], findings


def given(client: str, payload: bytes, *, answered: bool = True) -> Event:
    return Delivered(client, "t", payload, 1, 1, False, False, answered)


@pytest.mark.parametrize(
    ("events", "is_right"),
    [
        ([given("a", b"1"), given("b", b"2")], True),
        ([given("a", b"1", answered=False), given("a", b"2"), given("a", b"1"), given("b", b"3")], True),
        ([given("a", b"1", answered=False), given("b", b"1"), given("b", b"2")], True),
        ([given("other", b"2"), given("a", b"1")], True),
        ([given("a", b"2"), given("a", b"1")], False),
        ([given("a", b"1", answered=False), given("b", b"2")], False),
        ([given("a", b"1"), given("b", b"3")], False),
    ],
)
def test_order_over_members(events: list[Event], *, is_right: bool) -> None:
    history = History([*publish(b"1"), *publish(b"2"), *publish(b"3"), *events])
    assert (checker.disordered(history, {"a", "b"}) == []) is is_right


def test_what_a_redis_that_was_behind_may_double() -> None:
    again = [Published("p", "t", b"1", 2), *publish(b"1", 2, "PUBCOMP")]
    doubled = [*take(b"1", 2), *take(b"1", 2, dup=True)]
    assert checker.check(History([*BEGIN, *again, *doubled]), behind=True) == []
    assert checker.check(History([*BEGIN, *again, *doubled]))
    assert checker.check(History([*BEGIN, *publish(b"1", 2, "PUBCOMP"), *doubled]), behind=True)


@pytest.mark.parametrize(
    ("values", "is_right"),
    [
        ({"t": b"2"}, True),
        ({"t": b"3"}, True),
        ({"t": b"2", "under way": b"5"}, True),
        ({"t": b"1"}, False),
        ({}, False),
        ({"t": b"2", "cleared": b"4"}, False),
    ],
)
def test_retained_values(values: dict[str, bytes], is_right: bool) -> None:
    history = History(
        [
            *publish(b"1", retain=True),
            *publish(b"2", retain=True),
            Published("p", "t", b"3", 1, True),
            Published("p", "cleared", b"4", 1, True),
            Acknowledged("p", b"4", "PUBACK"),
            Published("p", "cleared", b"", 1, True),
            Acknowledged("p", b"", "PUBACK"),
            Published("p", "under way", b"5", 1, True),
            Acknowledged("p", b"5", "PUBACK"),
            Published("p", "under way", b"", 1, True, packet_id=1),
        ]
    )
    assert (checker.retained(history, values) == []) is is_right
