"""Where did my message go? The steps of messages at all nodes, told for as long as somebody asks.

Whoever follows messages asks all nodes the question "trace" again and again; a node that hears it notes steps from then
on (`_speedups.tracer`), answers with what is new, and stops when nobody has asked for `FORGET_SECONDS`. What a client's
messages go through at other nodes is found by their names, which the asker learns where they came in and passes on: so
a node that is asked about a client notes all messages, and keeps the last `KEPT` steps.
"""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from _speedups.codec.topics import matches, validate_topic_filter
from _speedups.session.trace import Tracer
from _speedups.session.turn import Turn
from broker.core.calls import Arguments, CallAll
from broker.errors import UsageError

if TYPE_CHECKING:
    from _speedups.session.trace import Event

INTERVAL = 0.25  # seconds between questions
FORGET_SECONDS = 5.0
KEPT = 20_000  # steps
ANSWER_MOST = 2_000  # steps in one answer; the rest comes with the next
NAMES_MOST = 500  # of a client's last messages, that are looked for at all nodes

Run = Callable[[Coroutine[Any, Any, None]], object]


class Step(NamedTuple):
    """What has happened to a message. `client` is who sent it, for "received" to "retained", else who gets it."""

    time: float  # seconds since 1970
    node: str
    step: str  # one of `_speedups.tracer.STEPS`
    message: str  # the same for the same topic name and payload
    topic: str
    client: str  # client id; of "forwarded", the node
    size: int  # bytes of the payload
    qos: int
    detail: str  # of "dropped", why


class _Follower:
    """One who follows messages, as a node knows it."""

    def __init__(self, client: bytes | None, topic: bytes | None) -> None:
        self.client = client
        self.topic = topic
        self.asked = time.monotonic()
        self.names: set[int] = set()
        self.told: set[int] = set()  # numbers of the steps it knows

    def wants(self, event: "Event") -> bool:
        if self.topic is not None and not matches(self.topic, event[3]):
            return False
        return self.client is None or event[4] == self.client or event[2] in self.names


class Traces:
    """What a node answers to those who follow messages.

    Args:
        turn: of the node.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._followers: dict[str, _Follower] = {}
        self._numbers = itertools.count()
        self._events: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self._missed = 0

    def steps(self, arguments: Arguments) -> list[object]:
        """The question "trace": who asks, what for, and which names it knows -> new steps, and how many were missed."""
        who = arguments["follower"]
        if arguments["stop"]:
            self._followers.pop(who, None)
            self._retune()
            return [[], 0]
        follower = self._followers.get(who)
        if follower is None:
            follower = self._followers[who] = _Follower(_bytes(arguments["client"]), _bytes(arguments["topic"]))
            self._retune()
            follower.told.update(number for number, _ in self._events)  # what was before
        follower.asked = time.monotonic()
        self._take()
        follower.names = {*arguments["names"], *(event[2] for _, event in self._events if event[4] == follower.client)}
        oldest = self._events[0][0] if self._events else 0
        follower.told = {number for number in follower.told if number >= oldest}
        new = [pair for pair in self._events if pair[0] not in follower.told and follower.wants(pair[1])][:ANSWER_MOST]
        follower.told.update(number for number, _ in new)
        missed, self._missed = self._missed, 0
        return [[_plain(event) for _, event in new], missed]

    def forget(self) -> None:
        """A second has passed, or so: whoever has not asked for long does not follow any more."""
        if self._followers:
            self._take()
            now = time.monotonic()
            gone = [who for who, follower in self._followers.items() if now - follower.asked > FORGET_SECONDS]
            for who in gone:
                del self._followers[who]
            if gone:
                self._retune()

    def _take(self) -> None:
        tracer = self._turn.tracer
        if tracer is not None:
            events, missed = tracer.take()
            self._events.extend((next(self._numbers), event) for event in events)
            self._missed += missed

    def _retune(self) -> None:
        """Note what the followers want, and no more."""
        self._take()
        followers = self._followers.values()
        if not followers:
            self._turn.tracer = None
            self._events.clear()
        elif any(follower.topic is None for follower in followers):
            self._turn.tracer = Tracer(None)
        else:
            self._turn.tracer = Tracer({follower.topic for follower in followers if follower.topic is not None})


async def follow(
    call_all: CallAll, run: Run, client: str | None, topic: str | None
) -> AsyncGenerator[tuple[list[Step], int]]:
    """Follow messages at all nodes, until the iterator is closed: new steps in order of time, and how many were missed.

    The first item comes, empty or not, when all nodes have begun to note.

    Args:
        call_all: calls a method of all nodes.
        run: runs a coroutine after the iterator is closed.
        client: client id; what it publishes and what it gets.
        topic: topic filter; with a client too, only what matches both.

    Raises:
        UsageError: there is neither, or the topic filter is none.
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
                    continue  # it is told among the nodes; here it would be told again and again
                steps += (Step(event[0], node, event[1], f"{event[2]:08x}", *event[3:]) for event in reply.value[0])
                missed += reply.value[1]
            names.update((int(step.message, 16), None) for step in steps if step.client == client)
            names = dict.fromkeys(list(names)[-NAMES_MOST:])
            arguments["names"] = list(names)
            yield sorted(steps), missed
            await asyncio.sleep(INTERVAL)
    finally:
        run(_stop(call_all, arguments))


def check(client: str | None, topic: str | None) -> None:
    """Whether this can be followed. Raises UsageError."""
    if client is None and topic is None:
        raise UsageError("follow what?", "name a client id, or a topic filter")
    if topic is not None:
        try:
            validate_topic_filter(topic)
        except ValueError as fault:
            raise UsageError(f"{topic!r} can't be followed: {fault}") from fault


async def _stop(call_all: CallAll, arguments: Arguments) -> None:
    await call_all("trace", arguments | {"stop": True})


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _plain(event: "Event") -> list[object]:
    """An event as JSON can hold it."""
    moment, step, name, topic, client, size, qos, detail = event
    return [moment, step, name, topic.decode(), (client or b"").decode("utf-8", "replace"), size, qos, detail]
