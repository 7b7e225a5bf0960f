"""The sink at a broker with transactions: each row is published once, also if a process is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flockmq._speedups.codec.packets import Publish
from flockmq.cluster.analytics.errors import BrokerError, OptionError
from flockmq.cluster.analytics.sink.options import SinkOptions, parse_options
from flockmq.cluster.analytics.sink.writer import Transaction, Written, commit, write_rows
from tests.conftest import StartCluster
from tests.harness.broker_process import BrokerProcess
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.deadline import DEADLINE
from tests.harness.mosquitto_process import MosquittoProcess
from tests.harness.session_reader import read, subscribe
from tests.harness.socket_client import SocketClient

BATCH = Transaction("query", 7)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A node with SQLite, and a session `reader` that has all messages."""
    process = BrokerProcess(tmp_path, "sqlite", {"limits.max_queued_messages": 1_000_000}).start()
    subscribe(process.port)
    yield process
    process.close()


def options(port: int, **more: object) -> SinkOptions:
    given = {name: str(value) for name, value in more.items()}
    return parse_options({"url": f"mqtt://127.0.0.1:{port}", "patience": "30", "qos": "2", **given})


def rows(first: int, count: int) -> Iterator[pa.RecordBatch]:
    """Rows of a task, in record batches of 1000."""
    for begin in range(first, first + count, 1000):
        numbers = range(begin, min(begin + 1000, first + count))
        topics = [f"t/{number % 7}" for number in numbers]
        yield pa.RecordBatch.from_pydict({"topic": topics, "payload": [b"%d" % number for number in numbers]})


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_nothing_is_published_before_the_commit(broker: BrokerProcess) -> None:
    tasks = [write_rows(options(broker.port), rows(10_000 * task, 5000), BATCH) for task in range(2)]
    assert [task.count for task in tasks] == [5000, 5000]
    assert all(task.transaction == BATCH and task.chunks > 1 for task in tasks)
    failed = write_rows(options(broker.port), rows(0, 10), BATCH)
    assert failed.chunks == 1
    assert read(broker.port, 0) == []
    commit(options(broker.port), [*tasks, None])
    assert sorted(read(broker.port, 10_000)) == sorted(payloads(0, 5000) + payloads(10_000, 5000))


def test_a_batch_that_comes_again_is_dropped(broker: BrokerProcess) -> None:
    for _ in range(3):
        commit(options(broker.port), [write_rows(options(broker.port), rows(0, 100), BATCH)])
    commit(options(broker.port), [write_rows(options(broker.port), rows(100, 100), Transaction("query", 8))])
    commit(options(broker.port), [write_rows(options(broker.port), iter(()), Transaction("query", 9))])
    assert sorted(read(broker.port, 200)) == sorted(payloads(0, 200))


@pytest.mark.parametrize("moment", ["staged", "committed"])
def test_a_broker_that_is_killed(broker: BrokerProcess, moment: str) -> None:
    """In the middle of a task, and when it has acknowledged the commit."""
    source = rows(0, 20_000)

    def kill_within() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(source):
            yield batch
            if number == 10 and moment == "staged":
                broker.kill()
                threading.Thread(target=broker.start).start()

    task = write_rows(options(broker.port), kill_within(), BATCH)
    commit(options(broker.port), [task])
    if moment == "committed":
        broker.kill()
        broker.start()
    commit(options(broker.port), [task])
    assert Counter(read(broker.port, 20_000)) == Counter(payloads(0, 20_000))


def test_a_part_that_the_broker_has_lost(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "memory").start()
    try:
        task = write_rows(options(broker.port), rows(0, 10), BATCH)
        broker.stop()
        broker.start()
        with pytest.raises(BrokerError, match=r"refused a message to \$transaction/query/7: implementation specific"):
            commit(options(broker.port), [task])
    finally:
        broker.close()


def test_a_batch_that_is_too_large(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "memory", {"limits.max_delayed_bytes": 100_000}).start()
    try:
        with pytest.raises(BrokerError, match=r"quota exceeded.*maxBytesPerTrigger"):
            write_rows(options(broker.port), rows(0, 20_000), BATCH)
        assert write_rows(options(broker.port, delivery="at-least-once"), rows(0, 20_000), BATCH) == Written(20_000)
    finally:
        broker.close()


def test_brokers_without_transactions(tmp_path: Path) -> None:
    """Also a FlockMQ that has switched them off."""
    mosquitto = MosquittoProcess(tmp_path).start()
    off = BrokerProcess(tmp_path, "memory", {"limits.max_delayed_messages": 0}).start()
    try:
        for port in (mosquitto.port, off.port):
            assert write_rows(options(port), rows(0, 10), BATCH) == Written(10)
            with pytest.raises(BrokerError, match="has no transactions"):
                write_rows(options(port, delivery="exactly-once"), rows(0, 10), BATCH)
    finally:
        mosquitto.stop()
        off.close()


def test_options() -> None:
    assert options(1, delivery="exactly-once").delivery == "exactly-once"
    with pytest.raises(OptionError, match="exactly-once needs MQTT"):
        options(1, delivery="exactly-once", protocol="3.1.1")
    with pytest.raises(OptionError, match="expected exactly-once or at-least-once"):
        options(1, delivery="once")


# ---- Spark ----


