"""The job under spark-submit: a standalone master and a worker, the package, and nothing else of FlockMQ."""

import json
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest

from flockmq.broker.cli import main
from flockmq.cluster.analytics import job
from flockmq.cluster.redis.connector import function_library
from tests.analytics.log_writer import LogWriter
from tests.analytics.standalone import StandaloneSpark
from tests.harness.redis_process import RedisProcess
from tests.model.log_block import Row


@pytest.mark.release
def test_the_job_on_a_standalone_spark(standalone: StandaloneSpark, redis_server: RedisProcess, tmp_path: Path) -> None:
    client = redis_server.client(decode_responses=False)
    client.function_load(function_library())
    began = int(time.time() * 1000) - 300_000
    log = LogWriter(client, began=began)
    written = []
    for number in range(100):
        ms = began + number * 1000
        rows = [Row(ms * 1000 + i, f"c{i}", "site/temp", 1, False, False, b'{"v": %d}' % number) for i in range(20)]
        log.add(rows, ms)
        written += rows
    package = tmp_path / "flockmq-analytics.zip"
    assert main(["analytics", "package", str(package)]) == 0
    output = tmp_path / "out"
    arguments = ["--redis", redis_server.url, "--output", str(output), "--archive", "--once"]
    done = standalone.submit(Path(job.__file__), [*arguments, "--field", "site/+=$.v"], package)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    messages = pyarrow.dataset.dataset(output / "messages", format="parquet").to_table().to_pylist()
    assert Counter((row["client_id"], row["payload"]) for row in messages) == Counter(
        (row.client_id, row.payload) for row in written
    )
    rates = pyarrow.dataset.dataset(output / "rates", format="parquet").to_table().to_pylist()
    assert sum(row["messages"] for row in rates) == len(written)
    values = pyarrow.dataset.dataset(output / "numbers", format="parquet").to_table().to_pylist()
    assert {row["field"] for row in values} == {"$.v"}
    assert sum(row["count"] for row in values) == len(written)
    assert json.loads(client.hget("mq:analytics:results", "rates/site"))["messages"] > 0
    (registered,) = client.hgetall("mq:analytics:jobs").values()
    assert json.loads(registered)["positions"] == {"n1": log.ids[-1]}, "nothing is to be read again"
    assert "Traceback" not in done.stderr
