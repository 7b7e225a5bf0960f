"""What all users of one process share during a test: scenario, ledger, network, numbers; and how events are told.

Owns the run: its name, which is in every topic and client id, so that tests don't meet what earlier ones left behind.
"""

from __future__ import annotations

import random
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment

from loadtest.swarm import credentials, hosts
from loadtest.swarm.client import Network
from loadtest.swarm.client_numbers import Roster
from loadtest.swarm.delivery_check import ClusterJournal
from loadtest.swarm.scenario import Scenario
from loadtest.swarm.timer import Pulse

TYPE = "MQTT"  # of all our events in locust's tables


class Swarm:
    """One process's part of a test.

    Args:
        environment: locust's.
        scenario: what is done.
        roster: numbers clients.
    """

    def __init__(self, environment: Environment, scenario: Scenario, roster: Roster) -> None:
        options: Any = environment.parsed_options
        self.environment = environment
        self.scenario = scenario
        self.roster = roster
        self.run = str(options.run_name)
        self.root = f"load/{self.run}"
        runner: Any = environment.runner
        self.ledger = ClusterJournal(runner.worker_index, scenario.lost_after, self.fail)
        self.network = Network(hosts.addresses(environment.host or ""), hosts.sources(options.source))
        self.username = str(options.username) or None
        self.password = credentials.password(options.password_file)
        self.pulse = Pulse()
        self.clients: set[Any] = set()  # users' clients, for a storm
        self.all_started = Event()  # all clients of the test have been started
        self.quiet = Event()  # nothing new is published; who was away comes back
        self._greenlets = [gevent.spawn(self.pulse.run), gevent.spawn(self._look_for_losses)]

    def close(self) -> None:
        """The test is over."""
        gevent.killall(self._greenlets)
        self.pulse.wait_finished(5.0)

    def fire(self, name: str, seconds: float | None, size: int = 0, fault: str = "") -> None:
        """Tell locust of an event."""
        self.environment.events.request.fire(
            request_type=TYPE,
            name=name,
            response_time=None if seconds is None else seconds * 1000,
            response_length=size,
            exception=fault or None,  # text: those with the same are one line of locust's,
            context={},
        )

    def fail(self, name: str, fault: str, count: int = 1) -> None:
        """Tell locust of a fault, so many times."""
        for _ in range(count):
            self.fire(name, None, fault=fault)

    def topic(self, template: str, client: str, index: int) -> str:
        """A topic of the scenario with its places filled."""
        return template.format(root=self.root, site=index % max(1, self.scenario.sites), client=client, index=index)

    def storm(self) -> None:
        """All connections break."""
        for client in list(self.clients):
            client.drop()

    def _look_for_losses(self) -> None:
        while True:
            gevent.sleep(1.0)
            self.ledger.look_for_losses()


def new_run_name() -> str:
    """A name that no other test has."""
    return f"{random.SystemRandom().randrange(1 << 32):08x}"