def test_a_query_that_has_lost_its_record_of_a_batch(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """As after the death of a driver between the commit at the broker and its own."""
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"

    def run() -> None:
        frame = spark.readStream.schema("topic string, payload string").json(str(source))
        writer = frame.writeStream.format("flockmq").option("url", f"mqtt://127.0.0.1:{broker.port}")
        query = writer.option("qos", 2).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE)

    def add(first: int) -> None:
        values = spark.range(first, first + 100, 1, 2).selectExpr("'t' as topic", "cast(id as string) as payload")
        values.write.mode("append").json(str(source))

    add(0)
    run()
    add(100)
    run()
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    add(200)
    run()
    assert sorted(read(broker.port, 300)) == sorted(payloads(0, 300))


def test_a_task_that_fails_publishes_nothing(spark: SparkSession, broker: BrokerProcess) -> None:
    """Nor do the other tasks of the batch; a frame is published by all of its tasks, or not at all."""
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "if(id = 99, 'a/#', 't') as topic", "cast(id as string) as payload", "2 as qos"
    )
    writer = frame.write.format("flockmq").option("url", f"mqtt://127.0.0.1:{broker.port}").mode("append")
    with pytest.raises(Exception, match="is no topic name"):
        writer.save()
    fine = frame.where("id < 99")
    fine.write.format("flockmq").option("url", f"mqtt://127.0.0.1:{broker.port}").mode("append").save()
    assert sorted(read(broker.port, 99)) == sorted(payloads(0, 99))


class Driver:
    """A process that runs circle_driver.py, with its JVM in one process group."""

    def __init__(self, cluster: ClusterProcess, directory: Path, size: int, *more: str) -> None:
        self.log = directory / "driver.log"
        broker = f"mqtt://127.0.0.1:{cluster['a'].port}"
        arguments: Sequence[Any] = (cluster.redis.url, broker, directory / "checkpoint", size, *more)
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.analytics.circle_driver", *map(str, arguments)],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)

    def kill_workers(self) -> None:
        """kill -9 of all its Python workers, in which tasks read and write: Spark repeats tasks, or ends the query."""
        killed = 0
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                of_driver = os.getsid(int(process.name)) == self.process.pid
                if of_driver and b"pyspark.daemon" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
        assert killed


def committed(directory: Path) -> int:
    """The number of batches that the query has committed, by its own record."""
    return sum(path.name.isdigit() for path in (directory / "checkpoint" / "commits").glob("*"))


def turn_the_circle(cluster: ClusterProcess, directory: Path, count: int, kills: int) -> None:
    """Messages to `in/` come back from `out/`, each once; driver, Redis, workers and nodes are killed in turn."""
    chance = random.Random(new_seed())
    names, step = "ab", count // (kills + 1) or 1
    subscribe(cluster["b"].port)
    published = 0
    driver = Driver(cluster, directory, 60 * step)
    try:
        for turn in range(kills + 1):
            port = cluster[chance.choice(names)].port
            with SocketClient(port, f"device-{turn}", level=5) as client:
                for begin in range(published, published + step, 1000):
                    numbers = range(begin, min(begin + 1000, published + step))
                    client.send(*(Publish(f"in/{n % 9}", b"%d" % n, 1, packet_id=n - begin + 1) for n in numbers))
                    for _ in numbers:
                        client.receive()
            published += step
            if turn == kills:
                break
            before, end = committed(directory), time.monotonic() + DEADLINE
            while committed(directory) == before:  # it works
                if turn % 4 == 0 and driver.process.poll() is not None:  # the workers were of the query's plan
                    driver = Driver(cluster, directory, 60 * step)
                assert driver.process.poll() is None and time.monotonic() < end, driver.log.read_text()[-5000:]
                time.sleep(0.02)
            time.sleep(chance.random())
            if turn % 4 == 0:
                driver.kill()
                driver = Driver(cluster, directory, 60 * step)
            elif turn % 4 == 1:
                node = cluster[chance.choice(names)]
                node.kill()
                time.sleep(chance.random())
                node.start()
            elif turn % 4 == 2:
                cluster.redis.kill()
                time.sleep(chance.random())
                cluster.redis.start()
            else:
                driver.kill_workers()
        driver.kill()
        driver = Driver(cluster, directory, 60 * step, "--once")
        assert driver.process.wait(DEADLINE) == 0, driver.log.read_text()[-5000:]
    finally:
        driver.kill()
    found = Counter(payload for payload in read(cluster["b"].port, 2 * published))
    assert max(found.values()) == 2, "an answer is there twice"  # one is the message of the device
    assert found == Counter({b"%d" % number: 2 for number in range(published)})


CIRCLE = {
    "analytics.topics": "in/#",
    "limits.max_queued_messages": 10_000_000,
    "limits.max_queued_bytes": "4 GiB",
    "limits.max_delayed_bytes": "2 GiB",
    "cluster.lease": 2.0,
}


@pytest.mark.timeout(1200)
def test_the_circle_under_kills(start_cluster: StartCluster, tmp_path: Path) -> None:
    turn_the_circle(start_cluster(CIRCLE, nodes="ab"), tmp_path, 6000, 3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_circle_with_a_million_messages(start_cluster: StartCluster, tmp_path: Path) -> None:
    turn_the_circle(start_cluster(CIRCLE, nodes="ab"), tmp_path, 1_000_000, 10)
