"""deploy/k8s: Kubernetes would take it, and its parts fit together.

Built by a real `kubectl kustomize` as an operator does it; each object is judged, strictly, by Kubernetes' own
schemas. The nodes' settings are judged by `flockmq check-config`, and Redis' command is run as it stands.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kubernetes_validate
import pytest
import redis
import yaml

from flockmq.broker.auth import listener_exposure
from flockmq.broker.auth.password_file import read_users
from flockmq.broker.auth.passwords import hash_password
from flockmq.broker.config.load import load
from flockmq.broker.config.schema import Config
from flockmq.cluster.life import DRAIN_STEP_SECONDS, DRAIN_STEPS, STOP_SECONDS
from flockmq.cluster.shard import LEAVE_SECONDS
from tests.harness.broker_process import environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

K8S = Path("deploy/k8s").resolve()
KUBERNETES = ("1.29", "1.37")  # the oldest and the newest that the objects are judged by
PASSWORD = "correct horse"

Objects = dict[tuple[str, str], dict[str, Any]]  # kind, name without the hash -> object


def builds() -> bool:
    """Whether this machine has a kubectl whose kustomize has components: 1.21 or newer."""
    if shutil.which("kubectl") is None:
        return False
    said = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=DEADLINE
    )
    version = json.loads(said.stdout)["clientVersion"]
    return (int(version["major"]), int(re.sub(r"\D", "", version["minor"]))) >= (1, 21)


pytestmark = pytest.mark.skipif(
    not builds(), reason="no kubectl 1.21 or newer, which Debian 12 does not have: kubernetes.io tells how to get it"
)


@cache
def build(*components: str) -> Objects:
    """All objects of overlays/example, as an operator makes it; with more components."""
    with TemporaryDirectory() as place:
        shutil.copytree(K8S, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("secrets"))
        overlay = Path(place) / "overlays" / "example"
        (overlay / "secrets").mkdir()
        (overlay / "secrets" / "redis-password").write_text(PASSWORD)
        (overlay / "secrets" / "redis-url").write_text("redis://:correct%20horse@flockmq-redis:6379")
        (overlay / "secrets" / "passwords").write_text("ada:" + hash_password(PASSWORD.encode()).text)
        kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        kustomization["components"] += [f"../../components/{name}" for name in components]
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "kustomize warns of what is deprecated"
    objects = list(yaml.safe_load_all(done.stdout))
    return {(o["kind"], re.sub(r"-[a-z0-9]{10}$", "", o["metadata"]["name"])): o for o in objects}


def pod(objects: Objects, kind: str = "Deployment", name: str = "flockmq") -> tuple[dict[str, Any], dict[str, Any]]:
    """The specification of a pod, and of its one container."""
    spec = objects[kind, name]["spec"]["template"]["spec"]
    assert len(spec["containers"]) == 1
    return spec, spec["containers"][0]


def settings(objects: Objects) -> dict[str, str]:
    """The nodes' environment."""
    secret = objects["Secret", "flockmq-redis"]["data"]
    return {
        entry["name"]: entry["value"] if "value" in entry else read(secret, entry) for entry in pod(objects)[1]["env"]
    }


def read(secret: dict[str, str], entry: dict[str, Any]) -> str:
    """The value that Kubernetes would put into a variable."""
    return base64.b64decode(secret[entry["valueFrom"]["secretKeyRef"]["key"]]).decode()


def config(objects: Objects, directory: Path) -> Config:
    """The nodes' configuration."""
    path = directory / "flockmq.toml"
    path.write_text(objects["ConfigMap", "flockmq"]["data"]["flockmq.toml"])
    return load(env=settings(objects), file=path)


def port_of(addresses: tuple[str, ...]) -> int:
    """The port of the only address."""
    assert len(addresses) == 1
    return int(addresses[0].rpartition(":")[2])


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("components", [(), ("proxy-protocol",)], ids=["as it is", "with PROXY protocol"])
def test_every_object_fits_kubernetes_schema(components: tuple[str, ...], version: str) -> None:
    for built in build(*components).values():
        kubernetes_validate.validate(built, version, strict=True)


