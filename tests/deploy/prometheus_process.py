"""A real Prometheus as a process, with the project's configuration but for the places of its targets."""

import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


class PrometheusProcess:
    """A Prometheus that looks every half a second.

    Args:
        directory: for its files.
        targets: job of deploy/prometheus/prometheus.yml -> addresses to scrape.
    """

    def __init__(self, directory: Path, targets: dict[str, list[str]]) -> None:
        self.directory = directory
        settings = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text())
        settings["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        settings["rule_files"] = [str(CONFIGURATION / name) for name in settings["rule_files"]]
        for job in settings["scrape_configs"]:
            job.pop("dns_sd_configs", None)
            job["static_configs"] = [{"targets": targets.pop(job["job_name"])}]
        assert not targets, f"no such jobs: {targets}"
        (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self.port = free_port()
        command = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with open(directory / "prometheus.log", "wb") as log:
            self._process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)

    def get(self, path: str, **parameters: str) -> Any:
        """The answer of the API; None while there is none."""
        assert self._process.poll() is None, (self.directory / "prometheus.log").read_text()
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return None

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        data = until(lambda: self.get("query", query=expr), expr)
        return list(data["result"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with the result of their last evaluation."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
