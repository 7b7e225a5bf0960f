"""deploy/helm: Helm and Kubernetes take the chart, it is what deploy/k8s is, and its parts fit together.

Templates are rendered by Helm's own code. Objects are judged, strictly, by Kubernetes' schemas; the nodes' settings by
`flockmq check-config`; the commands of pods run as they stand.
"""

import base64
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from flockmq.broker.auth.password_file import read_users
from flockmq.broker.config.load import load as load_config
from flockmq.cluster.life import DRAIN_STEP_SECONDS, DRAIN_STEPS, STOP_SECONDS
from flockmq.cluster.redis.shard_addresses import addresses_of
from tests.conftest import StartBalanced, StartBroker
from tests.deploy.helm.chart import (
    CHART,
    HERE,
    VALUES,
    Object,
    Objects,
    by_name,
    compare,
    recorded,
    recording,
    render,
    values_of,
)
from tests.deploy.helm.kubernetes_api import KubernetesApi
from tests.harness.broker_process import environment
from tests.harness.deadline import DEADLINE

K8S = Path("deploy/k8s").resolve()
KUBERNETES = ("1.29", "1.37")  # the oldest and the newest that the objects are judged by
FOREIGN = {"Certificate", "ServiceMonitor"}  # kinds of operators, which Kubernetes' schemas don't know
NAMES = sorted(VALUES)
PASSWORD = "correct horse"


def pods(objects: Objects) -> dict[tuple[str, str], Object]:
    """The specifications of all pods."""
    found = {}
    for (kind, name), one in objects.items():
        if kind == "Pod":
            found[kind, name] = one["spec"]
        elif kind in ("Deployment", "StatefulSet"):
            found[kind, name] = one["spec"]["template"]["spec"]
    return found


def node(objects: Objects) -> Object:
    """The specification of the nodes' pods."""
    return next(spec for (kind, _), spec in pods(objects).items() if kind == "Deployment")


def configuration(objects: Objects) -> dict[str, Any]:
    """The nodes' configuration file."""
    name = next(name for kind, name in objects if kind == "Deployment")
    return tomllib.loads(objects["ConfigMap", name]["data"]["flockmq.toml"])


@pytest.mark.parametrize("name", NAMES)
def test_helm_lints_the_chart(name: str) -> None:
    report = helm_python.lint(CHART, values_of(name), strict=True)
    assert report["total_charts_linted"] == 1
    assert not report["errors"]
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", NAMES)
def test_templates_give_what_is_recorded(name: str) -> None:
    """After a wanted change: `python -m tests.deploy.helm.chart record`, and read the difference."""
    assert recording(name) == recorded(name).read_text()


def test_a_comparison_names_what_differs() -> None:
    text = recorded("default").read_text()
    assert not compare("default", text)
    assert compare("default", text.replace("minReplicas: 3", "minReplicas: 4")) == [
        ("HorizontalPodAutoscaler", "flockmq")
    ]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", NAMES)
def test_every_object_fits_kubernetes_schema(name: str, version: str) -> None:
    judged = [one for (kind, _), one in render(values_of(name)).items() if kind not in FOREIGN]
    assert len(judged) > 9
    for one in judged:
        kubernetes_validate.validate(one, version, strict=True)


def base() -> Objects:
    """The objects of deploy/k8s that overlays/example has, but its Secrets, by Kustomize's rules for these files."""
    files = [K8S / "base" / f"{name}.yaml" for name in ("nodes", "services", "scaling", "network")]
    files.append(K8S / "components" / "redis" / "redis.yaml")
    objects = {(o["kind"], o["metadata"]["name"]): o for path in files for o in yaml.safe_load_all(path.read_text())}
    _, egress = yaml.safe_load((K8S / "components" / "redis" / "egress.yaml").read_text())
    objects["NetworkPolicy", "flockmq"]["spec"]["egress"][0] = egress["value"]
    return objects


