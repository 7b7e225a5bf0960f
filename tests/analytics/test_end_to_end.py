"""From clients to Parquet with everything real: nodes, Redis, Spark; each published message is in the files, once."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest

from flockmq._speedups.codec.packets import Publish
from tests.analytics.job_process import JobProcess
from tests.conftest import StartCluster
from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad, wait
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.deadline import DEADLINE
from tests.harness.logs import logged_rows
from tests.harness.socket_client import SocketClient

COLUMNS = ["client_id", "topic", "qos", "retain", "dup", "payload"]


class Jobs:
    """The job, which may be started again."""

    def __init__(self, cluster: ClusterProcess, directory: Path) -> None:
        self.output = directory / "out"
        self._cluster = cluster
        self._directory = directory
        self._count = 0
        self.running: JobProcess | None = None

    def start(self, *arguments: str) -> JobProcess:
        self._count += 1
        more = ["--archive", "--trigger", "1 second", *arguments]
        log = self._directory / f"job-{self._count}.log"
        self.running = JobProcess(self._cluster.url(), self.output, more, log)
        return self.running

    def archive(self) -> Counter[tuple[object, ...]]:
        """The rows of the archive, as any reader of Parquet sees them."""
        table = pyarrow.dataset.dataset(self.output / "messages", format="parquet").to_table(columns=COLUMNS)
        return Counter(tuple(row[name] for name in COLUMNS) for row in table.to_pylist())


@pytest.fixture
def jobs(start_cluster: StartCluster, tmp_path: Path) -> Iterator[Jobs]:
    """Of a cluster that is not started."""
    cluster = start_cluster({**CLUSTER_SETTINGS}, running=False, redis="always", proxies=True)
    jobs = Jobs(cluster, tmp_path)
    yield jobs
    if jobs.running is not None:
        jobs.running.kill()


def test_what_clients_publish_is_in_the_files_once(jobs: Jobs) -> None:
    """Nodes die, come back with new logs and lose Redis, the job is killed, while clients of all kinds go on."""
    cluster = jobs._cluster
    load = ClusterLoad(cluster, new_seed())
    load.start()
    job = jobs.start("--results", "rates", "--no-live")
    job.wait_for("begins")

    def faults() -> None:
        job.wait_for("batch")
        cluster["b"].kill()
        wait(LEASE)
        cluster["b"].start()
        job.wait_for("batch", job.lines("batch") + 1)
        job.kill()
        cluster["a"].proxy.cut()

    load.during(faults, pause=0.2)  # Spark needs the processor more
    load.finish()
    assert jobs.start("--results", "rates", "--no-live", "--once").wait() == 0
    expected = Counter(
        (row.client_id, row.topic, row.qos, row.retain, row.dup, row.payload) for row in logged_rows(cluster)
    )
    assert jobs.archive() == expected
    assert expected.total() > 100
    load.finish_twins()


@pytest.mark.soak  # test_job has the silence in Redis, cluster/test_message_log the messages that clients get of it
def test_a_client_hears_that_a_device_fell_silent(jobs: Jobs) -> None:
    """From a device that stops, over log, job and Redis, to a subscriber at another node; and the device's return."""
    cluster = jobs._cluster.start()
    operator = SocketClient(cluster["c"].port, "operator")
    operator.subscribe(("$SYS/analytics/silent/+", 0))
    devices = {name: SocketClient(cluster[name].port, f"pump/{name}") for name in "ab"}
    job = jobs.start(
        "--results", "silence", "--silent-least", "2 seconds", "--watermark", "1 second", "--window", "1 second"
    )

    def report(name: str) -> None:
        devices[name].send(Publish(f"site/{name}", b"1"))

    def hear() -> Publish:
        """The next message to the operator, while pump/b goes on."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            report("b")
            heard = [packet for packet in operator.ping() if isinstance(packet, Publish)]
            if heard:
                return heard[0]
            time.sleep(0.2)
        raise AssertionError(job.log.read_text())

    for _ in range(8):  # a device has a usual interval when five are known, of seconds in which it sent something
        report("a")
        report("b")
        time.sleep(1)
    silent = hear()
    assert silent.topic_name == "$SYS/analytics/silent/pump%2Fa"
    said = json.loads(silent.payload)
    assert said["usual_interval"] == pytest.approx(1, abs=0.9) and said["node"] == "a"
    report("a")
    back = hear()
    assert (back.topic_name, back.payload) == (silent.topic_name, b"")
    assert job.end() == 0, job.log.read_text()
