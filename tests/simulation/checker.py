"""The rules of a run that need the whole cluster. The rules of `flockmq prove` judge the clients' history.

| rules | guarantee |
| --- | --- |
| I1, I8, S1 | G1, G8: acknowledged means kept, and sessions too |
| S2 | the limits of queues: their bytes, marks and sent messages are counted |
| S3 | the limits of queues: no queue has more, none drops while it has room, or sent messages: `limits.py` finds it |
| S4 | G9: each session without a connection waits for its end, in one place |
| I2 | G3: exactly once |
| I3 | G2: order |
| G4 | G4, for clean sessions; for persistent ones I1 |
| G5 | one connection of a client id: `nodes.py` finds it |
| I6 | G6: wills |
| I7, G7 | G7: retained messages |
| I9 | G13: one subscriber |
| S5 | a Redis has keys of its clusters only |
| S6 | clients get messages and wills of their cluster only |
| G9 | the state of a node is freed when it rejoins, or is killed: `run.py` finds it |
| L1 | all clients are served again after the faults, and all nodes have a link: `run.py`, `cluster.py` find it |
| L2 | before the first fault all CONNECTs are answered at once: `cluster.py` finds it |
| L3 | no node rejoins for a loss of data that Redis has not had: `cluster.py` finds it |
| R1 | each node has what Redis has: members, routes, subscriptions, epochs, wills, rooms: `replicated.py` finds it |
| I13 | G14: transactions, besides I1 to I3 |
| T1 | delayed messages are neither early nor late: `timed.py` finds it |
| E0 | no node ends, and none has an internal error |
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping

from flockmq.broker.core.session_expiry import NEVER
from flockmq.cluster.redis.packed_session import RARE, PackedSession, size_of
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import (
    Acknowledged,
    Connecting,
    Delivered,
    Ended,
    Event,
    History,
    Published,
    Subscribed,
    Taken,
)
from tests.harness.stored_sessions import queue_of, sessions_in
from tests.simulation.clients import TimedHistory
from tests.simulation.clock import NS
from tests.simulation.cluster_keys import prefix_in
from tests.simulation.losses import Excuses
from tests.simulation.redis_types import Hash
from tests.simulation.timed import PREFIX, served
from tests.simulation.world import MILLI

SHARDS = b"mq:shards"  # at each server of a cluster with several shards
REDISPATCHED = 4200 * MILLI  # `shared.redispatch`, a heartbeat, and the way of packets
NUMBER = re.compile(rb"\d+\Z")  # at the end of a payload
# Beginnings of keys that are gone when all is delivered.
LEFT = (b"mq:in:", b"mq:gl:", b"mq:gw:", b"mq:gq:", b"mq:later:messages", b"mq:delayed")


def judge(
    excuses: Excuses,
    visitors: set[str],
    workers: set[str],
    helpers: set[str],
    guests: set[str],
    retained: dict[str, dict[str, bytes]],
) -> list[str]:
    """The findings.

    Args:
        excuses: of the history of all clients, drained.
        visitors: clients with clean sessions that subscribe to all messages.
        workers: subscribers of a group for all messages.
        helpers: likewise, with clean sessions.
        guests: clients whose sessions expire, or that subscribe late.
        retained: by node, the messages that a new subscriber found there.
    """
    history, may_repeat = excuses.history(), excuses.may_repeat()
    # Delayed messages have separate rules (timed.py).
    undelayed = [e for e in history.events if not (isinstance(e, Published) and e.topic.startswith(PREFIX))]
    history = History(undelayed)
    others = without(history, visitors)
    found = [
        *checker.unexpected(others),
        *checker.lost(others),
        *checker.repeated(others, may_repeat),
        # Subscribers of a group have no order: excuses may have taken the events by which the checker would recognize
        # them.
        *checker.out_of_order(without(others, guests | workers)),
        *checker.without_dup(without(excuses.history(forgets_sent=True), visitors)),
        *(finding for finding in checker.wills(others) if not excuses.excuses_will(finding)),
        *checker.untruthful(others),
        *checker.abandoned(others),
        *missed(history, visitors),
        *disordered(history, visitors, guests),
    ]
    if workers:
        events = enumerate(history.events)
        joined = [i for i, event in events if isinstance(event, Subscribed) and event.client in workers]
        if joined:
            found += checker.undelivered(history, workers | helpers, joined[0])
        found += checker.doubled(History([e for e in history.events if not repeats(e, may_repeat)]), workers)
    for node, values in retained.items():
        found += [f"{finding} at {node}" for finding in checker.retained(history, values)]
    if len({tuple(sorted(values.items())) for values in retained.values()}) > 1:
        found.append(f"G7 nodes have different retained messages: {retained}")
    return found


def without(history: History, clients: set[str]) -> History:
    """The history of the other clients."""
    return History([event for event in history.events if event.client not in clients])


def repeats(event: Event, may_repeat: frozenset[bytes]) -> bool:
    """Whether a client has got a message that may come again."""
    return isinstance(event, Taken) and event.payload in may_repeat


def missed(history: History, visitors: set[str]) -> list[str]:
    """G4: messages published after the SUBACK of a clean session that is still connected, and acknowledged."""
    since: dict[str, int] = {}
    taken: dict[str, set[bytes]] = defaultdict(set)
    for i, event in enumerate(history.events):
        if isinstance(event, Connecting | Ended):
            since.pop(event.client, None)
            taken.pop(event.client, None)
        elif isinstance(event, Subscribed):
            since[event.client] = i
        elif isinstance(event, Taken):
            taken[event.client].add(event.payload)
    finished = {event.payload for event in history.of(Acknowledged) if event.by in ("PUBACK", "PUBCOMP")}
    first: dict[bytes, tuple[int, Published]] = checker.published_first(history)
    return [
        f"G4 {checker.shown(payload)} was acknowledged, {client} never got it"
        for client, start in since.items()
        if client in visitors
        for payload, (at, message) in first.items()
        if at > start and payload in finished and message.topic.startswith("t/") and payload not in taken[client]
    ]


def disordered(history: History, visitors: set[str], guests: set[str]) -> list[str]:
    """I3 within each connection of clients whose sessions end: the messages of one publisher, topic and QoS in order.

    A message that was sent before SUBACK, and again, may have come before the subscription at first: then it is a
    repetition, although the client sees it once. A message that a guest has got over an earlier connection is one, too.
    """
    first = checker.published_first(history)
    times = Counter(event.payload for event in history.of(Published))
    since: dict[str, int] = {}  # by client: the place of its SUBACK
    newest: dict[tuple[str, str, str, int], int] = {}  # of a connection and a stream: the place of the last message
    seen: set[tuple[str, bytes]] = set()
    found = []
    judged = visitors | guests
    for place, event in enumerate(history.events):
        if isinstance(event, Subscribed):
            since[event.client] = place
        elif isinstance(event, Connecting) and event.client in judged:
            if event.client in visitors:
                since.pop(event.client, None)
            newest = {key: place for key, place in newest.items() if key[0] != event.client}
            seen = {key for key in seen if key[0] != event.client or event.client in guests}
        elif isinstance(event, Taken) and event.client in judged and event.payload in first:
            at, message = first[event.payload]
            if message.retain:  # a subscriber may get what is retained before older messages
                continue
            stream = event.client, message.client, message.topic, message.qos
            is_known = (event.client, event.payload) in seen
            may_repeat = times[event.payload] > 1 and at < since.get(event.client, place)
            if not is_known and not may_repeat and at < newest.get(stream, -1):
                found.append(f"I3 {event.client} got {checker.shown(event.payload)} after a later one")
            seen.add((event.client, event.payload))
            newest[stream] = max(at, newest.get(stream, -1))
    return found


def stale(history: History, visitors: set[str], values: Mapping[str, bytes]) -> list[str]:
    """G4, G7: retained messages that clients with clean sessions have not got, neither at SUBACK nor after it.

    Args:
        history: of all clients, drained.
        visitors: these clients; they may have subscribed to `kept/#`.
        values: the retained messages that a new subscriber finds now.
    """
    got: dict[str, set[tuple[str, bytes]]] = {}  # by client that is subscribed
    for event in history.events:
        if isinstance(event, Connecting | Ended):
            got.pop(event.client, None)
        elif isinstance(event, Subscribed) and event.topic_filter == "kept/#" and event.client in visitors:
            got.setdefault(event.client, set())
        elif isinstance(event, Delivered) and event.client in got:
            got[event.client].add((event.topic, event.payload))
    return [
        f"G7 {client} has not got {shown_value} of {topic}"
        for client, found in got.items()
        for topic, value in values.items()
        if value and (topic, value) not in found and (shown_value := checker.shown(value))
    ]


def disordered_in_group(history: History, subscribers: set[str]) -> list[str]:
    """I9: messages that went to a subscriber of a group with the order `publisher` before earlier ones."""
    kept = [event for event in history.events if not isinstance(event, Published) or _is_kept(event)]
    return checker.disordered(History(kept), subscribers)


def _is_kept(message: Published) -> bool:
    return message.qos > 0 and message.topic.startswith("t/")


def late(history: TimedHistory, workers: set[str], first_fault: int) -> list[str]:
    """I9: messages of QoS 1 that waited while a subscriber had a connection: for one that is away, or for nothing.

    Judged as long as nothing is broken: `first_fault` is the nanosecond of the first fault.
    """
    published: dict[bytes, int] = {}
    found = []
    timeline = [*zip(history.times, history.events, strict=True)]
    spans = list(served(timeline, workers))
    joined = min((start for start, _ in spans), default=0)
    for at, event in timeline:
        if isinstance(event, Published) and event.qos == 1 and event.topic.startswith("t/") and at > joined:
            published.setdefault(event.payload, at)
        elif isinstance(event, Taken) and event.client in workers and event.payload in published:
            start = published.pop(event.payload)
            end = start + REDISPATCHED
            if end < min(at, first_fault) and any(since < start and end < until for since, until in spans):
                waited = (at - start) / NS
                found.append(f"I9 {checker.shown(event.payload)} waited {waited:.1f} s beside a subscriber")
    return found


def left_over(keys: Mapping[bytes, object], expired: set[str]) -> list[str]:
    """S1: keys of Redis that should be gone.

    Args:
        keys: all of them.
        expired: clients whose sessions are over.
    """
    found = [key for key in keys if key.startswith(LEFT)]
    found += [b"mq:q:" + name for name, session in sessions_in(keys).items() if queue_of(name, session, keys)]
    found += [key for name in expired for kind in ("s", "subs") if (key := f"mq:{kind}:{name}".encode()) in keys]
    nodes = keys.get(b"mq:nodes")
    live = set(nodes) if isinstance(nodes, Hash) else set()
    found += [key for key in keys if key.startswith((b"mq:wills:", b"mq:owned:")) and key.split(b":")[2] not in live]
    return [f"S1 {key.decode()} is left" for key in sorted(found)]


def strange(keys: Iterable[bytes], prefixes: Container[bytes]) -> list[str]:
    """S5: keys of a Redis that belong to none of its clusters, which have these prefixes."""
    return [f"S5 {key.decode()} is there" for key in sorted(keys) if prefix_in(key) not in prefixes and key != SHARDS]


def foreign(history: History, numbers: range) -> list[str]:
    """S6: messages and wills of another cluster. `numbers`: with which payloads of this cluster end."""
    ends = ((event, NUMBER.search(event.payload)) for event in history.of(Taken))
    return [
        f"S6 {event.client} got {checker.shown(event.payload)} of another cluster"
        for event, end in ends
        if end is not None and int(end[0]) not in numbers
    ]


def miscounted(keys: Mapping[bytes, object]) -> list[str]:
    """S2: sessions and groups that count other bytes than their messages in Redis have. `keys`: all."""
    found = []
    for client_id, session in sessions_in(keys).items():
        counted = size_of(queue_of(client_id, session, keys))
        if counted != session.queued_bytes:
            found.append(f"S2 {client_id.decode()} has {counted} bytes, and counts {session.queued_bytes}")
        found += miscounted_in_session(client_id, session, keys)
    for key, fields in keys.items():
        if key.startswith(b"mq:g:"):
            assert isinstance(fields, Hash)
            listed, others = (keys.get(b"mq:%b:%b" % (kind, key[5:]), {}) for kind in (b"gw", b"gm"))
            assert isinstance(listed, list | dict) and isinstance(others, dict)
            counted = size_of([*listed, *others.values()])
            if counted != (noted := int(fields.get(b"b", b"0"))):
                found.append(f"S2 {key.decode()} has {counted} bytes, and counts {noted}")
    return found


def miscounted_in_session(client_id: bytes, session: PackedSession, keys: Mapping[bytes, object]) -> list[str]:
    """S2: wrong counts of a session: of its marks, and of the messages that may have been sent."""
    name, marks, queue = client_id.decode(), keys.get(b"mq:st:" + client_id, {}), queue_of(client_id, session, keys)
    assert isinstance(marks, dict)
    end = session.head + len(queue)
    found = []
    done = [*marks.values()].count(b"d")
    if done != session.done:
        found.append(f"S2 {name} has {done} entries that are done, and counts {session.done}")
    if len(marks) != session.marks:
        found.append(f"S2 {name} has {len(marks)} marks, and counts {session.marks}")
    if session.sent > end:
        found.append(f"S2 {name} counts messages up to {session.sent} as sent, and its queue ends at {end}")
    if b"mq:q:" + client_id in keys and not session.listed:
        found.append(f"S2 {name} has its queue in two places")
    if (b"mq:rare:" + client_id in keys) != bool(session.flags & RARE):
        found.append(f"S2 {name} does not know its rare fields")
    return found


def misplaced(keys: Mapping[bytes, object]) -> list[str]:
    """S4: sessions without a connection that do not wait for their end, or wait twice. `keys`: all."""
    found = []
    waiting = Counter(
        client_id for key, members in keys.items() if key.startswith((b"mq:off:", b"mq:ends:")) for client_id in members
    )
    for client_id, session in sessions_in(keys).items():
        waits = session.persistent and not session.owner and session.interval != b"%d" % NEVER
        if waiting[client_id] != waits:
            found.append(f"S4 {client_id.decode()} waits for its end {waiting[client_id]} times")
        if (client_id in keys.get(b"mq:sessions", ())) != session.persistent:
            found.append(f"S4 {client_id.decode()} is in the set of sessions, or not, by mistake")
    gone = waiting.keys() - sessions_in(keys).keys()
    return found + [f"S4 {client_id.decode()} waits for its end, and has ended" for client_id in sorted(gone)]


def miscounted_for(tenant: bytes, keys: Mapping[bytes, object]) -> str:
    """S2: the bytes in the queues of a tenant, if Redis has another sum; empty: it is right. `tenant`: its prefix."""
    hashes = {key: fields for key, fields in keys.items() if tenant and isinstance(fields, Hash)}
    queues = [
        session.queued_bytes
        for client_id, session in sessions_in(keys).items()
        if tenant and client_id.startswith(tenant)
    ]
    queues += [
        int(fields.get(b"b", 0)) for key, fields in hashes.items() if key.startswith(b"mq:g:$share/") and tenant in key
    ]
    nodes = [int(fields.get(tenant, 0)) for key, fields in hashes.items() if key.startswith(b"mq:queued:")]
    summed = int(hashes.get(b"mq:queued:tenants", {}).get(tenant, 0))
    counted = sum(queues) + sum(nodes) - summed  # the sum is in a key like the nodes' keys
    if counted == summed:
        return ""
    return f"S2 the queues of {tenant.decode()} have {counted} bytes, and Redis has the sum {summed}"
