"""The format `flockmq` in a real Spark: batches and streams, restarts, kill -9, nodes that come and go, losses."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from flockmq._speedups.codec.properties import encode_block
from flockmq.cluster.analytics.schema import MESSAGES
from tests.analytics.log_writer import LogWriter
from tests.conftest import StartRedis
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess, Sentinels
from tests.model.log_block import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def writers(redis_server: RedisProcess) -> Iterator[list[LogWriter]]:
    with redis_server.client() as client:
        yield [LogWriter(client, f"n{n}", name) for n, name in enumerate("ab")]


def rows_of(frame: DataFrame) -> list[tuple[str, Row]]:
    """(node, message) of each row, in the order of payloads."""
    found = []
    for row in frame.collect():
        accepted = round(row.accepted_at.astimezone(UTC).timestamp() * 1_000_000)
        message = Row(
            accepted, row.client_id, row.topic, row.qos, row.retain, row.dup, bytes(row.payload), row.properties
        )
        found.append((row.node, message))
    return sorted(found, key=lambda one: one[1].payload)


def expected(**written: list[Row]) -> list[tuple[str, Row]]:
    return sorted(((node, row) for node, rows in written.items() for row in rows), key=lambda one: one[1].payload)


def batch(spark: SparkSession, url: str, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("flockmq").option("redis", url).options(**given).load()


class Stream:
    """A query that writes Parquet files, and can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, url: str, place: Path, **options: object) -> None:
        self.spark = spark
        self.place = place
        self.options = {"redis": url} | {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("flockmq").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.place / "checkpoint"))
        return writer.trigger(**trigger).start(str(self.place / "rows"))

    def run(self) -> list[tuple[str, Row]]:
        """Read all there is; returns all that was ever written."""
        query = self.start(availableNow=True)
        query.awaitTermination(DEADLINE)
        assert not query.isActive
        self.progress = [json.loads(one.json) for one in query.recentProgress]
        return self.rows()

    def rows(self) -> list[tuple[str, Row]]:
        return rows_of(self.spark.read.schema(MESSAGES).parquet(str(self.place / "rows")))


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- batches ----


