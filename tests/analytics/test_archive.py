"""The source's option archive: a table of `flockmq lake` and then the log, each message once, in a real Spark."""

import json
from collections import Counter
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from flockmq.cluster.analytics.errors import OptionError
from flockmq.cluster.analytics.options import parse_options
from tests.analytics.log_writer import LogWriter
from tests.harness.redis_process import RedisProcess
from tests.lake.test_lake import config_of, once
from tests.model.log_block import Row

FilledLogs = tuple[list[LogWriter], list[Row]]


@pytest.fixture
def client(redis_server: RedisProcess) -> redis.Redis:
    return redis_server.client(decode_responses=False)


@pytest.fixture
def archived(client: redis.Redis, redis_server: RedisProcess, tmp_path: Path) -> FilledLogs:
    """Two logs of which the table has a part, in two commits; the logs have lost all that the table has, and more
    rows have followed. A third log has begun since."""
    path = config_of(tmp_path, redis_server, "delta")
    logs = [LogWriter(client, f"n{number}", f"node {number}") for number in range(2)]
    rows = [row for log in logs for row in log.fill(10)]
    once(path)
    rows += logs[1].fill(10)
    once(path)
    for log in logs:
        log.trim(3)
    rows += logs[0].fill(5)
    logs.append(LogWriter(client, "n9", "new"))
    rows += logs[2].fill(2)
    return logs, rows


def wanted(rows: list[Row]) -> Counter[tuple[str, str, int, bytes]]:
    return Counter((row.client_id, row.topic, row.qos, row.payload) for row in rows)


def found(frame: DataFrame) -> Counter[tuple[str, str, int, bytes]]:
    rows = frame.select("client_id", "topic", "qos", "payload").collect()
    return Counter((row.client_id, row.topic, row.qos, bytes(row.payload)) for row in rows)


def test_history_and_present(
    spark: SparkSession, redis_server: RedisProcess, archived: FilledLogs, tmp_path: Path
) -> None:
    logs, rows = archived
    urls = f"{redis_server.url} redis://127.0.0.1:1"  # of a cluster with two primaries: the first has the log
    source = spark.read.format("flockmq").option("redis", urls).option("archive", str(tmp_path / "table"))
    assert found(source.load()) == wanted(rows)
    middle = rows[150].accepted
    since = f"{middle // 1_000_000}.{middle % 1_000_000:06}"
    few = source.option("topicFilter", "site/3/+").option("since", since).option("properties", "content-type").load()
    assert few.columns[-2:] == ["properties", "content_type"]
    assert found(few) == wanted([row for row in rows if row.topic == "site/3/temp" and row.accepted >= middle])
    DeltaTable(tmp_path / "table").optimize.compact()  # a commit without a position
    assert found(spark.read.format("flockmq").options(**options_of(redis_server, tmp_path)).load()) == wanted(rows)
    logs[0].fill(3)
    logs[0].trim(2)
    with pytest.raises(PySparkException, match="bytes are missing from the log of node n0"):
        spark.read.format("flockmq").options(**options_of(redis_server, tmp_path)).load().count()


def options_of(redis_server: RedisProcess, tmp_path: Path) -> dict[str, str]:
    return {"redis": redis_server.url, "archive": str(tmp_path / "table")}


def test_a_stream_begins_with_the_archive(
    spark: SparkSession, redis_server: RedisProcess, archived: FilledLogs, tmp_path: Path
) -> None:
    """Also if the table has gone on before the next run of the query."""
    logs, rows = archived
    for turn in range(2):
        stream = spark.readStream.format("flockmq").options(**options_of(redis_server, tmp_path)).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert found(spark.read.parquet(str(tmp_path / "out"))) == wanted(rows)
        if not turn:
            rows += logs[1].fill(3)
            once(tmp_path / "lake.toml")


def test_a_table_with_columns(
    spark: SparkSession, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"temp": {"type": "number"}}}))
    log = LogWriter(client)
    for turn in range(2):
        log.add([log.row(0)._replace(payload=b'{"temp": %d}' % turn), log.row(1)._replace(payload=b"x%d" % turn)])
        if not turn:
            once(config_of(tmp_path, redis_server, "delta", schema="schema.json"))
    source = spark.read.format("flockmq").options(**options_of(redis_server, tmp_path))
    with pytest.raises(PySparkException, match="has no column payload"):
        source.load().count()
    rows = source.option("schema", str(schema)).load().select("temp", "unparsed").collect()
    texts = sorted(f"{row.temp} {row.unparsed and bytes(row.unparsed)}" for row in rows)
    assert texts == ["0.0 None", "1.0 None", "None b'x0'", "None b'x1'"]


def test_wrong_archives(spark: SparkSession, redis_server: RedisProcess, archived: FilledLogs, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table").to_pyarrow_table()
    write_deltalake(tmp_path / "other", table)
    for path, words in (("other", "no commit has the position of a log"), ("none", "that `flockmq lake` made")):
        source = spark.read.format("flockmq").option("redis", redis_server.url)
        with pytest.raises(PySparkException, match=words):
            source.option("archive", str(tmp_path / path)).load().count()
    for name, value in (("node", "a"), ("startingOffsets", "latest")):
        with pytest.raises(OptionError, match="can't be combined"):
            parse_options({"redis": "redis://h", "archive": "/a", name: value})
