"""docker-compose.yml as it is written: docker-compose accepts each profile; hardened, and closed to the network."""

import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from tests.harness.broker_process import ROOT, environment
from tests.harness.deadline import DEADLINE

FILE = ROOT / "docker-compose.yml"
PROFILES = {
    "": {"credentials", "redis", "node", "haproxy"},
    "metrics": {"prometheus", "grafana"},
    "analytics": {"analytics"},
    "load": {"locust", "load-worker"},
    "redis-cluster": {"redis-cluster"},
    "shards": {"redis-1", "redis-2"},
}
DOCUMENT = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
ONCE = {"credentials"}  # runs, and is done


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="not installed: docker-compose")
@pytest.mark.parametrize("profile", PROFILES)
def test_docker_compose_accepts_it(profile: str) -> None:
    chosen = ["--profile", profile] if profile else []
    said = subprocess.run(
        ["docker-compose", *chosen, "--file", str(FILE), "config", "--quiet"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert said.returncode == 0, said.stderr
    assert "warn" not in said.stderr.lower()


def test_each_service_is_in_its_profile() -> None:
    assert set(SERVICES) == set().union(*PROFILES.values())
    for profile, names in PROFILES.items():
        assert all(SERVICES[name].get("profiles", [""]) == [profile] for name in names)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "10001:10001"
    assert service["mem_limit"] and service["pids_limit"]
    assert service["logging"]["options"]["max-size"]
    assert "container_name" not in service and "hostname" not in service
    if name not in ONCE:
        assert service["restart"] == "unless-stopped" and service["stop_grace_period"]
        # The image of nodes has its own.
        assert "healthcheck" in service or service["build"]["target"] == "node"


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_to_the_network_unasked(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"\$\{[A-Z]+_PUBLISH:-127\.0\.0\.1:\d+\}:\d+", port), port


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        if volume.startswith("./"):
            path, _, more = volume.partition(":")
            assert (ROOT / path).exists(), path
            assert more.endswith(":ro")


def test_volumes_belong_to_the_user_of_all() -> None:
    """A new volume takes over whose the directory is that it is mounted on first: in the image of `credentials`."""
    first = {volume.split(":")[1] for volume in SERVICES["credentials"]["volumes"] if not volume.startswith("./")}
    assert first == {f"/volumes/{name}" for name in DOCUMENT["volumes"]}
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert all(re.search(rf"{place}[ ;]", dockerfile) for place in first)
    for name in SERVICES.keys() - ONCE:
        for volume in SERVICES[name].get("volumes", []):
            assert volume.startswith("./") or volume.endswith((":ro", ":nocopy"))


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_of_others_has_a_version(name: str) -> None:
    image = SERVICES[name]["image"]
    default = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(.+)\}", image)
    assert default, image
    assert "build" in SERVICES[name] or re.search(r":v?\d+\.\d+", default[1])


def test_health_is_not_asked_of_a_proxy() -> None:
    """Docker's client gives all containers http_proxy, where its user has one in ~/.docker/config.json."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    commands = re.findall(r"from urllib.*timeout=2\)", dockerfile + FILE.read_text())
    assert len(commands) == 2
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for command in commands:
            here = re.sub(r"(127\.0\.0\.1):\d+", rf"\1:{server.server_port}", command)
            env = {"http_proxy": "http://127.0.0.1:9"}
            assert subprocess.run([sys.executable, "-IS", "-c", here], env=env, timeout=DEADLINE).returncode == 0
        server.shutdown()


def test_every_variable_is_told() -> None:
    head, _, rest = FILE.read_text().partition("\nx-hardened")
    used = set(re.findall(r"\$\{([A-Z_]+)", rest)) | set(re.findall(r"^ +([A-Z_]+):$", rest, re.M))
    assert used - set(re.findall(r"[A-Z_]{3,}", head)) == set()
