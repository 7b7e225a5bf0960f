"""`flockmq lake`: every message is a row once, also if the process is killed or another process writes."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from flockmq.broker.cli import main
from flockmq.cluster.follow.follower import follow, schema_of
from flockmq.cluster.follow.target import TargetError
from flockmq.cluster.lake.config import load
from flockmq.cluster.lake.tables import LakeTable, followers_of
from flockmq.cluster.tables.table import Overtaken
from tests.analytics import payload_kinds
from tests.analytics.log_writer import LogWriter
from tests.harness.broker_process import until
from tests.harness.cluster_process import new_seed
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess
from tests.model.log_block import Row

FORMATS = ("delta", "iceberg")
Message = tuple[str, str, int, bool, bytes]


@pytest.fixture
def client(redis_server: RedisProcess) -> redis.Redis:
    return redis_server.client(decode_responses=False)


def config_of(directory: Path, redis_server: RedisProcess, kind: str, **more: Any) -> Path:
    """A configuration with one table in this directory."""
    place = f"file://{directory}/warehouse"
    options = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": place}
    table = {
        "format": kind,
        "table": str(directory / "table") if kind == "delta" else "fleet.messages",
        "options": options if kind == "iceberg" else {},
        **{name: value for name, value in more.items() if name not in ("every", "batch_mib")},
    }
    lines = [
        f'redis = "{redis_server.url}"',
        *(f"{name} = {json.dumps(more[name])}" for name in more if name == "every"),
    ]
    lines += ["batch_mib = 1", "[[tables]]"]
    for name, value in table.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{key} = {json.dumps(text)}" for key, text in value.items())
            lines.append(f"{name} = {{{inner}}}")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    path = directory / "lake.toml"
    path.write_text("\n".join(lines))
    return path


def rows_of(directory: Path, kind: str) -> pa.Table:
    """All rows, by the library of the format."""
    if kind == "delta":
        return DeltaTable(directory / "table").to_pyarrow_table()
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse"
    )
    return catalog.load_table("fleet.messages").scan().to_arrow()


def messages_of(directory: Path, kind: str) -> Counter[Message]:
    """The messages of the table, as DuckDB finds them."""
    rows = rows_of(directory, kind)  # DuckDB finds it by its name
    found = duckdb.sql("select client_id, topic, qos, retain, payload from rows").fetchall()
    assert rows.num_rows == len(found)
    return Counter((client_id, topic, qos, retain, bytes(payload)) for client_id, topic, qos, retain, payload in found)


def wanted(rows: list[Row]) -> Counter[Message]:
    return Counter((row.client_id, row.topic, row.qos, row.retain, row.payload) for row in rows)


def once(path: Path) -> None:
    assert main(["lake", str(path), "--once", "--log-level", "error"]) == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_each_message_is_a_row(kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    logs = [LogWriter(client, f"n{number}", f"node {number}") for number in range(2)]
    path = config_of(tmp_path, redis_server, kind)
    rows = [row for log in logs for row in log.fill(100)]
    once(path)
    assert messages_of(tmp_path, kind) == wanted(rows)
    once(path)
    rows += logs[1].fill(30)
    once(path)
    rows += LogWriter(client, "n9", "new").fill(5)
    once(path)
    assert messages_of(tmp_path, kind) == wanted(rows)
    table = rows_of(tmp_path, kind)
    assert Counter(table["node"].to_pylist()) == {"node 0": 1000, "node 1": 1300, "new": 50}
    assert table["accepted_at"].type == pa.timestamp("us", "UTC")
    assert min(at.timestamp() * 1e6 for at in table["accepted_at"].to_pylist()) == pytest.approx(rows[0].accepted)


def test_messages_that_were_deleted(
    redis_server: RedisProcess, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are an error, or are passed over if the operator says so."""
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, "delta")
    rows = log.fill(5)
    once(path)
    log.fill(10)
    log.trim(keep=3)
    assert main(["lake", str(path), "--once"]) == 1
    error = capsys.readouterr().err
    assert "bytes are missing from the log of node n1" in error and "--skip-missing" in error
    assert messages_of(tmp_path, "delta") == wanted(rows)
    assert main(["lake", str(path), "--once", "--skip-missing"]) == 0
    assert rows_of(tmp_path, "delta").num_rows == 80


