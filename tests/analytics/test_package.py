"""The package for `--py-files`: its files, and that a standalone Spark needs no others."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flockmq.broker.cli import main
from flockmq.broker.errors import FlockError
from flockmq.cluster.analytics.package import imported
from tests.analytics.log_writer import LogWriter
from tests.analytics.standalone import StandaloneSpark
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from flockmq.cluster.analytics.source import register

def places(_):
    import flockmq.cluster.analytics.log.block, redis
    return [(flockmq.cluster.__file__, redis.__file__)]

url, place = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
where = spark.sparkContext.parallelize([0], 1).mapPartitions(places).collect()
frame = spark.read.format("flockmq").option("redis", url).option("minPartitions", 4).load()
batch = frame.count()
stream = spark.readStream.format("flockmq").option("redis", url).option("maxBytesPerTrigger", "20k").load()
query = (stream.writeStream.format("parquet").option("checkpointLocation", place + "/checkpoint")
    .trigger(availableNow=True).start(place + "/rows"))
query.awaitTermination()
payloads = sorted(bytes(row.payload).decode() for row in spark.read.parquet(place + "/rows").collect())
batches = len(query.recentProgress)
print("RESULT " + json.dumps({"where": where, "batch": batch, "payloads": payloads, "batches": batches}))
"""


@pytest.fixture
def package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "flockmq-analytics.zip"
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["analytics", "package", str(path)]))
    assert not ended.value.code and capsys.readouterr().out == f"{path}\n"
    return path


def test_it_has_all_that_is_imported_and_nothing_compiled(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert {
        "flockmq/cluster/analytics/source.py",
        "flockmq/broker/config/redis_url.py",
        "flockmq/cluster/redis/clients.py",
        "redis/client.py",
    } <= {*names}
    assert all(name.endswith((".py", ".html", ".properties")) for name in names)
    assert not [name for name in names if name.startswith(("flockmq/_speedups", "flockmq/cluster/analytics/commands"))]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import flockmq.cluster.analytics.log, flockmq.cluster.analytics.options, redis\n"
        "names = ('flockmq.cluster', 'redis', 'flockmq.broker')\n"
        "assert all(sys.argv[1] in sys.modules[name].__file__ for name in names)"
    )
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-I", "-c", code, str(package)], check=True, timeout=DEADLINE)


def test_the_same_sources_make_the_same_bytes(package: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    main(["analytics", "package", str(again)])
    assert again.read_bytes() == package.read_bytes()


def test_what_is_compiled_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("from flockmq._speedups.packets import Connect\n")
    with pytest.raises(FlockError, match=r"x\.py needs flockmq\._speedups.*compiled"):
        list(imported(tmp_path / "x.py", tmp_path))


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analytics", "package", str(tmp_path / "no" / "x.zip")]) == 1
    assert "can't write" in capsys.readouterr().err


@pytest.mark.soak  # test_submit runs the whole job on these executors
def test_executors_need_nothing_else(
    package: Path, standalone: StandaloneSpark, redis_server: RedisProcess, tmp_path: Path
) -> None:
    with redis_server.client() as client:
        rows = LogWriter(client).fill(60, rows=20)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = standalone.submit(script, [redis_server.url, str(tmp_path)], package)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))[7:])
    assert all(package.name in place for pair in result["where"] for place in pair), result["where"]
    assert result["batch"] == len(rows) and result["batches"] > 2
    assert result["payloads"] == sorted(row.payload.decode() for row in rows)
