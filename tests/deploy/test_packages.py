"""`make dist`: the wheel serves in an empty environment where nothing can be compiled, the sdist has what builds it."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.harness.broker_process import ROOT, until
from tests.harness.deadline import DEADLINE
from tests.harness.kept import KEPT

SOURCES = ("_speedups", "broker", "cluster", "loadtest", "deploy")
BESIDE = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
)
EXTRAS = {
    *(
        "auth",
        "cluster",
        "analytics",
        "connect",
        "docs",
        "lake",
        "ldap",
        "log",
        "loadtest",
        "mcp",
        "otel",
        "schemas",
        "sql",
    ),
    "test",
}
COMPILED = KEPT / "compiled"
BUILT = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "node_modules")


@pytest.mark.release
def test_make_dist(tmp_path: Path) -> None:
    """One test, because what it begins with takes a minute: a wheel is made from an sdist of a copy of the sources."""
    tree = tmp_path / "flockmq"
    tree.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=BUILT)
    for name in BESIDE:
        shutil.copy(ROOT / name, tree / name)
    (tree / "commit.txt").write_text("0123456789ab")  # the copy has no repository
    command = [sys.executable, "-m", "build", "--no-isolation"]
    subprocess.run(command, cwd=tree, env=quick_compiler(tmp_path), check=True, capture_output=True)
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    (wheel,) = (tree / "dist").glob("*.whl")
    check_sdist(sdist)
    check_wheel(wheel)
    assert serve_from([str(wheel)], tmp_path) == "flockmq 0.1.0 (commit 0123456789ab)\n"
    check_foreign_names(tmp_path)


def quick_compiler(directory: Path) -> dict[str, str]:
    """An environment whose compilers don't optimise, which is of no matter here, and remember unchanged sources.

    Cython and ccache look at all that they compile, headers too: they miss a file that the sdist lacks.
    """
    compiler = directory / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("ccache") or ""} gcc "$@" -O0\n')
    compiler.chmod(0o755)
    caches = {"CCACHE_DIR": str(COMPILED / "ccache"), "CYTHON_CACHE_DIR": str(COMPILED / "cython")}
    return {**os.environ, **caches, "CC": str(compiler)}


def check_wheel(wheel: Path) -> None:
    """It has what runs, and not what it was compiled from."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith("METADATA"))).decode())
    assert not [name for name in names if name.endswith((".c", ".pyx")) or name.startswith(("tests", "deploy"))]
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"flockmq"}
    needed = {
        "flockmq/broker/cli.py",
        "flockmq/broker/admin/page/index.html",
        "flockmq/broker/uplot/LICENSE",
        "flockmq/broker/uplot/uPlot.iife.min.js",
        "flockmq/cluster/analytics/report/plots.js",
        "flockmq/cluster/redis/functions/library.lua",
        "flockmq/loadtest/locustfile.py",
    }
    assert needed <= set(names)
    assert any(re.fullmatch(r"flockmq/_speedups/protocol/channel\..*\.so", name) for name in names)
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS


def check_sdist(sdist: Path) -> None:
    """It has what builds it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "setup.py",
        "constraints.txt",
        "deploy/flockmq.toml",
        "_speedups/protocol/channel.pyx",
        "_speedups/protocol/channel.pxd",
    }
    assert needed <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".db"))]


def serve_from(what: list[str], tmp_path: Path, python: str = sys.executable) -> str:
    """Install it into an empty environment where nothing can be compiled; serve, publish, subscribe, measure.

    Args:
        what: arguments of `pip install`.
        tmp_path: for the environment.
        python: of the environment.

    Returns:
        The output of `flockmq --version`.
    """
    place = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", place], check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FLOCKMQ_", "PYTHON"))}
    variables |= {"PATH": str(place / "bin"), "CC": "/nonexistent", "CXX": "/nonexistent"}

    def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        words = [str(place / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=DEADLINE, check=check
        )

    run("pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *what)
    log = tmp_path / "log"
    with log.open("w") as stream:
        node = subprocess.Popen(
            [place / "bin" / "flockmq"], cwd=tmp_path, env=variables | {"FLOCKMQ_LISTEN": "127.0.0.1:0"}, stderr=stream
        )
    try:
        said = until(lambda: re.search(r"is ready +listen=mqtt://127\.0\.0\.1:(\d+)", log.read_text()), "is ready")
        port = said[1]
        run("flockmq", "pub", "-p", port, "-t", "a/b", "-m", "hello", "-q", "1", "-r")
        assert run("flockmq", "sub", "-p", port, "-t", "a/#", "-v", "-C", "1").stdout == "a/b hello\n"
        assert "none lost" in run("flockmq", "bench", "--host", f"127.0.0.1:{port}", "--count", "100").stdout
    finally:
        node.terminate()
        assert node.wait(DEADLINE) == 0
    assert (tmp_path / "flockmq.db").exists()
    refused = run("flockmq", "serve", "--redis", "redis://127.0.0.1", check=False)
    assert refused.returncode == 2
    assert "pip install 'flockmq[cluster]'" in refused.stderr
    return run("flockmq", "--version").stdout


def check_foreign_names(tmp_path: Path) -> None:
    """A project has its `broker.py` and its `cluster.py`, and FlockMQ is installed beside its pytest."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "broker.py").write_text("NAME = 'mine'\n")
    (project / "cluster.py").write_text("NAME = 'mine'\n")
    (project / "test_mine.py").write_text(
        "import broker, cluster\n\ndef test_names():\n    assert broker.NAME == cluster.NAME == 'mine'\n"
        "\ndef test_fixture(flockmq_broker):\n    assert flockmq_broker.port and broker.NAME == 'mine'\n"
    )
    binaries = tmp_path / "venv" / "bin"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FLOCKMQ_", "PYTHON"))}
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([binaries / "pip", "install", "--quiet", "-c", constraints, "pytest"], check=True, env=variables)
    for start in ([binaries / "pytest"], [binaries / "python", "-m", "pytest"]):
        done = subprocess.run([*start, "-q"], cwd=project, env=variables, capture_output=True, text=True, check=False)
        assert "2 passed" in done.stdout, done.stdout + done.stderr
