"""InfluxDB, ClickHouse and webhooks: what is sent again is there once, or has the same id."""

import base64
import hashlib
import hmac
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from flockmq.cluster.connect import http_target
from tests.analytics.log_writer import LogWriter
from tests.connect.endpoint import Endpoint
from tests.connect.pipe_file import Process, once, pipe_file
from tests.harness.broker_process import until
from tests.harness.database_processes import ClickHouseProcess, InfluxDbProcess
from tests.harness.redis_process import RedisProcess

# ---- InfluxDB ----


def series(influxdb: InfluxDbProcess, database: str, query: str) -> list[dict[str, Any]]:
    """The rows of a query in InfluxQL."""
    reply = json.loads(influxdb.ask("/query?" + urlencode({"db": database, "q": query, "epoch": "u"})))
    assert "error" not in reply["results"][0], reply
    found = reply["results"][0].get("series", [])
    return [dict(zip(each["columns"], values, strict=True)) for each in found for values in each["values"]]


@pytest.fixture
def database(influxdb: InfluxDbProcess, table: str) -> str:
    influxdb.ask("/query", urlencode({"q": f"create database {table}"}).encode())
    return table


def of_influxdb(influxdb: InfluxDbProcess, database: str, **more: Any) -> dict[str, Any]:
    return {"url": influxdb.url, "version": "1", "database": database, "measurement": "m"} | more


