"""PostgreSQL: each message is a row once, over kills of the process and of the database."""

import json
import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from flockmq.broker.cli import main
from tests.analytics.log_writer import LogWriter
from tests.connect.pipe_file import Process, once, pipe_file
from tests.harness.broker_process import until
from tests.harness.cluster_process import new_seed
from tests.harness.database_processes import PostgreSqlProcess
from tests.harness.redis_process import RedisProcess

TEMPERATURE = "select accepted_at, topic, (payload->>'$.temp')::double as temp from messages"


def of_database(postgresql: PostgreSqlProcess, table: str) -> dict[str, str]:
    return {"url": postgresql.url, "table": table}


def test_each_message_is_a_row(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    logs = [LogWriter(client, f"n{number}", f"node {number}") for number in range(2)]
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table)
    rows = [row for log in logs for row in log.fill(50)]
    once(path)
    rows += logs[1].fill(20)
    once(path)
    once(path)
    found = postgresql.rows(f"select client_id, topic, qos, retain, payload, accepted_at from {table}")
    assert Counter(row[:5] for row in found) == Counter(
        (row.client_id, row.topic, row.qos, row.retain, row.payload) for row in rows
    )
    assert min(row[5] for row in found) == datetime.fromtimestamp(rows[0].accepted / 1e6, UTC)
    ((number, position),) = postgresql.rows(f"select number, position from flockmq_positions where pipe = '{table}'")
    assert number == position["number"] == 2


def test_killed(
    postgresql: PostgreSqlProcess,
    table: str,
    redis_server: RedisProcess,
    client: redis.Redis,
    tmp_path: Path,
) -> None:
    """The process and the database are killed at any time: no row is missing, none is there twice."""
    chance = random.Random(new_seed())
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table)
    rows = log.fill(20)
    for turn in range(5):
        process = Process(path)
        process.wait_for(b"committed", turn + 1)
        rows += log.fill(chance.randrange(1, 300))
        if turn % 3 == 2:
            postgresql.kill()
            postgresql.start()
            rows += log.fill(5)
        time.sleep(chance.random() * 0.1)  # at any step of a batch
        process.kill()
        process.log.write_bytes(b"committed\n" * (turn + 1))
        rows += log.fill(1)
    once(path)
    found = Counter(bytes(payload) for (payload,) in postgresql.rows(f"select payload from {table}"))
    assert found == Counter(row.payload for row in rows)


def test_the_database_is_away(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A running process waits for the database, and goes on."""
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table)
    rows = log.fill(5)
    process = Process(path)
    process.wait_for(b"committed")
    postgresql.kill()
    rows += log.fill(5)
    process.wait_for(b"the target waits")
    postgresql.start()
    until(lambda: postgresql.rows(f"select count(*) from {table}") == [(len(rows),)])
    process.process.terminate()
    assert process.process.wait(30) == 0
    assert b"100 messages in " in process.log.read_bytes()


def test_sql_and_dead_letters(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Messages that the SQL, or the database, does not take are dead letters; all others are rows."""
    log = LogWriter(client)
    payloads = [b'{"temp": 21.5}', b"warm", b'{"temp": "x"}', b"{}", b"\xff", b'{"temp": -300}']
    log.add([log.row(0)._replace(payload=payload, topic="site/1/temp") for payload in payloads])
    postgresql.rows(f"create table {table} (accepted_at timestamptz, topic text, temp float check (temp > -274))")
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table, sql=TEMPERATURE)
    once(path)
    assert Counter(postgresql.rows(f"select topic, temp from {table}")) == Counter(
        [("site/1/temp", 21.5), ("site/1/temp", None), ("site/1/temp", None)]
    )
    dead = [json.loads(line) for line in (tmp_path / f"{table}.dead.jsonl").read_text().splitlines()]
    assert {line["pipe"] for line in dead} == {table}
    found = {(line["row"].get("payload"), line["row"].get("temp")): line["reason"] for line in dead}
    assert set(found) == {("warm", None), ('{"temp": "x"}', None), (None, -300.0)}
    assert "check constraint" in found[None, -300.0] and "Malformed JSON" in found["warm", None]