def substance(value: Any) -> Any:
    """An object without labels that only Helm sets, and without the checksums that stand for Kustomize's names."""
    if isinstance(value, list):
        return [substance(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: substance(each) for key, each in value.items() if key not in HELMS}
    return {key: each for key, each in kept.items() if key != "annotations" or each}


HELMS = {
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "checksum/configuration",
    "imagePullPolicy",  # IfNotPresent is also Kubernetes' default for an image with a tag
}


def test_with_the_overlays_secrets_the_chart_is_the_kustomize_base() -> None:
    chart = substance(render(values_of("as-kustomize")))
    kustomize = substance(base())
    texts = [chart.pop(("ConfigMap", name))["data"] for name in ("flockmq", "flockmq-redis")]
    assert chart.pop(("Pod", "flockmq-test"))
    assert chart.keys() == kustomize.keys()
    for key, one in kustomize.items():
        assert chart[key] == one, key
    assert tomllib.loads(texts[0]["flockmq.toml"]) == tomllib.loads((K8S / "base" / "flockmq.toml").read_text())
    lines = [
        [line for line in text.splitlines() if not line.startswith("#")]
        for text in (texts[1]["redis.conf"], (K8S / "components" / "redis" / "redis.conf").read_text())
    ]
    assert lines[0] == lines[1]


def test_by_default_it_differs_by_generated_secrets_and_the_first_user_only() -> None:
    default, named = render(values_of("default")), render(values_of("as-kustomize"))
    assert default.keys() - named.keys() == {("Secret", "flockmq-redis"), ("Secret", "flockmq-user")}
    spec = node(default)
    assert [one["name"] for one in spec.pop("initContainers")] == ["first-user"]
    (container,) = spec["containers"]
    tokens = [entry for entry in container["env"] if "TOKEN" in entry["name"]]
    assert [entry["name"] for entry in tokens] == ["FLOCKMQ_HTTP_TOKENS_FILE", "FLOCKMQ_TOKEN_FILE"]
    container["env"] = [entry for entry in container["env"] if entry not in tokens]
    assert spec["volumes"].pop(0)["emptyDir"]["medium"] == "Memory"
    node(named)["volumes"].pop(0)
    for key in named.keys() - {("Pod", "flockmq-test")}:
        assert default[key] == named[key]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_takes_the_configuration(name: str, tmp_path: Path) -> None:
    objects = render(values_of(name))
    (container,) = node(objects)["containers"]
    deployment = next(name for kind, name in objects if kind == "Deployment")
    (tmp_path / "flockmq.toml").write_text(objects["ConfigMap", deployment]["data"]["flockmq.toml"])
    variables = {entry["name"]: entry.get("value", "redis://:secret@redis:6379") for entry in container["env"]}
    image = {"FLOCKMQ_LISTEN": "0.0.0.0:1883", "FLOCKMQ_HTTP_LISTEN": "0.0.0.0:8080"}  # variables of the image
    done = subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "check-config", "--config", "flockmq.toml"],
        cwd=tmp_path,
        env={**environment(), **image, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    shown = next(line for line in done.stdout.splitlines() if line.startswith("listen "))
    assert re.findall(r'"([^"]+)"', shown) == configuration(objects)["listen"], done.stdout
    ports = {port["containerPort"] for port in container["ports"]} - {8080}
    proxied = configuration(objects).get("proxy", {}).get("listen", [])
    assert ports == {int(address.rpartition(":")[2]) for address in configuration(objects)["listen"] + proxied}


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_restricted(name: str) -> None:
    """As Kubernetes' strictest standard asks; and the root can't be written."""
    for key, spec in pods(render(values_of(name))).items():
        assert spec["securityContext"]["runAsNonRoot"], key
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, key
        assert spec["automountServiceAccountToken"] is False, key
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, key
            assert container["resources"]["limits"]["memory"], key


@pytest.mark.parametrize("name", NAMES)
def test_names_meet(name: str) -> None:
    """Mounted volumes, Secrets of the chart, ports and selectors are those of existing objects."""
    values = values_of(name)
    objects = render(values)
    given = {values.get("users", {}).get("existingSecret"), values.get("redis", {}).get("existingSecret")}
    given |= {values.get("tls", {}).get("existingSecret"), values.get("tls", {}).get("clients", {}).get("caSecret")}
    given |= {one["spec"]["secretName"] for (kind, _), one in objects.items() if kind == "Certificate"}
    given.add(values.get("test", {}).get("userSecret"))
    names = {name for kind, name in objects if kind == "Secret"} | given
    for key, spec in pods(objects).items():
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        claims = [claim["metadata"]["name"] for claim in objects[key]["spec"].get("volumeClaimTemplates", [])]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts <= volumes.keys() | set(claims), key
            keys = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if "valueFrom" in entry]
            for reference in keys:
                assert reference["name"] in names, key
                own = objects.get(("Secret", reference["name"]))
                assert own is None or reference["key"] in own["data"], key
        for volume in volumes.values():
            assert "secret" not in volume or volume["secret"]["secretName"] in names, key
    (deployment,) = (one["spec"] for (kind, _), one in objects.items() if kind == "Deployment")
    labels = deployment["template"]["metadata"]["labels"]
    ports = {port["name"] for port in node(objects)["containers"][0]["ports"]}
    for (kind, _), one in objects.items():
        if kind == "Service" and one["metadata"]["labels"]["app.kubernetes.io/name"] == "flockmq":
            assert one["spec"]["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if kind == "ServiceMonitor":
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_two_releases_in_a_namespace_stay_apart() -> None:
    one, other = render({}, release="blue"), render({}, release="green")
    assert not one.keys() & other.keys()
    selectors = [
        found["spec"]["selector"].get("matchLabels", found["spec"]["selector"])
        for objects in (one, other)
        for (kind, name), found in objects.items()
        if kind in ("Deployment", "Service") and "redis" not in name
    ]
    assert {selector["app.kubernetes.io/instance"] for selector in selectors} == {"blue", "green"}
    assert max(len(name) for _, name in render({}, release="r" * 53)) <= 63


def test_a_pod_has_time_to_drain() -> None:
    for seconds in (0, 15, 600):
        objects = render({"drainSeconds": seconds})
        needed = seconds + DRAIN_STEPS * DRAIN_STEP_SECONDS + STOP_SECONDS
        assert node(objects)["terminationGracePeriodSeconds"] > needed
        assert configuration(objects)["http"]["drain"] == f"{seconds} s"


def test_settings_count_instead_of_the_charts() -> None:
    settings = {
        "auth.users": False,
        "log.format": "text",
        "limits.max_queued_bytes": 20_000_000,
        "mqtt.retry_interval": 0,
    }
    found = configuration(render({"settings": settings}))
    assert found["auth"]["users"] is False
    assert found["log"]["format"] == "text"
    assert found["limits"]["max_queued_bytes"] == 20_000_000
    assert type(found["limits"]["max_queued_bytes"]) is int
    assert found["mqtt"]["retry_interval"] == 0


def test_a_changed_configuration_causes_a_rolling_update() -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = render(values)["Deployment", "flockmq"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/configuration"])

    same = {"maxUnavailable": 2}
    assert checksum({}) == checksum(same)
    assert len({checksum(values) for values in ({}, {"settings": {"log.level": "debug"}}, {"acl": "topic #"})}) == 3


REFUSED = {
    "a misspelt name": ({"replica": 3}, "replica"),
    "a misspelt name within": ({"tls": {"enable": True}}, "enable"),
    "a wrong type": ({"drainSeconds": "15"}, "drainSeconds"),
    "a key that TOML has not": ({"settings": {"a b": 1}}, "a b"),
    "no Redis": ({"redis": {"internal": False}}, "redis.url or redis.existingSecret"),
    "two Redis": ({"redis": {"url": "redis://a"}}, "redis.internal=false"),
    "a foreign URL of Redis": ({"redis": {"internal": False, "url": "http://a"}}, "url"),
    "two sources of users": ({"users": {"existingSecret": "a", "passwords": "b"}}, "keep one"),
    "no certificate": ({"tls": {"enabled": True}}, "give one certificate"),
    "two certificates": (
        {"tls": {"enabled": True, "existingSecret": "a", "certManager": {"enabled": True}}},
        "give one certificate",
    ),
    "no issuer": ({"tls": {"enabled": True, "certManager": {"enabled": True, "dnsNames": ["a"]}}}, "issuerRef.name"),
    "no authority of clients": (
        {"tls": {"enabled": True, "existingSecret": "a", "clients": {"certificate": "required"}}},
        "caSecret",
    ),
    "no way in": ({"plain": False}, "no way to connect"),
    "addresses beside the chart's": ({"settings": {"listen": [":1"]}}, "listen"),
    "a header before WebSocket": ({"proxyProtocol": {"enabled": True}, "websocket": {"enabled": True}}, "websocket"),
    "nothing to scale by": ({"autoscaling": {"connections": 0, "cpu": ""}}, "autoscaling"),
}


@pytest.mark.parametrize(("values", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_values_are_refused_with_the_reason(values: dict[str, Any], word: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(word)):
        render(values)


def test_notes_tell_the_password_and_what_is_not_secure() -> None:
    default, secured = recorded("default").read_text(), recorded("cert-manager").read_text()
    assert "get secret flockmq-user" in default
    assert "in plain text" in default
    assert "in plain text" not in secured


def test_generated_secrets_are_long_and_agree() -> None:
    first, second = ({key: one for key, one in render({}).items() if key[0] == "Secret"} for _ in range(2))
    redis = {key: base64.b64decode(value).decode() for key, value in first["Secret", "flockmq-redis"]["data"].items()}
    assert redis["url"] == f"redis://:{redis['password']}@flockmq-redis:6379"
    assert len(redis["password"]) == 48
    assert len(base64.b64decode(first["Secret", "flockmq-user"]["data"]["password"])) == 24
    assert first != second


def test_several_primaries_have_an_address_each() -> None:
    """In the order of their pods; one primary has the address that it has had."""
    objects = render(values_of("shards"))
    redis = {key: base64.b64decode(text).decode() for key, text in objects["Secret", "flockmq-redis"]["data"].items()}
    config = load_config({"cluster.redis": redis["url"]}, env={})
    found = [(address.hosts[0], address.password) for address in addresses_of(config.cluster)]
    assert found == [((f"flockmq-redis-{number}.flockmq-redis", 6379), redis["password"]) for number in range(3)]
    spec = objects["StatefulSet", "flockmq-redis"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (3, "flockmq-redis")
    assert render({})["StatefulSet", "flockmq-redis"]["spec"]["replicas"] == 1


def planned(api: KubernetesApi) -> Objects:
    """The Secrets that an installation into a cluster would have; it is not done."""
    with helm_python.Config(kubeconfig_content=api.kubeconfig(), namespace="flockmq") as config:
        release = config.install(CHART, "flockmq", dry_run="server")
    return {key: one for key, one in by_name(yaml.safe_load_all(release["manifest"])).items() if key[0] == "Secret"}


def test_secrets_that_a_cluster_has_are_kept() -> None:
    """As an upgrade finds them: new ones would lock nodes out of Redis, and clients out of nodes."""
    kept = render({})
    owner = {"meta.helm.sh/release-name": "flockmq", "meta.helm.sh/release-namespace": "flockmq"}
    for name in ("flockmq-redis", "flockmq-user"):
        kept["Secret", name]["metadata"]["annotations"] = owner
    api = KubernetesApi({name: one for (kind, name), one in kept.items() if kind == "Secret"})
    empty = KubernetesApi({})
    try:
        found, new = planned(api), planned(empty)
    finally:
        api.close()
        empty.close()
    assert found.keys() == new.keys() == {("Secret", "flockmq-redis"), ("Secret", "flockmq-user")}
    for key, one in found.items():
        assert one["data"] == kept[key]["data"]
        assert one["data"] != new[key]["data"]


def commands(tmp_path: Path) -> dict[str, str]:
    """An environment in which `flockmq` is this one, as in the image."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flockmq").write_text(f'#!/bin/sh\nexec {sys.executable} -m flockmq.broker.cli "$@"\n')
    (tmp_path / "bin" / "flockmq").chmod(0o755)
    return {**environment(), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def make_first_user(tmp_path: Path, env: dict[str, str]) -> Path:
    """Run the init container, but for the place of its file."""
    (init,) = node(render({}))["initContainers"]
    command = [*init["command"], *(argument.replace("/etc/flockmq-users", str(tmp_path)) for argument in init["args"])]
    subprocess.run(command, env={**env, "USERNAME": "flockmq", "PASSWORD": PASSWORD}, check=True, timeout=DEADLINE)
    return tmp_path / "passwords"


def test_the_first_user_has_the_password_of_the_secret(tmp_path: Path) -> None:
    users = read_users(str(make_first_user(tmp_path, commands(tmp_path))))
    assert users.keys() == {"flockmq"}
    assert users["flockmq"].matches(PASSWORD.encode())


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("anonymous", "password", "passes"),
    [(False, PASSWORD, True), (False, "wrong", False), (False, None, True), (True, PASSWORD, False)],
    ids=["as it is to be", "a wrong password", "strangers only", "anybody may connect"],
)
def test_helm_test_judges_a_broker(
    anonymous: bool, password: str | None, passes: bool, start_broker: StartBroker, tmp_path: Path
) -> None:
    """The script of its pod, run as it stands but for the place of its files."""
    env = commands(tmp_path)
    users = make_first_user(tmp_path, env)
    broker = start_broker({"auth.password_file": str(users), "auth.allow_anonymous": anonymous})
    (container,) = pods(render({}))["Pod", "flockmq-test"]["containers"]
    command = [*container["command"], *(line.replace("/tmp/", f"{tmp_path}/") for line in container["args"])]
    env |= {"HOST": "127.0.0.1", "PORT": str(broker.port), "OPTIONS": ""}
    env |= {"USERNAME": "flockmq", "PASSWORD": password} if password else {}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    assert ("passed" in done.stdout) is passes


def load(port: int, directory: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    """Start the load of the rolling upgrade, for some seconds."""
    env = env | {"HOST": "127.0.0.1", "PORT": str(port), "USERNAME": "flockmq", "PASSWORD": PASSWORD}
    env |= {"SECONDS_OF_LOAD": "8", "SECONDS_MORE": "2", "TMPDIR": str(directory)}
    return subprocess.Popen(["sh", HERE / "rolling.sh"], env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.release
def test_a_rolling_restart_under_the_load_of_the_workflow(start_balanced: StartBalanced, tmp_path: Path) -> None:
    """The workflow does this in kind; here nodes behind HAProxy restart."""
    env = commands(tmp_path)
    balanced = start_balanced({"auth.password_file": str(make_first_user(tmp_path, env))})
    process = load(balanced.port, tmp_path, env)
    for node in balanced.cluster.nodes:
        node.restart()
        time.sleep(1)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    published = re.match(r"published (\d+), missing 0, ended connections \d+$", said)
    assert published and int(published[1]) > 3, said


@pytest.mark.release
@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_the_load_of_the_workflow_finds_a_lost_message(start_broker: StartBroker, tmp_path: Path) -> None:
    """A publisher gets an acknowledgement of message 2, which nobody gets."""
    env = commands(tmp_path)
    broker = start_broker({"auth.password_file": str(make_first_user(tmp_path, env))})
    command = tmp_path / "bin" / "flockmq"
    command.write_text(command.read_text().replace("exec", 'case "$*" in *"-m 2 "*) exit ;; esac\nexec'))
    process = load(broker.port, tmp_path, env)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode != 0
    assert "missing 1," in said
    assert said.splitlines()[1:] == ["2"]
