"""Logs in a real Redis: their blocks, places by time and by bytes, ranges in pieces, gaps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq.cluster.analytics.errors import BlockError, RedisAway
from flockmq.cluster.analytics.log import log as log_module
from flockmq.cluster.analytics.log.connection import Connection
from flockmq.cluster.analytics.log.log import Entry, Gap, Log, Logs
from flockmq.cluster.analytics.position import START, Position
from flockmq.cluster.redis.clients import RedisAddress
from tests.analytics.log_writer import BEGAN, LogWriter
from tests.conftest import StartRedis
from tests.harness.redis_process import RedisProcess, Sentinels
from tests.model.log_block import Row, decode


@pytest.fixture
def connection(redis_server: RedisProcess) -> Iterator[Connection]:
    with Connection(RedisAddress.parse(redis_server.url)) as opened:
        yield opened


@pytest.fixture
def logs(connection: Connection) -> Logs:
    return Logs(connection)


@pytest.fixture
def writer(redis_server: RedisProcess) -> Iterator[LogWriter]:
    with redis_server.client() as client:
        yield LogWriter(client)


def read(log: Log, start: Position, end: Position) -> tuple[list[Row], list[Gap]]:
    gaps: list[Gap] = []
    rows = [row for entries in log.read(start, end, gaps.append) for entry in entries for row in decode(entry.block)]
    return rows, gaps


def place(text: str) -> Position:
    return Position.parse(text)


def test_what_is_known_of_logs(logs: Logs, writer: LogWriter) -> None:
    assert logs.known()["n1"] == ("n1", "a", BEGAN, None)
    last = writer.add([writer.row(0)])
    writer.end()
    assert logs.known()["n1"].last == place(last)
    writer.forget()
    assert logs.known() == {}


def test_a_registry_that_is_no_json_is_told(logs: Logs, writer: LogWriter) -> None:
    writer.client.hset(writer.registry, "n1", "{")
    with pytest.raises(RedisAway, match="node n1 is no JSON"):
        logs.known()


def test_a_log_that_does_not_exist_begins_and_ends_at_the_start(logs: Logs) -> None:
    log = logs.log("nobody")
    assert (log.first(), log.last(), log.start(), log.end()) == (None, None, START, START)


def test_begin_and_end_of_a_log(logs: Logs, writer: LogWriter) -> None:
    writer.fill(5)
    log = logs.log("n1")
    assert log.start() == Position(BEGAN + 10, 0) and log.end() == place(writer.ids[-1])
    writer.trim(2)
    assert log.start().total == place(writer.ids[2]).total
    assert place(writer.ids[2]) < log.start() < place(writer.ids[3])
    writer.trim(0)
    assert log.start() == log.end() == place(writer.ids[-1])


def test_a_header_that_contradicts_its_id_is_told(logs: Logs, writer: LogWriter) -> None:
    writer.fill(2)
    entry = logs.log("n1").last()
    assert entry is not None and entry.header().rows_before == 10
    with pytest.raises(BlockError, match=r"as the bytes before it"):
        Entry(Position(entry.position.ms, entry.position.total + 8), entry.block).header()


def test_a_range_is_read_in_pieces(logs: Logs, writer: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = writer.fill(60, rows=20)
    log = logs.log("n1")
    assert read(log, START, log.end()) == (rows, [])
    assert read(log, place(writer.ids[9]), place(writer.ids[29])) == (rows[200:600], [])
    monkeypatch.setattr(log_module, "PIECE", 10_000)
    sizes = [
        [len(entry.block) for entry in entries] for entries in log.read(START, log.end(), lambda _: pytest.fail("gap"))
    ]
    assert sum(map(len, sizes)) == 60 and len(sizes) > 10
    assert all(sum(piece) <= 10_000 for piece in sizes[1:])  # the first is asked for without a size


def test_a_block_larger_than_a_piece_is_read(logs: Logs, writer: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = writer.fill(20, rows=3, size=2000)
    monkeypatch.setattr(log_module, "PIECE", 1000)
    assert read(logs.log("n1"), START, place(writer.ids[-1])) == (rows, [])


def test_gaps_are_found_wherever_they_are(logs: Logs, writer: LogWriter) -> None:
    rows = writer.fill(20)
    ids = [place(text) for text in writer.ids]
    log = logs.log("n1")
    writer.client.xdel(writer.key, writer.ids[5], writer.ids[6], writer.ids[19])
    got, gaps = read(log, START, ids[19])
    assert got == rows[:50] + rows[70:190]
    assert [(gap.start, gap.end.total) for gap in gaps] == [(ids[4], ids[6].total), (ids[18], ids[19].total)]
    assert [gap.bytes for gap in gaps] == [ids[6].total - ids[4].total, ids[19].total - ids[18].total]
    writer.trim(2)
    got, gaps = read(log, ids[2], ids[10])
    assert got == [] and gaps == [Gap("n1", ids[2], ids[10])]
    writer.client.delete(writer.key)
    assert read(log, ids[2], ids[10]) == ([], [Gap("n1", ids[2], ids[10])])


def test_places_by_time(logs: Logs, writer: LogWriter) -> None:
    writer.fill(10)  # closed at BEGAN + 10, + 20 ... + 100
    log, ids = logs.log("n1"), [place(text) for text in writer.ids]
    assert log.at_time(0) == log.at_time(BEGAN + 10) == log.start()
    assert log.at_time(BEGAN + 11) == log.at_time(BEGAN + 20) == ids[0]
    assert log.at_time(BEGAN + 100) == ids[8]
    assert log.at_time(BEGAN + 101) == log.at_time(1 << 45) == ids[9]
    writer.trim(3)
    assert log.at_time(BEGAN + 20) == log.start()


@pytest.mark.parametrize("burst", [False, True])
def test_places_by_bytes(logs: Logs, writer: LogWriter, burst: bool) -> None:
    for n in range(200):  # a quiet hour at the begin, and bursts within a millisecond
        writer.add([writer.row(0, size=64 + n % 13 * 100)], ms=BEGAN + 3_600_000 + n // 50 if burst and n else None)
    log, ids = logs.log("n1"), [place(text) for text in writer.ids]
    for start in (log.start(), ids[0], ids[77]):
        for size in (1, 2000, 10_000, 50_000):
            best = max((at for at in ids if start < at and at.total <= start.total + size), default=None)
            least = min(at for at in ids if at > start)
            assert log.further(start, ids[-1], size, size) == (best or least)
            near = log.further(start, ids[-1], size, size // 2)
            assert near in ids and near.total - start.total <= max(size, least.total - start.total)
            assert near.total - start.total >= size // 2 or near == (best or least)


def test_few_questions_find_a_place(logs: Logs, writer: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.fill(500, rows=1)
    asked = []
    ask_all = logs.connection.ask_all
    monkeypatch.setattr(logs.connection, "ask_all", lambda commands: asked.append(1) or ask_all(commands))
    log = logs.log("n1")
    end = log.end()
    asked.clear()
    log.further(log.start(), end, end.total // 3, end.total // 4)
    assert len(asked) <= 4


def test_entries_without_a_block_are_told(logs: Logs, writer: LogWriter) -> None:
    writer.client.xadd(writer.key, {"other": "x"})
    with pytest.raises(BlockError, match="has no block"):
        logs.log("n1").first()


def test_a_wrong_password_is_told_without_it(start_redis: StartRedis) -> None:
    server = start_redis(["--requirepass", "sesame"], {"password": "sesame"})
    for user in ("", ":wrong-one@"):
        url = f"redis://{user}127.0.0.1:{server.port}"
        with (
            Connection(RedisAddress.parse(url), patience=60) as connection,
            pytest.raises(RedisAway, match=r"can't use Redis at redis://|refuses") as caught,
        ):
            connection.ask("HGETALL", "x")
        assert "wrong-one" not in str(caught.value)
    with Connection(RedisAddress.parse(f"redis://:sesame@127.0.0.1:{server.port}")) as connection:
        assert connection.ask("HGETALL", "x") == {}


def test_a_redis_that_comes_back_is_asked_again(redis_server: RedisProcess, connection: Connection) -> None:
    assert connection.ask("HGETALL", "x") == {}
    redis_server.stop()
    with pytest.raises(RedisAway, match="can't use Redis at"):
        connection.ask("HGETALL", "x")
    connection.patience = 60
    redis_server.start()
    assert connection.ask("HGETALL", "x") == {}


def test_the_master_that_sentinel_names_is_read_also_after_a_failover(tmp_path: Path) -> None:
    sentinels = Sentinels(tmp_path).start()
    try:
        master = sentinels.master
        with master.client() as client:
            writer = LogWriter(client)
            rows = writer.fill(3)
            client.wait(1, 5000)
        with Connection(RedisAddress.parse(sentinels.url), patience=60) as connection:
            log = Logs(connection).log("n1")
            assert read(log, START, log.end()) == (rows, [])
            master.kill()
            assert read(log, START, log.end()) == (rows, [])  # asks until there is another
    finally:
        sentinels.stop()