def test_rows_with_a_key(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Of each key the last row stays, also if both nodes had messages of it."""
    logs = [LogWriter(client, f"n{number}", f"node {number}") for number in range(2)]
    options = of_database(postgresql, table) | {"key": ["topic"]}
    path = pipe_file(
        tmp_path, redis_server, "postgresql", options, name=table, sql="select topic, payload, qos from messages"
    )
    for turn in range(3):
        for number in (0, 1) if turn % 2 else (1, 0):
            base = logs[number].row(0)
            newer = base._replace(accepted=base.accepted + turn * 100 + number)
            logs[number].add(
                [newer._replace(topic=f"a/{n % 2}", payload=b"%d %d %d" % (turn, number, n)) for n in range(4)]
            )
        once(path)
    assert sorted(postgresql.rows(f"select topic, payload from {table}")) == [("a/0", "2 1 2"), ("a/1", "2 1 3")]


def test_all_types(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    log = LogWriter(client)
    log.add([log.row(0)._replace(payload=b'{"a": "x\\"y,\\n\\\\N"}')])
    sql = """select payload->>'$.a' as a, '' as empty, null::varchar as none, 1::tinyint as small, true as yes,
        1.5::decimal(9, 2) as price, 'nan'::double as "not a number", date '2026-11-29' as day, payload_bytes,
        {'x': [1, 2]} as nested,
        18446744073709551615::ubigint as huge, timestamp '2026-11-29 10:00:00' as local,
        9223372036854775807::bigint as large, '\\N' as backslash from messages"""
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table, sql=sql)
    once(path)
    (row,) = postgresql.rows(f"select * from {table}")
    assert row[:6] == ('x"y,\n\\N', "", None, 1, True, row[5]) and float(row[5]) == 1.5
    assert row[6] != row[6] and str(row[7]) == "2026-11-29"
    assert row[8] == b'{"a": "x\\"y,\\n\\\\N"}' and row[9] == {"x": [1, 2]}
    assert row[10:] == (2**64 - 1, datetime(2026, 11, 29, 10), 2**63 - 1, "\\N")


def test_pipes_that_make_their_tables_at_once(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table)
    text = path.read_text()
    pipe = text[text.index("[[pipes]]") :]
    path.write_text(text + "".join(pipe.replace(f'name = "{table}"', f'name = "{table}-{n}"') for n in range(5)))
    rows = LogWriter(client).fill(3)
    once(path)
    assert postgresql.rows(f"select count(*) from {table}") == [(6 * len(rows),)]


def test_two_processes(
    postgresql: PostgreSqlProcess, table: str, redis_server: RedisProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Two processes with the same pipe, by mistake: each message is there once."""
    log = LogWriter(client)
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table)
    rows = log.fill(5)
    once(path)
    processes = [Process(path) for _ in range(2)]
    for _ in range(30):
        rows += log.fill(5)
    until(lambda: postgresql.rows(f"select count(*) from {table}")[0][0] >= len(rows))
    for process in processes:
        process.kill()
    once(path)
    found = Counter(bytes(payload) for (payload,) in postgresql.rows(f"select payload from {table}"))
    assert found == Counter(row.payload for row in rows)


def test_dry_run(
    postgresql: PostgreSqlProcess,
    table: str,
    redis_server: RedisProcess,
    client: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It shows rows and dead letters, and writes nothing."""
    log = LogWriter(client)
    log.add([log.row(0)._replace(payload=payload, topic="a") for payload in (b'{"temp": 1}', b"x", b'{"temp": 2}')])
    path = pipe_file(tmp_path, redis_server, "postgresql", of_database(postgresql, table), name=table, sql=TEMPERATURE)
    assert main(["connect", str(path), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{table}: postgresql"
    assert [json.loads(line)["temp"] for line in lines[1:3]] == [1.0, 2.0]
    assert lines[3].startswith("  dead letter: Invalid Input Error: Malformed JSON")
    path.write_text(path.read_text().replace("from messages", "from messages where topic = 'b'"))
    log.add([log.row(0)._replace(payload=b'{"temp": 3}', topic=topic) for topic in ("a", "b") for _ in range(20)])
    assert main(["connect", str(path), "--dry-run"]) == 0
    assert [json.loads(line)["temp"] for line in capsys.readouterr().out.splitlines()[1:]] == [3.0] * 10
    path.write_text(path.read_text().replace("'b'", "'c'"))
    assert main(["connect", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "  no row, out of 43 messages"
    assert not client.exists("mq:analytics:jobs")
    assert postgresql.rows(f"select to_regclass('{table}')") == [(None,)]