def test_a_batch_has_every_message(spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = (writer.fill(20) for writer in writers)
    b += [Row(1_770_000_000_123_456, "", "ünï/☃", 2, True, True, bytes(range(256)))]
    writers[1].add(b[-1:])
    frame = batch(spark, redis_server.url, bytesPerPartition="2k")
    assert frame.schema.simpleString() == spark.createDataFrame([], MESSAGES).schema.simpleString()
    assert rows_of(frame) == expected(a=a, b=b)
    assert frame.rdd.getNumPartitions() > 10
    one = frame.where("topic = 'site/3/temp' and qos = 1").agg({"*": "count"}).first()
    assert one is not None and one[0] == sum(1 for row in a + b if row.topic == "site/3/temp" and row.qos == 1)


def test_columns_of_properties(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    properties = encode_block({"content_type": "text/plain", "user_property": [("tenant", "one")]})
    some = [Row(1_770_000_000_000_000 + n, "c", "t", 0, False, False, b"%d" % n) for n in range(3)]
    writers[0].add([some[0], some[1]._replace(properties=properties)])
    writers[1].add([some[2]])
    stream = Stream(spark, redis_server.url, tmp_path, properties="content-type,user.tenant")
    stream.run()
    written = spark.read.parquet(str(tmp_path / "rows"))
    assert written.columns[-3:] == ["properties", "content_type", "user_tenant"]
    for frame in (batch(spark, redis_server.url, properties="content-type,user.tenant"), written):
        found = frame.select("payload", "properties", "content_type", "user_tenant").orderBy("payload").collect()
        assert [tuple(row) for row in found] == [
            (b"0", None, None, None),
            (b"1", properties, "text/plain", "one"),
            (b"2", None, None, None),
        ]


def test_a_batch_of_nothing(spark: SparkSession, redis_server: RedisProcess) -> None:
    assert batch(spark, redis_server.url).collect() == []


def test_a_batch_of_some_time_and_topics(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    rows = writers[0].fill(50)
    since, until = rows[103].accepted, rows[412].accepted

    def text(at: int) -> str:
        return datetime.fromtimestamp(at // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at % 1_000_000:06}Z"

    def read(**options: object) -> list[Row]:
        return [row for _, row in rows_of(batch(spark, redis_server.url, **options))]

    by_payload = sorted(rows, key=lambda row: row.payload)
    assert read(since=text(since)) == [row for row in by_payload if row.accepted >= since]
    assert read(until=text(until)) == [row for row in by_payload if row.accepted < until]
    assert read(since=text(since), until=text(until), topicFilter="site/+/#", node="a") == [
        row for row in by_payload if since <= row.accepted < until
    ]
    assert read(topicFilter='["site/1/+", "site/4/temp"]') == [
        row for row in by_payload if row.topic in ("site/1/temp", "site/4/temp")
    ]
    assert read(since="10 s ago") == []


def test_a_batch_of_a_log_that_is_trimmed_meanwhile(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    rows = writers[0].fill(20)
    frame = batch(spark, redis_server.url)
    frame.explain()  # plans
    writers[0].trim(5)
    assert len(rows_of(frame)) in (50, 200)
    begin = datetime.fromtimestamp(rows[155].accepted / 1_000_000, UTC).isoformat()
    strict = batch(spark, redis_server.url, since=begin)
    assert len(rows_of(strict)) == 45


# ---- streams ----


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    a, b = writers
    stream = Stream(spark, redis_server.url, tmp_path, maxBytesPerTrigger="10k", minPartitions=3)
    rows_a = a.fill(60)
    assert stream.run() == expected(a=rows_a)
    counts = [one["numInputRows"] for one in stream.progress]
    assert len(counts) >= a.bytes // 10_240 and max(counts) < 120
    assert stream.run() == expected(a=rows_a)
    rows_a, rows_b = rows_a + a.fill(5), b.fill(5)
    assert stream.run() == expected(a=rows_a, b=rows_b)
    offsets = "".join(path.read_text() for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert a.ids[-1] in offsets and "redis" not in offsets


def test_nodes_come_and_go_while_a_stream_runs(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    a, b = writers
    before = a.fill(3)
    stream = Stream(spark, redis_server.url, tmp_path, startingOffsets="latest")
    query = stream.start(processingTime="0 seconds")
    try:
        wait((tmp_path / "checkpoint" / "commits" / "0").exists)  # Spark keeps where it began as a batch of nothing
        rows_a, rows_b = a.fill(3), b.fill(3)
        query.processAllAvailable()
        rows_c = LogWriter(a.client, "n2", "c").fill(4)
        b.end()
        rows_a += a.fill(2)
        query.processAllAvailable()
        assert stream.rows() == expected(a=rows_a, b=rows_b, c=rows_c)
        last = json.loads(query.lastProgress.json) if query.lastProgress else {}
        offset = last["sources"][0]["endOffset"]
        assert offset == {"n0": a.ids[-1], "n1": f"{b.ids[-1]} ended", "n2": offset["n2"]}
        assert last["sources"][0]["latestOffset"]["n0"] == a.ids[-1]
    finally:
        query.stop()
    assert before[0].payload not in {row.payload for _, row in stream.rows()}


def test_a_stream_tells_what_was_trimmed(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    a = writers[0]
    stream = Stream(spark, redis_server.url, tmp_path, job="archive")
    rows = a.fill(3)
    stream.run()
    read = a.ids[-1]
    rows_after = a.fill(5)
    a.trim(2)
    with pytest.raises(StreamingQueryException, match=f"bytes are missing from the log of node n0, ids after {read}"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    assert stream.run() == expected(a=rows + rows_after[30:])
    said = json.loads(a.client.hget("mq:analytics:jobs", "archive") or "{}")
    assert said["lost"] == {"n0": int(a.ids[5].split("-")[1]) - int(read.split("-")[1])}
    stream.run()  # Spark confirms a batch when it plans the next
    said = json.loads(a.client.hget("mq:analytics:jobs", "archive") or "{}")
    assert said["positions"]["n0"] == a.ids[-1]


def test_what_a_checkpoint_has_is_trimmed(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    a = writers[0]
    stream = Stream(spark, redis_server.url, tmp_path, job="archive", trimCommitted="true", maxBytesPerTrigger="4k")
    rows = a.fill(30)
    for _ in range(3):
        rows += a.fill(2)
        assert stream.run() == expected(a=rows)
    assert a.client.xlen(a.key) < 10


PROGRAM = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from flockmq.cluster.analytics.source import register
url, place = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.memory", "700m").getOrCreate())
register(spark)
frame = (spark.readStream.format("flockmq").option("redis", url).option("maxBytesPerTrigger", "3k")
    .option("job", "killed").option("trimCommitted", "true").load())
query = (frame.writeStream.format("parquet").option("checkpointLocation", place + "/checkpoint")
    .trigger(processingTime="0 seconds").start(place + "/rows"))
query.awaitTermination()
"""


@pytest.mark.soak  # test_end_to_end kills a whole job
def test_kill_9_of_the_driver_loses_and_doubles_nothing(
    spark: SparkSession, redis_server: RedisProcess, writers: list[LogWriter], tmp_path: Path
) -> None:
    a, b = writers
    rows = {"a": a.fill(200), "b": b.fill(100)}
    stream = Stream(spark, redis_server.url, tmp_path, maxBytesPerTrigger="50k", job="killed", trimCommitted="true")

    def done() -> int:
        return sum(1 for _ in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))

    with open(tmp_path / "log", "ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, redis_server.url, str(tmp_path)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait(lambda: done() >= 4 or driver.poll() is not None)
        assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            kill_session(driver.pid)
        driver.wait()
    rows["a"] += a.fill(3)
    assert stream.run() == expected(**rows)


def kill_session(leader: int) -> None:
    """kill -9 of the driver's JVM and Python, which are of one session."""
    subprocess.run(["pkill", "-9", "-s", str(leader)], check=False)


# ---- TLS, passwords, Sentinel ----


def certificate(place: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    cert, key = str(place / "cert.pem"), str(place / "key.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_tls_and_a_password_that_is_never_shown(
    spark: SparkSession, start_redis: StartRedis, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cert, key = certificate(tmp_path)
    server = start_redis(
        [
            "--port",
            "0",
            "--tls-port",
            "0",
            "--tls-cert-file",
            cert,
            "--tls-key-file",
            key,
            "--tls-ca-cert-file",
            cert,
            "--tls-auth-clients",
            "no",
            "--requirepass",
            "sesame",
        ],
        {"password": "sesame", "ssl": True, "ssl_ca_certs": cert, "ssl_check_hostname": False},
    )
    with server.client() as client:
        rows = LogWriter(client).fill(3)
    url = f"rediss://:sesame@127.0.0.1:{server.port}?ca_file={cert}"
    assert rows_of(batch(spark, url)) == expected(a=rows)
    stream = Stream(spark, url, tmp_path / "stream")
    assert stream.run() == expected(a=rows)
    assert "sesame" not in "".join(path.read_text() for path in (tmp_path / "stream").rglob("offsets/[0-9]*"))
    with pytest.raises(Exception, match="can't use Redis at rediss://") as caught:
        batch(spark, url.partition("?")[0]).collect()
    assert "sesame" not in str(caught.value)
    with pytest.raises(Exception, match="can't use Redis at rediss://") as caught:
        batch(spark, url.replace("sesame", "wrong-word")).collect()
    assert "wrong-word" not in str(caught.value)
    for name in ("redis", "redisUrl"):
        spark.readStream.format("flockmq").option(name, url).load().explain(True)
        batch(spark, url).explain(True)
    assert "StreamingRelation" in (shown := capfd.readouterr().out) and "sesame" not in shown


def test_the_master_behind_sentinels(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "sentinels"
    place.mkdir()
    sentinels = Sentinels(place).start()
    try:
        with sentinels.master.client() as client:
            rows = LogWriter(client).fill(3)
        assert rows_of(batch(spark, sentinels.url)) == expected(a=rows)
    finally:
        sentinels.stop()


# ---- mistakes ----


def test_mistakes_are_told_by_load(spark: SparkSession, redis_server: RedisProcess) -> None:
    with pytest.raises(AnalysisException, match="the option redis is missing"):
        spark.read.format("flockmq").load()
    with pytest.raises(AnalysisException, match=r"no option startingoffset; did you mean startingOffsets"):
        spark.readStream.format("flockmq").option("redis", redis_server.url).option("startingOffset", "x").load()
    with pytest.raises(Exception, match="has columns of its own; leave"):
        spark.read.format("flockmq").schema("x int").option("redis", redis_server.url).load().collect()
    frame = spark.readStream.format("flockmq").option("redis", redis_server.url).option("since", "1 h ago").load()
    query = frame.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="since and until are for batches"):
        query.awaitTermination(DEADLINE)


def test_nobody_answers(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"can't use Redis at redis://127\.0\.0\.1:1/0"):
        batch(spark, "redis://127.0.0.1:1").collect()
