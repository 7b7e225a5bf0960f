"""In which groups, and in which order, pytest-xdist runs the tests (`--dist loadgroup --no-loadscope-reorder`).

A group runs in one worker, one test after the other. What is heavy is one group, so that it has one JVM, one engine or
one browser, and so that two of a kind never run side by side. The longest groups begin first. Other tests stay together
by file, which keeps what a file's tests share; files whose tests share nothing, and take long, are not groups.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Heavy groups, the longest first: each a worker's first work.
HEAVY: dict[str, tuple[str, ...]] = {
    "containers": ("deploy/test_compose.py", "deploy/test_packages.py"),
    "spark": (
        "analytics/test_source.py",
        "analytics/test_results.py",
        "analytics/test_exactly_once.py",
        "analytics/test_sql.py",
        "analytics/test_outliers.py",
        "analytics/test_silence.py",
        "analytics/test_analytics_page.py",
    ),
    "spark-jobs": (
        "analytics/test_end_to_end.py",
        "analytics/test_submit.py",
        "analytics/test_package.py",
        "analytics/test_job.py",
        "loadtest/test_compare_spark.py",
    ),
    "browser": ("web/test_page.py", "analytics/test_report.py"),
}
# Files whose tests are spread over the workers, the longest first.
SPREAD = (
    "faults/test_cluster_kill.py",
    "faults/test_cluster_faults.py",
    "protocol/test_limits.py",
    "protocol/test_time.py",
    "faults/test_kill.py",
    "faults/test_cluster_redis.py",
    "loadtest/test_locust.py",
    "cluster/test_delivery.py",
    "protocol/test_retained_many.py",
    "cluster/test_message_log.py",
    "cluster/test_sessions.py",
    "clients/test_command_lines.py",
    "protocol/test_memory.py",
)


def arrange(items: list[pytest.Item]) -> None:
    """Order the tests and put them into groups."""
    groups = {name: group for group, names in HEAVY.items() for name in names}
    order = {name: number for number, name in enumerate([*groups, *SPREAD])}

    def place(item: pytest.Item) -> str:
        return item.path.relative_to(ROOT / "tests").as_posix()

    items.sort(key=lambda item: order.get(place(item), len(order)))  # stable: files stay together
    for item in items:
        name = place(item)
        if name not in SPREAD:
            item.add_marker(pytest.mark.xdist_group(groups.get(name, name)))
