"""Tracing: the steps of messages at all nodes, recorded while a follower polls.

A follower calls the method "trace" of all nodes again and again. A node records steps from the first call on
(`_speedups/session/trace.pyx`), returns the new ones, and stops when no follower has called for `FORGET_SECONDS`. The
messages of a client are found at other nodes by their names. The follower learns the names at the node that receives
the messages, and passes them on. So a node that traces a client records all messages. It keeps the last `KEPT` steps
for each follower: a follower that is slow, or that follows much, takes no room from others.
"""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from .._speedups.codec.topics import matches, validate_topic_filter
from .._speedups.session.span_recorder import SpanRecorder
from .._speedups.session.trace import Tracer
from .._speedups.session.turn import Turn
from .config.admin_config import TracesConfig
from .core.calls import Arguments, CallAll
from .errors import UsageError

if TYPE_CHECKING:
    from .._speedups.session.trace import Event

INTERVAL = 0.25  # seconds between calls
FORGET_SECONDS = 5.0
KEPT = 20_000  # steps for a follower
MAX_STEPS = 2_000  # in one reply; the rest follows in the next
MAX_NAMES = 500  # of the last messages of a client, searched at all nodes

Run = Callable[[Coroutine[Any, Any, None]], object]


class Step(NamedTuple):
    """A step of a message. `client` is the publisher for "received" to "retained", else the receiver."""

    time: float  # seconds since 1970
    node: str
    step: str  # one of `flockmq._speedups.session.trace.STEPS`
    message: str  # the same for the same topic name and payload
    topic: str
    client: str  # client id; of "forwarded", the node
    size: int  # bytes of the payload
    qos: int
    detail: str  # of "dropped", the reason


class SpanCounts:
    """Counts the spans of a process. Each number has one thread that changes it."""

    def __init__(self) -> None:
        self.exported = 0  # a collector has them
        self.refused = 0  # no collector took them in time
        self.unmade = 0  # steps of which no spans were made, since too many waited

    @property
    def dropped(self) -> int:
        """Spans that no collector has got."""
        return self.refused + self.unmade


class _Follower:
    """A follower at one node."""

    def __init__(self, client: bytes | None, topic: bytes | None) -> None:
        self.client = client
        self.topic = topic
        self.polled = time.monotonic()
        self.names: set[int] = set()
        self.missed = 0  # steps, since it polled
        self._events: deque[tuple[int, Event]] = deque()  # with its topic, the oldest first, each with a number
        self._sent: set[int] = set()  # numbers of the steps that it has got
        self._numbers = itertools.count()

    def add(self, event: "Event") -> None:
        """Keep a step that it may need, in place of its oldest one if there is no room."""
        if self.topic is not None and not matches(self.topic, event[3]):
            return
        if len(self._events) == KEPT:
            number, oldest = self._events.popleft()
            self.missed += number not in self._sent and self._needs(oldest)
            self._sent.discard(number)
        self._events.append((next(self._numbers), event))

    def poll(self, names: list[int]) -> tuple[list["Event"], int]:
        """New steps, and the number of missed ones. `names`: of its client's messages, as other nodes know them."""
        self.polled = time.monotonic()
        self.names = {*names, *(event[2] for _, event in self._events if event[4] == self.client)}
        new = [pair for pair in self._events if pair[0] not in self._sent and self._needs(pair[1])][:MAX_STEPS]
        self._sent.update(number for number, _ in new)
        missed, self.missed = self.missed, 0
        return [event for _, event in new], missed

    def _needs(self, event: "Event") -> bool:
        return self.client is None or event[4] == self.client or event[2] in self.names


