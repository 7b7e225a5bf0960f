"""The sink `flockmq` in a real Spark: batches, streams, wrong columns, and a broker that refuses or goes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.cluster.analytics.errors import RowError
from flockmq.cluster.analytics.sink.rows import check_columns
from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient

NEEDED = "topic string, payload binary"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A node with SQLite, and a session `reader` that has all messages at QoS 1."""
    process = BrokerProcess(tmp_path, "sqlite").start()
    with SocketClient(process.port, "reader", clean_start=False) as client:
        client.subscribe(("#", 1))
    yield process
    process.close()


def received(port: int, payloads: set[bytes]) -> list[bytes]:
    """The payloads that the session `reader` gets until it has all of these."""
    found: list[bytes] = []
    missing = payloads.copy()
    with SocketClient(port, "reader", clean_start=False) as client:
        while missing:
            packet = client.receive()
            assert isinstance(packet, Publish)
            found.append(packet.payload)
            missing.discard(packet.payload)
            client.send(Puback(packet_id=packet.packet_id))
    return found


def url_of(broker: BrokerProcess) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('site/', id % 7) as topic", "cast(id as string) as payload"
    )


# ---- columns ----


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("payload binary", "needs a column topic"),
        ("topic string", "needs a column payload"),
        (f"{NEEDED}, node string", "has no use for a column node"),
        ("topic binary, payload binary", "the column topic must be a string, not binary"),
        (f"{NEEDED}, qos string", "the column qos must be an integer, not string"),
        (f"{NEEDED}, retain int", "the column retain must be a boolean, not int"),
        (f"{NEEDED}, user_properties map<string,int>", "must be a map of strings to strings, not map<string,int>"),
    ],
)
def test_wrong_columns(spark: SparkSession, schema: str, text: str) -> None:
    with pytest.raises(RowError) as caught:
        check_columns(StructType.fromDDL(schema), 5)
    assert text in str(caught.value)


def test_columns_of_mqtt_5_are_refused_for_others(spark: SparkSession) -> None:
    check_columns(StructType.fromDDL(f"{NEEDED}, qos bigint, retain boolean"), 4)
    with pytest.raises(RowError, match=r"MQTT 3\.1\.1 has no expiry"):
        check_columns(StructType.fromDDL(f"{NEEDED}, expiry int"), 4)


# ---- batches ----


def test_a_batch_is_published_by_all_tasks(spark: SparkSession, broker: BrokerProcess) -> None:
    numbers(spark, 5000, 3).write.format("flockmq").option("url", url_of(broker)).mode("append").save()
    payloads = {b"%d" % number for number in range(5000)}
    assert sorted(received(broker.port, payloads)) == sorted(payloads)


def test_null_is_the_default(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = spark.sql(
        "select * from values ('a', null, null, map('k', 'v')), ('b', 'x', 2, null) "
        "as t(topic, payload, qos, user_properties)"
    )
    frame.write.format("flockmq").option("url", url_of(broker)).mode("append").save()
    assert sorted(received(broker.port, {b"", b"x"})) == [b"", b"x"]


@pytest.mark.parametrize(
    ("columns", "mode", "options", "text"),
    [
        ("topic, payload", "overwrite", {}, "the sink flockmq can't overwrite messages"),
        ("topic, payload, 1 as node", "append", {}, "has no use for a column node"),
        ("topic, payload", "append", {"qos": "5"}, "option qos: expected 0, 1 or 2"),
        ("'a/+' as topic, payload", "append", {}, "'a/+' is no topic name"),
        ("topic, payload", "append", {"url": "mqtt://127.0.0.1:1", "patience": "0"}, "can't connect to mqtt://127"),
    ],
)
def test_what_is_wrong_is_reported(
    spark: SparkSession, broker: BrokerProcess, columns: str, mode: str, options: dict[str, str], text: str
) -> None:
    writer = numbers(spark, 1).selectExpr(*columns.split(", ")).write.format("flockmq")
    with pytest.raises(PySparkException, match=text.replace("+", r"\+")):
        writer.options(**{"url": url_of(broker), **options}).mode(mode).save()


# ---- streams ----


def test_a_stream_goes_on_after_a_restart_of_the_query_and_of_the_broker(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """At least once: all messages arrive, and a batch that has ended is not sent again."""
    rows, place = tmp_path / "rows", tmp_path / "checkpoint"

    def add(first: int, count: int) -> set[bytes]:
        spark.range(first, first + count).selectExpr("'t' as topic", "cast(id as string) as payload").coalesce(
            1
        ).write.mode("append").json(str(rows))
        return {b"%d" % number for number in range(first, first + count)}

    def run() -> None:
        frame = spark.readStream.schema("topic string, payload string").json(str(rows))
        writer = frame.writeStream.format("flockmq").option("url", url_of(broker))
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE)

    wanted = add(0, 1000)
    run()
    wanted |= add(1000, 1000)
    broker.kill()
    starts = threading.Thread(target=broker.start)
    starts.start()
    run()
    starts.join()
    found = received(broker.port, wanted)
    assert sorted(found) == sorted(wanted)


def test_the_circle(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """A query's result goes to devices: the number of messages by topic, retained."""
    frame = numbers(spark, 700).groupBy("topic").count()
    answer = frame.selectExpr(
        "concat('answers/', topic) as topic", "cast(count as string) as payload", "true as retain"
    )
    answer.write.format("flockmq").option("url", url_of(broker)).mode("append").save()
    with SocketClient(broker.port, "device") as client:
        client.subscribe(("answers/site/3", 1))
        packet = client.receive()
        assert isinstance(packet, Publish)
        assert (packet.payload, packet.retain) == (b"100", True)