@pytest.mark.parametrize("kind", FORMATS)
def test_filters(kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    log = LogWriter(client)
    rows = log.fill(20)
    path = config_of(tmp_path, redis_server, kind, filter=["site/1/temp", "site/3/+"], partition="hour")
    once(path)
    assert messages_of(tmp_path, kind) == wanted([row for row in rows if row.topic in ("site/1/temp", "site/3/temp")])


class Process:
    """`flockmq lake`, until it is killed."""

    def __init__(self, path: Path, *more: str) -> None:
        self.log = path.parent / "lake.log"
        with open(self.log, "ab") as output:
            command = [sys.executable, "-m", "flockmq.broker.cli", "lake", str(path), *more]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def wait_for_commits(self, count: int) -> None:
        end = time.monotonic() + DEADLINE
        while self.log.read_bytes().count(b"committed") < count:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE)


@pytest.mark.parametrize("kind", FORMATS)
def test_kill_9_at_any_moment(kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    kills, chance = int(os.environ.get("FLOCKMQ_TEST_KILLS", "5")), random.Random(new_seed())
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, kind, every="10 ms")
    rows: list[Row] = []
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.01):
            rows.extend(log.fill(2, rows=20))

    writer = threading.Thread(target=write)
    writer.start()
    commits = 0
    try:
        for _ in range(kills):
            process = Process(path)
            commits += chance.randint(1, 4)
            process.wait_for_commits(commits)
            time.sleep(chance.random() * 0.2)
            process.kill()
            commits = process.log.read_bytes().count(b"committed")
    finally:
        ended.set()
        writer.join()
    once(path)
    assert messages_of(tmp_path, kind) == wanted(rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_two_processes_at_one_table(kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """As when an operator starts a second one, or the first one stood still and comes back."""
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, kind, every="10 ms")
    rows = log.fill(1)
    once(path)  # the table is there: only its commits are contended
    config = load(path)
    one, two = (followers_of(config)[0] for _ in range(2))
    for turn in range(30):
        rows += log.fill(3)
        for follower in (one, two) if turn % 2 else (two, one):
            follower.step()
    for follower in (one, two):
        while follower.step():
            pass
        follower.close()
    assert one.rows + two.rows == 900
    assert min(one.rows, two.rows) > 0
    assert messages_of(tmp_path, kind) == wanted(rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_commit_upon_an_old_position_is_refused(
    kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    LogWriter(client).fill(3)
    path = config_of(tmp_path, redis_server, kind)
    once(path)
    config = load(path)
    schema = schema_of(None)
    one, two = (LakeTable(config.tables[0]) for _ in range(2))
    before, same = one.progress(), two.progress()
    assert before == same and before.number == 1
    one.append(schema.empty_table(), before._replace(number=2))
    with pytest.raises(Overtaken):
        two.append(schema.empty_table(), before._replace(number=2))
    assert two.progress() == one.progress() == before._replace(number=2)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_whose_outcome_is_not_known(
    kind: str, moment: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """The store is away before the commit, or before its reply: the table says which."""
    log = LogWriter(client)
    rows = log.fill(10)
    config = load(config_of(tmp_path, redis_server, kind))
    (follower,) = followers_of(config)
    assert follower.step()
    append = follower._target.append

    def fail(*arguments: Any) -> None:
        if moment == "after":
            append(*arguments)
        raise TargetError("away")

    rows += log.fill(10)
    follower._target.append = fail  # type: ignore[method-assign]
    with pytest.raises(TargetError):
        follower.step()
    follower._target.append = append  # type: ignore[method-assign]
    rows += log.fill(10)
    while follower.step():
        pass
    follower.close()
    assert messages_of(tmp_path, kind) == wanted(rows)


def test_commits_have_their_time(redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """However often messages come, a table is committed after `every`, unless more waits than one commit takes."""
    log = LogWriter(client)
    pauses: list[float] = []

    def stopped(seconds: float) -> bool:
        if seconds:
            pauses.append(seconds)
            log.fill(1)
        return len(pauses) == 3

    log.fill(30, rows=1000, size=100)  # some MiB
    config = load(config_of(tmp_path, redis_server, "delta", every="7 s"))
    (follower,) = followers_of(config)
    follow([follower], config.log, once=False, stopped=stopped)
    assert pauses == [7.0, 7.0, 7.0]
    assert follower.rows == 30_020
    assert 4 <= follower.batches <= 8


@pytest.mark.parametrize("kind", FORMATS)
def test_tidying_keeps_rows_and_position(
    kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, kind)
    rows: list[Row] = []
    for _ in range(5):
        rows += log.fill(2)
        once(path)
    config = load(path)
    table = LakeTable(config.tables[0])
    before = table.progress()
    done = table.tidy()
    assert (kind == "delta") == done.startswith("5 files became 1")
    assert table.progress() == before
    rows += log.fill(2)
    once(path)
    assert messages_of(tmp_path, kind) == wanted(rows)


# ---- columns ----

SCHEMA = {
    "type": "object",
    "properties": {
        "temp": {"type": "number"},
        "count": {"type": ["integer", "null"]},
        "unit": {"type": "string"},
        "on": {"type": "boolean"},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}}},
        },
    },
}


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_of_payloads(kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    log = LogWriter(client)
    (tmp_path / "reading.json").write_text(json.dumps(SCHEMA))
    payloads = [
        b'{"temp": 21.5, "count": 3, "unit": "C", "on": true, "more": 1}',
        b'{"temp": 21, "place": {"x": 1, "names": ["a", "b"]}}',
        b"{}",
        b'{"temp": "warm"}',
        b"21.5",
        b"",
        b"\xff",
        b'{"count": 1} {"count": 2}',
        b'{"count": 1}\n{"count": 2}',
    ]
    base = log.row(0)
    log.add([base._replace(payload=payload) for payload in payloads])
    path = config_of(tmp_path, redis_server, kind, schema="reading.json")
    once(path)
    table = rows_of(tmp_path, kind).to_pylist()
    assert [row["temp"] for row in table] == [21.5, 21.0, *[None] * 7]
    assert [row["count"] for row in table][:3] == [3, None, None]
    assert table[1]["place"] == {"x": 1, "names": ["a", "b"]}
    assert [row["unparsed"] for row in table] == [None, None, None, *payloads[3:]]
    assert "payload" not in table[0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("schema", payload_kinds.KINDS)
def test_kinds_of_schemas(
    schema: str, kind: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """All types of Protobuf, Avro and Sparkplug B, in tables of both formats."""
    log, payload_kind = LogWriter(client), payload_kinds.KINDS[schema]()
    log.add([log.row(0)._replace(payload=payload) for payload in (payload_kind.payload, b"{}")])
    once(config_of(tmp_path, redis_server, kind, schema=payload_kind.write(tmp_path)))
    rows = sorted(rows_of(tmp_path, kind).to_pylist(), key=lambda row: row["unparsed"] is not None)
    assert [row["unparsed"] for row in rows] == [None, b"{}"]
    assert {name: payload_kinds.plain(rows[0][name]) for name in payload_kind.columns} == payload_kind.columns
    assert not any(rows[1][name] for name in payload_kind.columns)  # PyIceberg has an empty list for null


def test_a_schema_that_grows(redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """New columns are added to the table; earlier rows have null there."""
    for kind in FORMATS:
        directory = tmp_path / kind
        directory.mkdir()
        log = LogWriter(client, f"n-{kind}", prefix=f"{kind}:")
        schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
        path = config_of(directory, redis_server, kind, schema="s.json")
        path.write_text(f'prefix = "{kind}:"\n' + path.read_text())
        for name in ("a", "b"):
            schema["properties"][name] = {"type": "integer"}
            (directory / "s.json").write_text(json.dumps(schema))
            log.add([log.row(0)._replace(payload=json.dumps({name: 1}).encode())])
            once(path)
        assert [(row["a"], row["b"]) for row in rows_of(directory, kind).to_pylist()] in (
            [(1, None), (None, 1)],
            [(None, 1), (1, None)],
        )


# ---- stores, faults, mistakes ----


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """Storage options of a server that speaks S3, with the bucket `lake`."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    line = next(line for line in server.stdout if "Running on" in line)
    threading.Thread(target=server.stdout.read, daemon=True).start()
    endpoint = line.split()[-1]
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket="lake")
    try:
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
            **{name.upper(): value for name, value in keys.items() if name != "region_name"},
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait(DEADLINE)


def test_a_bucket(s3: dict[str, str], redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, "delta", table="s3://lake/messages", options=s3)
    rows = log.fill(10)
    once(path)
    rows += log.fill(10)
    once(path)
    found = DeltaTable("s3://lake/messages", storage_options=s3).to_pyarrow_table()
    assert Counter(found["payload"].to_pylist()) == Counter(row.payload for row in rows)


def test_redis_is_away_for_a_while(redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    log = LogWriter(client)
    path = config_of(tmp_path, redis_server, "delta", every="10 ms")
    rows = log.fill(10)
    process = Process(path)
    process.wait_for_commits(1)
    redis_server.freeze()
    time.sleep(0.5)
    redis_server.thaw()
    rows += log.fill(10)
    until(lambda: rows_of(tmp_path, "delta").num_rows == 200)
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(DEADLINE) == 0
    assert "table: 200 messages in " in process.log.read_text()
    assert messages_of(tmp_path, "delta") == wanted(rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected either redis or log"),
        ('redis = "redis://h"\nlog = "http://h"', "expected either redis or log"),
        ('log = "ftp://h"', "log: expected http://HOST:PORT"),
        ('log = "http://h"\nuser = "u"\ntoken = "t"', "log: .*not both"),
        ('log = "http://h"\npassword = 1', "password: expected a text"),
        ('log = "http://h"\nprefix = "x:"', "prefix belongs to redis"),
        ('redis = "redis://h"\ntoken = "t"', "token belongs to log"),
        ('redis = "x"', "redis: "),
        ('redis = "redis://h"', r"no \[\[tables\]\]"),
        ('redis = "redis://h"\n[[tables]]', "number 1: table is missing"),
        ('redis = "redis://h"\n[[tables]]\ntable = "t"\nformat = "csv"', "delta or iceberg, not 'csv'"),
        ('redis = "redis://h"\n[[tables]]\ntable = "t"\nformat = "iceberg"', "NAMESPACE.TABLE"),
        (
            'redis = "redis://h"\n[[tables]]\ntable = "t"\nfilter = "a/#/b"',
            "filter: expected # alone in the last level",
        ),
        ('redis = "redis://h"\n[[tables]]\ntable = "t"\nfiltre = "a"', "did you mean filter"),
        ('redis = "redis://h"\n[[tables]]\ntable = "t"\n[[tables]]\ntable = "x/t"', "two tables have the name t"),
        ('redis = "redis://h"\nevery = "soon"\n[[tables]]\ntable = "t"', "every: .* is no duration"),
        ('redis = "redis://h"\n[[tables]]\ntable = "t"\nschema = "none.json"', "No such file"),
        ('redis = "redis://h"\n[[tables]]\ntable = "a.t"\nformat = "iceberg"\nschema = "variant"', "Delta tables"),
        ("redis =", "Invalid value"),
    ],
)
def test_wrong_files(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(text)
    assert main(["lake", str(path)]) == 2
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("[]", "expected an object"),
        ('{"type": "string"}', "must be an object"),
        ('{"type": "object"}', "properties"),
        ('{"type": "object", "properties": {"topic": {"type": "string"}}}', "of the message itself"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "one type"),
        ('{"type": "object", "properties": {"a": {}}}', "the schema, a: "),
    ],
)
def test_wrong_schemas(schema: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(schema)
    (tmp_path / "lake.toml").write_text('redis = "redis://h"\n[[tables]]\ntable = "t"\nschema = "s.json"')
    assert main(["lake", str(tmp_path / "lake.toml")]) == 2
    assert words in capsys.readouterr().err
