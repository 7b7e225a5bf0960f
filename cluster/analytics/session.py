"""A quiet Spark session: lines of its JVM are logged by us, or dropped."""

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ...broker import logs
from ...broker.errors import FlockError

LOG4J = Path(__file__).with_name("log4j2.properties")
JAVA = 17  # the minimum for Spark 4
NOISE = ("Using incubator modules", "Picked up ", "Listening for transport")
# Settings that all our queries require.
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # no sort by date and hour before writing
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}
# Settings that only take effect before the JVM starts.
AT_START = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOG4J}",
}
log = logs.get("flockmq.analytics.spark")


def start(
    name: str, master: str = "", *, verbose: bool = False, short: bool = False, warehouse: str = ""
) -> SparkSession:
    """The session; under spark-submit, the running JVM's. For a `short` one the JVM compiles little.

    Raises:
        FlockError: Java is missing or too old, or Spark doesn't start.
    """
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it repeats every fault with a traceback, as JSON
    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of the workers; else they run `python3`
        builder = builder.master(master or "local[*]")
        for key, value in AT_START.items():
            builder = builder.config(key, value)
        if short:
            builder = builder.config("spark.driver.defaultJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    for key, value in {**ALWAYS, **({"spark.sql.warehouse.dir": warehouse} if warehouse else {})}.items():
        builder = builder.config(key, value)
    if submitted or verbose:
        return builder.getOrCreate()
    with jvm_lines() as lines:
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise FlockError("Spark doesn't start", " ".join(lines[-3:]) or str(error)) from error


def few_partitions(spark: SparkSession) -> None:
    """Set the number of partitions to the number of cores, unless it is configured: our batches are small."""
    if not spark.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
        spark.conf.set("spark.sql.shuffle.partitions", str(max(2, spark.sparkContext.defaultParallelism)))


def check_java() -> None:
    """Check that there is a Java that Spark can use.

    Raises:
        FlockError: there is no such Java.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    hint = f"Spark needs Java {JAVA} or later: `apt install openjdk-{JAVA}-jre-headless`, or set JAVA_HOME"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise FlockError(f"can't run Java ({java})", hint) from error
    version = said.partition('"')[2].partition(".")[0].partition('"')[0]
    if version.isdigit() and int(version) < JAVA:
        raise FlockError(f"this is Java {version}", hint)


@contextmanager
def jvm_lines() -> Iterator[list[str]]:
    """Give a child that starts in the block a pipe as standard error; its later lines are logged, except noise."""
    ours = os.dup(2)
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    lines: list[str] = []
    started = threading.Event()
    os.dup2(writable, 2)
    os.close(writable)
    try:
        stream = os.fdopen(readable, errors="replace")
        threading.Thread(target=_read, args=(stream, lines, started), daemon=True).start()
        yield lines
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        started.set()  # before this our own lines would return through the pipe


def _read(stream: TextIO, lines: list[str], started: threading.Event) -> None:
    for line in stream:
        text = line.rstrip()
        if text and not any(noise in text for noise in NOISE):
            if started.is_set():
                log.warning("spark", line=text)
            else:
                lines.append(text)
