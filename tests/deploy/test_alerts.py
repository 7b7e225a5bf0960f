"""deploy/prometheus/alerts.yml: in a cluster where all is well but one thing, exactly the alerts for it fire.

Judged by Prometheus' own `promtool test rules`: a scenario is the series of a healthy cluster of three nodes with some
of them changed, in promtool's notation ("0+1x4": 0, then 1 more four times), one sample every 15 seconds.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.harness.deadline import DEADLINE

DEPLOY = Path("deploy").resolve()
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RUNBOOK = DEPLOY / "docs" / "RUNBOOK.md"
INTERVAL = 15  # seconds

NODES = ("a:8080", "b:8080", "c:8080")
HEALTHY_NODE = {
    "up": "1x{n}",
    "flockmq_ready": "1x{n}",
    "flockmq_info": "1x{n}",
    "flockmq_cluster_nodes": "3x{n}",
    "flockmq_redis_connected": "1x{n}",
    "flockmq_clients_connected": "1000x{n}",
    "flockmq_loop_lag_seconds": "0.003x{n}",
    "flockmq_store_latency_seconds": "0.002x{n}",
    "flockmq_queued_messages": "200000x{n}",
    "flockmq_accept_pauses_total": "3x{n}",
    "flockmq_read_pauses_total": "7x{n}",
    "flockmq_not_logged_total": "5x{n}",
    "flockmq_dropped_queue_full_total": "9x{n}",
    "flockmq_dropped_slow_total": "0+1x{n}",
    "flockmq_publish_sent_total": "0+15000x{n}",
    "flockmq_keep_alive_timeouts_total": "0+0.1x{n}",
    "flockmq_connects_refused_total": "0+0.1x{n}",
    "flockmq_connects_accepted_total": "0+10x{n}",
    "flockmq_auth_failures_total": "0+0.1x{n}",
    "flockmq_publish_received_total": "0+15000x{n}",
    "flockmq_publish_denied_total": "0x{n}",
    "flockmq_shared_accepted_total": "0+1500x{n}",
    "flockmq_shared_given_total": "0+1510x{n}",
    "flockmq_shared_returned_total": "0+10x{n}",
    "flockmq_shared_groups_unattended": "0x{n}",
    "flockmq_dead_letters_total": "3x{n}",
    "flockmq_tls_certificate_expires": "10000000x{n}",
    "flockmq_link_up": "1x{n}",
    "process_open_fds": "1100x{n}",
    "process_max_fds": "65536x{n}",
    "process_start_time_seconds": "1700000000x{n}",
}
HEALTHY_BALANCER = {
    'up{job="haproxy", instance="haproxy:8404"}': "1x{n}",
    'haproxy_frontend_current_sessions{instance="haproxy:8404", proxy="mqtt"}': "3000x{n}",
    'haproxy_frontend_limit_sessions{instance="haproxy:8404", proxy="mqtt"}': "50000x{n}",
}


def of(node: str, name: str) -> str:
    """A series of a node; all have version 0.1.0."""
    more = {"flockmq_info": f', version="0.1.0", node="{node[0]}"', "flockmq_link_up": f', link="of-{node[0]}"'}
    return f'{name}{{job="flockmq", instance="{node}"{more.get(name, "")}}}'


HEALTHY = {of(node, name): values for node in NODES for name, values in HEALTHY_NODE.items()} | HEALTHY_BALANCER


class Scenario(NamedTuple):
    """A fault, and the alerts that fire."""

    name: str
    changes: dict[str, str | None]  # series -> values; None: there is no such series
    fires: set[str]
    minutes: int = 30  # from the beginning to the look at what fires


def one(name: str, values: str | None) -> dict[str, str | None]:
    """A series of node a that is changed."""
    return {of("a:8080", name): values}


def all_of(name: str, values: str | None) -> dict[str, str | None]:
    """A series that is changed on all nodes."""
    return {of(node, name): values for node in NODES}


def shard(number: int, figure: str, values: str, nodes: tuple[str, ...] = NODES) -> dict[str, str | None]:
    """A series of a shard, which these nodes have so, and others as the first value."""
    healthy = values.partition("x")[0] + "x120"
    return {
        f'flockmq_shard_{figure}{{job="flockmq", instance="{node}", shard="{number}"}}': values
        if node in nodes
        else healthy
        for node in NODES
    }


# 10 minutes of health, then what is wrong until the end (sample 40 is at 10 minutes, sample 120 is looked at).
SCENARIOS = (
    Scenario("all is well", {}, set()),
    Scenario(
        "a node is dead",
        one("up", "1x40 0x80") | one("flockmq_ready", "1x40 stale"),
        {"FlockMQNodeDown", "FlockMQNodesFewer"},
    ),
    Scenario("a scrape or two failed", one("up", "1x117 0x2 1x9"), set()),
    Scenario(
        "no node is ready",
        all_of("flockmq_ready", "1x40 0x80"),
        {"FlockMQNoNodeReady", "FlockMQNodeNotReady", "FlockMQNodesFewer"},
    ),
    Scenario(
        "no node is there",
        all_of("flockmq_ready", None) | all_of("up", None),
        {"FlockMQNoNodeReady", "FlockMQNodesFewer"},
    ),
    Scenario("a node starts", one("flockmq_ready", "0x4 1x4"), set(), 2),
    Scenario("a node does not get ready", one("flockmq_ready", "0x120"), {"FlockMQNodeNotReady", "FlockMQNodesFewer"}),
    Scenario("a node sees others than the rest", one("flockmq_cluster_nodes", "3x40 1x80"), {"FlockMQNodesDisagree"}),
    Scenario("a node joins", all_of("flockmq_cluster_nodes", "2x117 3x3"), set()),
    Scenario(
        "a node dies again and again",
        one("process_start_time_seconds", "1700000000x90 1700001000+60x30"),
        {"FlockMQNodeRestarting"},
    ),
    Scenario("a node was restarted", one("process_start_time_seconds", "1700000000x90 1700001000x30"), set()),
    Scenario(
        "an upgrade has stopped half-way",
        one("flockmq_info", None)
        | {'flockmq_info{job="flockmq", instance="a:8080", node="a", version="0.2.0"}': "1x320"},
        {"FlockMQVersionsMixed"},
        80,
    ),
    Scenario(
        "an upgrade is under way",
        one("flockmq_info", None)
        | {'flockmq_info{job="flockmq", instance="a:8080", node="a", version="0.2.0"}': "1x220"},
        set(),
        50,
    ),
    Scenario(
        "workers of a shared subscription are too slow",
        one("flockmq_shared_given_total", "0+1510x40 60400+1000x80"),
        {"FlockMQSharedQueueGrows"},
    ),
    Scenario(
        "workers were too slow for a while",
        one("flockmq_shared_given_total", "0+1510x100 151000+1000x10 161000+2020x10"),
        set(),
    ),
    Scenario(
        "a shared subscription has lost its workers",
        all_of("flockmq_shared_groups_unattended", "0x40 1x80"),
        {"FlockMQSharedUnattended"},
    ),
    Scenario("a node knows a group that others do not", one("flockmq_shared_groups_unattended", "0x40 1x80"), set()),
    Scenario("a link is down", one("flockmq_link_up", "1x40 0x80"), {"FlockMQLinkDown"}),
    Scenario("a link was down for a moment", one("flockmq_link_up", "1x100 0x10 1x20"), set()),
    Scenario("a worker refuses messages", one("flockmq_dead_letters_total", "3x100 3+1x20"), {"FlockMQDeadLetters"}),
    Scenario("a loop lags", one("flockmq_loop_lag_seconds", "0.003x40 0.4x80"), {"FlockMQLoopLag"}),
    Scenario("a loop lagged once", one("flockmq_loop_lag_seconds", "0.003x116 0.4x1 0.003x9"), set()),
    Scenario("descriptors run out", one("process_open_fds", "60000x120"), {"FlockMQDescriptorsRunningOut"}),
    Scenario("a node lets nobody in", one("flockmq_accept_pauses_total", "3x117 4x3"), {"FlockMQAcceptPauses"}),
    Scenario("Redis is away", all_of("flockmq_redis_connected", "1x40 0x80"), {"FlockMQRedisAway"}),
    Scenario("a shard is away", shard(2, "connected", "1x40 0x80"), {"FlockMQShardAway"}),
    Scenario("a node does not reach a shard", shard(2, "connected", "1x40 0x80", NODES[:1]), set()),
    Scenario("a shard is slow", shard(0, "latency_seconds", "0.002x40 0.8x80"), {"FlockMQShardSlow"}),
    Scenario("the disk is slow", one("flockmq_store_latency_seconds", "0.002x40 0.8x80"), {"FlockMQStoreSlow"}),
    Scenario("publishers wait", one("flockmq_read_pauses_total", "7x40 8+1x80"), {"FlockMQPublishersHeldBack"}),
    Scenario("the log lacks messages", one("flockmq_not_logged_total", "5x40 6+100x80"), {"FlockMQNotLogging"}),
    Scenario("a queue is full", one("flockmq_dropped_queue_full_total", "9x40 10+1x80"), {"FlockMQMessagesDropped"}),
    Scenario(
        "a client reads too slowly", one("flockmq_dropped_slow_total", "0+1x40 41+1000x80"), {"FlockMQSlowReaders"}
    ),
    Scenario("queues fill", one("flockmq_queued_messages", "200000+5000x120"), {"FlockMQQueuesFilling"}),
    Scenario("queues fill from nothing", one("flockmq_queued_messages", "0+50x120"), set()),
    Scenario(
        "clients fall silent", all_of("flockmq_keep_alive_timeouts_total", "0x90 0+10x30"), {"FlockMQKeepAliveTimeouts"}
    ),
    Scenario("clients are refused", one("flockmq_connects_refused_total", "0x90 0+20x30"), {"FlockMQConnectsRefused"}),
    Scenario(
        "a certificate expires in three days",
        one("flockmq_tls_certificate_expires", "259200x120"),
        {"FlockMQCertificateExpires"},
    ),
    Scenario("there is no certificate", all_of("flockmq_tls_certificate_expires", "0x120"), set()),
    Scenario("somebody tries passwords", one("flockmq_auth_failures_total", "0x90 0+20x30"), {"FlockMQPasswordsTried"}),
    Scenario(
        "a client may not publish", one("flockmq_publish_denied_total", "0x40 0+2000x80"), {"FlockMQPublishDenied"}
    ),
    Scenario(
        "the balancer is away", {'up{job="haproxy", instance="haproxy:8404"}': "1x40 0x80"}, {"FlockMQBalancerDown"}
    ),
    Scenario(
        "the balancer is full",
        {'haproxy_frontend_current_sessions{instance="haproxy:8404", proxy="mqtt"}': "45000x120"},
        {"FlockMQBalancerFull"},
    ),
    Scenario(
        "the balancer has no limit",
        {'haproxy_frontend_limit_sessions{instance="haproxy:8404", proxy="mqtt"}': "0x120"},
        set(),
    ),
)


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts of the file, by name."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def promtool_test(scenario: Scenario) -> dict[str, Any]:
    """The scenario as promtool reads it."""
    series = {**HEALTHY, **scenario.changes}
    return {
        "name": scenario.name,
        "interval": f"{INTERVAL}s",
        "input_series": [
            {"series": name, "values": values.format(n=60 * scenario.minutes // INTERVAL)}
            for name, values in series.items()
            if values
        ],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{scenario.minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(scenario.fires)],
            }
        ],
    }


def run_promtool(directory: Path, *scenarios: Scenario) -> subprocess.CompletedProcess[str]:
    """Run `promtool test rules`."""
    path = directory / "alerts_test.yml"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [promtool_test(s) for s in scenarios]}))
    return subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=DEADLINE)


def test_every_alert_fires_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    done = run_promtool(tmp_path, *SCENARIOS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    assert run_promtool(tmp_path, Scenario("all is well", {}, {"FlockMQRedisAway"})).returncode == 1


def test_every_alert_has_a_scenario() -> None:
    assert set().union(*(scenario.fires for scenario in SCENARIOS)) == set(alerts())


@pytest.mark.parametrize(
    "command", (["config", "prometheus.yml"], ["rules", "--lint=all", "--lint-fatal", "alerts.yml"])
)
def test_promtool_finds_nothing_wrong(command: list[str]) -> None:
    done = subprocess.run(
        ["promtool", "check", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_to_do(name: str) -> None:
    alert = alerts()[name]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    link = alert["annotations"]["runbook_url"]
    assert link == f"deploy/docs/RUNBOOK.md#{name.lower()}"
    assert re.search(rf"^#+ {name}$", RUNBOOK.read_text(), re.MULTILINE), f"RUNBOOK.md has no section {name}"
