"""Makes spans of the steps of traced messages, as `_speedups/session/span_recorder.pyx` records them.

Spans of a message: "receive" from its PUBLISH to its acknowledgement, in it "store"; for each receiver "deliver" from
its arrival at this node to its PUBLISH, and in it "acknowledge". The first and "deliver" have the publisher's span as
parent. If the trace began here, "receive" is the parent of "deliver".
"""

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ...._speedups.session.span_recorder import Context, SpanStep

MAX_KNOWN = 10_000  # messages, and deliveries without an acknowledgement, that are remembered
OPEN_SECONDS = 60  # after which a PUBLISH is reported that has not been acknowledged
EVENTS = ("retained", "forwarded")  # steps that are events of "receive"

Message = tuple["Context", int]  # context and name of a message
Value = str | int
K = TypeVar("K")
V = TypeVar("V")


class Span(NamedTuple):
    """A span that has ended. Times are nanoseconds since 1970."""

    name: str  # "receive", "store", "deliver" or "acknowledge"
    trace_id: str
    span_id: str
    parent_id: str  # empty: it is the root
    is_parent_remote: bool
    state: str  # tracestate
    start: int
    end: int
    attributes: dict[str, Value]
    error: str  # empty: there is none
    events: tuple[tuple[int, str, dict[str, Value]], ...] = ()


class _Open:
    """A PUBLISH that is not acknowledged yet."""

    def __init__(self, step: "SpanStep") -> None:
        self.step = step
        self.end = step[0]
        self.span_id = _span_id_of(step[2]) if step[2][2] else _new_id()
        self.answer = ""
        self.error = ""
        self.events: list[tuple[int, str, dict[str, Value]]] = []

    def add(self, time: int, step: str, detail: str, client: bytes | None) -> None:
        self.end = time
        if step in EVENTS:
            self.events.append((time, step, {"flockmq.node": _text(client)} if client else {}))
        elif step == "dropped" and client is None:
            self.events.append((time, step, {"flockmq.detail": detail}))

    def span(self) -> Span:
        more: dict[str, Value] = {"messaging.mqtt.acknowledgement": self.answer} if self.answer else {}
        if self.step[8]:
            more["flockmq.detail"] = self.step[8]  # DUP
        parent = "" if self.step[2][2] else _span_id_of(self.step[2])
        attributes = _attributes("receive", "receive", self.step, self.step[5]) | more
        span = _span("receive", self.step[2], self.span_id, parent, (self.step[0], self.end), attributes, self.error)
        return span._replace(events=tuple(self.events))