def test_a_misspelt_field_is_noticed() -> None:
    wrong = json.loads(json.dumps(build()["Deployment", "flockmq"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriodsSeconds"] = 40
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("components", [(), ("proxy-protocol",)], ids=["as it is", "with PROXY protocol"])
def test_the_command_line_takes_the_configuration(components: tuple[str, ...], tmp_path: Path) -> None:
    objects = build(*components)
    _, container = pod(objects)
    toml = objects["ConfigMap", "flockmq"]["data"]["flockmq.toml"]
    (tmp_path / "flockmq.toml").write_text(toml)
    assert container["args"] == ["serve", "--config", "/etc/flockmq/flockmq.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "check-config", "--config", "flockmq.toml"],
        cwd=tmp_path,
        env={**environment(), **settings(objects)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout


@pytest.mark.parametrize("components", [(), ("proxy-protocol",)], ids=["as it is", "with PROXY protocol"])
def test_clients_need_a_user(components: tuple[str, ...], tmp_path: Path) -> None:
    """Whom the operator has put into the Secret; it stands where the configuration looks for it."""
    objects = build(*components)
    node = config(objects, tmp_path)
    assert list(listener_exposure.reachable(node)) and not node.auth.allow_anonymous and node.auth.users
    listener_exposure.check(node)
    spec, container = pod(objects)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    place, _, name = node.auth.password_file.rpartition("/")
    assert mounts["users"] == place
    users = next(volume["secret"] for volume in spec["volumes"] if volume["name"] == "users")
    assert users["defaultMode"] & 0o007 == 0 and spec["securityContext"]["fsGroup"] == 10001
    (tmp_path / "passwords").write_bytes(base64.b64decode(objects["Secret", "flockmq-users"]["data"][name]))
    assert read_users(str(tmp_path / "passwords"))["ada"].matches(PASSWORD.encode())


def test_ports_are_those_that_nodes_listen_on(tmp_path: Path) -> None:
    objects = build("proxy-protocol")
    node = config(objects, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in pod(objects)[1]["ports"]}
    assert ports == {
        "mqtt": port_of(node.listen),
        "mqtt-proxy": port_of(node.proxy.listen),
        "http": port_of(node.http.listen),
    }
    assert "mqtt-proxy" not in {port["name"] for port in pod(build())[1]["ports"]}
    assert objects["Service", "flockmq"]["spec"]["ports"][0]["targetPort"] == "mqtt-proxy"
    assert build()["Service", "flockmq"]["spec"]["ports"][0]["targetPort"] == "mqtt"


def test_a_node_has_time_to_drain_and_balancers_to_see_it(tmp_path: Path) -> None:
    spec, container = pod(build())
    drain = config(build(), tmp_path).http.drain
    leave = DRAIN_STEPS * DRAIN_STEP_SECONDS + STOP_SECONDS + LEAVE_SECONDS
    assert spec["terminationGracePeriodSeconds"] > drain + leave
    probe = container["readinessProbe"]
    assert drain > probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"])


def test_probes_ask_what_nodes_answer() -> None:
    _, container = pod(build())
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert all(container[f"{name}Probe"]["httpGet"]["port"] == "http" for name in paths)


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "flockmq"), ("StatefulSet", "flockmq-redis")])
def test_pods_are_restricted(kind: str, name: str) -> None:
    """As Kubernetes' strictest standard asks, which the namespace enforces; and the root can't be written."""
    spec, container = pod(build(), kind, name)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert build()["Namespace", "flockmq"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_selectors_and_names_meet() -> None:
    """Selectors of nodes name the nodes' labels; names of objects are names of existing objects."""
    objects = build()
    labels = objects["Deployment", "flockmq"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        objects["Service", "flockmq"]["spec"]["selector"],
        objects["Service", "flockmq-nodes"]["spec"]["selector"],
        objects["PodDisruptionBudget", "flockmq"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy", "flockmq"]["spec"]["podSelector"]["matchLabels"],
        objects["NetworkPolicy", "flockmq-redis"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    spec, container = pod(objects)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] == objects["ConfigMap", "flockmq"]["metadata"]["name"]
    assert volumes["users"]["secret"]["secretName"] == objects["Secret", "flockmq-users"]["metadata"]["name"]
    reference = container["env"][0]["valueFrom"]["secretKeyRef"]
    assert reference["name"] == objects["Secret", "flockmq-redis"]["metadata"]["name"]
    scaled = objects["HorizontalPodAutoscaler", "flockmq"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) in objects
    assert "replicas" not in objects["Deployment", "flockmq"]["spec"]


def test_nodes_reach_redis_and_names_and_nothing_else() -> None:
    egress = build()["NetworkPolicy", "flockmq"]["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule["ports"]}
    assert ports == {6379, 53}
    assert all(rule["to"] for rule in egress)


def test_redis_starts_with_its_password_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Its command, run as it stands but for the places of its files and its port."""
    objects = build()
    _, container = pod(objects, "StatefulSet", "flockmq-redis")
    port = free_port()
    conf = objects["ConfigMap", "flockmq-redis"]["data"]["redis.conf"].replace("/data", str(tmp_path))
    (tmp_path / "redis.conf").write_text(f"{conf}\nport {port}\nbind 127.0.0.1\n")
    command = [*container["command"], *(arg.replace("/etc/redis", str(tmp_path)) for arg in container["args"])]
    variables = {**os.environ, "REDISCLI_AUTH": PASSWORD}
    with open(tmp_path / "redis.log", "wb") as log:
        process = subprocess.Popen(command, env=variables, cwd=tmp_path, stdout=log, stderr=log)
    try:
        client = redis.Redis(port=port, password=PASSWORD, decode_responses=True)
        until(lambda: answers(client), (tmp_path / "redis.log").read_text)
        assert client.config_get("appendonly", "appendfsync", "maxmemory-policy") == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
        client.close()
    finally:
        process.terminate()
        process.wait(20)


def test_redis_has_memory_to_spare_for_rewriting_its_file() -> None:
    conf = build()["ConfigMap", "flockmq-redis"]["data"]["redis.conf"]
    most = re.search(r"^maxmemory (\d+)mb$", conf, re.MULTILINE)
    limit = re.fullmatch(r"(\d+)Gi", pod(build(), "StatefulSet", "flockmq-redis")[1]["resources"]["limits"]["memory"])
    assert most
    assert limit
    assert int(most[1]) <= int(limit[1]) * 1024 * 2 / 3


def answers(client: redis.Redis) -> bool:
    """Whether Redis does."""
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    """But for how it finds pods, which Debian's Prometheus is built without."""
    jobs = yaml.safe_load((K8S / "monitoring" / "scrape.yml").read_text())
    assert [job.pop("kubernetes_sd_configs") for job in jobs] == [[{"role": "pod"}]]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": jobs}))
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_autoscaler_asks_for_what_the_adapter_gives() -> None:
    rules = yaml.safe_load((K8S / "monitoring" / "adapter.yml").read_text())["rules"]
    metrics = build()["HorizontalPodAutoscaler", "flockmq"]["spec"]["metrics"]
    assert [m["pods"]["metric"]["name"] for m in metrics if m["type"] == "Pods"] == [rules[0]["name"]["as"]]
    assert rules[0]["seriesQuery"].startswith(rules[0]["name"]["as"] + "{")
