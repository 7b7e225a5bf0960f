"""The excuses for messages that were dropped at full queues, and the rules for the queues."""

from collections.abc import Iterable
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq.cluster.redis.packed_session import PackedSession
from flockmq.loadtest.prove.history import Delivered, Event, History, Published
from tests.simulation.limits import ACKS_AT, NO_LIMITS, Drops, Limits, excused

LOST = [f"I1 PUBACK came for b'publisher 0/{number}', subscriber 0 never got it" for number in range(3)]
WILL = ["I6 the delayed will b'will guest 0 1' never came", "I6 the will b'will guest 0 1' came late"]
DELAYED = "I1 b'publisher 0/9', delayed, was acknowledged, and went to ['subscriber 1'] only"
GROUP = "I9 b'publisher 0/1' went to no subscriber"
VISITOR = "G4 b'publisher 0/1' was acknowledged, visitor 0 never got it"
LATER = "I3 subscriber 0 got b'publisher 0/1' after b'publisher 0/2', published later"
NEW, OLD = Limits(messages=2), Limits(messages=2, drop_old=True)


def excuses(
    findings: list[str],
    limits: Limits,
    *,
    of: int = 0,
    of_groups: int = 0,
    of_nodes: int = 0,
    events: Iterable[Event] = (),
) -> list[str]:
    drops = Drops(limits, "", pytest.fail)
    drops.of["subscriber 0"], drops.of_groups = of, of_groups
    history, listeners = History([*events]), ["subscriber 0", "subscriber 1"]
    found = excused(findings, history, limits, drops, of_nodes, listeners, ["worker 0"])
    return [finding for finding in findings if finding in found]


@pytest.mark.parametrize(
    ("findings", "limits", "drops", "excuse"),
    [
        (LOST, NEW, {"of": 3}, True),
        (LOST, NEW, {"of": 2}, False),
        (LOST, NEW, {"of": 2, "of_nodes": 3}, False),  # with drop-new Redis alone drops for persistent sessions
        (LOST, OLD, {"of": 2, "of_nodes": 1}, True),
        (LOST, NO_LIMITS, {"of": 3}, False),
        (WILL, OLD, {"of_nodes": 1}, True),  # two findings about one will
        (WILL, NEW, {"of": 1}, False),  # the other listener has not got it, either
        ([DELAYED], NEW, {"of": 1}, True),
        ([DELAYED], NEW, {}, False),
        ([GROUP], NEW, {"of_groups": 1}, True),
        ([GROUP], NEW, {"of": 1}, False),
        ([VISITOR], NEW, {"of_nodes": 1}, True),
        ([VISITOR], NEW, {"of": 1}, False),
        (["E0 n0 has ended"], NEW, {"of": 1}, False),
    ],
)
def test_drops_excuse_as_many_messages(
    findings: list[str], limits: Limits, drops: dict[str, int], excuse: bool
) -> None:
    assert excuses(findings, limits, **drops) == (findings if excuse else [])


PUBLISHED = Published("publisher 0", "t/0", b"publisher 0/1", 1, retain=False, packet_id=1)
REDELIVERED = Delivered("subscriber 0", "t/0", b"publisher 0/1", 1, 1, dup=True, retain=False)


@pytest.mark.parametrize(
    ("limits", "events", "excuse"),
    [
        (NEW, [PUBLISHED], False),
        (NEW, [PUBLISHED, PUBLISHED], True),  # dropped at first
        (NEW, [REDELIVERED], False),
        (OLD, [REDELIVERED], True),  # its node has dropped it, and died
    ],
)
def test_messages_that_were_dropped_may_come_later(limits: Limits, events: list[Event], excuse: bool) -> None:
    assert excuses([LATER], limits, events=events) == ([LATER] if excuse else [])


def stored(queues: dict[bytes, list[bytes]]) -> dict[bytes, Any]:
    """The keys of sessions with these queues, by client id."""
    return {b"mq:s:" + cid: PackedSession(1, 1, entries=entries).encode() for cid, entries in queues.items()}


def rules(limits: Limits, reply: list[Any], length: int) -> list[str]:
    """The findings when Redis has replied so, and a queue has so many messages."""
    found: list[str] = []
    drops = Drops(limits, "", found.append)
    keys = stored({b"subscriber 0": [b"-"] * length})
    drops.called(b"flockmq_commit", reply, keys)
    drops.judge(keys)
    return found


def test_nothing_is_dropped_at_a_queue_with_room() -> None:
    reply = [b"ok", 0, 1, 0, [0, 0], [b"subscriber 0", 1], [b"$share/team/t/#", 1, b""], [], [], []]
    assert not rules(NEW, reply, 2)
    assert rules(NEW, reply, 1) == ["S3 1 messages of subscriber 0 were dropped, and its queue has 1"]


def test_no_queue_has_more() -> None:
    assert not rules(NEW, [0, 0], 2)
    assert rules(NEW, [0, 0], 3) == ["S3 the queue of subscriber 0 has 3 messages, and may have 2"]
    assert not rules(OLD, [0, 0], 4)  # its node drops some, if its client is connected


def test_no_tenant_has_more() -> None:
    found: list[str] = []
    drops = Drops(Limits(tenant_bytes=1024), "$tenant/acme/", found.append)
    sessions = {b"$tenant/acme/a": [b"-" * 1000], b"$tenant/acme/b": [b"-" * 24], b"c": [b"-" * 100]}
    drops.judge(stored(sessions))
    assert not found
    drops.judge(stored(sessions | {b"$tenant/acme/b": [b"-" * 25]}))
    assert found == ["S3 the queues of $tenant/acme/ have 1025 bytes, and may have 1024"]


@pytest.mark.parametrize("acknowledges", [False, True])
def test_acknowledgements_in_a_commit_are_no_drops(acknowledges: bool) -> None:
    found: list[str] = []
    drops = Drops(OLD, "", found.append)
    before = {b"mq:s:subscriber 0": PackedSession(1, 1, sent=3, entries=[b"-"] * 4).encode()}
    after = {b"mq:s:subscriber 0": PackedSession(1, 1, head=2, sent=3, entries=[b"-"] * 4).encode()}
    acks = pack([[b"subscriber 0", 1, 1, 1, b""], []]) if acknowledges else b""
    drops.calling(b"flockmq_commit", [b""] * ACKS_AT + [acks], before)
    drops.called(b"flockmq_commit", [b"ok", 0, 1, 0, [0, 0], [b"subscriber 0", 1], [], [], [], []], after)
    assert found == ([] if acknowledges else ["S3 messages of subscriber 0 were dropped that may have been sent"])
