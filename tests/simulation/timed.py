"""Rules for all that is due at a time: delayed wills, delayed messages, sessions that expire.

Nothing is early by more than the clock of the cluster may be. How late it may be is judged as long as nothing is
broken; after the faults all that is due comes, or the run does not become quiet.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import Acknowledged, Connected, Ended, Event, Published, Subscribed, Taken
from tests.simulation.clock import NS
from tests.simulation.network import Connection
from tests.simulation.world import FOREVER, MILLI

PREFIX = "$delayed/"
EARLY = 50 * MILLI  # by which the clock of the cluster may be ahead
EARLY_AFTER_STEP = 3100 * MILLI  # the same until the next heartbeat after a step of Redis' wall clock (CLUSTER.md)
RECOVERED = 16 * NS  # dead nodes are declared dead, all clients are back, and Redis has rested for 10 s (CLUSTER.md)
PROMPT = 1500 * MILLI  # a heartbeat, and the way of packets

Timeline = list[tuple[int, Event]]  # a history with the nanosecond of each event
Times = dict[bytes, list[tuple[int, str]]]  # by payload: when it came, and to which client


@dataclass(eq=False)
class Life:
    """A connection of a client whose will, and session, end after a time.

    Attributes:
        client: it belongs to.
        will: payload; unique.
        delay, expiry: seconds.
        connection: of the network; it has the time at which its node has served it last.
        came, admitted, ended: nanosecond of CONNECT, of CONNACK and of the end; 0 = it has not been.
        noticed: nanosecond by which its node has noticed the end, by its keep alive if the client left it open.
        present: Session Present.
        after: the connection after it; None: the client has not come back.
    """

    client: str
    will: bytes
    delay: int
    expiry: int
    connection: Connection
    came: int
    admitted: int = 0
    ended: int = 0
    noticed: int = 0
    present: bool = False
    after: "Life | None" = None

    def later(self) -> Iterator["Life"]:
        """All connections of the client after it."""
        if self.after is not None:
            yield self.after
            yield from self.after.later()


def served(timeline: Timeline, clients: set[str]) -> Iterator[tuple[int, int]]:
    """From when to when one of these clients had a connection, after its first SUBACK."""
    since: dict[str, int] = {}
    for at, event in timeline:
        if event.client in clients:
            if isinstance(event, Subscribed | Connected):
                since.setdefault(event.client, at)
            elif isinstance(event, Ended) and event.client in since:
                yield since.pop(event.client), at
    yield from ((start, FOREVER) for start in since.values())


def judge(
    timeline: Timeline, lives: list[Life], listeners: set[str], first_fault: int, healed: int, early: int
) -> list[str]:
    """The findings.

    Args:
        timeline: of the run, in which no data was lost.
        lives: all connections of clients with delayed wills.
        listeners: clients with persistent sessions that are subscribed to wills and delayed messages from the start on.
        first_fault: nanosecond from which on nothing has to be prompt.
        healed: nanosecond at which all faults have ended.
        early: nanoseconds by which something may be early.
    """
    taken: Times = {}
    for at, event in timeline:
        if isinstance(event, Taken) and event.client in listeners:
            taken.setdefault(event.payload, []).append((at, event.client))
    spans = list(served(timeline, listeners))

    def is_due(at: int) -> bool:
        """Whether a message that was due then must have come a little later."""
        end = at + PROMPT
        return end < first_fault and any(start < at and end < stop for start, stop in spans)

    found = [finding for life in lives if life.admitted for finding in _will(life, taken, is_due, healed, early)]
    found += [finding for life in lives if life.admitted for finding in _session(life, first_fault)]
    return [*found, *_messages(timeline, taken, listeners, is_due, early)]


def _will(life: Life, taken: Times, is_due: Callable[[int], bool], healed: int, early: int) -> Iterator[str]:
    times = taken.get(life.will, [])
    seconds = min(life.delay, life.expiry)
    earliest = life.connection.served_at + seconds * NS
    most = max(Counter(client for _, client in times).values(), default=0)
    if most > 1:
        yield f"I6 the delayed will {life.will!r} came {most} times"
    if times and times[0][0] < earliest - early:
        yield f"I6 the will {life.will!r} came before its delay of {seconds} s was over"
    after = life.after
    if after is not None and after.present and times and after.admitted < earliest - early:
        yield f"I6 the will {life.will!r} came although its client has resumed its session"
    # A later connection without CONNACK may have been admitted, and ended with its own will.
    if life.ended and not times and not any(each.admitted or each.will in taken for each in life.later()):
        yield f"I6 the delayed will {life.will!r} never came"
    due = life.noticed + seconds * NS
    is_away = life.ended > 0 and (after is None or after.came > due + PROMPT)
    if after is None and times and times[0][0] > max(due, healed + seconds * NS) + RECOVERED:
        yield f"I6 the will {life.will!r} came long after the faults"
    if is_away and is_due(due) and (not times or times[0][0] > due + PROMPT):
        yield f"I6 the will {life.will!r} came late"


def _session(life: Life, first_fault: int) -> Iterator[str]:
    after = life.after
    if after is not None and after.present and life.ended:
        end = life.noticed + life.expiry * NS + PROMPT
        if end < min(after.came, first_fault):
            yield f"I8 the session of {life.client} was there after its expiry of {life.expiry} s"


def _messages(
    timeline: Timeline, taken: Times, listeners: set[str], is_due: Callable[[int], bool], early: int
) -> Iterator[str]:
    sent: dict[bytes, tuple[int, Published]] = {}
    done: dict[bytes, int] = {}
    for at, event in timeline:
        if isinstance(event, Published) and event.topic.startswith(PREFIX):
            sent.setdefault(event.payload, (at, event))
        elif isinstance(event, Acknowledged) and event.by != "PUBREC":
            done.setdefault(event.payload, at)
    for payload, (at, message) in sent.items():
        seconds, name = int(message.topic.split("/")[1]), checker.shown(payload)
        times = taken.get(payload, [])
        counts = Counter(client for _, client in times)
        if payload in done and counts.keys() != listeners:
            yield f"I1 {name}, delayed, was acknowledged, and went to {sorted(counts)} only"
        if message.qos == 2 and max(counts.values(), default=0) > 1:
            yield f"I2 {name}, delayed, came {max(counts.values())} times"
        if times and times[0][0] < at + seconds * NS - early:
            yield f"T1 {name} came before its delay of {seconds} s was over"
        due = done.get(payload, FOREVER) + seconds * NS
        if is_due(due) and times and times[0][0] > due + PROMPT:
            yield f"T1 {name}, delayed for {seconds} s, came late"
