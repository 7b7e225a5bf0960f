"""The findings that a Redis with lost data excuses, and no others.

A loss takes all that Redis has executed from some moment on until it died. Promises to a client in that time, on a
connection that began before the death, are void: acknowledgements, subscriptions, sessions. Messages that were not done
at that moment may come again. With `cluster.replicas` an acknowledgement waits for the replica, so messages and
subscriptions are kept all the same (CLUSTERING.md, What an acknowledgement means).
"""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
from tests.harness.stored_sessions import sessions_in
from tests.simulation.clock import NS
from tests.simulation.redis_types import Hash, List
from tests.simulation.world import FOREVER, MILLI

# Payloads, at the end of a message. Before them is the value of a user property, which may end in letters.
NAMES = re.compile(rb"(?:publisher \d+/\d+|will [a-z]+ \d+ \d+)\Z")
BACK = 5 * NS  # after a loss, each node has then given back the lost messages, or is dead
NOTED = 200 * MILLI  # after a repair, the node then has the process of Redis
COMES = re.compile(r" came (\d+) times")
LOGS = (b"mq:log:", b"mq:changes")  # have messages that are done, too


@dataclass(frozen=True)
class Loss:
    """A loss of data.

    Attributes:
        since: nanosecond of the first command whose effect is lost.
        until: nanosecond of the death.
        kept: payloads of messages and wills that were not done then.
    """

    since: int
    until: int
    kept: frozenset[bytes]


def payloads(keys: Mapping[bytes, Any]) -> frozenset[bytes]:
    """The payloads of the messages in Redis that are not done."""
    found = set()
    for key, value in keys.items():
        if not key.startswith(LOGS) and isinstance(value, Hash | List):
            for each in value.values() if isinstance(value, Hash) else value:
                if match := NAMES.search(each):
                    found.add(match[0])
    for session in sessions_in(keys).values():
        found |= {match[0] for each in session.entries if (match := NAMES.search(each))}
    return frozenset(found)