class Spans:
    """Makes spans. Its memory is bounded: it forgets the oldest message first, whose next span then begins later."""

    def __init__(self) -> None:
        self._ended: list[Span] = []
        self._arrived: OrderedDict[Message, int] = OrderedDict()  # time of the first step here
        self._open: OrderedDict[tuple[int, int], _Open] = OrderedDict()  # QoS 1 and 2, by key
        self._routed: dict[Message, _Open] = {}  # those of `_open`, by message
        self._current: _Open | None = None  # QoS 0: it ends when it has been routed
        self._sent: OrderedDict[tuple[bytes | None, Message], tuple[int, str]] = OrderedDict()  # time, id of "deliver"

    def add(self, steps: "Iterable[SpanStep]", now: int) -> list[Span]:
        """The spans that these steps end.

        Args:
            steps: the next ones of the node; of each message in the order in which they happened.
            now: nanoseconds since 1970.
        """
        for step in steps:
            self._add(step)
        self._end_current()
        while self._open and next(iter(self._open.values())).step[0] < now - OPEN_SECONDS * 10**9:
            receive = self._close(next(iter(self._open)))
            receive.error = receive.error or "not acknowledged"
            self._ended.append(receive.span())
        ended, self._ended = self._ended, []
        return ended

    def _add(self, step: "SpanStep") -> None:
        time, word, context, name, _, client, _, _, detail, key = step
        message = (context, name)
        if self._current is not None and (word == "received" or self._current.step[2:4] != message):
            self._end_current()
        if word == "received":
            if key is not None:  # else it was sent again while it awaits PUBREL
                self._receive(step, message, key)
            return
        receive = self._current or (self._open.get(key) if key is not None else self._routed.get(message))
        if word in ("stored", "answered", "refused"):
            if receive is not None:
                self._answer(step, receive)
            return
        _remember(self._arrived, message, time)
        if receive is not None:
            receive.add(time, word, detail, client)
        if client is None or word in EVENTS:
            return
        if word == "sent":
            self._deliver(step, message)
        elif word == "dropped":
            self._ended.append(self._delivery(step, message, _new_id(), detail))
        elif word == "acknowledged":
            self._acknowledge(step, message)

    def _receive(self, step: "SpanStep", message: Message, key: tuple[int, int]) -> None:
        self._arrived.pop(message, None)
        _remember(self._arrived, message, step[0])
        opened = _Open(step)
        if not step[7]:
            self._current = opened
            return
        if key in self._open:  # its connection has ended: another has its number now
            self._ended.append(self._close(key).span())
        if len(self._open) >= MAX_KNOWN:
            self._ended.append(self._close(next(iter(self._open))).span())
        self._open[key] = self._routed[message] = opened

    def _answer(self, step: "SpanStep", receive: _Open) -> None:
        time, word, context, _, _, _, _, qos, detail, key = step
        if word == "refused":
            receive.error = detail
            receive.end = time
        elif word == "stored":
            attributes = _attributes("store", "", step, None)
            self._ended.append(
                _span("store", context, _new_id(), receive.span_id, (receive.end, time), attributes, remote=False)
            )
        else:
            receive.answer = detail
            receive.end = time
            if detail == "PUBREC" and not receive.error:
                receive.events.append((time, detail, {}))
            elif key is not None and qos:
                self._ended.append(self._close(key).span())

    def _deliver(self, step: "SpanStep", message: Message) -> None:
        span_id = _new_id()
        self._ended.append(self._delivery(step, message, span_id, ""))
        if step[7]:
            self._sent.pop((step[5], message), None)
            _remember(self._sent, (step[5], message), (step[0], span_id))

    def _delivery(self, step: "SpanStep", message: Message, span_id: str, error: str) -> Span:
        detail = step[8]
        # A retained message was no longer on its way to the client, and one with DUP has been sent before.
        start = step[0] if detail and not error else self._arrived.get(message, step[0])
        attributes = _attributes("deliver", "send", step, step[5])
        if detail and not error:
            attributes["flockmq.detail"] = detail
        parent = _span_id_of(step[2])
        return _span("deliver", step[2], span_id, parent, (start, step[0]), attributes, error, remote=not step[2][2])

    def _acknowledge(self, step: "SpanStep", message: Message) -> None:
        time, parent = self._sent.pop((step[5], message), (step[0], ""))
        answer, _, failure = step[8].partition(" ")
        attributes = _attributes("acknowledge", "settle", step, step[5]) | {"messaging.mqtt.acknowledgement": answer}
        error = "the client refuses it" if failure else ""
        parent = parent or _span_id_of(step[2])
        self._ended.append(
            _span("acknowledge", step[2], _new_id(), parent, (time, step[0]), attributes, error, remote=False)
        )

    def _close(self, key: tuple[int, int]) -> _Open:
        closed = self._open.pop(key)
        message = closed.step[2:4]
        if self._routed.get(message) is closed:
            del self._routed[message]
        return closed

    def _end_current(self) -> None:
        if self._current is not None:
            self._ended.append(self._current.span())
            self._current = None


def _remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    if key not in known:
        if len(known) >= MAX_KNOWN:
            known.popitem(last=False)
        known[key] = value


def _span(
    name: str,
    context: "Context",
    span_id: str,
    parent: str,
    times: tuple[int, int],
    attributes: dict[str, Value],
    error: str = "",
    *,
    remote: bool = True,
) -> Span:
    trace_id = context[0][3:35].decode()
    return Span(name, trace_id, span_id, parent, remote, context[1].decode(), *times, attributes, error)


def _attributes(name: str, kind: str, step: "SpanStep", client: bytes | None) -> dict[str, Value]:
    """The attributes by OpenTelemetry's conventions for messaging."""
    attributes: dict[str, Value] = {
        "messaging.system": "mqtt",
        "messaging.operation.name": name,
        "messaging.destination.name": _text(step[4]),
        "messaging.message.body.size": step[6],
        "messaging.mqtt.qos": step[7],
    }
    if kind:
        attributes["messaging.operation.type"] = kind
    if client:
        attributes["messaging.client.id"] = _text(client)
    return attributes


def _span_id_of(context: "Context") -> str:
    return context[0][36:52].decode()


def _new_id() -> str:
    return os.urandom(8).hex()


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")
