"""Results in Redis: how they are set, removed, escaped and bounded, and their state while Redis is away."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row

from flockmq.cluster.analytics.output.live import Live, escaped
from flockmq.cluster.redis.connector import function_library
from tests.harness.redis_process import RedisProcess

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).astimezone().replace(tzinfo=None)  # as Spark gives it
LATER = datetime(2026, 1, 31, 12, 1, tzinfo=UTC).astimezone().replace(tzinfo=None)


@pytest.fixture
def redis_of_a_cluster(redis_server: RedisProcess) -> RedisProcess:
    """A Redis that has the functions of the nodes."""
    load(redis_server)
    return redis_server


def load(server: RedisProcess) -> None:
    with server.client() as client:
        client.function_load(function_library(), replace=True)


def results(server: RedisProcess) -> dict[str, Any]:
    with server.client() as client:
        return {topic: json.loads(payload) for topic, payload in client.hgetall("mq:analytics:results").items()}


def live(server: RedisProcess, most: int = 1000) -> Live:
    return Live(server.url, "mq:", most)


def silence(client_id: str, event: str) -> Row:
    return Row(at=LATER, client_id=client_id, event=event, since=NOON, usual_interval=2.5, silent_for=None, node="a")


def test_silent_until_back(redis_of_a_cluster: RedisProcess) -> None:
    shown = live(redis_of_a_cluster)
    shown.show("silence", [silence("pump/1", "silent"), silence("pump 2", "silent")])
    assert shown.flush()
    assert results(redis_of_a_cluster) == {
        "silent/pump%2F1": {
            "at": "2026-01-31T12:01:00Z",
            "client_id": "pump/1",
            "since": "2026-01-31T12:00:00Z",
            "usual_interval": 2.5,
            "node": "a",
        },
        "silent/pump 2": {
            "at": "2026-01-31T12:01:00Z",
            "client_id": "pump 2",
            "since": "2026-01-31T12:00:00Z",
            "usual_interval": 2.5,
            "node": "a",
        },
    }
    shown.show("silence", [silence("pump/1", "back")])
    assert shown.flush()
    assert list(results(redis_of_a_cluster)) == ["silent/pump 2"]


def test_rates_are_of_the_last_window_and_all_nodes(redis_of_a_cluster: RedisProcess) -> None:
    shown = live(redis_of_a_cluster)
    rows = [
        Row(window_start=start, window_end=end, prefix="site", node=node, messages=count, bytes=10 * count)
        for start, end, node, count in [
            (NOON, LATER, "a", 120),
            (NOON, LATER, "b", 60),
            (NOON.replace(year=2020), LATER.replace(year=2020), "a", 1),
        ]
    ]
    shown.show("rates", rows)
    shown.flush()
    found = results(redis_of_a_cluster)["rates/site"]
    assert (found["messages"], found["rate"], found["bytes"]) == (180, 3.0, 1800)
    assert found["nodes"] == [
        {"node": "a", "messages": 120, "bytes": 1200},
        {"node": "b", "messages": 60, "bytes": 600},
    ]
    assert found["window_start"] == "2026-01-31T12:00:00Z"


def test_no_more_topics_than_are_allowed(redis_of_a_cluster: RedisProcess) -> None:
    shown = live(redis_of_a_cluster, most=3)
    for n in range(5):
        shown.set(f"outliers/{n}", {"n": n})
        shown.set("lag", {})  # set again and again: it stays
        shown.flush()
    assert set(results(redis_of_a_cluster)) == {"lag", "outliers/3", "outliers/4"}
    assert shown.dropped == 3
    again = live(redis_of_a_cluster, most=3)  # a restart finds the results that are there
    again.set("outliers/5", {})
    again.flush()
    assert len(results(redis_of_a_cluster)) == 3


def test_what_redis_does_not_take_is_sent_later(redis_of_a_cluster: RedisProcess) -> None:
    shown = live(redis_of_a_cluster)
    redis_of_a_cluster.stop()
    shown.set("lag", {"p50": 1})
    assert not shown.flush()
    redis_of_a_cluster.start()
    load(redis_of_a_cluster)
    shown.set("silent/x", None)
    assert shown.flush()
    assert results(redis_of_a_cluster) == {"lag": {"p50": 1}}


@pytest.mark.parametrize(
    ("client_id", "level"),
    [("pump-17", "pump-17"), ("a/b", "a%2Fb"), ("+#%", "%2B%23%25"), ("\0\x7f", "%00%7F"), ("Zürich", "Zürich")],
)
def test_client_ids_as_levels(client_id: str, level: str) -> None:
    assert escaped(client_id) == level


def test_what_has_no_place_in_json_is_null(redis_of_a_cluster: RedisProcess) -> None:
    """A broken sensor's number is finite, its distance from the median in units of the spread need not be."""
    shown = live(redis_of_a_cluster)
    shown.show("outliers", [Row(accepted_at=NOON, topic="t", value=1e308, score=float("inf"), spread=float("nan"))])
    shown.flush()
    with redis_of_a_cluster.client() as client:
        said = client.hget("mq:analytics:results", "outliers/t")
    assert json.loads(said, parse_constant=pytest.fail)["score"] is None


def test_topics_stay_bounded_when_redis_was_away(redis_of_a_cluster: RedisProcess) -> None:
    """A result that had to go while Redis was away goes later."""
    shown = live(redis_of_a_cluster, most=3)
    for n in range(3):
        shown.set(f"outliers/{n}", {})
    assert shown.flush()
    with redis_of_a_cluster.client() as client:
        client.function_flush()
        for n in range(3, 6):
            shown.set(f"outliers/{n}", {})
        assert not shown.flush()
    load(redis_of_a_cluster)
    assert shown.flush()
    assert set(results(redis_of_a_cluster)) == {f"outliers/{n}" for n in range(3, 6)}
