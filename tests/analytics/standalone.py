"""A standalone Spark: a master and a worker, each a process, whose Python has Arrow but nothing of FlockMQ or Redis."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.analytics.quick_spark import quick_spark
from tests.harness.deadline import DEADLINE

LIBRARIES = ("pyarrow",)  # installed beside Spark on its machines
STARTED = re.compile(r"Starting Spark master at (spark://\S+)|Successfully registered with master")


class StandaloneSpark:
    """A master and a worker on free ports.

    Args:
        directory: for their files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        libraries = directory / "libraries"
        libraries.mkdir()
        for name in LIBRARIES:
            spec = find_spec(name)
            assert spec is not None and spec.submodule_search_locations
            (libraries / name).symlink_to(next(iter(spec.submodule_search_locations)))
        # The interpreter below our virtual environment, whose packages it does not see.
        python = getattr(sys, "_base_executable", sys.executable)
        self._home = Path(quick_spark()["SPARK_HOME"])
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")} | {
            **quick_spark(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": python,
            "PYTHONPATH": str(libraries),
        }

    def start(self) -> "StandaloneSpark":
        """Start both; returns when the worker has registered."""
        self.url = self._run(
            "master",
            "org.apache.spark.deploy.master.Master",
            ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
        )
        self._run(
            "worker",
            "org.apache.spark.deploy.worker.Worker",
            [
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
                "--cores",
                "2",
                "--memory",
                "1g",
                "--work-dir",
                str(self.directory / "work"),
                self.url,
            ],
        )
        return self

    def submit(self, script: Path, arguments: Sequence[str], package: Path) -> subprocess.CompletedProcess[str]:
        """spark-submit, with the package on the path of driver and executors."""
        command = [
            str(self._home / "bin" / "spark-submit"),
            "--master",
            self.url,
            "--py-files",
            str(package),
            "--driver-memory",
            "700m",
            "--executor-memory",
            "700m",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.driver.host=127.0.0.1",
            "--conf",
            "spark.driver.bindAddress=127.0.0.1",
            "--conf",
            "spark.sql.shuffle.partitions=2",
            str(script),
            *arguments,
        ]
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )

    def stop(self) -> None:
        """End both."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait(DEADLINE)

    def _run(self, name: str, java_class: str, arguments: Sequence[str]) -> str:
        log = self.directory / f"{name}.log"
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), java_class, *arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        end = time.monotonic() + DEADLINE
        while (found := STARTED.search(log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        return found[1] or ""
