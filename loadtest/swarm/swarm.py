"""The state that all users of one process share during a test, and the reporting of events to locust.

Owns the run: its name is part of every topic and client id, so that a test does not meet the remains of earlier ones.
"""

from __future__ import annotations

import random
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment

from . import credentials, hosts
from .client import Client, Network
from .client_numbers import ClientNumbers
from .delivery_check import DeliveryCheck
from .scenario import Scenario
from .shared_work import SharedWork
from .timer import Timer

TYPE = "MQTT"  # of all our events in locust's tables


class Swarm:
    """One process's part of a test.

    Args:
        environment: locust's.
        scenario: the test.
        client_numbers: numbers the clients.
    """

    def __init__(self, environment: Environment, scenario: Scenario, client_numbers: ClientNumbers) -> None:
        options: Any = environment.parsed_options
        self.environment = environment
        self.scenario = scenario
        self.client_numbers = client_numbers
        self.run = str(options.run_name)
        self.root = f"load/{self.run}"
        runner: Any = environment.runner
        self.delivery_check = DeliveryCheck(runner.worker_index, scenario.lost_after, self.fail)
        self.shared_work = SharedWork()
        self.network = Network(hosts.addresses(environment.host or ""), hosts.sources(options.source))
        self.level = int(options.level)
        self.username = str(options.username) or None
        self.password = credentials.password(options.password_file)
        self.timer = Timer()
        self.clients: set[Client] = set()  # of the users, for a storm
        self.all_started = Event()  # all clients of the test have been started
        self.quiet = Event()  # publishing has stopped; disconnected clients reconnect
        self._greenlets = [gevent.spawn(self.timer.run), gevent.spawn(self._check_gaps)]

    def close(self) -> None:
        """The test is over."""
        gevent.killall(self._greenlets)
        self.timer.wait_closed(5.0)

    def fire(self, name: str, seconds: float | None, size: int = 0, fault: str = "") -> None:
        """Report an event to locust."""
        self.environment.events.request.fire(
            request_type=TYPE,
            name=name,
            response_time=None if seconds is None else seconds * 1000,
            response_length=size,
            exception=fault or None,  # a text: locust counts equal ones in one line
            context={},
        )

    def fail(self, name: str, fault: str, count: int = 1) -> None:
        """Report `count` equal faults to locust."""
        for _ in range(count):
            self.fire(name, None, fault=fault)

    def topic(self, template: str, client: str, index: int) -> str:
        """A topic of the scenario with its placeholders replaced."""
        return template.format(root=self.root, site=index % max(1, self.scenario.sites), client=client, index=index)

    def storm(self) -> None:
        """All connections break."""
        for client in list(self.clients):
            client.drop()

    def _check_gaps(self) -> None:
        while True:
            gevent.sleep(1.0)
            self.delivery_check.check_gaps()


def new_run_name() -> str:
    """A random name."""
    return f"{random.SystemRandom().randrange(1 << 32):08x}"
