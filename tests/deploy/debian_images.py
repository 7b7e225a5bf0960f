"""Base images without a registry: Debian's packages stand in for the public images; wheels are served from here.

`base` has Python, Redis and HAProxy (one image stands for three), `build` a compiler on top. Made once, by debootstrap,
and kept (`tests/harness/kept.py`), as are the wheels, and the output of the last compiler run.
"""

import hashlib
import http.server
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.engine import Engine, NoEngine, why_not
from tests.harness.broker_process import ROOT
from tests.harness.kept import KEPT

CACHE = KEPT / "test-images"
COMPILED = CACHE / "compiled"
SUITE, PYTHON = "bookworm", "3.11"
BASE = ["python3", "python3-venv", "redis-server", "haproxy"]
BUILD = ["ccache", "gcc", "libc6-dev", "libssl-dev", "python3-dev"]
# Packages of others that the image `node` needs; the last for a Python 3.11.2, as Debian's is.
WHEELS = [
    "setuptools",
    "wheel",
    "cython",
    "uvloop",
    "websockets",
    "argon2-cffi",
    "argon2-cffi-bindings",
    "cffi",
    "pycparser",
    "aiohttp",
    "aiohappyeyeballs",
    "aiosignal",
    "attrs",
    "frozenlist",
    "idna",
    "multidict",
    "propcache",
    "typing_extensions",
    "yarl",
    "redis",
    "hiredis",
    "async-timeout",
]
# The compiler of the image `build` does not optimise, which is of no matter here. It remembers unchanged sources and
# headers, as Cython does: translation and compilation are most of a build's time.
COMPILER = '#!/bin/sh\nexec ccache /usr/bin/gcc "$@" -O0\n'
WITH_COMPILED = """
FROM {image}
ENV CCACHE_DIR=/compiled/ccache CCACHE_MAXSIZE=100M CYTHON_CACHE_DIR=/compiled/cython
COPY . /compiled/
"""
# Half of the bytes: files that an engine need not unpack, pack, hash and remove.
LEFT_OUT = [
    "./dev/*",
    "./var/cache/apt/*.bin",
    "./var/cache/apt/archives/*.deb",
    "./var/lib/apt/lists/*",
    *(f"./usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
    *(f"./usr/lib/*/{name}.a" for name in ("libc", "libcrypto", "libpython3*", "libssl")),  # extensions link none
    *(f"./usr/lib/*/{name}" for name in ("lib?san.so.*", "lib??san.so.*", "lib?san.a", "lib??san.a", "lto1")),
    "./usr/bin/*lto-dump*",
]


class NotPossible(Exception):
    """The parts of an image can't be had here."""


@contextmanager
def engine_with_images() -> Iterator[Engine]:
    """An engine with the base images `base` and `build`; a test without its parts is skipped, with the reason."""
    reason = why_not() or ("" if shutil.which("debootstrap") else "not installed: debootstrap")
    if reason:
        pytest.skip(reason)
    engine = Engine()
    try:
        engine.start()
        for kind, tar in root_file_systems().items():
            engine.docker("import", tar, f"flockmq-test/{kind}:1")
        yield engine
    except (NoEngine, NotPossible) as missing:
        pytest.skip(str(missing))
    finally:
        engine.close()


def run(*command: str | Path, **more: object) -> None:
    """Run a command; its last words if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise NotPossible(f"{command[0]} failed: {done.stdout[-500:]}")


def digest(*things: object) -> str:
    """A name for an image that is made of these."""
    return hashlib.sha256(repr(things).encode()).hexdigest()[:12]


def root_file_systems() -> dict[str, Path]:
    """The tar files of `base` and `build`."""
    names = f"{SUITE}-{platform.machine()}-{digest(BASE, BUILD, COMPILER, LEFT_OUT)}"
    tars = {kind: CACHE / f"{names}-{kind}.tar" for kind in ("base", "build")}
    if not all(tar.exists() for tar in tars.values()):
        CACHE.mkdir(parents=True, exist_ok=True)
        root = CACHE / f"root-{os.getpid()}"
        try:
            _make(root, tars)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return tars


def _make(root: Path, tars: dict[str, Path]) -> None:
    run("debootstrap", "--variant=minbase", f"--include={','.join(BASE)}", SUITE, root)
    # As in Redis' public image: a new volume there would be Redis' own, and not ours.
    (root / "data").mkdir()
    os.chown(root / "data", 999, 999)
    _pack(root, tars["base"])
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *BUILD]
    run("chroot", root, *install, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    for name in ("gcc", "cc", f"{platform.machine()}-linux-gnu-gcc"):
        compiler = root / "usr" / "local" / "bin" / name
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
    _pack(root, tars["build"])


def _pack(root: Path, tar: Path) -> None:
    half = tar.with_suffix(f".{os.getpid()}")
    run("tar", "-C", root, *(f"--exclude={path}" for path in LEFT_OUT), "-cf", half, ".")
    half.rename(tar)


def wheels(*more: str) -> Path:
    """A directory of packages that a build installs, for the images' Python, in the versions that the project names.

    Args:
        more: names beside WHEELS.
    """
    names = [*WHEELS, *more]
    place = CACHE / f"wheels-{digest(names, PYTHON, (ROOT / 'constraints.txt').read_text())}"
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        half = CACHE / f"wheels-{os.getpid()}"
        options = ["--no-deps", "--only-binary", ":all:", "--python-version", PYTHON]
        options += ["--constraint", str(ROOT / "constraints.txt")]
        run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", half, *options, *names, "packaging")
        try:
            half.rename(place)
        except OSError:  # another checkout has made it first
            shutil.rmtree(half)
    return place


def give_compiled(engine: Engine, image: str, tag: str) -> None:
    """Make an image of `image` that has what the last build has compiled."""
    COMPILED.mkdir(parents=True, exist_ok=True)
    recipe = engine.directory / "Dockerfile"
    recipe.write_text(WITH_COMPILED.format(image=image))
    engine.docker("build", "--file", recipe, "--tag", tag, COMPILED)


def keep_compiled(engine: Engine) -> None:
    """Keep the build's compiled files: they are in the only image without a name, the last of the compiler's stage.

    BuildKit leaves no such image: then nothing is kept.
    """
    images = engine.docker("images", "--quiet", "--filter", "dangling=true").split()
    if len(images) != 1:
        return
    container = engine.docker("create", images[0], "true").strip()
    half = CACHE / f"compiled-{os.getpid()}"
    engine.docker("cp", f"{container}:/compiled", half)
    engine.docker("rm", container)
    shutil.rmtree(COMPILED)
    half.rename(COMPILED)


class WheelServer:
    """Serves a directory over HTTP, as `PIP_FIND_LINKS` understands it."""

    class _Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    def __init__(self, directory: Path, host: str) -> None:
        self._server = http.server.ThreadingHTTPServer((host, 0), partial(self._Handler, directory=str(directory)))
        self.url = f"http://{host}:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
