"""Tenants over three nodes: sessions roam, a node is killed, and names stay apart."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import RULES, client, messages, publish
from tests.web.http_client import HttpClient

QUOTA_EXCEEDED = 0x97
SETTINGS = {"cluster.lease": 1.5, "cluster.timeout": 0.7}


def test_sessions_roam_and_a_node_is_killed(start_cluster: StartCluster, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    cluster = start_cluster({**files.settings(tenants=RULES), **SETTINGS})

    def at(name: str, tenant: str, client_id: str, **connect: Any) -> SocketClient:
        node: Any = cluster[name]
        return client(node, tenant, client_id, clean_start=False, **connect)

    tenants = ("acme", "globex")
    watchers = {tenant: at("b", tenant, "watcher") for tenant in tenants}
    for tenant, watcher in watchers.items():
        watcher.subscribe(("gone/#", 1))
        publish(watcher, "kept", b"%s kept" % tenant.encode(), retain=True)
    for tenant, name in zip(tenants, "ac", strict=True):  # the same client id, at two nodes
        will = {"will_topic": "gone/roamer", "will_payload": f"{tenant} will".encode(), "will_qos": 1}
        roamer = at(name, tenant, "roamer", **will)
        assert roamer.subscribe(("inbox", 1), ("kept", 1), ("$share/g/jobs", 1)) == [1, 1, 1]
        assert until(lambda r=roamer: messages(r)) == [("kept", f"{tenant} kept".encode())]  # type: ignore[misc]
        if tenant == "globex":
            roamer.close()
            until(lambda: messages(watchers["globex"]) == [("gone/roamer", b"globex will")])
    cluster["a"].kill()  # the node of acme's client, which is connected
    until(lambda: messages(watchers["acme"]) == [("gone/roamer", b"acme will")])
    assert messages(watchers["globex"]) == []
    for tenant, watcher in watchers.items():
        publish(watcher, "inbox", b"%s 1" % tenant.encode())
        publish(watcher, "jobs", b"%s job" % tenant.encode(), 2)
        publish(watcher, "$delayed/0/inbox", b"%s later" % tenant.encode())
    for tenant, name in zip(tenants, "cb", strict=True):  # each at another node than before
        with at(name, tenant, "roamer") as roamer:
            assert roamer.connack is not None and roamer.connack.session_present
            found: list[tuple[str, bytes]] = []
            until(lambda r=roamer, f=found: f.extend(messages(r)) or len(f) == 3)  # type: ignore[misc, func-returns-value]
            expected = [("inbox", b"1"), ("jobs", b"job"), ("inbox", b"later")]
            assert sorted(found) == sorted((topic, tenant.encode() + b" " + text) for topic, text in expected)
    for watcher in watchers.values():
        watcher.close()


def test_delayed_messages_of_all_nodes_count(start_cluster: StartCluster, tmp_path: Path) -> None:
    """A tenant's limit holds over three nodes; a cancelled message and a published one make room at each of them."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    rules = json.dumps(
        [{"name": "acme", "user": "acme-*", "max_delayed_messages": 4}, {"name": "*", "user": "*-device"}]
    )
    cluster = start_cluster(files.settings(tenants=rules))
    nodes: dict[str, Any] = {name: cluster[name] for name in "abc"}
    api = HttpClient(nodes["b"])
    at = {name: client(node, "acme", f"c-{name}", 5) for name, node in nodes.items()}
    for name, seconds in (("a", 600), ("a", 600), ("b", 600), ("a", 600)):
        assert publish(at[name], f"$delayed/{seconds}/x", b"waits") < 0x80
    counted = "mq:later:tenants", "$tenant/acme/"
    assert int(cluster.redis.client().hget(*counted)) == 4

    def is_refused(name: str) -> bool:
        """A message that is accepted is cancelled at once."""
        if publish(at[name], "$delayed/600/x", b"a probe") == QUOTA_EXCEEDED:
            return True
        (probe,) = (item for item in api.get("/delayed")["items"] if item["bytes"] == len(b"a probe"))
        assert api.ask("DELETE", "/delayed", id=probe["id"]).status == 204
        return False

    for name in "abc":
        until(lambda name=name: is_refused(name))  # type: ignore[misc]
    with client(nodes["c"], "globex", "c", 5) as globex:
        for _ in range(6):
            assert publish(globex, "$delayed/600/x", b"waits") < 0x80
    assert int(cluster.redis.client().hget(*counted)) == 4
    first = api.get("/delayed", tenant="acme")["items"][0]
    assert api.ask("DELETE", "/delayed", id=first["id"]).status == 204
    until(lambda: publish(at["c"], "$delayed/0/x", b"at once") < 0x80)  # it is published, and leaves the room free
    until(lambda: int(cluster.redis.client().hget(*counted)) == 3)
    until(lambda: publish(at["a"], "$delayed/600/x", b"fourth") < 0x80)
    until(lambda: is_refused("b"))
    for each in at.values():
        each.close()
