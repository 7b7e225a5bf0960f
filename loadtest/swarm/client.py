"""A simulated client: a session and its connection, driven by gevent's loop, without its own greenlet.

Owns connecting, reconnecting after a loss, and time-outs. Events are reported to a `Listener`, from the loop: its
methods must not block. Rules:
- An open client stays connected: after a loss or a refusal it retries, with growing delays, at the next broker.
- It is `ready` after CONNACK and, unless the broker still has a session with its subscriptions, after SUBACK.
- The `Timer` of the process calls `on_time` for keep alive and time-outs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import cycle
from math import inf
from typing import Any, Protocol

import gevent
from gevent.event import Event

from ..._speedups.codec.packets import Publish
from ..._speedups.protocol.client_events import (
    FIRST_ERROR,
    Accepted,
    Acknowledged,
    Disconnected,
    ProtocolViolation,
    Refused,
    Subscribed,
)
from ..._speedups.protocol.client_session import ClientSession, ConnectOptions
from .connection import Address, Connection
from .payload_header import mark_resent
from .timer import Timer

FIRST_DELAY = 0.1  # seconds before a retry; doubled each time
MAX_DELAY = 5.0
TIMEOUT = 15.0  # seconds for a connection to become ready, and for PINGRESP
PING_AFTER = 0.7  # of the keep alive, without a sent packet
MAX_INFLIGHT = 100  # unacknowledged messages above which the client publishes no further ones


class Listener(Protocol):
    """Receives the events of a client."""

    def connected(self, seconds: float, session_present: bool) -> None:
        """The client is ready; connecting took `seconds`."""

    def refused(self, reason: str, seconds: float) -> None:
        """Connecting failed, or CONNACK refused."""

    def disconnected(self, reason: str) -> None:
        """An accepted connection is lost."""

    def delivered(self, packet: Publish) -> None:
        """A message has arrived."""

    def acknowledged(self, token: Any) -> None:
        """The broker has acknowledged a publication at QoS 1 or 2."""


class Network:
    """The addresses that clients connect to and from, in turn.

    Args:
        addresses: of brokers.
        sources: addresses of this machine; none = the system chooses.
    """

    def __init__(self, addresses: list[Address], sources: list[str]) -> None:
        self.addresses: Iterator[Address] = cycle(addresses)
        self.sources: Iterator[str] = cycle(sources or [""])


class Client:
    """One client, closed at first.

    Args:
        options: the fields of CONNECT.
        topic_filters: the (topic filter, QoS) pairs of each new session.
        listener: receives the events.
        network: the addresses to connect to and from.
        timer: calls `on_time`.
    """

    __slots__ = (
        "_began_at",
        "_connection",
        "_delay",
        "_listener",
        "_network",
        "_retry",
        "_session",
        "_subscribed",
        "_timer",
        "_topic_filters",
        "ready",
    )

    def __init__(
        self,
        options: ConnectOptions,
        topic_filters: list[tuple[str, int]],
        listener: Listener,
        network: Network,
        timer: Timer,
    ) -> None:
        self.ready = Event()
        self._session = ClientSession(
            options, mark_resent=mark_resent, ping_after=options.keep_alive * PING_AFTER, ping_timeout=TIMEOUT
        )
        self._topic_filters = topic_filters
        self._listener = listener
        self._network = network
        self._timer = timer
        self._connection: Connection | None = None  # None: closed, or a retry is pending
        self._retry: Any = None  # the loop's timer of the pending retry
        self._subscribed = not topic_filters  # in the broker's session
        self._delay = FIRST_DELAY
        self._began_at = 0.0

    @property
    def unacknowledged(self) -> int:
        """Number of unacknowledged publications."""
        return len(self._session.unacknowledged)

    @property
    def may_publish(self) -> bool:
        """Whether the client is ready and its window has room."""
        return self.ready.is_set() and self.unacknowledged < MAX_INFLIGHT

    # ---- called by its user ----

    def open(self) -> None:
        """Connect, and stay connected."""
        if self._connection is None and self._retry is None:
            self._timer.timed.add(self)
            self._connect()

    def close(self) -> None:
        """Send DISCONNECT and close."""
        connection = self._connection
        if connection is not None:
            if self._session.accepted:
                self._session.disconnect()
                self._flush()
            connection.finish()
            self._timer.closing.add(connection)
        self._stop()

    def vanish(self) -> None:
        """End the connection without DISCONNECT, as a power failure does."""
        if self._connection is not None:
            self._connection.abort()
        self._stop()

    def drop(self) -> None:
        """Lose the connection and reconnect at once."""
        if self._connection is not None:
            self.vanish()
            self.open()

    def publish(self, topic_name: str, payload: bytes, qos: int, retain: bool = False, token: Any = None) -> None:
        """Publish; `acknowledged` follows at QoS 1 and 2, also if the connection is lost in between."""
        self._session.publish(topic_name, payload, qos, retain, token)
        self._flush()

    def _stop(self) -> None:
        self._forget_connection()
        if self._retry is not None:
            self._retry.close()
            self._retry = None
        self._timer.timed.discard(self)

    # ---- called from the loop ----

    @property
    def next_due(self) -> float:
        """When connecting, or the keep alive, times out."""
        if self._connection is None:
            return inf
        return self._session.next_due if self.ready.is_set() else self._began_at + TIMEOUT

    def on_time(self, now: float) -> None:
        """Send PINGREQ, or give the connection up."""
        if not self.ready.is_set():
            self._give_up("no answer to CONNECT or SUBSCRIBE")
        elif self._session.on_time(now):
            self._flush()
        else:
            self._give_up("no answer to PINGREQ")

    def _connect(self) -> None:
        self._retry = None
        self._began_at = time.monotonic()
        address, source = next(self._network.addresses), next(self._network.sources)
        self._connection = Connection(address, source, self._opened, self._received, self._lost)

    def _opened(self) -> None:
        self._session.connect()
        self._flush()

    def _received(self, data: bytes) -> None:
        fault = ""
        try:
            events = self._session.feed(data)
        except ProtocolViolation as error:
            events, fault = error.events, str(error)
        self._flush()
        for event in events:
            match event:
                case Publish():
                    self._listener.delivered(event)
                case Acknowledged(token):
                    self._listener.acknowledged(token)
                case Accepted(session_present):
                    self._handle_accepted(session_present)
                case Subscribed(reason_codes):
                    self._handle_subscribed(reason_codes)
                case Refused(_, reason) | Disconnected(_, reason):
                    fault = reason
        if fault:
            self._give_up(fault)

    def _handle_accepted(self, session_present: bool) -> None:
        if self._topic_filters and not (session_present and self._subscribed):
            self._subscribed = False
            self._session.subscribe(self._topic_filters)
            self._flush()
        else:
            self._become_ready(session_present)

    def _handle_subscribed(self, reason_codes: list[int]) -> None:
        if any(code >= FIRST_ERROR for code in reason_codes):
            self._give_up("subscription refused")
        else:
            self._subscribed = True
            self._become_ready(False)

    def _become_ready(self, session_present: bool) -> None:
        self._delay = FIRST_DELAY
        self.ready.set()
        self._listener.connected(time.monotonic() - self._began_at, session_present)

    def _give_up(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._lost(reason)

    def _lost(self, reason: str) -> None:
        was_ready = self.ready.is_set()
        self._forget_connection()
        self._retry = gevent.get_hub().loop.timer(self._delay * random.uniform(0.5, 1.5))
        self._retry.start(self._connect)
        self._delay = min(self._delay * 2, MAX_DELAY)
        if was_ready:
            self._listener.disconnected(reason)
        else:
            self._listener.refused(reason, time.monotonic() - self._began_at)

    def _forget_connection(self) -> None:
        self._connection = None
        self._session.connection_lost()
        self.ready.clear()

    def _flush(self) -> None:
        if self._connection is not None:
            self._connection.send(self._session.take_output(time.monotonic()))
