"""The files of an hour become one, and no row is lost or there twice, whenever the job dies."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flockmq.cluster.analytics.job_options import Options
from flockmq.cluster.analytics.output.batches import Batches
from flockmq.cluster.analytics.schema import MESSAGES
from flockmq.cluster.analytics.views import views
from tests.analytics.test_exactly_once import Killed, die_at, plain
from tests.analytics.test_results import MINUTE, fleet, rows

COLUMNS = ["client_id", "topic", "qos", "payload", "accepted_at"]


def options_of(tmp_path: Path, **more: Any) -> Options:
    return Options(output=str(tmp_path), archive=True, live=False, results=frozenset(), **more)


def hour_in_parts(spark: SparkSession) -> list[DataFrame]:
    """Four batches of an hour, and one that is two hours later."""
    messages = fleet()[:80]
    later = [message._replace(at=message.at + 120 * MINUTE) for message in messages[:4]]
    parts = [*(messages[i::4] for i in range(4)), later]
    return [spark.createDataFrame(rows(part), MESSAGES).persist() for part in parts]


def files(tmp_path: Path) -> list[int]:
    """The number of files of each hour."""
    hours = sorted((tmp_path / "messages").glob("date=*/hour=*"))
    return [len(list(hour.glob("*.parquet"))) for hour in hours]


def test_an_hour_that_is_over_becomes_one_file(spark: SparkSession, tmp_path: Path) -> None:
    parts = hour_in_parts(spark)
    batches = Batches(spark, options_of(tmp_path))
    for number, part in enumerate(parts[:4]):
        batches(part, number)
    assert files(tmp_path)[0] >= 4, "an hour that is not over was merged"
    before = Counter(plain(tmp_path, "messages", COLUMNS))
    batches(parts[4].limit(0), 4)
    assert files(tmp_path)[0] >= 4
    late = parts[4].withColumn("content_type", F.lit("text/plain"))  # the job has got --properties
    batches(late, 5)
    assert files(tmp_path)[0] == 1
    after = Counter(plain(tmp_path, "messages", COLUMNS))
    assert sum((after - before).values()) == 4 and not before - after
    version = batches.commits.last.version
    batches.merge_all()
    assert batches.commits.last.version == version, "there was nothing to merge"
    times = [at for *_, at in plain(tmp_path, "messages", COLUMNS)[:80]]
    assert times == sorted(times)
    views(spark, str(tmp_path))
    found = spark.sql("SELECT count(*), count(content_type) FROM messages").collect()[0]
    assert tuple(found) == (84, 4), "columns of properties are the newest hour's"


def test_files_of_other_columns_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """--properties was given for a while."""
    parts = hour_in_parts(spark)
    parts[1] = parts[1].withColumn("content_type", F.lit("text/plain"))
    for number, part in enumerate(parts):
        Batches(spark, options_of(tmp_path))(part, number)
    hour, _ = sorted((tmp_path / "messages").glob("date=*/hour=*"))
    (path,) = hour.glob("*.parquet")
    table = pyarrow.parquet.read_table(path, partitioning=None)
    assert table.column_names == [*(column.split()[0] for column in MESSAGES.split(", ")), "content_type"]
    assert table.num_rows == 80 and table["content_type"].null_count == 60


def test_without(spark: SparkSession, tmp_path: Path) -> None:
    for number, part in enumerate(hour_in_parts(spark)):
        Batches(spark, options_of(tmp_path, compact=False))(part, number)
    assert files(tmp_path)[0] >= 4


def test_death_at_every_step_of_a_merge(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = hour_in_parts(spark)
    options, plainly = options_of(tmp_path), options_of(tmp_path, compact=False)
    for number, part in enumerate(parts):
        Batches(spark, plainly)(part, number)
    before = Counter(plain(tmp_path, "messages", COLUMNS))
    step = 0
    while True:
        step += 1
        batches = Batches(spark, options)
        with monkeypatch.context() as patch:
            died = die_at(patch, step)
            with contextlib.suppress(Killed):
                batches.merge_all()
            if not died():
                break
        for second in range(1, 4):  # and the start after it dies, too
            with monkeypatch.context() as patch:
                die_at(patch, second)
                with contextlib.suppress(Killed):
                    Batches(spark, options)
        Batches(spark, options)
        assert Counter(plain(tmp_path, "messages", COLUMNS)) == before, f"step {step}"
        assert not (tmp_path / "_merging").exists()
        if files(tmp_path)[0] == 1:  # the start has finished it: let there be something to merge again
            number = batches.commits.last.batch + 1
            Batches(spark, plainly)(parts[number % 4], number)
            before = Counter(plain(tmp_path, "messages", COLUMNS))
    assert step > 5, "nothing was tried"
    assert files(tmp_path)[0] == 1
