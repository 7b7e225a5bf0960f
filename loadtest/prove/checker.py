"""Judges a history: the promises to clients, and the messages that they got. A finding is one line, its rule first.

`RULES` hold for any broker. Of a FlockMQ cluster there is also G12, the log of messages.
"""

from collections import Counter, defaultdict
from collections.abc import Set

from ..._speedups.codec.topics import is_shared
from .history import (
    Abandoned,
    Acknowledged,
    Connected,
    Connecting,
    Delivered,
    Ended,
    History,
    Leaving,
    Published,
    Subscribed,
    Taken,
    Unexpected,
)
from .topics import matches

RULES = {
    "I0": "Nodes live, packets are those that the standard allows, and properties arrive as they were sent",
    "I1": "Messages of QoS 1 and 2 that the broker has acknowledged reach every persistent session that was subscribed",
    "I2": "Messages of QoS 2 arrive exactly once",
    "I3": "Messages of one publisher, topic and QoS keep their order, and those that are sent again have DUP",
    "I6": "A will is published once if its connection is lost, and never after DISCONNECT",
    "I7": "A new subscriber gets the retained message that was acknowledged last",
    "I8": "Session Present of CONNACK is true if, and only if, the broker has the session",
    "I9": "Each message to a shared subscription goes to one subscriber: it is not lost, and at QoS 2 not doubled",
    "I13": "Messages of a transaction are published by its commit only: nothing of an attempt that failed arrives",
}


def check(history: History, *, behind: bool = False) -> list[str]:
    """All findings, in words; the list should be empty.

    Args:
        history: of the run.
        behind: whether a Redis took over that lacked what the nodes had delivered, but not acknowledged: messages that
            their publishers had to send again may arrive twice.
    """
    sent = Counter(event.payload for event in history.of(Published)) if behind else Counter()
    return [
        *unexpected(history),
        *lost(history),
        *repeated(history, {payload for payload, count in sent.items() if count > 1}),
        *out_of_order(history),
        *without_dup(history),
        *wills(history),
        *untruthful(history),
        *abandoned(history),
    ]


def shown(payload: bytes) -> str:
    """The name of a message, without what fills it up."""
    return repr(payload.rstrip(b"\0 ")[:40])


def unexpected(history: History) -> list[str]:
    return [f"I0 {event.client}: {event.text}" for event in history.of(Unexpected)]


class Subscriptions:
    """The subscriptions of a client's session: from which event on, until a clean start."""

    def __init__(self, history: History) -> None:
        self.since: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self.persistent: set[str] = set()
        for at, event in enumerate(history.events):
            if isinstance(event, Connecting) and event.clean:
                self.since[event.client].clear()
                self.persistent.discard(event.client)
            elif isinstance(event, Connected) and not event.clean:
                self.persistent.add(event.client)
            elif isinstance(event, Subscribed):
                self.since[event.client].setdefault(event.topic_filter, (at, event.qos))

    def qos(self, client: str, topic: str, at: int) -> int | None:
        """The highest QoS granted to a persistent session for a topic up to `at`; None: it was not subscribed."""
        if client not in self.persistent:
            return None
        return max(
            (
                qos
                for topic_filter, (since, qos) in self.since[client].items()
                if since < at and matches(topic_filter, topic)
            ),
            default=None,
        )


def published_first(history: History) -> dict[bytes, tuple[int, Published]]:
    first: dict[bytes, tuple[int, Published]] = {}
    for at, event in enumerate(history.events):
        if isinstance(event, Published):
            first.setdefault(event.payload, (at, event))
    return first


def lost(history: History) -> list[str]:
    subscriptions = Subscriptions(history)
    taken = {(event.client, event.payload) for event in history.of(Taken)}
    finished = {event.payload: event.by for event in history.of(Acknowledged)}  # PUBCOMP comes after PUBREC
    found = []
    for payload, (at, message) in published_first(history).items():
        if finished.get(payload) not in ("PUBACK", "PUBCOMP"):
            continue
        for client in subscriptions.persistent:
            granted = subscriptions.qos(client, message.topic, at)
            if granted and (client, payload) not in taken:
                found.append(f"I1 {finished[payload]} came for {shown(payload)}, {client} never got it")
    return found


def repeated(history: History, allowed: Set[bytes] = frozenset()) -> list[str]:
    subscriptions = Subscriptions(history)
    counts: dict[tuple[str, bytes], int] = defaultdict(int)
    for event in history.of(Taken):
        counts[event.client, event.payload] += 1
    first = published_first(history)
    found = []
    for (client, payload), count in counts.items():
        if payload in first and count > 1 and payload not in allowed:
            _, message = first[payload]
            granted = subscriptions.qos(client, message.topic, len(history.events))
            if min(message.qos, granted or 0) == 2 and not message.retain:
                found.append(f"I2 {client} got {shown(payload)} {count} times")
    return found


