"""The course of a test in one process: what is made at its start, what happens at its end, and whether it has passed.

Owns the swarm of the test that runs, and the exit status. One process alone, or the master, chooses the scenario and
judges; one process alone, or each worker, has clients. Rules:
- Locust fires the events that the methods are named after; `locustfile.py` registers them.
- Clients leave with DISCONNECT, after all they were to receive has come, so that no will is published at the end.
"""

from __future__ import annotations

import logging
import sys
from pathlib import PurePath
from typing import Any

import gevent
from locust import runners, stats
from locust.env import Environment
from locust.runners import STATE_INIT, STATE_STOPPED, MasterRunner, WorkerRunner

from loadtest.swarm import hosts, options, users
from loadtest.swarm.client_numbers import Roster
from loadtest.swarm.final_count import Settling
from loadtest.swarm.scenario import Scenario, ScenarioError, parse, read
from loadtest.swarm.shape import FlashCrowd
from loadtest.swarm.swarm import Swarm, new_run_name
from loadtest.swarm.thresholds import judge, summary, with_changes
from loadtest.swarm.user import MqttUser

STORM = "flockmq-storm"
USER_CLASSES: tuple[type[MqttUser], ...] = (
    users.Sensor,
    users.Dashboard,
    users.Commander,
    users.Churn,
    users.Offline,
)
# Seconds without a word after which locust gives a worker's users to others. A busy worker is not a dead one, and who
# runs twice takes its own connections over.
runners.HEARTBEAT_LIVENESS = 30
_log = logging.getLogger(__name__)


class Conductor:
    """What one process does with a test.

    Args:
        environment: locust's, with its runner.
        web_ui: locust's page, if there is one.
    """

    def __init__(self, environment: Environment, web_ui: Any) -> None:
        assert environment.runner is not None, "locust has made it"
        self.environment = environment
        self.options: Any = environment.parsed_options
        self.runner = environment.runner
        self.swarm: Swarm | None = None
        self.scenario: Scenario | None = None
        self.verdict = ""
        self._roster = Roster(self.runner)
        self._settling = Settling(self.runner, lambda: self.swarm)
        self._conducts = not isinstance(self.runner, WorkerRunner)
        if self._conducts:
            try:
                hosts.addresses(environment.host or "")
            except ValueError as error:
                print(f"--host: {error}", file=sys.stderr)
                sys.exit(2)
            self._plan()
        if not isinstance(self.runner, MasterRunner):
            self.runner.register_message(STORM, self._handle_storm)
        if web_ui is not None:
            web_ui.app.before_request(self._check_form)

    def _plan(self) -> None:
        """What the scenario says and the command line doesn't."""
        self.scenario = options.chosen(self.options)
        if self.options.num_users is None:
            self.options.num_users = self.scenario.clients
        if self.options.spawn_rate is None:
            self.options.spawn_rate = self.scenario.spawn_rate
        if (self.options.headless or self.options.autostart) and not self.options.run_time:
            self.options.run_time = self.scenario.duration
        self._set_shape(self.scenario)

    def _set_shape(self, scenario: Scenario) -> None:
        self.environment.shape_class = FlashCrowd(self.runner, scenario.storm, self._strike) if scenario.storm else None

    def _strike(self) -> None:
        _log.info("all connections break")
        self.runner.send_message(STORM, None)

    def _handle_storm(self, environment: Environment, msg: Any) -> None:
        if self.swarm is not None:
            self.swarm.storm()

    # ---- locust's events ----

    def test_start(self) -> None:
        """Before the first user."""
        if self._conducts:
            self.scenario = options.chosen(self.options)
            self.options.run_name = new_run_name()
            self.environment.process_exit_code = None
            self._roster.reset()
            self._set_counts(self.scenario)
        else:
            self.scenario = parse(self.options.scenario_text, self.options.scenario)
        if not isinstance(self.runner, MasterRunner):
            self.swarm = MqttUser.swarm = Swarm(self.environment, self.scenario, self._roster)

    def _set_counts(self, scenario: Scenario) -> None:
        """As many of each class as the scenario says, or in proportion, but one, if there are to be more or fewer."""
        scale = self.runner.target_user_count / scenario.clients
        for user_class in USER_CLASSES:
            group = scenario.groups.get(user_class.kind)
            clients = group.clients if group else 0
            user_class.weight = clients
            user_class.fixed_count = clients if scale == 1 else int(0 < clients * scale < 1)

    def spawning_complete(self) -> None:
        """All users have been started."""
        if self.swarm is not None:
            self.swarm.all_started.set()

    def test_stopping(self) -> None:
        """Before the users are stopped."""
        if self._conducts:
            self._settling.run()

    def test_stop(self) -> None:
        """After the last user."""
        if self.swarm is not None:
            self.swarm.close()
            self.swarm = None
        if self._conducts and self.scenario is not None:
            self._judge(self.scenario)
            if self.options.csv_prefix:
                gevent.sleep(1.1 * stats.CSV_STATS_INTERVAL_SEC)  # locust writes so often, but not at the end

    def quitting(self) -> None:
        """Locust ends; the exit status is about to be read."""
        if self._conducts and self.runner.state not in (STATE_INIT, STATE_STOPPED):
            self.runner.stop()  # Ctrl-C
        if not self._conducts:
            self.environment.process_exit_code = 0  # the master judges

    def _judge(self, scenario: Scenario) -> None:
        thresholds = with_changes(scenario.thresholds, self.options.thresholds)
        reasons = judge(self.environment, scenario, thresholds, self._settling.silent)
        self.environment.process_exit_code = 1 if reasons else 0
        name = PurePath(self.options.scenario).stem
        lines = [f"{name} has {'FAILED' if reasons else 'passed'}: {summary(self.environment.stats)}"]
        self.verdict = "\n".join(lines + [f"- {reason}" for reason in reasons])
        for line in self.verdict.splitlines():
            _log.log(logging.ERROR if reasons else logging.INFO, line)

    def _check_form(self) -> Any:
        """Refuse a test that can't be, with locust's kind of answer; None lets it be."""
        from flask import jsonify, request

        if request.method != "POST" or not request.path.endswith("/swarm"):
            return None
        try:
            name = request.form.get("scenario", self.options.scenario)
            scenario = parse(read(name), name)
            with_changes(scenario.thresholds, request.form.get("thresholds", ""))
            hosts.sources(request.form.get("source", ""))
            hosts.addresses(request.form.get("host", ""))
            self._set_shape(scenario)  # locust looks at it next
        except (ScenarioError, ValueError) as error:
            return jsonify({"success": False, "message": str(error), "host": self.environment.host})
        return None
