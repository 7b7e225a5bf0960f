"""Topics of a broker: with FlockMQ each row is published once, also if the process or the node is killed."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.analytics.log_writer import LogWriter
from tests.connect.pipe_file import Process, once, pipe_file
from tests.harness.broker_process import BrokerProcess
from tests.harness.cluster_process import new_seed
from tests.harness.mosquitto_process import MosquittoProcess
from tests.harness.redis_process import RedisProcess
from tests.harness.session_reader import read, subscribe

SQL = "select topic, payload, greatest(qos, 1) as qos, retain from messages"  # QoS 0 is not kept for a session


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A node with SQLite, and a session that has all messages."""
    process = BrokerProcess(tmp_path, "sqlite", {"limits.max_queued_messages": 1_000_000}).start()
    subscribe(process.port)
    yield process
    process.close()


def test_killed(node: BrokerProcess, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    chance = random.Random(new_seed())
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "mqtt", {"url": f"mqtt://127.0.0.1:{node.port}"}, sql=SQL)
    rows = log.fill(10)
    for turn in range(4):
        process = Process(path)
        process.wait_for(b"committed", turn + 1)
        rows += log.fill(chance.randrange(1, 300))
        if turn == 2:
            node.kill()
            node.start()
        time.sleep(chance.random() * 0.1)  # at any step of a batch
        process.kill()
        process.log.write_bytes(b"committed\n" * (turn + 1))
        rows += log.fill(1)
    once(path)
    assert Counter(read(node.port, len(rows))) == Counter(row.payload for row in rows)


def test_rows_that_are_no_messages(
    node: BrokerProcess, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    log = LogWriter(client)
    log.add([log.row(n)._replace(payload=b"%d" % n) for n in range(4)])
    sql = (
        "select case payload when '2' then 'a/#' else 'a' end as topic, payload, payload::int + 1 as qos from messages"
    )
    path = pipe_file(tmp_path, redis_server, "mqtt", {"url": f"mqtt://127.0.0.1:{node.port}"}, sql=sql)
    once(path)
    assert Counter(read(node.port, 2)) == {b"0": 1, b"1": 1}
    dead = [json.loads(line) for line in (tmp_path / "fleet.dead.jsonl").read_text().splitlines()]
    assert {line["row"]["payload"] for line in dead} == {"2", "3"}


def test_another_broker(redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Mosquitto has no transactions: at least once."""
    mosquitto = MosquittoProcess(tmp_path).start()
    try:
        subscribe(mosquitto.port)
        rows = LogWriter(client).fill(30)
        once(pipe_file(tmp_path, redis_server, "mqtt", {"url": f"mqtt://127.0.0.1:{mosquitto.port}"}, sql=SQL))
        wanted = Counter(row.payload for row in rows)
        assert set(read(mosquitto.port, len(rows))) == set(wanted)
    finally:
        mosquitto.kill()
