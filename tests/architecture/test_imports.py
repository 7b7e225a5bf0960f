"""Imports point one way: `_speedups` <- `broker` <- `cluster`; `loadtest` -> `_speedups` only."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "_speedups": {"_speedups"},
    "broker": {"_speedups", "broker"},
    "cluster": {"_speedups", "broker", "cluster"},
    "loadtest": {"_speedups", "loadtest"},
}
CYTHON_IMPORT = re.compile(r"^\s*(?:from|import|cimport)\s+([\w.]+)", re.MULTILINE)


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in {".pyx", ".pxd"}:
        return {name.split(".")[0] for name in CYTHON_IMPORT.findall(text)}
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".pyx", ".pxd", ".pyi"}]
    for path in files:
        wrong = (imported(path) & MAY_IMPORT.keys()) - MAY_IMPORT[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_the_check_sees_an_import(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from cluster.bus import Bus\n")
    (tmp_path / "b.pyx").write_text("from broker.node cimport Node\n")
    assert imported(tmp_path / "a.py") == {"cluster"}
    assert imported(tmp_path / "b.pyx") == {"broker"}


def test_only_the_configuration_reads_the_environment() -> None:
    for path in (ROOT / "broker").rglob("*.py"):
        if path.parent.name != "config":
            assert "os.environ" not in path.read_text() and "getenv" not in path.read_text(), path


def test_broker_needs_no_cluster_library() -> None:
    code = (
        "import sys, broker.node, broker.cli\n"
        "assert not {'redis', 'pyspark', 'locust', 'pytest', 'aiohttp'} & {name.split('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_a_node_does_not_import_the_analytics() -> None:
    code = (
        "import sys, cluster.coordinator\n"
        "assert not [name for name in sys.modules if name.startswith('cluster.analytics')]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
