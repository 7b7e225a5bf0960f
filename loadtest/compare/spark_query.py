"""Runs Spark queries on the log of messages, one after the other in one session; prints their costs as JSON.

A separate program, started by `flockmq.loadtest.compare.spark`. Its command line names the broker's source, which is
therefore no import of this package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def main() -> int:
    """Run the queries of the command line."""
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.compare.spark_query")
    parser.add_argument("--register", required=True, help="MODULE:FUNCTION that registers the format with a session")
    parser.add_argument("--redis", required=True)
    parser.add_argument("--directory", type=Path, required=True, help="for output")
    parser.add_argument("--trigger-bytes", default="256m")
    parser.add_argument("--conf", action="append", default=[], help="NAME=VALUE for the session")
    parser.add_argument("runs", nargs="+", help="SOURCE-SINK: log-noop, log-parquet, files-noop, files-parquet")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = _session(args.conf)
    module, _, function = args.register.partition(":")
    getattr(import_module(module), function)(session)
    for number, run in enumerate(args.runs):
        source, _, sink = run.partition("-")
        frame = _frame(session, source, args)
        print(json.dumps({"run": run, **_measured(frame, sink, args.directory / f"{number}-{run}")}), flush=True)
    session.stop()
    return 0


def _session(settings: list[str]) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
    )
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _frame(session: Any, source: str, args: argparse.Namespace) -> Any:
    """The rows as a stream: from the log, or from the files of the last `log-parquet`."""
    if source == "log":
        options = {"redis": args.redis, "maxBytesPerTrigger": args.trigger_bytes}
        return session.readStream.format("flockmq").options(**options).load()
    written = sorted(args.directory.glob("*-log-parquet"), key=lambda path: int(path.name.partition("-")[0]))[-1]
    files = session.read.parquet(str(written / "rows"))
    return session.readStream.schema(files.schema).parquet(str(written / "rows"))


def _measured(frame: Any, sink: str, place: Path) -> dict[str, Any]:
    shutil.rmtree(place, ignore_errors=True)
    writer = frame.writeStream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    meter = _Meter()
    began = time.monotonic()
    query = writer.format(sink).start(*([] if sink == "noop" else [str(place / "rows")]))
    query.awaitTermination()
    seconds = time.monotonic() - began
    figures = meter.stop()
    rows = sum(one["numInputRows"] for one in query.recentProgress)
    return {"rows": rows, "batches": len(query.recentProgress), "seconds": seconds, **figures}


class _Meter:
    """CPU time and peak memory of Spark: the Java machine, and its Python processes."""

    def __init__(self) -> None:
        self._peaks = {"java": 0, "python": 0}
        self._before = self._look()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Return the figures since the start."""
        self._ended.set()
        self._thread.join()
        after = self._look()
        figures = {f"cpu_s_{kind}": after[kind] - self._before[kind] for kind in after}
        return figures | {f"peak_mib_{kind}": peak / MIB for kind, peak in self._peaks.items()}

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._look()

    def _look(self) -> dict[str, float]:
        cpu, memory = {"java": 0.0, "python": 0.0}, {"java": 0, "python": 0}
        for pid in _descendants(os.getpid()):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                shared = Path(f"/proc/{pid}/smaps_rollup").read_text()  # counts shared pages once
                kind = "java" if Path(f"/proc/{pid}/comm").read_text().strip() == "java" else "python"
            except OSError:
                continue  # ended; its parent has its time
            times = fields[11:13] if kind == "java" else fields[11:15]
            cpu[kind] += sum(map(int, times)) / TICKS_PER_SECOND
            memory[kind] += int(shared.partition("\nPss:")[2].split()[0]) * 1024
        for kind, size in memory.items():
            self._peaks[kind] = max(self._peaks[kind], size)
        return cpu


def _descendants(root: int) -> list[int]:
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                children = [int(child) for child in path.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


if __name__ == "__main__":
    sys.exit(main())
