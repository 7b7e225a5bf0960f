"""The measurement of Spark on the log, with few messages: its rows are measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flockmq.loadtest.compare.spark import RUNS, main
from tests.analytics.quick_spark import quick_spark

COUNT = 5_000


@pytest.mark.soak  # a benchmark: it measures, and no data depends on it
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_every_run_reads_every_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in quick_spark().items():
        monkeypatch.setenv(name, value)
    figures = tmp_path / "figures.json"
    assert main(["--messages", str(COUNT), "--rounds", "1", "--json", str(figures)]) == 0
    report = json.loads(figures.read_text())
    assert set(report["runs"]) == set(RUNS)
    for rounds in report["runs"].values():
        assert [one["rows"] for one in rounds] == [COUNT]
        assert rounds[0]["cpu_s_java"] > 0 and rounds[0]["peak_mib_java"] > 100
    output = capsys.readouterr().out
    assert all(f"| {run} |" in output for run in RUNS) and "Log against files" in output
