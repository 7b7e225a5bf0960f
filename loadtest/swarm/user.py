"""The base of all user classes: one client, its publications and deliveries, and the events that locust shows.

One user is one client; its greenlet decides when to send. Rules:
- Received messages are handled in the loop, by the methods of `client.Listener`, which must not block.
- While the swarm is quiet, users publish nothing new, and disconnected ones reconnect.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from locust import User, constant

from ..._speedups.codec.packets import Publish
from ..._speedups.protocol.client_session import ConnectOptions, Will
from . import payload_header
from .client import Client
from .delivery_check import Subscriber
from .scenario import Group
from .streams import Published
from .swarm import Swarm

FOREVER = 1e6  # seconds

NEVER = 0xFFFFFFFF  # Session Expiry Interval of sessions that outlive their connections, level 5


class MqttUser(User):
    """One client, and the events that locust shows."""

    abstract = True
    swarm: ClassVar[Swarm]  # of this process and the running test
    kind: ClassVar[str]  # its table in the scenario
    wait_time = constant(FOREVER)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.index = -1
        self.name = ""
        self.role: Group = self.swarm.scenario.groups[self.kind]
        self.subscriber: Subscriber | None = None
        self.publications: dict[tuple[str, int], Published] = {}
        self.client: Client | None = None
        self.ready_at = 0  # microseconds, of `payload_header.now`

    # ---- life ----

    def on_start(self) -> None:
        self.index = self.swarm.client_numbers.assign(self.kind)
        self.name = f"{self.kind}-{self.index}"
        self.prepare()
        state = self.topic(self.role.state) if self.role.state else ""
        will = Will(state, b"offline", 1, True) if state and self.role.will else None
        options = ConnectOptions(
            client_id=self.client_id,
            level=self.swarm.level,
            properties={"session_expiry_interval": NEVER} if self.swarm.level == 5 and self.persistent else {},
            clean_start=not self.persistent,
            keep_alive=self.swarm.scenario.keep_alive,
            will=will,
            username=self.swarm.username,
            password=self.swarm.password,
        )
        self.client = Client(options, self.topic_filters(), self, self.swarm.network, self.swarm.timer)
        self.swarm.clients.add(self.client)
        self.connect()

    def on_stop(self) -> None:
        if self.client is not None:
            self.swarm.clients.discard(self.client)
            self.client.close()
        if self.subscriber is not None:
            self.swarm.delivery_check.remove(self.subscriber)
        for published in self.publications.values():
            published.left = True
        if self.index >= 0:
            self.swarm.client_numbers.release(self.kind, self.index)

    def connect(self) -> None:
        """Open the connection, and wait until the client has it and its subscriptions."""
        assert self.client is not None
        self.client.open()
        self.client.ready.wait()

    def prepare(self) -> None:
        """Called before the client is created."""

    @property
    def client_id(self) -> str:
        """Unique among the clients of all tests."""
        return f"{self.swarm.run}-{self.name}"

    @property
    def persistent(self) -> bool:
        """Whether its session outlives its connections."""
        return self.role.persistent

    def topic_filters(self) -> list[tuple[str, int]]:
        """The (topic filter, QoS) pairs that it subscribes to."""
        return [(self.subscriber.topic_filter, self.subscriber.qos)] if self.subscriber else []

    def topic(self, template: str) -> str:
        """A topic of the scenario with the placeholders of this client replaced."""
        return self.swarm.topic(template, self.name, self.index)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe to a topic filter whose deliveries are checked."""
        check = self.swarm.delivery_check
        self.subscriber = check.subscriber(self.client_id, self.topic(topic_filter), qos, persistent=self.persistent)

    def publish(self, topic_name: str, qos: int, size: int, retain: bool = False) -> None:
        """Publish a checked message, if the client is connected and its window has room."""
        if self.client is None or not self.client.may_publish or self.swarm.quiet.is_set():
            return
        published = self.publications.get((topic_name, qos))
        if published is None:
            published = self.publications[topic_name, qos] = self.swarm.delivery_check.publisher(topic_name, qos)
        now = payload_header.now()
        number = published.next(now)
        payload = payload_header.payload(published.stream, number, size, now)
        self.client.publish(topic_name, payload, qos, retain, (published, number, time.monotonic(), size))
        if not qos:
            self.swarm.fire("publish qos0", 0.0, size)

    # ---- client.Listener ----

    def connected(self, seconds: float, session_present: bool) -> None:
        self.swarm.fire("connect", seconds)
        self.ready_at = payload_header.now()
        if self.subscriber is not None:
            self.subscriber.subscribed(session_present)
        if self.role.state and self.client is not None:
            self.client.publish(self.topic(self.role.state), b"online", 1, retain=True)

    def refused(self, reason: str, seconds: float) -> None:
        self.swarm.fire("connect", seconds, fault=f"refused: {reason}")

    def disconnected(self, reason: str) -> None:
        self.swarm.fail("connection", f"disconnected: {reason}")
        if self.subscriber is not None:
            self.subscriber.disconnected()

    def delivered(self, packet: Publish) -> None:
        header = payload_header.read(packet.payload)
        if header is None or not header.stream or packet.retain or self.subscriber is None:
            return  # a state, a command, or a retained message
        now = payload_header.now()
        seconds = (now - header.sent_at) / 1e6 if header.here else None
        away = self.persistent and header.here and header.sent_at < self.ready_at  # disconnected when it was sent
        queued = " queued" if away else ""
        self.swarm.fire(f"deliver qos{packet.qos}{queued}", seconds, len(packet.payload))
        self.subscriber.observe(header, packet, now)

    def acknowledged(self, token: Any) -> None:
        if token is not None:
            published, number, sent_at, size = token
            published.unacknowledged.discard(number)
            self.swarm.fire(f"publish qos{published.qos}", time.monotonic() - sent_at, size)