class Traces:
    """The followers of messages at one node.

    Args:
        turn: of the node.
        recorder: gets the steps of messages of which spans are made; None: there are no spans.
    """

    def __init__(self, turn: Turn, recorder: SpanRecorder | None = None) -> None:
        self._turn = turn
        self.recorder = recorder
        self._followers: dict[str, _Follower] = {}
        self._select()

    def configure(self, config: TracesConfig) -> None:
        """Apply a configuration, after a reload."""
        if self.recorder is not None:
            self.recorder.configure(config.steps_per_second, config.sample)

    def steps(self, arguments: Arguments) -> list[object]:
        """The method "trace": follower, filter, names -> new steps, and the number of missed ones."""
        name = arguments["follower"]
        if arguments["stop"]:
            self._collect()
            self._followers.pop(name, None)
            self._select()
            return [[], 0]
        follower = self._followers.get(name)
        if follower is None:
            self._collect()  # steps from before are the others'
            follower = self._followers[name] = _Follower(_bytes(arguments["client"]), _bytes(arguments["topic"]))
            self._select()
        self._collect()
        new, missed = follower.poll(arguments["names"])
        return [[_plain(event) for event in new], missed]

    def forget(self) -> None:
        """Drop followers that have not polled for long; called periodically."""
        if self._followers:
            self._collect()
            now = time.monotonic()
            expired = [name for name, follower in self._followers.items() if now - follower.polled > FORGET_SECONDS]
            for name in expired:
                del self._followers[name]
            if expired:
                self._select()

    def _collect(self) -> None:
        tracer = self._turn.tracer
        if tracer is not None:
            events, missed = tracer.take()
            for follower in self._followers.values():
                for event in events:
                    follower.add(event)
                follower.missed += missed.get(follower.topic, 0)

    def _select(self) -> None:
        """Record the steps that a follower needs, and no more. Those so far have been collected."""
        topics = {follower.topic for follower in self._followers.values()}
        self._turn.follow(Tracer(topics, self.recorder) if topics or self.recorder is not None else None)


async def follow(
    call_all: CallAll, run: Run, client: str | None, topic: str | None
) -> AsyncGenerator[tuple[list[Step], int]]:
    """Follow messages at all nodes until the iterator is closed: new steps by time, and the number of missed ones.

    The first item, maybe empty, follows when all nodes record.

    Args:
        call_all: calls a method of all nodes.
        run: runs a coroutine after the iterator is closed.
        client: client id of publisher or receiver.
        topic: topic filter; with a client too, only messages that match both.

    Raises:
        UsageError: neither is given, or the topic filter is invalid.
    """
    check(client, topic)
    arguments: Arguments = {
        "follower": secrets.token_hex(8),
        "client": client,
        "topic": topic,
        "names": [],
        "stop": False,
    }
    names: dict[int, None] = {}  # in order of age
    try:
        while True:
            steps: list[Step] = []
            missed = 0
            for node, reply in (await call_all("trace", arguments)).items():
                if reply.failure:
                    continue  # the list of nodes shows it; here it would repeat
                steps += (Step(event[0], node, event[1], f"{event[2]:08x}", *event[3:]) for event in reply.value[0])
                missed += reply.value[1]
            names.update((int(step.message, 16), None) for step in steps if step.client == client)
            names = dict.fromkeys(list(names)[-MAX_NAMES:])
            arguments["names"] = list(names)
            yield sorted(steps), missed
            await asyncio.sleep(INTERVAL)
    finally:
        run(_stop(call_all, arguments))


def check(client: str | None, topic: str | None) -> None:
    """Raises UsageError: neither is given, or the topic filter is invalid."""
    if client is None and topic is None:
        raise UsageError("trace needs a client id or a topic filter")
    if topic is not None:
        try:
            validate_topic_filter(topic)
        except ValueError as fault:
            raise UsageError(f"{topic!r} can't be traced: {fault}") from fault


async def _stop(call_all: CallAll, arguments: Arguments) -> None:
    await call_all("trace", arguments | {"stop": True})


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _plain(event: "Event") -> list[object]:
    """An event in the types of JSON."""
    moment, step, name, topic, client, size, qos, detail = event
    return [moment, step, name, topic.decode(), (client or b"").decode("utf-8", "replace"), size, qos, detail]