def out_of_order(history: History) -> list[str]:
    """Messages that came after later ones, but for messages that were sent before SUBACK, and again."""
    sent: dict[bytes, tuple[tuple[str, str, int], int]] = {}
    for payload, (at, message) in published_first(history).items():
        sent[payload] = (message.client, message.topic, message.qos), at
    newest: dict[tuple[str, tuple[str, str, int]], tuple[int, bytes]] = {}  # of a stream: the message published last
    seen: set[tuple[str, bytes]] = set()
    found = []
    subscribers = {event.client for event in history.of(Subscribed) if is_shared(event.topic_filter)}
    times = Counter(event.payload for event in history.of(Published))
    since: dict[str, int] = {}  # by client: the place of the first SUBACK of its session
    for place, event in enumerate(history.events):
        if isinstance(event, Connecting) and event.clean:
            since.pop(event.client, None)
        elif isinstance(event, Subscribed):
            since.setdefault(event.client, place)
        if not isinstance(event, Taken) or event.client in subscribers:
            continue
        if event.payload not in sent or (event.client, event.payload) in seen:
            continue
        seen.add((event.client, event.payload))
        stream, at = sent[event.payload]
        if times[event.payload] > 1 and at < since.get(event.client, place):
            continue
        last, payload = newest.get((event.client, stream), (-1, b""))
        if at < last:
            found.append(f"I3 {event.client} got {shown(event.payload)} after {shown(payload)}, published later")
        else:
            newest[event.client, stream] = at, event.payload
    return found


def without_dup(history: History) -> list[str]:
    """A message that a client was sent with a packet identifier, and is sent again with it, is marked."""
    sent: dict[tuple[str, int], bytes] = {}
    found = []
    for event in history.events:
        if isinstance(event, Connecting) and event.clean:
            sent = {key: payload for key, payload in sent.items() if key[0] != event.client}
        elif isinstance(event, Delivered) and event.qos and not event.retain:
            if sent.get((event.client, event.packet_id)) == event.payload and not event.dup:
                found.append(f"I3 {event.client} got {shown(event.payload)} again, without DUP")
            sent[event.client, event.packet_id] = event.payload
    return found


