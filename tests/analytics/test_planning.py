"""Ranges of batches, planned on a real Redis without Spark: begin, end, limits, partitions, losses, trimming."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flockmq.cluster.analytics.errors import DataLoss, OptionError, RedisAway
from flockmq.cluster.analytics.log.jobs import STALE_SECONDS
from flockmq.cluster.analytics.log.offsets import Offsets, format_offsets, parse_offsets
from flockmq.cluster.analytics.log.planning import Planner, Range
from flockmq.cluster.analytics.options import SourceOptions, parse_options
from flockmq.cluster.analytics.position import Position
from flockmq.cluster.analytics.source import StreamDriver, read_range
from tests.analytics.log_writer import BEGAN, LogWriter
from tests.harness.redis_process import RedisProcess

Texts = dict[str, str]


class Query:
    """A streaming query as Spark would run it; restarting is making another with the same `offset`."""

    def __init__(self, server: RedisProcess, offset: Texts | None = None, **options: object) -> None:
        given = {"redis": server.url} | {name: str(value) for name, value in options.items()}
        self.options: SourceOptions = parse_options(given)
        self.driver = StreamDriver(self.options)
        self.offset = format_offsets(self.driver.initial()) if offset is None else offset
        self.committed = self.offset

    def plan(self, budget: int | None = None) -> tuple[Texts, list[Range]]:
        """The next batch."""
        end = format_offsets(self.driver.latest(parse_offsets(self.offset), budget))
        assert json.loads(json.dumps(end)) == end
        return end, self.driver.ranges(parse_offsets(self.offset), parse_offsets(end))

    def read(self, ranges: list[Range]) -> list[bytes]:
        batches = [batch for one in ranges for batch in read_range(self.options, one)]
        return [row["payload"].rstrip() for batch in batches for row in batch.to_pylist()]

    def batch(self, budget: int | None = None) -> list[bytes]:
        """Payloads of a whole batch, which is then committed."""
        end, ranges = self.plan(budget)
        got = self.read(ranges)
        self.offset = end
        self.driver.commit(parse_offsets(end))
        return got


@pytest.fixture
def writers(redis_server: RedisProcess) -> Iterator[list[LogWriter]]:
    with redis_server.client() as client:
        yield [LogWriter(client, f"n{n}", name) for n, name in enumerate("ab")]


def payloads(writer: LogWriter, since: int = 0, until: int | None = None) -> list[bytes]:
    return [f"{writer.node}:{n}".encode() for n in range(since, writer.rows if until is None else until)]


def job(server: RedisProcess, name: str) -> dict[str, object]:
    with server.client() as client:
        return dict(json.loads(client.hget("mq:analytics:jobs", name) or "{}"))


# ---- where a query begins ----


def test_earliest_reads_all_then_what_is_new(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(10)
    query = Query(redis_server)
    assert query.batch() == payloads(a) and query.batch() == []
    a.fill(1)
    b.fill(2)
    assert sorted(query.batch()) == sorted(payloads(a, 100) + payloads(b))
    assert sorted(query.offset) == ["n0", "n1"] and query.offset["n1"] == b.ids[-1]


def test_latest_begins_now_but_reads_all_of_logs_that_begin_later(
    redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    a, _ = writers
    a.fill(10)
    query = Query(redis_server, startingOffsets="latest")
    assert query.offset == {"n0": a.ids[-1], "n1": "0-0"}
    a.fill(1)
    c = LogWriter(a.client, "n2", "c")
    c.fill(3)
    assert sorted(query.batch()) == sorted(payloads(a, 100) + payloads(c))


def test_a_time_is_a_begin(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(10)  # closed at BEGAN + 10 ... 100, 10 messages each
    b.fill(3)
    at = (BEGAN + 41) / 1000
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03}Z"
    query = Query(redis_server, startingOffsets=text)
    assert query.offset == {"n0": a.ids[3], "n1": b.ids[-1]}
    assert query.batch() == payloads(a, 40)


def test_named_positions_are_a_begin(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(10)
    b.fill(2)
    query = Query(redis_server, startingOffsets=json.dumps({"n0": a.ids[6]}))
    assert sorted(query.batch()) == sorted(payloads(a, 70) + payloads(b))
    between = Position.parse(a.ids[6])
    query = Query(redis_server, startingOffsets=json.dumps({"n0": f"{between.ms + 3}-0", "n1": b.ids[1]}))
    assert query.batch() == payloads(a, 70)
    a.trim(2)
    query = Query(redis_server, startingOffsets=json.dumps({"n0": a.ids[6], "n1": b.ids[1]}))
    with pytest.raises(DataLoss, match=f"missing from the log of node n0, ids after {a.ids[6]}"):
        query.plan()


def test_only_some_nodes(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(1)
    b.fill(1)
    assert Query(redis_server, node="b").batch() == payloads(b)
    assert Query(redis_server, node="n0").batch() == payloads(a)


def test_only_some_topics(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    rows = a.fill(3)
    expected = [row.payload.rstrip() for row in rows if row.topic == "site/2/temp"]
    assert Query(redis_server, topicFilter="+/2/#").batch() == expected != []


# ---- where a batch ends ----


def test_batches_keep_within_their_bytes(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(300)
    query = Query(redis_server)
    size = int(a.ids[0].partition("-")[2])
    got, sizes = [], []
    while True:
        start = Position.parse(query.offset["n0"].split()[0])
        some = query.batch(20 * size)
        if not some:
            break
        got += some
        sizes.append(Position.parse(query.offset["n0"]).total - start.total)
    assert got == payloads(a)
    assert max(sizes) <= 20 * size and min(sizes[:-1]) >= 10 * size


def test_bursts_keep_within_the_bytes_of_a_batch(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    for writer in writers:
        for n in range(150):  # long silence, much in a moment, blocks of all sizes
            writer.add([writer.row(0, 64 + n * 37 % 900)], ms=BEGAN + (n // 30) ** 5 * 1000 + n % 30 // 10)
    query = Query(redis_server)
    before, sizes, got = 0, [], []
    while some := query.batch(15_000):
        read = sum(Position.parse(text.split()[0]).total for text in query.offset.values())
        sizes.append(read - before)
        before = read
        got += some
    assert sorted(got) == sorted(payloads(writers[0]) + payloads(writers[1]))
    assert max(sizes) <= 15_000 and len(sizes) <= 3 * sum(sizes) // 15_000


def test_logs_are_read_up_to_the_same_time(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(200)  # 2 s with much
    for n in range(20):  # and with little
        b.add([b.row(0)], ms=BEGAN + 100 * n)
    query = Query(redis_server)
    total = a.bytes + b.bytes
    while query.batch(total // 7):
        ends = [Position.parse(text).ms if " " not in text else BEGAN for text in query.offset.values()]
        assert abs(ends[0] - ends[1]) <= 100, query.offset
    assert query.offset == {"n0": a.ids[-1], "n1": b.ids[-1]}


def test_a_block_that_is_larger_than_a_batch_may_be_is_read_alone(
    redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    a, b = writers
    for _ in range(3):
        a.add([a.row(n, 500) for n in range(10)], ms=BEGAN)
        b.add([b.row(n, 500) for n in range(10)], ms=BEGAN)
    query = Query(redis_server)
    batches = []
    while some := query.batch(100):
        batches.append(some)
    assert [len(one) for one in batches] == [10] * 6
    assert sorted(payload for one in batches for payload in one) == sorted(payloads(a) + payloads(b))


def test_the_present_can_be_the_end(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(20)
    query = Query(redis_server)
    query.driver.stop_at_present()
    a.fill(5)
    b.fill(1)
    got = []
    while some := query.batch(5000):
        got += some
    assert got == payloads(a, 0, 200)


# ---- who reads what ----


@pytest.mark.parametrize("least", [1, 7])
def test_ranges_share_a_log(redis_server: RedisProcess, writers: list[LogWriter], least: int) -> None:
    a, b = writers
    a.fill(200)
    b.fill(10)
    query = Query(redis_server, bytesPerPartition=a.bytes // 5, minPartitions=least)
    _, ranges = query.plan()
    assert len(ranges) >= max(6, least)
    assert all(one.bytes <= a.bytes // 5 * 1.25 for one in ranges)
    assert [one.start for one in ranges[1:]] == [*[one.end for one in ranges[:-2]], ranges[-1].start]
    assert sorted(query.read(ranges)) == sorted(payloads(a) + payloads(b))


# ---- nodes come and go ----


def test_a_log_that_ended_leaves_the_offset_when_it_is_forgotten(
    redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    a, b = writers
    a.fill(5)
    b.fill(5)
    query = Query(redis_server)
    assert len(query.batch()) == 100
    b.end()
    assert query.batch() == [] and query.offset == {"n0": a.ids[-1], "n1": f"{b.ids[-1]} ended"}
    restarted = Query(redis_server, query.offset)
    assert restarted.batch() == [] and restarted.offset == query.offset
    b.forget()
    assert restarted.batch() == [] and restarted.offset == {"n0": a.ids[-1]}


def test_logs_that_ended_before_are_not_missed(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.end()  # never had a message
    b.fill(3)
    b.end()
    query = Query(redis_server)
    assert query.batch() == [] and query.offset == {"n0": "0-0 ended", "n1": f"{b.ids[-1]} ended"}


# ---- losses ----


def expect_loss(query: Query, node: str, start: str, end: str, size: int) -> None:
    with pytest.raises(DataLoss) as caught:
        query.plan()
    words = f"{size} bytes are missing from the log of node {node}, ids after {start} up to {end}; keep more"
    assert words in str(caught.value) and "failOnDataLoss" in str(caught.value)


def total(entry_id: str) -> int:
    return Position.parse(entry_id).total


def test_what_was_trimmed_is_an_error(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(5)
    query = Query(redis_server)
    query.batch()
    read = query.offset["n0"]
    a.fill(10)
    a.trim(10)
    query.plan()  # just what had been read
    a.trim(4)
    gap = total(a.ids[10]) - total(read)
    expect_loss(query, "n0", read, str(Position(Position.parse(a.ids[11]).ms, total(a.ids[10]))), gap)
    a.trim(0)
    expect_loss(query, "n0", read, a.ids[-1], total(a.ids[-1]) - total(read))
    a.end()
    expect_loss(query, "n0", read, a.ids[-1], total(a.ids[-1]) - total(read))
    a.forget()
    with pytest.raises(DataLoss, match=f"n0 was read up to {read} and is deleted"):
        query.plan()


def test_losses_are_counted_if_that_is_wanted(
    redis_server: RedisProcess, writers: list[LogWriter], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = writers
    a.lacking = 17
    a.fill(5)
    b.fill(5)
    query = Query(redis_server, failOnDataLoss="false", job="j")
    query.batch()
    read = dict(query.offset)
    a.fill(10)
    a.trim(4)
    b.fill(3)
    b.end()
    assert query.batch() == payloads(a, 110)
    assert query.batch() == []
    lost = {"n0": total(a.ids[10]) - total(read["n0"]), "n1": total(b.ids[-1]) - total(read["n1"])}
    said = job(redis_server, "j")
    assert said["lost"] == lost and said["lacking"] == {"n0": 17, "n1": 0}
    assert said["positions"] == {"n0": a.ids[-1], "n1": b.ids[-1]}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and f"{lost['n0']} bytes are missing from the log of node n0" in "".join(told)


def test_a_log_of_which_nothing_is_left_is_counted_once(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(2)
    query = Query(redis_server, failOnDataLoss="false", job="j")
    query.batch()
    a.fill(3)
    a.trim(0)
    assert query.batch() == [] and query.offset["n0"] == a.ids[-1]
    a.fill(1)
    assert query.batch() == payloads(a, 50)
    assert job(redis_server, "j")["lost"] == {"n0": total(a.ids[4]) - total(a.ids[1])}


def test_what_is_trimmed_before_it_is_read_is_found_by_the_reader(
    redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    a, _ = writers
    a.fill(40)
    query = Query(redis_server, startingOffsets='{"n0": "0-0"}', bytesPerPartition=a.bytes // 4, job="j")
    query.batch(1)
    _, ranges = query.plan()
    a.trim(15)
    with pytest.raises(DataLoss, match=r"missing from the log of node n0, ids after .* up to"):
        query.read(ranges)
    lenient = replace(query.options, fail_on_data_loss=False)
    for _ in range(2):  # as when a task is tried again: counted once
        batches = [batch for one in ranges for batch in read_range(lenient, one)]
    assert sum(len(batch) for batch in batches) == 150
    assert job(redis_server, "j")["lost"] == {"n0": total(a.ids[24]) - ranges[0].start.total}


def test_what_earliest_finds_trimmed_is_no_loss(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(10)
    a.trim(8)
    query = Query(redis_server)
    a.trim(6)  # before it plans
    end, ranges = query.plan()
    a.trim(4)  # and before it reads
    assert query.read(ranges) == payloads(a, 60)
    query.offset = end
    a.fill(2)
    a.trim(1)
    with pytest.raises(DataLoss):  # but what came after a batch is
        query.plan()


def test_a_log_that_went_back_is_told(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(3)
    query = Query(redis_server)
    query.batch()
    a.client.delete(a.key)
    a.rows = a.bytes = 0
    a.fill(1)
    with pytest.raises(DataLoss, match=r"was read up to .*, and Redis has entries up to"):
        query.plan()


def test_a_damaged_block_is_told_or_passed_over(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(3)
    a.bytes += 96
    damaged = f"{a.ms}-{a.bytes}"
    a.client.xadd(a.key, {"b": b"FQ\1\0" + bytes(92)}, id=damaged)
    a.fill(2)
    with pytest.raises(DataLoss, match=re.escape(f"the entry {damaged} of the log of node n0 can't be read")):
        Query(redis_server).batch()
    query = Query(redis_server, failOnDataLoss="false", job="j")
    assert query.batch() == payloads(a)
    assert job(redis_server, "j")["lost"] == {"n0": 96}
    a.bytes += 80
    a.client.xadd(a.key, {"b": b"FQ\2\0" + bytes(76)}, id=f"{a.ms}-{a.bytes}")  # the newest, of another layout
    assert query.batch() == []
    assert job(redis_server, "j")["lost"] == {"n0": 96 + 80}


# ---- jobs ----


def length(writer: LogWriter) -> int:
    return int(writer.client.xlen(writer.key))


def test_what_all_jobs_have_read_is_trimmed(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, b = writers
    a.fill(10)
    b.fill(10)
    slow = Query(redis_server, job="slow")
    fast = Query(redis_server, job="fast", trimCommitted="true")
    assert len(fast.batch()) == 200
    assert (length(a), length(b)) == (10, 10)
    assert len(slow.batch(a.bytes)) < 200
    a.fill(1)
    fast.batch()
    read = [Position.parse(slow.offset[node]).total for node in ("n0", "n1")]
    for writer, size in zip(writers, read, strict=True):
        with redis_server.client(decode_responses=False) as client:
            left = [Position.parse(entry_id).total for entry_id, _ in client.xrange(writer.key)]
        assert left == [total(entry_id) for entry_id in writer.ids if total(entry_id) > size]
    slow.batch()
    a.fill(1)
    fast.batch()
    assert (length(a), length(b)) == (1, 0)  # the newest of a was not read by the slow one yet


def test_what_a_restart_may_ask_again_is_not_trimmed(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(10)
    query = Query(redis_server, job="j", trimCommitted="true")
    query.batch(a.bytes // 2)
    done = dict(query.offset)
    query.plan()  # not committed when the driver dies
    query = Query(redis_server, done, job="j", trimCommitted="true")
    first = len(query.read(query.plan()[1]))
    assert first == sum(1 for entry_id in a.ids if total(entry_id) > total(done["n0"])) * 10


def test_a_job_that_begins_anew_holds_back_what_it_needs(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(10)
    Query(redis_server, job="other").batch()
    trimmer = Query(redis_server, job="trimmer", trimCommitted="true")
    Query(redis_server, job="other")  # its checkpoint was deleted
    trimmer.batch()
    assert length(a) == 10


def test_a_job_holds_all_back_while_it_looks_where_to_begin(
    redis_server: RedisProcess, writers: list[LogWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = writers
    a.fill(10)
    trimmer = Query(redis_server, job="trimmer", trimCommitted="true")
    initial = Planner.initial

    def look(planner: Planner) -> Offsets:
        trimmer.batch()
        return initial(planner)

    monkeypatch.setattr(Planner, "initial", look)
    assert len(Query(redis_server, job="new").batch()) == 100


def test_a_job_that_was_stale_is_heard_of_before_it_reads(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(10)
    query = Query(redis_server, job="j")
    end, _ = query.plan()
    said = job(redis_server, "j")
    a.client.hset("mq:analytics:jobs", "j", json.dumps(said | {"at": 0}))
    again = Query(redis_server, query.offset, job="j")
    ranges = again.driver.ranges(parse_offsets(query.offset), parse_offsets(end))  # the batch that was begun
    Query(redis_server, job="trimmer", trimCommitted="true").batch()
    assert again.read(ranges) == payloads(a)


def test_jobs_that_are_gone_or_read_other_nodes_hold_nothing_back(
    redis_server: RedisProcess, writers: list[LogWriter]
) -> None:
    a, _ = writers
    a.fill(10)
    Query(redis_server, job="of-b", node="b")
    Query(redis_server, job="gone")
    said = job(redis_server, "gone")
    said["at"] = int((time.time() - STALE_SECONDS - 60) * 1000)
    a.client.hset("mq:analytics:jobs", "gone", json.dumps(said))
    Query(redis_server, job="trimmer", trimCommitted="true").batch()
    assert length(a) == 0


def test_a_job_that_can_not_be_read_stops_trimming(redis_server: RedisProcess, writers: list[LogWriter]) -> None:
    a, _ = writers
    a.fill(10)
    a.client.hset("mq:analytics:jobs", "odd", "?")
    with pytest.raises(RedisAway, match="the record of the job odd is no JSON: nothing is trimmed"):
        Query(redis_server, job="trimmer", trimCommitted="true").batch()
    assert length(a) == 10


def test_trimming_needs_a_name(redis_server: RedisProcess) -> None:
    with pytest.raises(OptionError, match="trimCommitted needs a name"):
        Query(redis_server, trimCommitted="true")
