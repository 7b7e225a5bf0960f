"""In which groups, and in which order, pytest-xdist runs the tests (`--dist loadgroup --no-loadscope-reorder`).

A group runs in one worker, one test after the other. Heavy tests are in groups by their servers: two of a kind never
run side by side, and one JVM, one engine or one browser serves them all. The longest groups begin first. Other tests
stay together by file, which keeps what a file's tests share. Files whose tests share nothing and take long are spread.
"""

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
# Heavy groups, the longest first: each a worker's first work.
HEAVY: dict[str, tuple[str, ...]] = {
    "containers": ("deploy/test_compose.py", "deploy/test_packages.py"),
    "spark": (
        "analytics/test_source.py",
        "analytics/test_lake_tables.py",
        "analytics/test_sink_transactions.py",
        "analytics/test_source_columns.py",
        "analytics/test_archive.py",
        "analytics/test_variant.py",
        "analytics/test_sink.py",
        "analytics/test_results.py",
        "analytics/test_exactly_once.py",
        "analytics/test_sql.py",
        "analytics/test_compaction.py",
        "analytics/test_outliers.py",
        "analytics/test_silence.py",
        "analytics/test_analytics_page.py",
    ),
    "spark-jobs": (
        "analytics/test_end_to_end.py",
        "analytics/test_submit.py",
        "analytics/test_recipes.py",
        "analytics/test_connect.py",
        "analytics/test_package.py",
        "analytics/test_job.py",
        "loadtest/test_compare_spark.py",
    ),
    "browser": (
        "web/test_page.py",
        "web/test_page_tenants.py",
        "web/test_documentation.py",
        "analytics/test_report.py",
    ),
    "databases": (
        "connect/test_postgresql.py",
        "connect/test_http_targets.py",
        "connect/test_over_http.py",
        "connect/test_kafka.py",
        "connect/test_mqtt.py",
    ),
}
# Files that begin next, since their tests share brokers and take long together.
LONG = (
    "protocol/test_conversations.py",
    "deploy/test_homeassistant.py",
    "deploy/test_helm.py",
    "security/test_sql_users.py",
    "security/test_ldap_users.py",
)
# Files whose tests are spread over the workers, the longest first.
SPREAD = (
    "faults/test_cluster_kill.py",
    "faults/test_cluster_faults.py",
    "deploy/test_private_redis.py",
    "analytics/test_replay.py",
    "simulation/test_simulation.py",
    "faults/test_shared_kill.py",
    "protocol/test_client_limits.py",
    "protocol/test_time.py",
    "faults/test_broken_links.py",
    "faults/test_cluster_links.py",
    "faults/test_kill.py",
    "faults/test_cluster_redis.py",
    "faults/test_redis_cluster_faults.py",
    "loadtest/test_locust.py",
    "loadtest/test_locust_cluster.py",
    "cluster/test_delivery.py",
    "protocol/test_retained_many.py",
    "cluster/test_message_log.py",
    "cluster/test_sessions.py",
    "clients/test_paho.py",
    "clients/test_command_lines.py",
    "protocol/test_memory.py",
    "deploy/test_tutorials.py",
)


GROUPS = {name: group for group, names in HEAVY.items() for name in names}
ORDER = {name: number for number, name in enumerate([*GROUPS, *LONG, *SPREAD])}


def arrange(items: list[pytest.Item]) -> None:
    """Put the tests that take longest first; the tests of a file stay together."""
    items.sort(key=lambda item: ORDER.get(item.path.relative_to(ROOT / "tests").as_posix(), len(ORDER)))


class Schedule(LoadScopeScheduling):
    """Gives tests to workers by these groups.

    The marker `xdist_group` does nothing with pytest 9.1 and later: pytest-xdist 3.8 writes the group into a node id
    that pytest does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.split("::", 1)[0].removeprefix("tests/")
        return nodeid if name in SPREAD else GROUPS.get(name, name)
