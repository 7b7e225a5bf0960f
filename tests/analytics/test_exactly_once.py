"""Every message once in the archive and in the windows' sums, whenever the job dies."""

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from flockmq.broker.errors import UsageError
from flockmq.cluster.analytics.job_options import Options
from flockmq.cluster.analytics.output.batches import Batches
from flockmq.cluster.analytics.output.commits import Commits
from flockmq.cluster.analytics.output.files import Files
from flockmq.cluster.analytics.schema import MESSAGES
from flockmq.cluster.tables.delta import Delta
from flockmq.cluster.tables.iceberg import Iceberg
from tests.analytics.job_process import JobProcess
from tests.analytics.log_writer import LogWriter
from tests.analytics.test_results import fleet, rows
from tests.harness.cluster_process import new_seed
from tests.harness.redis_process import RedisProcess
from tests.model.log_block import Row

MINUTE = 60_000_000


FORMATS = ("parquet", "delta", "iceberg")


def plain(output: Path, name: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """A table's rows as a reader without Spark and without the job sees them: of Delta and Iceberg, DuckDB."""
    found = []
    if (output / name / "_delta_log").exists():
        rows = DeltaTable(output / name).to_pyarrow_table()
        return duckdb.from_arrow(rows).project(", ".join(f'"{column}"' for column in columns)).fetchall()
    if (output / "catalog.db").exists():
        place = {"uri": f"sqlite:///{output}/catalog.db", "warehouse": f"file://{output}"}
        catalog = load_catalog("default", type="sql", **place)
        if not catalog.table_exists(f"flockmq.{name}"):
            return []
        rows = catalog.load_table(f"flockmq.{name}").scan().to_arrow()
        return duckdb.from_arrow(rows).project(", ".join(f'"{column}"' for column in columns)).fetchall()
    for path in sorted((output / name).rglob("*.parquet")):
        table = pyarrow.parquet.read_table(path, columns=columns, partitioning=None)
        found += [tuple(row[column] for column in columns) for row in table.to_pylist()]
    return found


class Killed(BaseException):
    """The step that a process does not live to see."""


def die_at(monkeypatch: pytest.MonkeyPatch, step: int, *, tables: bool = False) -> Callable[[], bool]:
    """The `step`-th change of a file, or half of a commit, is not made any more; returns whether it came so far."""
    steps = 0

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def do(*arguments: Any) -> None:
            nonlocal steps
            steps += 1
            if steps >= step:
                raise Killed
            change(*arguments)

        return do

    def twice(change: Callable[..., None]) -> Callable[..., None]:
        """Dies before it, or after it is done."""

        def do(*arguments: Any) -> None:
            counted(lambda: None)()
            change(*arguments)
            counted(lambda: None)()

        return do

    if not tables:
        for name in ("rename", "delete"):
            monkeypatch.setattr(Files, name, counted(getattr(Files, name)))
        return lambda: steps >= step
    for table, name in ((Delta, "add_files"), (Iceberg, "add_files"), (Commits, "commit")):
        monkeypatch.setattr(table, name, twice(getattr(table, name)))
    return lambda: steps >= step


def test_death_at_every_step_of_a_batch(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(
        output=str(tmp_path / "out"),
        archive=True,
        live=False,
        window=30_000_000,
        results=frozenset(["rates", "silence"]),
    )
    messages = fleet()[:400]
    halves = [spark.createDataFrame(rows(part), MESSAGES).persist() for part in (messages[:200], messages[200:])]
    Batches(spark, options)(halves[0], 0)
    before = len(plain(tmp_path / "out", "messages", ["topic"]))
    assert before == 200
    step = 0
    while True:
        step += 1
        with monkeypatch.context() as patch:
            died = die_at(patch, step)
            with contextlib.suppress(Killed):
                Batches(spark, options)(halves[1], 1)
            if not died():
                break
        batches = Batches(spark, options)  # a start: uncommitted results go
        count = len(plain(tmp_path / "out", "messages", ["topic"]))
        assert count == (200 if batches.commits.last.batch == 0 else 400), f"step {step}"
        if batches.commits.last.batch == 1:
            batches(halves[1], 1)  # Spark's own commit is missing: it asks again
    assert step > 5, "nothing was tried"
    batches = Batches(spark, options)
    batches.look_at_clock(messages[-1].at / 1e6 + 600)
    found = plain(tmp_path / "out", "messages", ["client_id", "topic", "qos", "payload"])
    assert Counter(found) == Counter((m.client_id, m.topic, m.qos, m.payload) for m in messages)
    sums = Counter[tuple[Any, ...]]()
    for start, node, count in plain(tmp_path / "out", "rates", ["window_start", "node", "messages"]):
        sums[round(start.timestamp() * 1e6), node] += count
    assert sums == Counter((m.at - m.at % 30_000_000, m.node) for m in messages)
    events = plain(tmp_path / "out", "silence", ["client_id", "event", "at"])
    assert len(events) == len(set(events)) > 10


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_death_between_commits_of_tables(
    kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = frozenset(["rates"])
    options = Options(output=str(tmp_path), format=kind, archive=True, live=False, window=5_000_000, results=results)
    messages = fleet()[:300]
    for number, step in enumerate([1, 4]):  # before the job's commit; when one of the tables has its files
        part = spark.createDataFrame(rows(messages[number * 150 : (number + 1) * 150]), MESSAGES)
        with monkeypatch.context() as patch:
            died = die_at(patch, step, tables=True)
            with contextlib.suppress(Killed):
                Batches(spark, options)(part, number)
            assert died()
        batches = Batches(spark, options)
        assert len(plain(tmp_path, "messages", ["topic"])) == 150 * (number + (step > 1))
        batches(part, number)
    batches.look_at_clock(messages[-1].at / 1e6 + 600)
    found = plain(tmp_path, "messages", ["client_id", "topic", "qos", "payload"])
    assert Counter(found) == Counter((m.client_id, m.topic, m.qos, m.payload) for m in messages)
    sums = Counter[tuple[Any, ...]]()
    for start, node, count in plain(tmp_path, "rates", ["window_start", "node", "messages"]):
        sums[round(start.timestamp() * 1e6), node] += count
    assert sums == Counter((m.at - m.at % 5_000_000, m.node) for m in messages)


def test_another_jobs_files_are_not_mixed_with(spark: SparkSession, tmp_path: Path) -> None:
    options = Options(output=str(tmp_path), archive=True, live=False, results=frozenset())
    Batches(spark, options)(spark.createDataFrame(rows(fleet()[:5]), MESSAGES), 0)
    with pytest.raises(UsageError, match="has messages of a job with another checkpoint"):
        Batches(spark, Options(output=str(tmp_path), checkpoint=str(tmp_path / "new")))
    with pytest.raises(UsageError, match="--format can't change: it was parquet"):
        Batches(spark, Options(output=str(tmp_path), format="delta"))
    with pytest.raises(UsageError, match="--window can't change: it was 60 seconds"):
        Batches(spark, Options(output=str(tmp_path), window=30_000_000))


KILLS = int(os.environ.get("FLOCKMQ_TEST_KILLS", "60"))


# In `make test` one job is killed by test_end_to_end, and the test above lets a job die at every step of a batch.
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", FORMATS)
def test_kill_9_in_mid_batch(kind: str, redis_server: RedisProcess, tmp_path: Path) -> None:
    kills, chance = KILLS, random.Random(new_seed())
    client = redis_server.client(decode_responses=False)
    began = int(time.time() * 1000) - 900_000
    logs = [LogWriter(client, f"n{node}", f"node {node}", began=began) for node in range(2)]
    written = Counter[tuple[Any, ...]]()
    sums = Counter[tuple[Any, ...]]()
    for number in range(400):  # thirteen minutes
        ms = began + number * 2000
        log = logs[number % 2]
        block = [
            Row(ms * 1000 - 5000 + i, f"device {i % 7}", f"site/{i % 5}", i % 3, False, False, b"%d/%d" % (number, i))
            for i in range(25)
        ]
        log.add(block, ms)
        for row in block:
            written[row.client_id, row.topic, row.qos, row.payload] += 1
            sums[row.accepted - row.accepted % MINUTE, str(log.said["name"])] += 1
    output = tmp_path / "out"
    arguments = ["--format", kind, "--archive", "--results", "rates", "--no-live", "--trigger", "200ms"]
    arguments += ["--max-bytes-per-trigger", str(sum(log.bytes for log in logs) // (kills + 2))]
    for life in range(kills):
        job = JobProcess(redis_server.url, output, arguments, tmp_path / f"job-{life}.log")
        job.wait_for("begins")
        if life % 2:
            job.wait_for("batch")
        time.sleep(chance.random() * 1.5)  # anywhere in a batch
        job.kill()
        found = Counter(plain(output, "messages", ["client_id", "topic", "qos", "payload"]))
        assert max(found.values(), default=0) <= 1, "a message is there twice, though nobody had to start again"
    job = JobProcess(redis_server.url, output, [*arguments, "--once"], tmp_path / "job.log")
    assert job.wait() == 0, job.log.read_text()
    assert Counter(plain(output, "messages", ["client_id", "topic", "qos", "payload"])) == written
    found = Counter[tuple[Any, ...]]()
    for start, node, count in plain(output, "rates", ["window_start", "node", "messages"]):
        found[round(start.timestamp() * 1e6), node] += count
    assert found == sums
