"""The source's option schema: members of payloads as columns, in a real Spark."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.analytics import payload_kinds
from tests.analytics.log_writer import LogWriter
from tests.harness.redis_process import RedisProcess

SCHEMA = {
    "type": "object",
    "properties": {
        "temp": {"type": "number"},
        "count": {"type": "integer"},
        "odd name": {"type": "string"},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        },
        "on": {"type": "boolean"},
    },
}


def test_members_are_columns(spark: SparkSession, redis_server: RedisProcess, tmp_path: Path) -> None:
    log = LogWriter(redis_server.client(decode_responses=False))
    payloads = [
        b'{"temp": 20, "count": 1, "odd name": "a", "at": {"x": 1, "tags": ["b"]}, "on": false}',
        b'{"temp": 22.5, "other": 1}',
        b"no JSON",
    ]
    log.add([log.row(0)._replace(payload=payload) for payload in payloads])
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    source = spark.read.format("flockmq").option("redis", redis_server.url).option("schema", str(path))
    frame = source.option("properties", "content-type").load()
    assert frame.columns[-7:] == ["properties", "content_type", "temp", "count", "odd name", "at", "on"]
    assert "payload" not in frame.columns
    rows = frame.selectExpr("temp", "count", "`odd name`", "at.x", "at.tags", "on", "unparsed").collect()
    assert [tuple(row) for row in rows] == [
        (20.0, 1, "a", 1, ["b"], False, None),
        (22.5, None, None, None, None, None, None),
        (None, None, None, None, None, None, bytearray(b"no JSON")),
    ]
    assert frame.agg({"temp": "avg"}).collect()[0][0] == 21.25


@pytest.mark.parametrize("schema", payload_kinds.KINDS)
def test_kinds_of_schemas(spark: SparkSession, redis_server: RedisProcess, tmp_path: Path, schema: str) -> None:
    """All types of Protobuf, Avro and Sparkplug B become Spark's."""
    log, kind = LogWriter(redis_server.client(decode_responses=False)), payload_kinds.KINDS[schema]()
    log.add([log.row(0)._replace(payload=payload) for payload in (kind.payload, b"{}")])
    source = spark.read.format("flockmq").option("redis", redis_server.url).option("schema", kind.write(tmp_path))
    rows = source.load().orderBy("unparsed").collect()
    assert [row["unparsed"] for row in rows] == [None, bytearray(b"{}")]
    for row, expected in zip(rows, (kind.columns, dict.fromkeys(kind.columns)), strict=True):
        assert {name: payload_kinds.plain(row[name]) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("{", "Expecting"), ('{"type": "array"}', "must be an object|expected an object")],
)
def test_wrong_schemas(
    spark: SparkSession, redis_server: RedisProcess, tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "schema.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PySparkException, match=rf"option schema: .*({words})"):
        spark.read.format("flockmq").option("redis", redis_server.url).option("schema", str(path)).load()
