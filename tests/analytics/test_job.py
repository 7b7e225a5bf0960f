"""The job as people start it: `flockmq analytics run`, its log, how it ends, its reports of faults."""

import json
import shutil
import signal
import time
from pathlib import Path

import pyarrow.dataset
import pytest

from flockmq.broker.commands.parser import Parser
from flockmq.broker.errors import FlockError, UsageError
from flockmq.cluster.analytics import job, job_options
from flockmq.cluster.analytics.faults import told
from flockmq.cluster.analytics.tables import RESULTS
from flockmq.cluster.redis.connector import function_library
from tests.analytics.job_process import JobProcess
from tests.analytics.log_writer import LogWriter
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess
from tests.model.log_block import Row


def count(output: Path, name: str) -> int:
    place = output / name
    return pyarrow.dataset.dataset(place, format="parquet").count_rows() if place.exists() else 0


def test_live_job_from_start_to_end(redis_server: RedisProcess, tmp_path: Path) -> None:
    """Devices that are silent since the start of the job are reported although nothing arrives; SIGTERM; a restart."""
    client = redis_server.client(decode_responses=False)
    client.function_load(function_library())
    now = int(time.time() * 1000)
    log = LogWriter(client, began=now - 40_000)
    for second in range(30):
        ms = now - 40_000 + second * 1000
        log.add([Row(ms * 1000 + n, f"pump/{n}", "site/temp", 0, False, False, b"%d" % n) for n in range(3)], ms)
    output = tmp_path / "out"
    arguments = [
        "--archive",
        "--trigger",
        "1 second",
        "--watermark",
        "1 second",
        "--window",
        "5 seconds",
        "--results",
        "silence,rates,lag,top",
    ]
    running = JobProcess(redis_server.url, output, arguments, tmp_path / "job.log")
    running.wait_for("batch")
    second = JobProcess(redis_server.url, output, arguments, tmp_path / "second.log")
    end = time.monotonic() + DEADLINE
    while len([topic for topic in client.hkeys("mq:analytics:results") if topic.startswith(b"silent/")]) < 3:
        assert time.monotonic() < end, client.hgetall("mq:analytics:results")
        assert running.process.poll() is None, running.log.read_text()
        time.sleep(0.1)
    log.add([Row(int(time.time() * 1e6), "pump/1", "site/temp", 0, False, False, b"1")], int(time.time() * 1000))
    running.wait_for("batch", 2)
    assert second.wait() == 1
    assert f"another job has the checkpoint {output}/_checkpoint: process" in second.log.read_text()
    assert running.end(signal.SIGTERM) == 0, running.log.read_text()
    assert running.lines("ends") == 1
    results = {topic.decode(): json.loads(text) for topic, text in client.hgetall("mq:analytics:results").items()}
    assert {topic for topic in results if topic.startswith("silent/")} == {"silent/pump%2F0", "silent/pump%2F2"}
    assert results.keys() >= {"rates/site", "top/clients", "top/topics", "lag"}
    assert count(output, "messages") == 91
    events = pyarrow.dataset.dataset(output / "silence", format="parquet").to_table().to_pylist()
    assert sorted((row["client_id"], row["event"]) for row in events) == [
        ("pump/0", "silent"),
        ("pump/1", "back"),
        ("pump/1", "silent"),
        ("pump/2", "silent"),
    ]
    shutil.rmtree(output / "_checkpoint" / "spark")
    lost = JobProcess(redis_server.url, output, arguments, tmp_path / "lost.log")
    assert lost.wait() == 1
    assert "_checkpoint/spark is gone" in lost.log.read_text()


def options(*arguments: str) -> job_options.Options:
    parser = Parser("analytics run", "", "", "")
    job_options.add_options(parser)
    return job_options.parse(parser, ["--redis", "redis://h", "--output", "/out/", *arguments])


def test_options() -> None:
    found = options(
        "--window", "30s", "--field", "a/=b/+=$.x.y[0]", "--field", "#=$.v", "--results", "top,lag", "--trim"
    )
    assert found.fields == (("a/=b/+", "$.x.y[0]"), ("#", "$.v"))
    assert (found.output, found.checkpoint, found.window) == ("/out", "/out/_checkpoint", 30_000_000)
    assert found.results == {"top_clients", "top_topics", "lag"}
    assert found.source["trimCommitted"] == "true"
    assert options().results == set(RESULTS) and "properties" not in options().source
    assert options("--archive", "--properties", "content-type").source["properties"] == "content-type"
    found = options("--format", "iceberg", "--table-option", "type=rest", "--table-option", "uri=http://h?a=b")
    assert (found.format, found.table_options) == ("iceberg", {"type": "rest", "uri": "http://h?a=b"})


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--window", "soon"], "'soon' is no duration"),
        (["--window", "0"], "more than 0"),
        (["--field", "a/b"], "is not FILTER=[$].PATH"),
        (["--field", "a/#/b=$.x"], "# alone in the last level"),
        (["--results", "rate"], "there is no result 'rate'"),
        (["--results", "none"], "nothing to do"),
        (["--redis", "http://x"], "expected"),
        (["--max-bytes-per-trigger", "x"], "expected a size"),
        (["--silent-factor", "0"], "from 1 up"),
        (["--properties", "content-type"], "columns for the archive"),
        (["--archive", "--properties", "color"], "expected names of properties"),
        (["--archives"], "did you mean --archive"),
        (["--format", "csv"], "csv"),
        (["--table-option", "type=rest"], "for tables of Delta or Iceberg"),
        (["--format", "iceberg", "--table-option", "rest"], "'rest' is not KEY=VALUE"),
    ],
)
def test_wrong_options(arguments: list[str], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        options(*arguments)


def test_missing_options_are_named() -> None:
    with pytest.raises(UsageError, match="--redis"):
        job.run(["--output", "/tmp/x"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[STREAM_FAILED] x\nTraceback (most recent call last):\n  File ...\n"
            "flockmq.cluster.analytics.errors.DataLoss: 10 bytes are missing; keep more\n\nJVM stacktrace:\njava.X",
            "10 bytes are missing; keep more",
        ),
        (
            "An error\nCaused by: java.io.IOException: No space left on device\n\tat x",
            "the Spark job has failed: No space left on device (IOException)",
        ),
        ("[CODE] Something. SQLSTATE: 42K03\nmore", "the Spark job has failed: [CODE] Something"),
    ],
)
def test_faults_in_one_line(text: str, line: str) -> None:
    assert str(told(RuntimeError(text))) == line
    fault = FlockError("a", "b")
    assert told(fault) is fault


def test_redis_that_is_not_there(tmp_path: Path) -> None:
    process = JobProcess("redis://127.0.0.1:1", tmp_path / "out", ["--once"], tmp_path / "job.log")
    assert process.wait() == 1
    fault = process.log.read_text().splitlines()[-1]
    assert fault.startswith("flockmq: error: ")
    assert "127.0.0.1:1" in fault
    assert "Traceback" not in process.log.read_text()
    assert not (tmp_path / "out").exists()
