"""The end of a test, before its clients leave: publishing stops, messages in flight arrive, the rest is lost.

Owns the exchange of master and workers (a single process is both): the master stops publishing, workers send their
streams, the master sends the streams of all, and workers report when their statistics contain the result. Before
that the master sums up the work of shared subscriptions, which no process can judge alone, until all is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner, Runner, WorkerRunner

from .shared_work import Outcome, Report, outcomes, packed
from .streams import DUPLICATE, LOST, TWICE, Summary
from .swarm import TYPE, Swarm

QUIET, PUBLISHED, EXPECTED, CHECKED = ("flockmq-quiet", "flockmq-published", "flockmq-expected", "flockmq-checked")
ASK, WORK = ("flockmq-ask", "flockmq-work")
TIMEOUT = 120.0  # seconds for a worker to reply
STEP = 0.25  # seconds between looks
MAX_LOGGED = 10  # groups and streams whose losses are logged
_log = logging.getLogger(__name__)


def stop_publishing(swarm: Swarm) -> list[Summary]:
    """Stop publishing and wait for acknowledgements; returns the published streams."""
    swarm.quiet.set()
    wait_while(lambda: swarm.delivery_check.unacknowledged, swarm.scenario.lost_after)
    swarm.delivery_check.report_unacknowledged()
    return swarm.delivery_check.summaries()


def check(swarm: Swarm, streams: list[Summary]) -> None:
    """Wait for the messages in flight; report the others as lost."""
    pairs = swarm.delivery_check.expected(streams)

    def outstanding() -> int:
        pairs[:] = [(subscriber, stream) for subscriber, stream in pairs if subscriber.outstanding(stream)]
        return sum(subscriber.outstanding(stream) for subscriber, stream in pairs)

    wait_while(outstanding, swarm.scenario.lost_after)
    swarm.delivery_check.report_lost(pairs)


def wait_while(count: Callable[[], int], seconds: float) -> None:
    """Wait until the count is 0, or has not changed for `seconds`."""
    last, changed_at = count(), time.monotonic()
    while last and time.monotonic() - changed_at < seconds:
        gevent.sleep(STEP)
        number = count()
        if number != last:
            last, changed_at = number, time.monotonic()


def settle_work(environment: Environment, streams: list[Summary], ask: Callable[[], list[Report]], wait: float) -> None:
    """Wait for the work of shared subscriptions; report the rest as lost, and the work that was done twice.

    Args:
        environment: locust's, of the process that judges.
        streams: of all processes, finished.
        ask: returns the reports of all processes.
        wait: seconds without progress after which the rest is lost.
    """
    found: list[Outcome] = []

    def left() -> int:
        found[:] = outcomes(ask(), streams)
        return sum(each.lost for each in found)

    wait_while(left, wait)

    def fire(name: str, fault: str, count: int) -> None:
        for _ in range(count):
            environment.events.request.fire(
                request_type=TYPE, name=name, response_time=None, response_length=0, exception=fault or None, context={}
            )

    for each in found:
        fire(f"work qos{each.qos}", LOST, each.lost)
        if each.qos == 2:
            fire("work qos2", DUPLICATE, each.twice)
        else:
            fire(TWICE, "", each.twice)
    for each in [each for each in found if each.lost][:MAX_LOGGED]:
        _log.warning("lost: %d messages of %s to %s", each.lost, each.topic_name, each.topic_filter)


class FinalCount:
    """One process's part of the exchange.

    Args:
        runner: locust's.
        current: returns the swarm of the running test.
        lost_after: returns the seconds after which work that no worker has done is lost.
    """

    def __init__(self, runner: Runner, current: Callable[[], Swarm | None], lost_after: Callable[[], float]) -> None:
        self.silent: list[str] = []  # workers without a reply: their results are missing
        self._runner = runner
        self._current = current
        self._lost_after = lost_after
        self._work: dict[str, list[Report]] = {}
        self._published: dict[str, list[Any]] = {}
        self._checked: set[str] = set()
        self._reported: set[str] = set()
        if isinstance(runner, WorkerRunner):
            runner.register_message(QUIET, self._handle_quiet, concurrent=True)
            runner.register_message(EXPECTED, self._handle_expected, concurrent=True)
            runner.register_message(ASK, self._handle_ask)
        elif isinstance(runner, MasterRunner):
            runner.register_message(PUBLISHED, self._handle_published)
            runner.register_message(CHECKED, self._handle_checked)
            runner.register_message(WORK, self._handle_work)
            runner.environment.events.worker_report.add_listener(self._handle_report)

    def run(self) -> None:
        """Do the exchange; returns when locust's statistics contain all faults."""
        runner, swarm = self._runner, self._current()
        if isinstance(runner, MasterRunner):
            self._run_master(runner)
        elif swarm is not None and not isinstance(runner, WorkerRunner):
            streams = stop_publishing(swarm)
            settle_work(runner.environment, streams, swarm.shared_work.reports, self._lost_after())
            check(swarm, streams)

    # ---- the master's side ----

    def _run_master(self, runner: MasterRunner) -> None:
        workers = [node.id for node in runner.clients.all if node.state in (STATE_RUNNING, STATE_SPAWNING)]
        self._published.clear()
        self._checked.clear()
        self._reported.clear()
        for worker in workers:
            runner.send_message(QUIET, None, worker)
        self._await(workers, self._published.keys)
        streams = [stream for published in self._published.values() for stream in published]
        settle_work(
            runner.environment,
            [Summary(*stream) for stream in streams],
            lambda: self._ask(runner, workers),
            self._lost_after(),
        )
        for worker in workers:
            runner.send_message(EXPECTED, {"streams": streams}, worker)
        self._await(workers, lambda: self._reported)
        self.silent = [worker for worker in workers if worker not in self._reported]
        if self.silent:
            _log.error("no final count from workers: %s", ", ".join(self.silent))

    def _await(self, workers: list[str], replied: Callable[[], Any]) -> None:
        wait_while(lambda: len(set(workers) - set(replied())), TIMEOUT)

    def _ask(self, runner: MasterRunner, workers: list[str]) -> list[Report]:
        """The work that all processes have done so far."""
        self._work.clear()
        for worker in workers:
            runner.send_message(ASK, None, worker)
        self._await(workers, self._work.keys)
        return [report for reports in self._work.values() for report in reports]

    def _handle_work(self, environment: Environment, msg: Any) -> None:
        self._work[msg.node_id] = [Report(*report) for report in msg.data["reports"]]

    def _handle_published(self, environment: Environment, msg: Any) -> None:
        self._published[msg.node_id] = msg.data["streams"]

    def _handle_checked(self, environment: Environment, msg: Any) -> None:
        self._checked.add(msg.node_id)

    def _handle_report(self, client_id: str, data: dict[str, Any]) -> None:
        """The first statistics after the check contain its faults."""
        if client_id in self._checked:
            self._reported.add(client_id)

    # ---- a worker's side ----

    def _handle_quiet(self, environment: Environment, msg: Any) -> None:
        swarm = self._current()
        streams = stop_publishing(swarm) if swarm is not None else []
        self._runner.send_message(PUBLISHED, {"streams": streams})

    def _handle_ask(self, environment: Environment, msg: Any) -> None:
        swarm = self._current()
        reports = swarm.shared_work.reports() if swarm is not None else []
        self._runner.send_message(WORK, {"reports": packed(reports)})

    def _handle_expected(self, environment: Environment, msg: Any) -> None:
        swarm = self._current()
        if swarm is not None:
            check(swarm, [Summary(*stream) for stream in msg.data["streams"]])
        self._runner.send_message(CHECKED, None)