class Excuses:
    """Judges which events of a history are void.

    Args:
        history: of all clients.
        times: nanosecond of each event.
        losses: of the run.
        replicas: `cluster.replicas` of the run.
        ends: nanoseconds at which nodes were killed, or found that they had been declared dead.
        deaths: nanoseconds at which Redis died, with or without a loss.
        backs: of each node: nanoseconds at which it had a link again.
    """

    def __init__(
        self,
        history: History,
        times: list[int],
        losses: list[Loss],
        replicas: int,
        ends: Collection[int] = (),
        deaths: Collection[int] = (),
        backs: Collection[Collection[int]] = (),
    ) -> None:
        self._history = history
        self._losses = losses
        self._replicas = replicas
        self._ends = ends
        self._deaths = sorted({*deaths, *(loss.until for loss in losses)})
        self._backs = backs
        # By client: nanoseconds at which its connections began, were admitted, and ended.
        self._changes: dict[str, list[int]] = {}
        self._admitted: dict[str, list[int]] = defaultdict(list)  # by client: nanoseconds of CONNACK
        self._void: list[bool] = []
        self._voided: list[int] = []  # nanosecond of the death that voids each event; 0 = none does
        began: dict[str, int] = {}
        for at, event in zip(times, history.events, strict=True):
            if isinstance(event, Connecting):
                began[event.client] = at
            if isinstance(event, Connected):
                self._admitted[event.client].append(at)
            if isinstance(event, Connecting | Connected | Ended):
                self._changes.setdefault(event.client, []).append(at)
            start = began.get(event.client, 0)
            deaths = [loss.until for loss in losses if at > loss.since and start < loss.until]
            self._void.append(bool(deaths))
            self._voided.append(min(deaths, default=0))
        self._times = times

    def _voids(self, *kinds: type) -> Iterable[Any]:
        both = zip(self._history.events, self._void, strict=True)
        return (event for event, void in both if void and isinstance(event, kinds))

    def history(self, *, forgets_sent: bool = False) -> History:
        """The history without void promises, and with the ends of sessions that were lost.

        Args:
            forgets_sent: all sessions end at a loss, for the rule about DUP: numbers of queues are used again.
        """
        if not self._losses:
            return self._history
        dropped = frozenset() if self._replicas else self._unacknowledged()
        made: dict[str, int] = {}  # by client: nanosecond of the death that ended its session; 0 = none has
        found: list[Event] = []
        began: dict[str, int] = {}
        # Messages that clients may await PUBREL for, and no node gives back, with the nanosecond of the death.
        held: dict[tuple[str, int], tuple[bytes, int]] = {}
        for i, (at, event, void) in enumerate(zip(self._times, self._history.events, self._void, strict=True)):
            if isinstance(event, Acknowledged) and event.payload in dropped:
                continue
            if isinstance(event, Subscribed) and void:
                if not self._replicas:
                    continue
                made[event.client] = 0  # the replica has its session, too
            if isinstance(event, Delivered) and event.qos == 2:
                # Another message has the packet identifier of one that Redis has lost, and for which the client awaits
                # PUBREL: the client takes it for a repetition.
                # That may come on a connection that began before the death, so it is void, too.
                key = event.client, event.packet_id
                payload, death = held.pop(key, (event.payload, FOREVER))
                if at > death and payload != event.payload and not self._is_taken(i):
                    found.append(Taken(event.client, event.payload))
                elif void and self._is_forgotten(event.client, at):
                    held[key] = event.payload, self._voided[i]
            if isinstance(event, Connecting):
                before, began[event.client] = began.get(event.client, 0), at
                crosses = forgets_sent and any(before < loss.until <= at for loss in self._losses)
                ended = made.get(event.client, 0)
                if 0 < ended <= at or crosses:
                    made.pop(event.client, None)
                    found.append(Connecting(event.client, True))  # of its session nothing is certain
                    found.append(Ended(event.client, "lost"))
            elif isinstance(event, Connected) and not event.clean:
                ended, start = made.get(event.client, 0), began.get(event.client, 0)
                crosses = forgets_sent and any(start < loss.until <= at for loss in self._losses)
                if start < ended <= at or crosses:  # the session was lost while CONNECT was on its way
                    found += [Connecting(event.client, True), Ended(event.client, "lost")]
                    found.append(Connecting(event.client, False, event.will))
                # If it is present, CONNACK was on its way: the session is lost all the same.
                # If no CONNACK came before, an earlier CONNECT has made it, perhaps within the lost time.
                if not event.session_present or event.client not in made:
                    made[event.client] = self._voided[i]
            found.append(event)
        return History(found)

    def _is_forgotten(self, client: str, at: int) -> bool:
        """Whether no node may have been able to give back what the client had got at this time.

        Its connection began, was admitted or ended within the lost time, so Redis has lost its claim or its release,
        too. Or a node has died, and may have been the client's. Or Redis has died twice, once with a loss, before
        the client was admitted again, and a node, perhaps the client's, had no link in between: it can't find out where
        the queues ended, and gives nothing back.
        """
        admitted = self._admitted[client]
        here, ends = bisect(admitted, at), [*admitted, FOREVER]
        deaths = [death for death in self._deaths if here and ends[here - 1] < death < ends[here]]
        is_missed = any(self._is_missed(*both) for both in pairwise(deaths))
        if is_missed and any(loss.until in deaths for loss in self._losses):
            return True
        return any(
            any(loss.since < change < loss.until for change in self._changes[client])
            or any(loss.since < end < loss.until + BACK for end in self._ends)
            for loss in self._losses
            if at > loss.since
        )

    def _is_missed(self, began: int, died: int) -> bool:
        """Whether a node had no link to the process of Redis that began after one death and ended with the next."""
        return any(not any(began < back < died - NOTED for back in backs) for backs in self._backs)

    def _is_taken(self, place: int) -> bool:
        """Whether the client has taken the message of this delivery: it notes that at once."""
        return place + 1 < len(self._history.events) and isinstance(self._history.events[place + 1], Taken)

    def _unacknowledged(self) -> frozenset[bytes]:
        """Messages whose acknowledgement is void: they were sent before the death."""
        first: dict[bytes, int] = {}
        for at, event in zip(self._times, self._history.events, strict=True):
            if isinstance(event, Published):
                first.setdefault(event.payload, at)
        void = {event.payload for event in self._voids(Acknowledged)}
        return frozenset(each for each in void if any(first[each] < loss.until for loss in self._losses))

    def may_repeat(self) -> frozenset[bytes]:
        """Messages that may come twice: they were on their way at a loss."""
        if not self._losses:
            return frozenset()
        first: dict[bytes, int] = {}
        done: dict[bytes, int] = {}
        for at, event in zip(self._times, self._history.events, strict=True):
            if isinstance(event, Published):
                first.setdefault(event.payload, at)
            elif isinstance(event, Acknowledged) and event.by != "PUBREC":
                done.setdefault(event.payload, at)
        return frozenset(
            payload
            for payload, at in first.items()
            for loss in self._losses
            if at < loss.until and (payload in loss.kept or done.get(payload, loss.until) > loss.since)
        )

    def excuses_will(self, finding: str) -> bool:
        """Whether a finding about a will is none."""
        if not self._losses:
            return False
        registered: dict[str, bytes | None] = {}
        is_heard = False  # a session has a subscription for wills that is not void
        void: set[bytes] = set()  # registered or cancelled in a lost time, or without a subscriber
        spans: Counter[bytes] = Counter()  # there at a loss, and how often
        for event, is_void in zip(self._history.events, self._void, strict=True):
            if isinstance(event, Connecting):
                will = registered[event.client] = event.will
                if will is not None and (is_void or not is_heard):
                    void.add(will)
            elif isinstance(event, Subscribed):
                is_heard = is_heard or (event.topic_filter == "will" and not is_void)
            elif isinstance(event, Connected | Leaving | Ended):
                will = registered.get(event.client)
                if will is None:
                    continue
                if is_void and (isinstance(event, Connected | Leaving) or event.how == "disconnect"):
                    void.add(will)
        for loss in self._losses:
            spans.update(loss.kept)
        for will in void | spans.keys():
            if repr(will) in finding:
                times = COMES.search(finding)
                return (
                    will in void
                    or (times is not None and int(times[1]) <= spans[will] + 1)  # once more for each
                    # Redis has lost that the will's node was declared dead: its client may still be connected.
                    or (" is connected" in finding and self._came_in_a_lost_time(will))
                )
        return False

    def _came_in_a_lost_time(self, will: bytes) -> bool:
        both = zip(self._times, self._history.events, strict=True)
        at = next((at for at, event in both if isinstance(event, Taken) and event.payload == will), 0)
        return any(will in loss.kept and loss.since < at < loss.until + BACK for loss in self._losses)