def test_points(
    influxdb: InfluxDbProcess, database: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Values with all the characters that line protocol escapes."""
    topic = "a b,c=d/é\\x"
    text = 'say "x", \\ = y\\'
    log = LogWriter(client)
    accepted = log.row(0).accepted
    log.add([log.row(0)._replace(topic=topic, payload=json.dumps({"text": text, "v": -1.5e300}).encode())])
    sql = """select accepted_at, topic, payload->>'$.text' as "the text", (payload->>'$.v')::double as v, 7 as "n,=",
        true as yes, 'nan'::double as nothing, null::int as none, [1, 2] as list from messages"""
    path = pipe_file(tmp_path, redis_server, "influxdb", of_influxdb(influxdb, database), sql=sql)
    once(path)
    (row,) = series(influxdb, database, "select * from m")
    assert row.pop("time") == accepted
    assert row == {"topic": topic, "the text": text, "v": -1.5e300, "n,=": 7, "yes": True, "list": "[1,2]"}


def test_points_of_the_same_time(
    influxdb: InfluxDbProcess, database: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Messages that a node accepts at once are points each, also beside a point a microsecond later."""
    log = LogWriter(client)
    row = log.row(0)._replace(topic="a")
    times = [row.accepted] * 3 + [row.accepted + 1, row.accepted]
    rows = [row._replace(payload=b"%d" % n, accepted=at) for n, at in enumerate(times)]
    log.add([*rows, row._replace(topic="b", payload=b"9")])
    options = of_influxdb(influxdb, database, tags="topic")
    once(pipe_file(tmp_path, redis_server, "influxdb", options, sql="select accepted_at, topic, payload from messages"))
    found = {
        (each["topic"], each["time"] - row.accepted, each["payload"])
        for each in series(influxdb, database, "select * from m")
    }
    assert {each[1] for each in found if each[0] == "a"} == set(range(5)) and ("b", 0, "9") in found
    assert sorted(each[2] for each in found) == ["0", "1", "2", "3", "4", "9"]


def test_points_that_influxdb_refuses(
    influxdb: InfluxDbProcess, database: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A field whose type is another than before is a dead letter; the points beside it are there."""
    log = LogWriter(client)
    sql = """select accepted_at, topic, cast(try(payload::double) as double) as v from messages
        where payload not like 'text%'"""
    path = pipe_file(tmp_path, redis_server, "influxdb", of_influxdb(influxdb, database), sql=sql)
    log.add([log.row(n)._replace(topic=f"t/{n}", payload=b"%d" % n) for n in range(10)])
    once(path)
    path = pipe_file(
        tmp_path,
        redis_server,
        "influxdb",
        of_influxdb(influxdb, database),
        sql="select accepted_at, topic, payload as v from messages",
    )
    log.add([log.row(n)._replace(topic=f"t/{n}", payload=b"text") for n in range(4)])
    once(path)
    assert [row["v"] for row in series(influxdb, database, "select v from m")] == list(range(10))
    dead = [json.loads(line) for line in (tmp_path / "fleet.dead.jsonl").read_text().splitlines()]
    assert len(dead) == 4 and all("field type conflict" in line["reason"] for line in dead)


def test_a_tag_that_line_protocol_can_not_have(
    influxdb: InfluxDbProcess, database: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A backslash at its end would escape the next separator: the row is a dead letter, no point with another tag."""
    log = LogWriter(client)
    log.add([log.row(n)._replace(topic=topic) for n, topic in enumerate(("a", "a\\", "b"))])
    options = of_influxdb(influxdb, database, tags=["topic", "site"])
    sql = "select accepted_at, topic, 'x' as site, 1 as v from messages"
    once(pipe_file(tmp_path, redis_server, "influxdb", options, sql=sql))
    found = {(row["topic"], row["site"]) for row in series(influxdb, database, "select * from m")}
    assert found == {("a", "x"), ("b", "x")}
    (dead,) = (tmp_path / "fleet.dead.jsonl").read_text().splitlines()
    assert "backslash" in json.loads(dead)["reason"]


def test_influxdb_is_killed(
    influxdb: InfluxDbProcess, database: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Points that are sent again replace themselves."""
    log = LogWriter(client)
    sql = "select accepted_at, topic, payload from messages"
    path = pipe_file(tmp_path, redis_server, "influxdb", of_influxdb(influxdb, database), sql=sql)
    rows = log.fill(30)
    process = Process(path)
    process.wait_for(b"committed")
    influxdb.kill()
    rows += log.fill(30)
    process.wait_for(b"the target waits")
    process.kill()
    influxdb.start()
    once(path)
    found = Counter(row["payload"] for row in series(influxdb, database, "select payload from m group by topic"))
    assert found == Counter(row.payload.decode() for row in rows)


# ---- ClickHouse ----


def test_rows_of_clickhouse(
    clickhouse: ClickHouseProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    log = LogWriter(client)
    clickhouse.rows(f"create table {table} (topic String, at DateTime, v Int32, note Nullable(String)) engine = Log")
    options = {"url": clickhouse.url, "table": table}
    sql = """select topic, accepted_at::timestamp as at, payload as v, 'a\tb"' as note from messages"""
    path = pipe_file(tmp_path, redis_server, "clickhouse", options, sql=sql)
    log.add([log.row(n)._replace(topic="a/é", payload=each) for n, each in enumerate((b"1", b"warm", b"-3"))])
    once(path)
    assert sorted(clickhouse.rows(f"select topic, v, note from {table}")) == [
        ("a/é", "-3", 'a\\tb"'),
        ("a/é", "1", 'a\\tb"'),
    ]
    (dead,) = (tmp_path / "fleet.dead.jsonl").read_text().splitlines()
    assert json.loads(dead)["row"]["v"] == "warm"


def test_clickhouse_is_away(
    clickhouse: ClickHouseProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """No message is lost. This ClickHouse knows no tokens, so some may be there twice."""
    log = LogWriter(client)
    clickhouse.rows(f"create table {table} (payload String) engine = MergeTree order by payload")
    path = pipe_file(
        tmp_path,
        redis_server,
        "clickhouse",
        {"url": clickhouse.url, "table": table},
        sql="select payload from messages",
    )
    rows = log.fill(10)
    process = Process(path)
    process.wait_for(b"committed")
    clickhouse.kill()
    rows += log.fill(10)
    process.wait_for(b"the target waits")
    clickhouse.start()
    until(lambda: int(clickhouse.rows(f"select count(distinct payload) from {table}")[0][0]) == len(rows))
    process.process.terminate()


def test_a_table_that_is_not_there(
    clickhouse: ClickHouseProcess, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """The pipe waits for the table: rows are no dead letters."""
    log = LogWriter(client)
    log.fill(1)
    path = pipe_file(tmp_path, redis_server, "clickhouse", {"url": clickhouse.url, "table": "nowhere"})
    process = Process(path)
    process.wait_for(b"doesn't exist")
    process.kill()
    assert not (tmp_path / "fleet.dead.jsonl").exists()


# ---- webhooks ----


def test_events(endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    """CloudEvents 1.0, signed as Standard Webhooks has it."""
    secret = base64.b64encode(b"0123456789abcdef").decode()
    options = {"url": endpoint.url, "secret": f"whsec_{secret}", "headers": {"X-Fleet": "north"}}
    path = pipe_file(tmp_path, redis_server, "webhook", options)
    log = LogWriter(client)
    payloads = [b'{"temp": 21.5}', b"21.5", b"on", b"\xff\0", b"", b"NaN", b"[1e400]", b'"\\ud800"', b"[" * 9999]
    log.add([log.row(n)._replace(topic="a/é", payload=each) for n, each in enumerate(payloads)])
    once(path)
    data = [(event["datacontenttype"], event.get("data", event.get("data_base64"))) for event in endpoint.events]
    assert data == [
        ("application/json", {"temp": 21.5}),
        ("application/json", 21.5),
        ("text/plain", "on"),
        ("application/octet-stream", base64.b64encode(b"\xff\0").decode()),
        ("text/plain", ""),
        ("text/plain", "NaN"),
        ("text/plain", "[1e400]"),
        ("text/plain", '"\\ud800"'),
        ("text/plain", "[" * 9999),
    ]
    first = endpoint.events[0]
    assert first["specversion"] == "1.0" and first["subject"] == "a/é" and first["clientid"] == "client-0"
    assert first["time"].endswith("Z") and len({event["id"] for event in endpoint.events}) == 9
    for headers, body in endpoint.requests:
        assert headers["content-type"] == "application/cloudevents+json" and headers["x-fleet"] == "north"
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(b"0123456789abcdef", signed, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{expected}" and headers["webhook-id"] == json.loads(body)["id"]


def test_events_that_are_refused(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A server's 503 is tried again; an event with 400 is a dead letter, alone, also out of a batch."""
    busy = iter([503, 429, *[204] * 3])
    endpoint.status = lambda body: 400 if b'"bad"' in body else next(busy, 204)
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url, "events": 4})
    log = LogWriter(client)
    log.add([log.row(n)._replace(payload=b"bad" if n == 5 else b"%d" % n) for n in range(10)])
    once(path)
    accepted = [
        event["data"]
        for headers, body in endpoint.requests
        for event in json.loads(body)
        if b'"bad"' not in body and headers["content-type"] == "application/cloudevents-batch+json"
    ]
    assert set(accepted) == {n for n in range(10) if n != 5}
    (dead,) = (tmp_path / "fleet.dead.jsonl").read_text().splitlines()
    assert json.loads(dead)["reason"] == "400 Bad Request" and json.loads(dead)["row"]["payload"] == "bad"


def test_a_server_that_asks_for_an_hour(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Retry-After` is bounded."""
    monkeypatch.setattr(http_target, "LONGEST_PAUSE", 0.01)
    busy = iter([429])
    endpoint.status = lambda body: next(busy, 204)
    endpoint.headers = {"Retry-After": "3600"}
    LogWriter(client).fill(1, rows=1)
    once(pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url}))
    assert len(endpoint.requests) == 2


def test_events_after_a_kill(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """The events of a batch that was not ended have the ids that they had before: also if newer messages are there."""
    endpoint.stop_at(5)
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url})
    log = LogWriter(client)
    rows = log.fill(1)
    process = Process(path)
    assert endpoint.stopped.wait(30)
    process.kill()
    endpoint.go_on()
    rows += log.fill(2)
    once(path)
    ids: dict[str, set[str]] = {}
    for event in endpoint.events:
        ids.setdefault(event["data"], set()).add(event["id"])
    assert set(ids) == {row.payload.decode() for row in rows}
    assert all(len(each) == 1 for each in ids.values())
    assert len(endpoint.events) == len(rows) + 5


def test_numbers_that_json_does_not_have(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    sql = (
        "select 'inf'::double as large, 'nan'::double as none, timestamp_ns '2026-01-31 10:00:00.5' as at from messages"
    )
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url}, sql=sql)
    LogWriter(client).fill(1)
    once(path)
    for event in endpoint.events:
        assert event["data"] == {"large": "Infinity", "none": "NaN", "at": "2026-01-31T10:00:00.500000"}


def test_signals_while_an_endpoint_does_not_reply(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """The process ends all the same, also if a signal interrupts another one."""
    endpoint.stop_at(1)
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url})
    LogWriter(client).fill(1)
    process = Process(path)
    assert endpoint.stopped.wait(30)
    for number in (signal.SIGTERM, signal.SIGINT) * 200:
        process.process.send_signal(number)
    assert process.process.wait(30) == 0
    assert b"the target does not reply; the next start sends the batch again" in process.log.read_bytes()
    endpoint.go_on()


def test_an_endpoint_that_moves(
    endpoint: Endpoint, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A redirection is not followed: a body would go to another address. The pipe waits."""
    endpoint.status = lambda body: 307
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": endpoint.url + "?token=secret"})
    LogWriter(client).fill(1)
    process = Process(path)
    process.wait_for(b"307 Temporary Redirect")
    process.kill()
    assert b"secret" not in process.log.read_bytes()
