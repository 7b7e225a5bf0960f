"""Values far from their topic's usual ones, and the patterns of --field."""

import random
import statistics
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flockmq.cluster.analytics.compute import outliers, values
from flockmq.cluster.analytics.compute.filters import pattern
from flockmq.cluster.analytics.topic_filter import matches

NUMBERS = "node string, at bigint, window bigint, client_id string, topic string, field string, value double"


def numbers(spark: SparkSession, topics: dict[str, list[float]], window: int = 0) -> DataFrame:
    """Values of topics, a second apart."""
    rows = [
        ("a", window + at, window, "c", topic, "", value) for topic, of in topics.items() for at, value in enumerate(of)
    ]
    return spark.createDataFrame(rows, NUMBERS)


def parts(spark: SparkSession, topics: dict[str, list[float]], window: int = 0) -> DataFrame:
    return values.parts(numbers(spark, topics, window)).selectExpr("1L as version", "*")


def renewed(spark: SparkSession, *topics: dict[str, list[float]]) -> dict[str, Any]:
    """Histories after some windows, by topic."""
    histories = spark.createDataFrame([], outliers.HISTORIES)
    for number, window in enumerate(topics):
        histories = outliers.renewed(histories, parts(spark, window, number * 1000), 0)
    return {row.topic: row for row in histories.collect()}


def test_history_is_a_sample_of_the_last_windows(spark: SparkSession) -> None:
    chance = random.Random(3)
    windows: list[dict[str, list[float]]] = [
        {"busy": [chance.gauss(20, 2) for _ in range(95)], "rare": [float(n)]} for n in range(7)
    ]
    found = renewed(spark, *windows)
    sampled = [value for window in windows for value in window["busy"][::5]][-100:]
    assert sorted(entry.value for entry in found["busy"].history) == sorted(sampled)
    median = statistics.median(sampled)
    mad = statistics.median(abs(value - median) for value in sampled)
    assert found["busy"].median == pytest.approx(median)
    assert found["busy"].spread == pytest.approx(1.4826 * mad)
    assert [entry.value for entry in found["rare"].history] == [6, 5, 4, 3, 2, 1, 0]
    assert found["rare"].spread is None, "too few to judge"


# A history, a value after it, and whether that is an outlier. All are topics of one query: each takes seconds.
JUDGED: list[tuple[list[float], float, bool]] = [
    ([20.0] * 30, 20.01, False),
    ([20.0] * 30, 500.0, True),
    ([0.0] * 30, 1.0, True),
    ([0.0, 1.0] * 15, 1.0, False),
    ([0.0] * 25 + [1.0] * 5, 1.0, True),
    ([float(n) for n in range(30)], 33.0, False),
    ([float(n) for n in range(30)], -60.0, True),
    ([20.0, 21.0, 22.0] * 9 + [1e9] * 3, 25.0, False),
    ([20.0, 21.0, 22.0] * 9 + [1e9] * 3, 30.0, True),
    ([20.0] * 19, 500.0, False),
]


def test_what_is_an_outlier(spark: SparkSession) -> None:
    known = spark.createDataFrame([], outliers.HISTORIES)
    # Two windows, so that all values are in the history though a window gives only some.
    for number, half in enumerate((slice(15), slice(15, None))):
        topics = {f"t/{topic}": history[half] for topic, (history, _, _) in enumerate(JUDGED)}
        known = outliers.renewed(known, parts(spark, topics, number * 1000), 0)
    values_now = {f"t/{topic}": [value] for topic, (_, value, _) in enumerate(JUDGED)}
    scored = outliers.outliers(numbers(spark, {**values_now, "unknown": [1e9]}, 5000), known, 3.5).collect()
    expected = {f"t/{topic}" for topic, (_, _, is_outlier) in enumerate(JUDGED) if is_outlier}
    assert {row.topic for row in scored} == expected
    assert len(scored) == len(expected)
    for row in scored:
        assert (row.value - row.median) / row.spread == pytest.approx(row.score)


def test_topics_without_numbers_for_long_are_forgotten(spark: SparkSession) -> None:
    histories = outliers.renewed(spark.createDataFrame([], outliers.HISTORIES), parts(spark, {"old": [1.0]}), 0)
    histories = outliers.renewed(histories, parts(spark, {"new": [1.0]}, 5000), 100)
    assert [row.topic for row in histories.collect()] == ["new"]


def test_patterns_match_what_filters_match(spark: SparkSession) -> None:
    names = ["a", "a/b", "a/b/c", "/", "/a", "a/", "$SYS/a", "a.b", "a+b/c", "ab", "a/\n", "a\n", "ä/b", ""]
    filters = ["a", "#", "+", "+/+", "a/#", "a/+", "+/b/#", "/#", "/+", "$SYS/#", "$SYS/+", "a.b", "+/", "ä/+", "a/b/c"]
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    matching = rows.select("name", *(rows.name.rlike(pattern(each)).alias(f"f{n}") for n, each in enumerate(filters)))
    found = matching.collect()
    for number, topic_filter in enumerate(filters):
        assert {row.name for row in found if row[f"f{number}"]} == {
            name for name in names if matches(topic_filter, name)
        }, topic_filter
