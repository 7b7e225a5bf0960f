"""The load test: `locust -f loadtest/locustfile.py --host mqtt://localhost:1883` (see deploy/docs/LOADTEST.md).

Locust finds the user classes here, and the listeners of its events.
"""

from __future__ import annotations

import signal
from typing import Any

import gevent
from locust import events
from locust.runners import STATE_RUNNING, STATE_SPAWNING, WorkerRunner

from flockmq.loadtest.swarm import options
from flockmq.loadtest.swarm.lifecycle import Lifecycle
from flockmq.loadtest.swarm.users import Churn, Commander, Dashboard, Offline, Sensor, Worker

__all__ = ["Churn", "Commander", "Dashboard", "Offline", "Sensor", "Worker"]


def add_options(parser: Any, **_: Any) -> None:
    """Called before locust parses the command line."""
    options.add_to(parser)


def set_up(environment: Any, web_ui: Any, **_: Any) -> None:
    """Called when locust has created its runner."""
    lifecycle = Lifecycle(environment, web_ui)
    for name in ("test_start", "spawning_complete", "test_stopping", "test_stop", "quitting"):
        method = getattr(lifecycle, name)
        getattr(environment.events, name).add_listener(lambda method=method, **_: method())
    environment.events.quit.add_listener(lambda **_: lifecycle.result and print(lifecycle.result))
    gevent.signal_handler(signal.SIGINT, interrupt, environment.runner)


def interrupt(runner: Any) -> None:
    """Ctrl-C: raised in locust's main greenlet, not in the current one, which may ignore it.

    A terminal sends it to workers, too: these continue until their master, which needs their results, ends them.
    """
    if not isinstance(runner, WorkerRunner) or runner.state not in (STATE_SPAWNING, STATE_RUNNING):
        gevent.get_hub().parent.throw(KeyboardInterrupt)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(set_up)
