"""Spark that starts quickly: an archive of its classes, no optimising compilers. None of the tests' Sparks lives long.

Reading and verifying its classes is half of the cost of a start of Spark: 8 s of CPU time. A JVM that gets an archive
of them (class data sharing) skips that. The archive is made once, from a JVM that has done a little of everything, and
kept in build/spark/ until `make clean`. A JVM that cannot use it starts without.

Each of Spark's Python processes imports pyspark from a zip file, and so compiles it: a second each. In a home of the
tests' own a directory takes the place of that file.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import py4j
import pyspark

from tests.harness.broker_process import ROOT

CACHE = ROOT / "build" / "spark"
# Few rows, many queries: compiling each query costs more than it saves.
JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.codegen.wholeStage=false "
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN -Dspark.ui.enabled=false"
)
SECONDS = 900  # to make the archive


@cache
def quick_spark() -> dict[str, str]:
    """The environment of every JVM and every Spark that a test starts; the first call makes the archive."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one makes it
        home = {"SPARK_HOME": str(spark_home())}
        archive = class_archive(home)
    # A JVM writes to standard output that an archive does not fit, and spark-class reads a JVM's output.
    options = f"{JVM} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive else JVM
    return {**home, "JAVA_TOOL_OPTIONS": options}


def spark_home() -> Path:
    """The part of the installed package that Spark needs: its Python modules as files."""
    package = Path(pyspark.__path__[0])
    home = CACHE / "home"
    links = {name: package / name for name in ("bin", "jars")}
    for file in (package / "python" / "lib").glob("*.zip"):
        module = Path(py4j.__path__[0]) if file.name.startswith("py4j") else package
        links[f"python/lib/{file.name}/{module.name}"] = module
    for name, target in links.items():
        link = home / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return home


def class_archive(home: dict[str, str]) -> Path | None:
    """The archive for this Java and this Spark; None if it cannot be made."""
    java = shutil.which("java")
    if java is None:
        return None
    place = Path(java).resolve()
    key = repr((str(place), place.stat().st_mtime, pyspark.__version__, pyspark.__path__, JVM, home))
    archive = CACHE / f"{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    if not archive.exists():
        _make(archive, home)
    return archive if archive.exists() else None


def _make(archive: Path, home: dict[str, str]) -> None:
    half = archive.with_suffix(".half")
    half.unlink(missing_ok=True)
    options = {**home, "JAVA_TOOL_OPTIONS": JVM, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={half}"}
    command = [sys.executable, "-m", "tests.analytics.quick_spark"]
    with (CACHE / "log").open("w") as log, tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, **options, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, cwd=place, env=environment, stdout=log, stderr=log, timeout=SECONDS, check=False)
    if done.returncode == 0 and half.exists():
        half.rename(archive)


def do_a_little_of_everything() -> None:
    """A session that writes, reads, joins and streams, and the end of its JVM."""
    from pyspark.sql import SparkSession  # late: only the process that makes the archive needs it
    from pyspark.sql import functions as F  # noqa: N812

    from flockmq.cluster.analytics.source import register

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    register(spark)
    frame = spark.createDataFrame([(n, str(n % 7)) for n in range(100)], "a bigint, b string")
    frame.groupBy("b").agg(F.count("*"), F.max("a")).write.partitionBy("b").parquet("grouped")
    frame.join(spark.read.parquet("grouped"), "b").orderBy("a").collect()
    frame.write.parquet("rows")

    def write(batch: "pyspark.sql.DataFrame", number: int) -> None:
        batch.write.mode("overwrite").parquet(f"batch-{number}")

    stream = (
        spark.readStream.schema(frame.schema).parquet("rows").writeStream.option("checkpointLocation", "checkpoint")
    )
    stream.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    process.stdin.close()  # the JVM ends, and writes the archive
    process.wait()


if __name__ == "__main__":
    do_a_little_of_everything()
