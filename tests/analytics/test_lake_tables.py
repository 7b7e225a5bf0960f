"""The job's tables in Delta and Iceberg: each version's files are in each table once, and other programs read them."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flockmq.broker.errors import FlockError
from flockmq.cluster.analytics.job_options import Options
from flockmq.cluster.analytics.output import lake_tables
from flockmq.cluster.analytics.output.commits import Commit
from flockmq.cluster.analytics.output.lake_tables import LakeTables
from flockmq.cluster.analytics.output.stored import stored
from flockmq.cluster.analytics.report.page import page
from flockmq.cluster.analytics.report.results import Results
from flockmq.cluster.analytics.views import views
from flockmq.cluster.tables import iceberg
from flockmq.cluster.tables.delta import Delta
from flockmq.cluster.tables.iceberg import Iceberg
from flockmq.cluster.tables.table import Table, TableError
from tests.analytics.result_files import MINUTE, T0, Fleet, schema, write
from tests.analytics.test_exactly_once import Killed, plain

FORMATS = ["delta", "iceberg"]
JOB = "0000abcd"


def options_of(output: Path, kind: str, **more: Any) -> Options:
    return Options(output=str(output), format=kind, archive=True, **more)


def commit_of(
    output: Path, version: int, tables: dict[str, list[dict[str, Any]]], job: str = JOB, **more: str
) -> Commit:
    """The commit of a version, whose files are there, as the job writes them. More: columns of text."""
    added = {}
    for name, rows in tables.items():
        at = datetime.fromtimestamp(T0 / 1e6, UTC)
        path = output / name / f"date={at:%Y-%m-%d}" / f"hour={at.hour}" / f"{version:010}-{job}-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows, schema(name))
        for column, text in more.items():
            table = table.append_column(column, pa.array([text] * len(rows)))
        pq.write_table(table, path)
        added[name] = ["/".join(path.parts[-3:])]
    return Commit(version=version, added=added)


def lag(version: int, count: int = 3) -> list[dict[str, Any]]:
    window = {"window_start": T0 + version, "window_end": T0 + MINUTE}
    return [window | {"node": "a", "messages": number} for number in range(count)]


def message(payload: bytes) -> dict[str, Any]:
    return {"accepted_at": T0, "topic": "a", "payload": payload}


def dying(step: int, change: Callable[..., None], steps: list[int]) -> Callable[..., None]:
    """The change, which is not begun at this step, and which is the last that happens at the next."""

    def do(*arguments: Any) -> None:
        for half in range(2):
            steps.append(step)
            if len(steps) == step:
                raise Killed
            if half == 0:
                change(*arguments)

    return do


@pytest.mark.parametrize("kind", FORMATS)
def test_each_version_is_in_each_table_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job dies before and after each commit of a table, and again at the start that follows."""
    options = options_of(tmp_path, kind)
    for version in range(1, 6):
        commit = commit_of(tmp_path, version, {"lag": lag(version), "messages": [message(b"%d" % version)]})
        for step in (version, 1 + version % 3):
            with monkeypatch.context() as patch:
                steps: list[int] = []
                for table in (Delta, Iceberg):
                    patch.setattr(table, "add_files", dying(step, table.add_files, steps))
                try:
                    LakeTables(options, JOB).follow(commit)
                except Killed:
                    assert len(steps) == step
        tables = LakeTables(options, JOB)
        tables.follow(commit)
        tables.follow(commit)
        numbers = plain(tmp_path, "lag", ["window_start", "messages"])
        assert len(numbers) == len(set(numbers)) == 3 * version
        assert sorted(plain(tmp_path, "messages", ["payload"])) == [(b"%d" % one,) for one in range(1, version + 1)]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_is_new(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """--properties was given later, then left out."""
    tables = LakeTables(options_of(tmp_path, kind), JOB)
    tables.follow(commit_of(tmp_path, 1, {"messages": [message(b"1")]}))
    tables.follow(commit_of(tmp_path, 2, {"messages": [message(b"2")]}, content_type="text/plain"))
    tables.follow(commit_of(tmp_path, 3, {"messages": [message(b"3")]}))
    wanted = [(b"1", None), (b"2", "text/plain"), (b"3", None)]
    assert sorted(plain(tmp_path, "messages", ["payload", "content_type"])) == wanted
    tables.hurry()
    while tables.step():
        pass
    views(spark, str(tmp_path))
    found = spark.sql("SELECT payload, content_type, date, hour FROM messages ORDER BY payload").collect()
    assert [(row.payload, row.content_type) for row in found] == wanted
    assert {(str(row.date), row.hour) for row in found} == {("2026-01-31", 0)}


@pytest.mark.parametrize("kind", FORMATS)
def test_two_jobs_at_one_table(kind: str, tmp_path: Path) -> None:
    """As of a job that stood still, and its successor; and another job's."""
    one, two = (LakeTables(options_of(tmp_path, kind), JOB) for _ in range(2))
    other = LakeTables(options_of(tmp_path, kind), "1111abcd")
    for version in range(1, 4):
        commit = commit_of(tmp_path, version, {"lag": lag(version)})
        one.follow(commit)
        two.follow(commit)
        if version == 2:
            other.follow(commit_of(tmp_path, version, {"lag": lag(version)}, "1111abcd"))
    assert len(plain(tmp_path, "lag", ["node"])) == 12


def test_other_programs_that_never_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = LakeTables(options_of(tmp_path, "iceberg"), JOB)
    tables.follow(commit_of(tmp_path, 1, {"lag": lag(1)}))
    other = LakeTables(options_of(tmp_path, "iceberg"), "1111abcd")
    add, turn = Iceberg.add_files, [0]

    def overtaken(table: Iceberg, files: list[str], number: int) -> None:
        turn[0] += 1
        add(other._tables["lag"], files, turn[0])  # type: ignore[arg-type]
        add(table, files, number)

    monkeypatch.setattr(Iceberg, "add_files", overtaken)
    monkeypatch.setattr(lake_tables, "TRIES", 3)
    with pytest.raises(TableError, match="lag: other programs commit all the time"):
        tables.follow(commit_of(tmp_path, 2, {"lag": lag(2)}))
    assert turn == [3]


def test_small_files_of_delta_are_joined(tmp_path: Path) -> None:
    tables = LakeTables(options_of(tmp_path, "delta"), JOB)
    for version in range(1, 6):
        tables.follow(commit_of(tmp_path, version, {"lag": lag(version)}))
    assert not tables.step(), "an hour is not over"
    tables.hurry()
    while tables.step():
        pass
    found = stored(str(tmp_path), "lag", lambda path: Path(path).exists())
    assert found is not None and len(found.files) == 1
    tables.follow(commit_of(tmp_path, 6, {"lag": lag(6)}))
    assert len(plain(tmp_path, "lag", ["node"])) == 18


def test_snapshots_of_iceberg_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "MOST_KEPT", 2)
    tables = LakeTables(options_of(tmp_path, "iceberg"), JOB)
    for version in range(1, 6):
        tables.follow(commit_of(tmp_path, version, {"lag": lag(version)}))
    assert tables._tables["lag"].tidy() == "3 old snapshots are expired"
    assert tables._tables["lag"].tidy() == ""
    one = LakeTables(options_of(tmp_path, "iceberg"), JOB)
    for version in (5, 6):
        one.follow(commit_of(tmp_path, version, {"lag": lag(version)}))
    assert len(plain(tmp_path, "lag", ["node"])) == 18


