"""A simulated client: a session and its connection, kept up by timers, with no greenlet of its own.

Owns when to connect, again after a loss, and when to give up on an unanswered ping. What happens is told to a
`Listener`, from the loop: it may not block. Rules:
- An open client wants to be connected: lost or refused, it tries again, later each time, at another broker each time.
- It is `ready` when CONNACK has come and, unless the broker still has a session with its subscriptions, SUBACK.
- The process's `Pulse` looks after it once a second: keep alive, and time-outs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Protocol

import gevent
from gevent.event import Event

from _speedups.codec.packets import Publish
from loadtest.swarm.connection import Address, Connection
from loadtest.swarm.payload_header import mark_resent
from loadtest.swarm.session import Accepted, Acknowledged, BrokenProtocol, Options, Refused, Session, Subscribed
from loadtest.swarm.timer import Pulse

FIRST_PAUSE = 0.1  # seconds before another attempt; doubled each time
LAST_PAUSE = 5.0
TIMEOUT = 15.0  # seconds for a connection to become ready, and for the answer to PINGREQ
MAX_INFLIGHT = 100  # unacknowledged messages above which none is published


class Listener(Protocol):
    """Who is told what happens to a client."""

    def connected(self, seconds: float, session_present: bool) -> None:
        """It is ready, so long after it began to connect."""

    def refused(self, reason: str, seconds: float) -> None:
        """There was no connection, or CONNACK said no."""

    def disconnected(self, reason: str) -> None:
        """A connection that was accepted has been lost."""

    def delivered(self, packet: Publish) -> None:
        """A message has come."""

    def acknowledged(self, token: Any) -> None:
        """A message that was published at QoS 1 or 2 is the broker's now."""


class Network:
    """Where clients connect to and from, in turn.

    Args:
        addresses: of brokers.
        sources: addresses of this machine; "" leaves it to the system.
    """

    def __init__(self, addresses: list[Address], sources: list[str]) -> None:
        self.addresses: Iterator[Address] = cycle(addresses)
        self.sources: Iterator[str] = cycle(sources or [""])


class Client:
    """One client, closed at first.

    Args:
        options: as for a session.
        topic_filters: what it subscribes to at each new session.
        listener: is told what happens.
        network: where to connect.
        pulse: looks after it.
    """

    __slots__ = (
        "_accepted",
        "_began_at",
        "_connection",
        "_listener",
        "_network",
        "_pause",
        "_pulse",
        "_retry",
        "_sent_at",
        "_session",
        "_subscribed",
        "_topic_filters",
        "ready",
    )

    def __init__(
        self,
        options: Options,
        topic_filters: list[tuple[str, int]],
        listener: Listener,
        network: Network,
        pulse: Pulse,
    ) -> None:
        self.ready = Event()
        self._session = Session(options, mark_resent)
        self._topic_filters = topic_filters
        self._listener = listener
        self._network = network
        self._pulse = pulse
        self._connection: Connection | None = None  # None: closed, or waiting for the next attempt
        self._retry: Any = None  # the timer of the next attempt
        self._accepted = False
        self._subscribed = not topic_filters  # in the session that the broker has
        self._pause = FIRST_PAUSE
        self._began_at = 0.0
        self._sent_at = 0.0

    @property
    def unacknowledged(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self._session.unacknowledged)

    @property
    def may_publish(self) -> bool:
        """Whether a message can be published now."""
        return self.ready.is_set() and self.unacknowledged < MAX_INFLIGHT

    # ---- what its user wants ----

    def open(self) -> None:
        """Connect, and stay connected."""
        if self._connection is None and self._retry is None:
            self._pulse.clients.add(self)
            self._connect()

    def close(self) -> None:
        """Send DISCONNECT and close."""
        connection, accepted = self._connection, self._accepted
        self._rest()
        if connection is not None:
            if accepted:
                self._session.disconnect()
                connection.send(self._session.take())
            connection.finish()
            self._pulse.finishing.add(connection)

    def vanish(self) -> None:
        """End the connection without a word, as if the power failed."""
        if self._connection is not None:
            self._connection.abort()
        self._rest()

    def drop(self) -> None:
        """Lose the connection and connect again at once."""
        if self._connection is not None:
            self.vanish()
            self.open()

    def publish(self, topic_name: str, payload: bytes, qos: int, retain: bool = False, token: Any = None) -> None:
        """Publish; `acknowledged` follows at QoS 1 and 2, whatever happens to the connection meanwhile."""
        self._session.publish(topic_name, payload, qos, retain, token)
        self._flush()

    def _rest(self) -> None:
        self._connection = None
        self._accepted = False
        self.ready.clear()
        if self._retry is not None:
            self._retry.close()
            self._retry = None
        self._pulse.clients.discard(self)

    # ---- the loop ----

    def beat(self, now: float) -> None:
        """Once a second: ping, or give up."""
        if self._connection is None:
            return
        keep_alive = self._session.options.keep_alive
        if not self.ready.is_set():
            if now - self._began_at > TIMEOUT:
                self._give_up("no answer to CONNECT or SUBSCRIBE")
        elif self._session.pings and now - self._sent_at > TIMEOUT:
            self._give_up("no answer to PINGREQ")
        elif keep_alive and not self._session.pings and now - self._sent_at > keep_alive * 0.7:
            self._session.ping()
            self._flush()
            self._sent_at = now

    def _connect(self) -> None:
        self._retry = None
        self._began_at = time.monotonic()
        address, source = next(self._network.addresses), next(self._network.sources)
        self._connection = Connection(address, source, self._opened, self._received, self._lost)

    def _opened(self) -> None:
        self._session.connect()
        self._flush()

    def _received(self, data: bytes) -> None:
        try:
            events = self._session.feed(data)
        except BrokenProtocol as error:
            self._give_up(str(error))
            return
        self._flush()
        for event in events:
            match event:
                case Publish():
                    self._listener.delivered(event)
                case Acknowledged(token):
                    self._listener.acknowledged(token)
                case Accepted(session_present):
                    self._handle_accepted(session_present)
                case Subscribed(codes):
                    self._handle_subscribed(codes)
                case Refused(reason):
                    self._give_up(reason)
                    return

    def _handle_accepted(self, session_present: bool) -> None:
        self._accepted = True
        if self._topic_filters and not (session_present and self._subscribed):
            self._subscribed = False
            self._session.subscribe(self._topic_filters)
            self._flush()
        else:
            self._become_ready(session_present)

    def _handle_subscribed(self, codes: list[int]) -> None:
        if 0x80 in codes:
            self._give_up("subscription refused")
        else:
            self._subscribed = True
            self._become_ready(False)

    def _become_ready(self, session_present: bool) -> None:
        self._pause = FIRST_PAUSE
        self.ready.set()
        self._listener.connected(time.monotonic() - self._began_at, session_present)

    def _give_up(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._lost(reason)

    def _lost(self, reason: str) -> None:
        was_ready = self.ready.is_set()
        self._connection = None
        self._accepted = False
        self.ready.clear()
        self._retry = gevent.get_hub().loop.timer(self._pause * random.uniform(0.5, 1.5))
        self._retry.start(self._connect)
        self._pause = min(self._pause * 2, LAST_PAUSE)
        if was_ready:
            self._listener.disconnected(reason)
        else:
            self._listener.refused(reason, time.monotonic() - self._began_at)

    def _flush(self) -> None:
        if self._connection is not None:
            if not self._session.pings:
                self._sent_at = time.monotonic()
            self._connection.send(self._session.take())
