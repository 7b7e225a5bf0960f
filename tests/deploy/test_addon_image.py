"""The image of the Home Assistant add-on: the Supervisor's builder makes it of the wheel, and it runs as the Supervisor
runs it. The wheel comes from the image that Compose builds.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.debian_images import (
    WheelServer,
    engine_with_images,
    give_compiled,
    wheels,
)
from tests.deploy.engine import Engine
from tests.deploy.homeassistant.addon_process import ADDON, DEFAULTS
from tests.deploy.homeassistant.supervisor_server import SupervisorServer
from tests.harness.broker_process import ROOT, until
from tests.harness.deadline import DEADLINE

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]
TOKEN = "the token of the add-on"
SLUG = "local_flockmq"
HEALTH = "import urllib.request as it; print(it.urlopen('http://127.0.0.1:8080/healthz').status)"


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with Debian's base images."""
    with engine_with_images() as engine:
        yield engine


def build(engine: Engine, packages: Path, *command: str | Path, **arguments: str) -> None:
    """Build an image with pip's packages from a directory."""
    server = WheelServer(packages, engine.gateway)
    arguments |= {"PIP_FIND_LINKS": server.url, "PIP_NO_INDEX": "1", "PIP_TRUSTED_HOST": engine.gateway}
    try:
        engine.docker("build", *(f"--build-arg={name}={value}" for name, value in arguments.items()), *command)
    finally:
        server.close()


def packages_with_flockmq(engine: Engine, place: Path) -> Path:
    """A directory with the wheel of this tree and all that it needs."""
    shutil.copytree(wheels("cryptography", "pyjwt", "urllib3"), place)
    give_compiled(engine, "flockmq-test/build:1", "flockmq-test/compiler:1")
    dockerfile = ROOT / "deploy" / "Dockerfile"
    options = ["--file", dockerfile, "--target", "build", "--tag", "flockmq-test/wheel", ROOT]
    build(engine, place, *options, BUILD_IMAGE="flockmq-test/compiler:1", BASE_IMAGE="flockmq-test/base:1")
    container = engine.docker("create", "flockmq-test/wheel", "true").strip()
    engine.docker("cp", f"{container}:/wheels/.", place)
    return place


def test_the_image_of_the_add_on(engine: Engine, tmp_path: Path) -> None:
    packages = packages_with_flockmq(engine, tmp_path / "packages")
    build(engine, packages, "--tag", "flockmq-test/addon", ADDON, BASE_IMAGE="flockmq-test/base:1")
    supervisor = SupervisorServer(TOKEN, SLUG, engine.gateway).start()
    supervisor.users["ada"] = "engine"
    for name in ("data", "ssl", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "options.json").write_text(json.dumps(DEFAULTS))
    options = [
        *("--init", "--hostname", SLUG.replace("_", "-"), "--publish", f"{engine.address}:1883:1883"),
        *("--env", f"SUPERVISOR_TOKEN={TOKEN}", "--env", f"SUPERVISOR_API={supervisor.url}"),
        *(
            f"--volume={tmp_path / name}:/{name}{mode}"
            for name, mode in (("data", ""), ("ssl", ":ro"), ("config", ":ro"))
        ),
    ]
    container = engine.docker("run", "--detach", *options, "flockmq-test/addon").strip()
    try:
        until(lambda: supervisor.service, "the add-on announces the broker", pause=0.3)
        assert supervisor.service["host"] == "local-flockmq"
        assert engine.docker("exec", container, "python3", "-c", HEALTH) == "200\n"
        for password, status in (("engine", 0), ("wrong", 4)):
            command = ["mosquitto_pub", "-h", engine.address, "-u", "ada", "-P", password, "-t", "t", "-m", "hello"]
            assert subprocess.run(command, timeout=DEADLINE).returncode == status
        engine.docker("stop", "--time", "30", container)
        assert engine.inspect(container)[0]["State"]["ExitCode"] == 0
        assert not supervisor.service
    finally:
        print(engine.log(container))
        supervisor.stop()