def wills(history: History) -> list[str]:
    """Every will is seen by some persistent QoS 2 session in each test that uses wills."""
    counts: dict[bytes, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for event in history.of(Taken):
        counts[event.payload][event.client] += 1
    state: dict[str, tuple[bytes | None, bool, bool]] = {}  # will, CONNACK came, DISCONNECT was sent
    fates: dict[bytes, str] = {}
    for event in history.events:
        if isinstance(event, Connecting):
            old = state.get(event.client, (None, False, False))
            if old[0] is not None and old[0] not in fates:
                fates[old[0]] = "maybe" if old[2] or not old[1] else "once"  # taken over, or CONNECT never arrived
            state[event.client] = event.will, False, False
        elif isinstance(event, Connected):
            state[event.client] = event.will, True, False
        elif isinstance(event, Leaving):
            state[event.client] = state[event.client][0], state[event.client][1], True
        elif isinstance(event, Ended):
            will, connected, leaving = state[event.client]
            if will is not None:
                if event.how == "disconnect":
                    fates[will] = "never"
                else:
                    fates[will] = "once" if connected and not leaving else "maybe"
            state[event.client] = None, False, False
    found = []
    for will, fate in fates.items():
        most = max(counts[will].values(), default=0)
        if most > 1:
            found.append(f"I6 the will {will!r} came {most} times")
        elif fate == "once" and not most:
            found.append(f"I6 the will {will!r} never came")
        elif fate == "never" and most:
            found.append(f"I6 the will {will!r} came after DISCONNECT")
    for will, _, _ in state.values():
        if will is not None and counts[will]:
            found.append(f"I6 the will {will!r} came although its client is connected")
    return found


def untruthful(history: History) -> list[str]:
    exists: dict[str, bool | None] = {}  # None: a CONNECT was sent and nothing heard, so either may be
    before: dict[str, bool | None] = {}
    found = []
    for event in history.events:
        if isinstance(event, Connecting):
            known = exists.get(event.client, False)
            before[event.client] = known
            # Until CONNACK says more: it may have been acted on or not.
            exists[event.client] = known if known is (not event.clean) else None
        elif isinstance(event, Connected):
            known = before[event.client]
            wanted = False if event.clean else known
            if wanted is not None and event.session_present != wanted:
                found.append(f"I8 session present is {event.session_present} for {event.client}, should be {wanted}")
            exists[event.client] = not event.clean
    return found


def abandoned(history: History) -> list[str]:
    """I13: messages that no commit lists."""
    taken = {event.payload: event.client for event in history.of(Taken)}
    return [
        f"I13 {taken[payload]} got {shown(payload)}, which was staged and never committed"
        for event in history.of(Abandoned)
        for payload in event.payloads
        if payload in taken
    ]


def retained(history: History, values: dict[str, bytes]) -> list[str]:
    """I7. `values`: the messages that a new subscriber found; topics have one publisher each. An empty payload
    clears."""
    acknowledged = {(event.packet_id, event.payload) for event in history.of(Acknowledged)}
    possible: dict[str, set[bytes]] = defaultdict(lambda: {b""})
    for event in history.of(Published):
        if event.retain:
            if (event.packet_id, event.payload) in acknowledged:
                possible[event.topic] = {event.payload}
            else:
                possible[event.topic].add(event.payload)
    return [
        f"I7 {topic} is {values.get(topic, b'')!r}, should be one of {sorted(wanted)}"
        for topic, wanted in possible.items()
        if (values.get(topic, b"") or b"") not in wanted
    ]


def undelivered(history: History, workers: set[str], since: int) -> list[str]:
    """I9: messages to the group of these clients, from an event on, that are acknowledged and that none of them got."""
    taken = {event.payload for event in history.of(Taken) if event.client in workers}
    finished = {event.payload for event in history.of(Acknowledged) if event.by in ("PUBACK", "PUBCOMP")}
    return [
        f"I9 {shown(payload)} went to no subscriber"
        for payload, (at, message) in published_first(history).items()
        if at >= since and message.topic.startswith("t/") and payload in finished and payload not in taken
    ]


def doubled(history: History, workers: set[str]) -> list[str]:
    """I9: messages of QoS 2 that subscribers with persistent sessions got more than once, over all of them."""
    counts = Counter(event.payload for event in history.of(Taken) if event.client in workers)
    first = published_first(history)
    return [
        f"I9 {shown(payload)} went to subscribers {count} times"
        for payload, count in counts.items()
        if count > 1 and payload in first and first[payload][1].qos == 2
    ]


def disordered(history: History, workers: set[str]) -> list[str]:
    """I9: messages of one publisher and QoS that went to a subscriber while another had an earlier one, or none had it.

    The subscribers belong to a group with the order `publisher`. A client is done with a message when it answers it.
    """
    findings = []
    streams: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    place: dict[bytes, int] = {}
    for payload, (_, message) in published_first(history).items():
        place[payload] = len(streams[message.client, message.qos])
        streams[message.client, message.qos].append(payload)
    stream_of = {payload: stream for stream, payloads in streams.items() for payload in payloads}
    done: set[bytes] = set()
    first_undone: Counter[tuple[str, int]] = Counter()
    had: dict[bytes, set[str]] = defaultdict(set)
    for event in history.of(Delivered):
        if event.client not in workers or event.payload not in place:
            continue
        stream = stream_of[event.payload]
        if event.client not in had[event.payload]:
            before = streams[stream][first_undone[stream] : place[event.payload]]
            findings += [
                f"I9 {shown(event.payload)} went to {event.client}, and {shown(payload)} before it had "
                + (f"{sorted(had[payload])}" if had[payload] else "nobody")
                for payload in before
                if payload not in done and event.client not in had[payload]
            ]
        had[event.payload].add(event.client)
        if event.answered:
            done.add(event.payload)
            while first_undone[stream] < len(streams[stream]) and streams[stream][first_undone[stream]] in done:
                first_undone[stream] += 1
    return findings


def logged(history: History, log: Counter[bytes]) -> list[str]:
    """G12: the log of messages, by payload: acknowledged ones, QoS 2 once, the rest no more than sent."""
    sent: Counter[bytes] = Counter(event.payload for event in history.of(Published))
    qos = {event.payload: event.qos for event in history.of(Published)}
    done = {event.payload for event in history.of(Acknowledged) if event.by != "PUBREC"}
    wills = {event.will for event in history.of(Connecting)}
    missing = done - log.keys() - {b""}
    findings = [f"G12 {shown(payload)} was acknowledged, and is not logged" for payload in missing]
    for payload, count in log.items():
        if payload in sent and payload and count > (1 if qos[payload] == 2 else sent[payload]):
            findings.append(f"G12 {shown(payload)}, QoS {qos[payload]}, sent {sent[payload]}, is logged {count} times")
        elif payload in wills and count > 1:
            findings.append(f"G12 {shown(payload)} is logged {count} times")
        elif payload not in sent and payload not in wills:
            findings.append(f"G12 {shown(payload)} is logged, and nobody has sent it")
    return findings