def test_readers_of_delta_skip_files_by_time(tmp_path: Path) -> None:
    tables = LakeTables(options_of(tmp_path, "delta"), JOB)
    tables.follow(commit_of(tmp_path, 1, {"lag": lag(1)}))
    found = DeltaTable(tmp_path / "lag").get_add_actions(flatten=True)
    entry = duckdb.from_arrow(pa.table(found)).project('num_records, "min.window_start", "max.window_end"').fetchall()
    first, last = (datetime.fromtimestamp(at / 1e6, UTC) for at in (T0 + 1, T0 + MINUTE))
    assert [(count, low.astimezone(UTC), high.astimezone(UTC)) for count, low, high in entry] == [(3, first, last)]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_report_reads_them(kind: str, tmp_path: Path) -> None:
    """The same page as of Parquet files; files that are no more in a table don't count."""
    fleet = Fleet(minutes=20, devices=2)
    write(tmp_path / "plain", fleet.tables)
    output = write(tmp_path / kind, fleet.tables)
    files = {
        name: ["/".join(path.parts[-3:]) for path in sorted((output / name).rglob("*.parquet"))]
        for name in fleet.tables
    }
    tables = LakeTables(options_of(output, kind), JOB)
    tables.follow(Commit(version=1, added={name: some for name, some in files.items() if some}))
    for name, some in files.items():
        for path in some:
            copy = output / name / path
            copy.with_name("9999999999-orphan.parquet").write_bytes(copy.read_bytes())
    assert page(Results(str(output)), "t") == page(Results(str(tmp_path / "plain")), "t")


def test_tables_that_can_not_be_had(tmp_path: Path) -> None:
    with pytest.raises(FlockError, match=r"need a catalog.*--table-option type=rest"):
        LakeTables(Options(output="s3a://bucket/fleet", format="iceberg"), JOB)
    with pytest.raises(TableError, match=r"flockmq\.messages: "):
        LakeTables(options_of(tmp_path, "iceberg", table_options={"type": "none"}), JOB)
    (tmp_path / "lag" / "metadata").mkdir(parents=True)
    with pytest.raises(FlockError, match="Iceberg tables of a catalog elsewhere"):
        Results(str(tmp_path))


def test_a_table_that_can_not_be_tidied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: Table) -> str:
        raise TableError("away")

    monkeypatch.setattr(Delta, "tidy", fail)
    tables = LakeTables(options_of(tmp_path, "delta"), JOB)
    tables.hurry()
    assert tables.step(), "the job goes on"
