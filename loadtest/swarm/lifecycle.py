"""The lifecycle of a test in one process: its start, its end, and whether it has passed.

Owns the swarm of the running test, and the exit status. A single process, or the master, chooses the scenario and
judges; a single process, or each worker, has clients. Rules:
- The methods have the names of locust's events; `locustfile.py` registers them.
- Clients disconnect with DISCONNECT after the final count, so that no will is published at the end.
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

from . import hosts, options, users
from .client_numbers import ClientNumbers
from .final_count import FinalCount
from .scenario import Scenario, ScenarioError, parse, read
from .shape import FlashCrowd
from .swarm import Swarm, new_run_name
from .thresholds import judge, summary, with_changes
from .user import MqttUser

STORM = "flockmq-storm"
USER_CLASSES: tuple[type[MqttUser], ...] = (
    users.Sensor,
    users.Dashboard,
    users.Commander,
    users.Churn,
    users.Offline,
    users.Worker,
)
# Seconds without a heartbeat after which locust moves a worker's users to others. A busy worker is not dead, and a user
# that runs twice takes over its own connections.
runners.HEARTBEAT_LIVENESS = 30
_log = logging.getLogger(__name__)


class Lifecycle:
    """One process's part of all tests.

    Args:
        environment: locust's, with its runner.
        web_ui: locust's page; None = there is none.
    """

    def __init__(self, environment: Environment, web_ui: Any) -> None:
        assert environment.runner is not None, "locust has created it"
        self.environment = environment
        self.options: Any = environment.parsed_options
        self.runner = environment.runner
        self.swarm: Swarm | None = None
        self.scenario: Scenario | None = None
        self.result = ""
        self._client_numbers = ClientNumbers(self.runner)
        self._final_count = FinalCount(self.runner, lambda: self.swarm, self._lost_after)
        self._leads = not isinstance(self.runner, WorkerRunner)
        if self._leads:
            try:
                hosts.addresses(environment.host or "")
            except ValueError as error:
                print(f"--host: {error}", file=sys.stderr)
                sys.exit(2)
            self._apply_scenario()
        if not isinstance(self.runner, MasterRunner):
            self.runner.register_message(STORM, self._handle_storm)
        if web_ui is not None:
            web_ui.app.before_request(self._check_form)

    def _lost_after(self) -> float:
        return self.scenario.lost_after if self.scenario else 0.0

    def _apply_scenario(self) -> None:
        """Take from the scenario the options that the command line leaves open."""
        self.scenario = options.chosen(self.options)
        if self.options.num_users is None:
            self.options.num_users = self.scenario.clients
        if self.options.spawn_rate is None:
            self.options.spawn_rate = self.scenario.spawn_rate
        if (self.options.headless or self.options.autostart) and not self.options.run_time:
            self.options.run_time = self.scenario.duration
        self._set_shape(self.scenario)

    def _set_shape(self, scenario: Scenario) -> None:
        self.environment.shape_class = (
            FlashCrowd(self.runner, scenario.storm, self._start_storm) if scenario.storm else None
        )

    def _start_storm(self) -> None:
        _log.info("storm: all connections break")
        self.runner.send_message(STORM, None)

    def _handle_storm(self, environment: Environment, msg: Any) -> None:
        if self.swarm is not None:
            self.swarm.storm()

    # ---- locust's events ----

    def test_start(self) -> None:
        """Before the first user."""
        if self._leads:
            self.scenario = options.chosen(self.options)
            self.options.run_name = new_run_name()
            self.environment.process_exit_code = None
            self._client_numbers.reset()
            self._set_counts(self.scenario)
        else:
            self.scenario = parse(self.options.scenario_text, self.options.scenario)
        if not isinstance(self.runner, MasterRunner):
            self.swarm = MqttUser.swarm = Swarm(self.environment, self.scenario, self._client_numbers)

    def _set_counts(self, scenario: Scenario) -> None:
        """Set the number of users of each class: the scenario's, or in proportion to it, but at least one."""
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
        if self._leads:
            self._final_count.run()

    def test_stop(self) -> None:
        """After the last user."""
        if self.swarm is not None:
            self.swarm.close()
            self.swarm = None
        if self._leads and self.scenario is not None:
            self._judge(self.scenario)
            if self.options.csv_prefix:
                gevent.sleep(1.1 * stats.CSV_STATS_INTERVAL_SEC)  # locust writes at this interval, but not at the end

    def quitting(self) -> None:
        """Locust ends; it reads the exit status next."""
        if self._leads and self.runner.state not in (STATE_INIT, STATE_STOPPED):
            self.runner.stop()  # Ctrl-C
        if not self._leads:
            self.environment.process_exit_code = 0  # the master judges

    def _judge(self, scenario: Scenario) -> None:
        thresholds = with_changes(scenario.thresholds, self.options.thresholds)
        reasons = judge(self.environment, scenario, thresholds, self._final_count.silent)
        self.environment.process_exit_code = 1 if reasons else 0
        name = PurePath(self.options.scenario).stem
        lines = [f"{name} has {'FAILED' if reasons else 'passed'}: {summary(self.environment.stats)}"]
        self.result = "\n".join(lines + [f"- {reason}" for reason in reasons])
        for line in self.result.splitlines():
            _log.log(logging.ERROR if reasons else logging.INFO, line)

    def _check_form(self) -> Any:
        """Refuse an invalid form with locust's kind of reply; None accepts it."""
        from flask import jsonify, request

        if request.method != "POST" or not request.path.endswith("/swarm"):
            return None
        try:
            name = request.form.get("scenario", self.options.scenario)
            scenario = parse(read(name), name)
            with_changes(scenario.thresholds, request.form.get("thresholds", ""))
            hosts.sources(request.form.get("source", ""))
            hosts.addresses(request.form.get("host", ""))
            self._set_shape(scenario)  # locust reads it next
        except (ScenarioError, ValueError) as error:
            return jsonify({"success": False, "message": str(error), "host": self.environment.host})
        return None
