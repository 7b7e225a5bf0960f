"""One Spark for all tests of a worker process: it takes some seconds to start, and 600 MB."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flockmq.cluster.analytics.source import register
from tests.analytics.quick_spark import quick_spark
from tests.analytics.standalone import StandaloneSpark


@pytest.fixture(scope="session", autouse=True)
def quick_start() -> None:
    """All that tests start inherits it."""
    os.environ.update(quick_spark())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores with the format `flockmq`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take what is called python3
    place: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("flockmq-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.adaptive.enabled", "false")  # planning again costs more than these queries
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    """A standalone Spark: a master and a worker."""
    spark = StandaloneSpark(tmp_path_factory.mktemp("standalone"))
    try:
        yield spark.start()
    finally:
        spark.stop()
