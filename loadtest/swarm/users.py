"""The user classes: the behaviour of each kind of client. `scenario` describes the keys of their tables."""

from __future__ import annotations

import random
import time

import gevent
from locust import task

from ..._speedups.codec.packets import Publish
from . import payload_header
from .scenario import (
    ChurnGroup,
    CommanderGroup,
    DashboardGroup,
    OfflineGroup,
    SensorGroup,
    WorkerGroup,
)
from .user import FOREVER, MqttUser


def pick(mix: dict[int, float]) -> int:
    """A random number of a mix."""
    return random.choices(list(mix), list(mix.values()))[0] if len(mix) > 1 else next(iter(mix))


class Sensor(MqttUser):
    """Publishes, and replies to commanders."""

    kind = "sensor"
    role: SensorGroup

    def prepare(self) -> None:
        self._publish_to = self.topic(self.role.topic) if self.role.topic else ""
        self._first = True

    def topic_filters(self) -> list[tuple[str, int]]:
        return [(self.topic(self.role.command) + "/+", 1)] if self.role.command else []

    def wait_time(self) -> float:
        """The interval with its jitter; the first wait is spread over the whole interval."""
        role = self.role
        if self._first:
            self._first = False
            return random.uniform(0, role.interval)
        return role.interval * random.uniform(1 - role.jitter, 1 + role.jitter)

    @task
    def read(self) -> None:
        if self._first:
            if self.role.wait:
                self.swarm.all_started.wait()
            return
        if self._publish_to:
            self.publish(self._publish_to, pick(self.role.qos), pick(self.role.payload), self.role.retain)

    def delivered(self, packet: Publish) -> None:
        """A request: send the reply to the commander named by the topic's last level."""
        commander = packet.topic_name.rpartition("/")[2]
        if self.client is not None and self.client.ready.is_set() and not packet.retain:
            self.client.publish(f"{self.swarm.root}/reply/{commander}", packet.payload, 1)


class Dashboard(MqttUser):
    """Subscribes, and checks its deliveries."""

    kind = "dashboard"
    role: DashboardGroup

    def prepare(self) -> None:
        filters = self.role.filters
        self.subscribe(filters[self.index % len(filters)], self.role.qos)

    @task
    def look(self) -> None:
        """Does nothing: `delivered` does the work."""


class Commander(MqttUser):
    """Sends requests to sensors that are online, and measures the round trip."""

    kind = "commander"
    role: CommanderGroup

    def prepare(self) -> None:
        self._devices: list[str] = []  # topics of the sensors online, without their last level
        self._sent_at: dict[int, float] = {}  # by number of the request
        self._last = 0

    def wait_time(self) -> float:
        return self.role.interval * random.uniform(0.8, 1.2)

    def topic_filters(self) -> list[tuple[str, int]]:
        return [(self.topic(self.role.devices), 1), (f"{self.swarm.root}/reply/{self.name}", 1)]

    @task
    def send_request(self) -> None:
        self._give_up()
        if self.client is None or not self.client.may_publish or self.swarm.quiet.is_set() or not self._devices:
            return
        self._last += 1
        self._sent_at[self._last] = time.monotonic()
        payload = payload_header.payload(0, self._last, pick(self.role.payload), payload_header.now())
        self.client.publish(f"{random.choice(self._devices)}/command/{self.name}", payload, 1)

    def _give_up(self) -> None:
        before = time.monotonic() - self.role.timeout
        for number in [number for number, sent_at in self._sent_at.items() if sent_at < before]:
            del self._sent_at[number]
            self.swarm.fail("request/reply", "no reply")

    def delivered(self, packet: Publish) -> None:
        header = payload_header.read(packet.payload)
        if header is None:
            self._set_online(packet.topic_name.rpartition("/")[0], packet.payload == b"online")
            return
        sent_at = self._sent_at.pop(header.number, None)
        if sent_at is not None:
            self.swarm.fire("request/reply", time.monotonic() - sent_at, len(packet.payload))

    def _set_online(self, device: str, online: bool) -> None:
        if online and device not in self._devices:
            self._devices.append(device)
        elif not online and device in self._devices:
            self._devices.remove(device)


class Churn(MqttUser):
    """Connects, subscribes, and vanishes."""

    kind = "churn"
    role: ChurnGroup

    def topic_filters(self) -> list[tuple[str, int]]:
        return [(self.topic(self.role.topic_filter), 0)]

    def wait_time(self) -> float:
        return self.role.away * random.uniform(0.5, 1.5)

    @task
    def reconnect(self) -> None:
        assert self.client is not None
        self.connect()
        gevent.sleep(self.role.stay * random.uniform(0.5, 1.5))
        self.client.vanish()


class Returning(MqttUser):
    """Loses its connection, and returns; while the swarm is quiet it is connected, and stays."""

    abstract = True
    role: OfflineGroup | WorkerGroup

    def wait_time(self) -> float:
        return 0.0

    def stay(self, seconds: float) -> None:
        self.connect()
        if self.swarm.quiet.wait(seconds):
            gevent.sleep(FOREVER)

    def stay_away(self) -> None:
        self.swarm.quiet.wait(self.role.away * random.uniform(0.5, 1.5))


class Offline(Returning):
    """Disconnects and reconnects; its session is persistent and misses nothing."""

    kind = "offline"
    role: OfflineGroup
    persistent = True

    def prepare(self) -> None:
        self.subscribe(self.role.topic_filter, self.role.qos)

    @task
    def reconnect(self) -> None:
        assert self.client is not None
        self.stay(self.role.stay * random.uniform(0.5, 1.5))
        if random.random() < 0.5:
            self.client.close()
        else:
            self.client.vanish()
        self.stay_away()


class Worker(Returning):
    """Does the work of a shared subscription; its connection ends without DISCONNECT every so often."""

    kind = "worker"
    role: WorkerGroup

    def prepare(self) -> None:
        filters = self.role.filters
        self._filter = self.topic(filters[self.index % len(filters)])

    def topic_filters(self) -> list[tuple[str, int]]:
        return [(self._filter, self.role.qos)]

    @task
    def work(self) -> None:
        """Live, die, and return; `delivered` does the work."""
        assert self.client is not None
        self.stay(random.expovariate(1 / self.role.dies_every) if self.role.dies_every else FOREVER)
        self.client.vanish()
        self.swarm.fire("death", None)
        self.stay_away()

    def connected(self, seconds: float, session_present: bool) -> None:
        super().connected(seconds, session_present)
        self.swarm.shared_work.subscribed(self._filter, self.role.qos)

    def delivered(self, packet: Publish) -> None:
        header = payload_header.read(packet.payload)
        if header is None or not header.stream or not packet.qos:
            return
        latency = (payload_header.now() - header.sent_at) / 1e6 if header.here else None
        self.swarm.fire(f"work qos{packet.qos}", latency, len(packet.payload))
        self.swarm.shared_work.add(self._filter, self.role.qos, header.stream, header.number)
