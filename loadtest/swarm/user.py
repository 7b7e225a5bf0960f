"""What all user classes have in common: one client, what it publishes and receives, and the events that locust shows.

One user is one client; its greenlet decides what is sent when. Rules:
- What is received is handled in the loop, by the methods of `client.Listener`: they don't wait.
- When the swarm is quiet nothing new is published, and who was away comes back.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from locust import User, constant

from _speedups.codec.packets import Publish
from loadtest.swarm import payload_header
from loadtest.swarm.client import Client
from loadtest.swarm.delivery_check import Subscriber
from loadtest.swarm.scenario import Group
from loadtest.swarm.session import Options, Will
from loadtest.swarm.streams import Published
from loadtest.swarm.swarm import Swarm

FOREVER = 1e6  # seconds


class MqttUser(User):
    """What all have in common: one client, and the events that locust shows."""

    abstract = True
    swarm: ClassVar[Swarm]  # of this process and test
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
        self.ready_at = 0  # as in stamps

    # ---- life ----

    def on_start(self) -> None:
        self.index = self.swarm.roster.enlist(self.kind)
        self.name = f"{self.kind}-{self.index}"
        self.prepare()
        state = self.topic(self.role.state) if self.role.state else ""
        will = Will(state, b"offline", 1, True) if state and self.role.will else None
        options = Options(
            client_id=self.client_id,
            clean_session=not self.persistent,
            keep_alive=self.swarm.scenario.keep_alive,
            will=will,
            username=self.swarm.username,
            password=self.swarm.password,
        )
        self.client = Client(options, self.topic_filters(), self, self.swarm.network, self.swarm.pulse)
        self.swarm.clients.add(self.client)
        self.client.open()
        self.client.ready.wait()

    def on_stop(self) -> None:
        if self.client is not None:
            self.swarm.clients.discard(self.client)
            self.client.close()
        if self.subscriber is not None:
            self.swarm.ledger.remove(self.subscriber)
        for published in self.publications.values():
            published.left = True
        if self.index >= 0:
            self.swarm.roster.discharge(self.kind, self.index)

    def prepare(self) -> None:
        """What a class does before its client is made."""

    @property
    def client_id(self) -> str:
        """Other than that of any client of any test."""
        return f"{self.swarm.run}-{self.name}"

    @property
    def persistent(self) -> bool:
        """Whether its session outlives its connections."""
        return self.role.persistent

    def topic_filters(self) -> list[tuple[str, int]]:
        """What it subscribes to."""
        return [(self.subscriber.topic_filter, self.subscriber.qos)] if self.subscriber else []

    def topic(self, template: str) -> str:
        """A topic of the scenario, as it is for this client."""
        return self.swarm.topic(template, self.name, self.index)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """What it receives is checked."""
        ledger = self.swarm.ledger
        self.subscriber = ledger.subscriber(self.client_id, self.topic(topic_filter), qos, persistent=self.persistent)

    def publish(self, topic_name: str, qos: int, size: int, retain: bool = False) -> None:
        """Publish a message that is checked, if there is a connection and room in its window."""
        if self.client is None or not self.client.may_publish or self.swarm.quiet.is_set():
            return
        published = self.publications.get((topic_name, qos))
        if published is None:
            published = self.publications[topic_name, qos] = self.swarm.ledger.publisher(topic_name, qos)
        now = payload_header.now()
        number = published.next(now)
        payload = payload_header.payload(published.stream, number, size, now)
        self.client.publish(topic_name, payload, qos, retain, (published, number, time.monotonic(), size))
        if not qos:
            self.swarm.fire("publish qos0", 0.0, size)

    # ---- what the client tells ----

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
        mark = payload_header.read(packet.payload)
        if mark is None or not mark.stream or packet.retain or self.subscriber is None:
            return  # a state, a command, or what was published before
        now = payload_header.now()
        seconds = (now - mark.sent_at) / 1e6 if mark.here else None
        away = self.persistent and mark.here and mark.sent_at < self.ready_at  # when it was sent
        queued = " queued" if away else ""
        self.swarm.fire(f"deliver qos{packet.qos}{queued}", seconds, len(packet.payload))
        self.subscriber.observe(mark, packet, now)

    def acknowledged(self, token: Any) -> None:
        if token is not None:
            published, number, sent_at, size = token
            published.unacknowledged.discard(number)
            self.swarm.fire(f"publish qos{published.qos}", time.monotonic() - sent_at, size)
