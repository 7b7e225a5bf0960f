"""The load test: `locust -f loadtest/locustfile.py --host mqtt://localhost:1883` (see deploy/docs/LOADTEST.md).

Owns nothing: what locust finds here are the user classes and the events that the conductor listens to.
"""

from __future__ import annotations

import signal
from typing import Any

import gevent
from locust import events
from locust.runners import STATE_RUNNING, STATE_SPAWNING, WorkerRunner

from loadtest.swarm import options
from loadtest.swarm.lifecycle import Conductor
from loadtest.swarm.users import Churn, Commander, Dashboard, Offline, Sensor

__all__ = ["Churn", "Commander", "Dashboard", "Offline", "Sensor"]


def add_options(parser: Any, **_: Any) -> None:
    """Before locust reads the command line."""
    options.add_to(parser)


def begin(environment: Any, web_ui: Any, **_: Any) -> None:
    """When locust has its runner."""
    conductor = Conductor(environment, web_ui)
    for name in ("test_start", "spawning_complete", "test_stopping", "test_stop", "quitting"):
        method = getattr(conductor, name)
        getattr(environment.events, name).add_listener(lambda method=method, **_: method())
    environment.events.quit.add_listener(lambda **_: conductor.verdict and print(conductor.verdict))
    gevent.signal_handler(signal.SIGINT, interrupt, environment.runner)


def interrupt(runner: Any) -> None:
    """Ctrl-C: raised where locust waits for it, not in whatever runs just then, which may swallow it.

    A terminal sends it to workers, too: those go on until their master, who must ask what they have seen, ends them.
    """
    if not isinstance(runner, WorkerRunner) or runner.state not in (STATE_SPAWNING, STATE_RUNNING):
        gevent.get_hub().parent.throw(KeyboardInterrupt)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(begin)
