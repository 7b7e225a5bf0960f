"""Kafka, at the cluster that librdkafka brings for tests: it speaks the protocol.

It shows the messages of transactions that were not ended, and fences no process: neither can be judged here.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.analytics.log_writer import LogWriter
from tests.connect.pipe_file import Process, once, pipe_file
from tests.harness.broker_process import until
from tests.harness.redis_process import RedisProcess


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """HOST:PORT of the cluster."""
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 3})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    address = f"{broker.host}:{broker.port}"
    writer = Producer({"bootstrap.servers": address})
    for pipe in ("raw", "rows", "other", "small", "killed"):  # it creates topics only when they are written
        writer.produce(f"flockmq-position-{pipe}", None, pipe, 0)
    writer.flush()
    yield address
    del cluster


def messages_of(brokers: str, topic: str, count: int) -> list[Any]:
    """The first messages of a topic, of all partitions."""
    settings = {"bootstrap.servers": brokers, "group.id": "reader", "log_level": 3}
    reader = Consumer(settings | {"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[Any] = []

    def read() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
        elif message is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        return len(found) >= count

    until(read)
    while (message := reader.poll(0.3)) is not None:
        found.append(message)
    reader.close()
    return found


def test_messages(brokers: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A message as it is: payload, topic as key, headers, time."""
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "kafka", {"brokers": brokers, "topic": "raw"}, name="raw")
    rows = log.fill(20)
    once(path)
    rows += log.fill(5)
    once(path)
    once(path)
    found = messages_of(brokers, "raw", len(rows))
    assert Counter((message.key(), message.value()) for message in found) == Counter(
        (row.topic.encode(), row.payload) for row in rows
    )
    first = next(message for message in found if message.value() == rows[0].payload)
    assert dict(first.headers()) == {"client_id": b"client-0", "qos": b"0", "retain": b"1"}
    assert first.timestamp()[1] == rows[0].accepted // 1000


def test_rows(brokers: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Rows of SQL: JSON, or the columns key, value and kafka_topic."""
    log = LogWriter(client)
    log.add([log.row(n)._replace(topic=f"a/{n}", payload=b'{"t": %d}' % n) for n in range(4)])
    options = {"brokers": [brokers], "topic": "rows", "properties": {"client.id": "flockmq"}}
    sql = "select topic as key, accepted_at, (payload->>'$.t')::int as t from messages"
    once(pipe_file(tmp_path, redis_server, "kafka", options, name="rows", sql=sql))
    found = {message.key(): json.loads(message.value()) for message in messages_of(brokers, "rows", 4)}
    assert {key: value["t"] for key, value in found.items()} == {b"a/%d" % n: n for n in range(4)}
    assert set(found[b"a/0"]) == {"accepted_at", "t"}
    sql = "select 'other' as kafka_topic, payload_bytes as value from messages where topic = 'a/2'"
    once(pipe_file(tmp_path, redis_server, "kafka", options, name="other", sql=sql))
    (message,) = messages_of(brokers, "other", 1)
    assert message.value() == b'{"t": 2}' and message.key() is None


def test_a_message_that_is_too_large(
    brokers: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    log = LogWriter(client)
    log.add([log.row(n)._replace(payload=b"x" * (20_000 if n == 1 else 10)) for n in range(3)])
    options = {"brokers": brokers, "topic": "small", "properties": {"message.max.bytes": "5000"}}
    once(pipe_file(tmp_path, redis_server, "kafka", options, name="small"))
    found = messages_of(brokers, "small", 2)
    assert {len(message.value()) for message in found} == {10}
    (dead,) = (tmp_path / "small.dead.jsonl").read_text().splitlines()
    assert len(json.loads(dead)["row"]["payload"]) == 20_000


def test_killed(brokers: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """The position is in the transaction: after a kill no message is missing."""
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "kafka", {"brokers": brokers, "topic": "killed"}, name="killed")
    rows = log.fill(10)
    process = Process(path)
    rows += log.fill(50)
    process.wait_for(b"committed")
    process.kill()
    rows += log.fill(5)
    once(path)
    found = {message.value() for message in messages_of(brokers, "killed", len(rows))}
    assert found == {row.payload for row in rows}
