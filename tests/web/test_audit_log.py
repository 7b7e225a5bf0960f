"""The audit log: each change is on record, whatever happens to the node, and nothing that is secret is in it."""

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from flockmq import read_log
from flockmq.broker.admin.api.api import OPERATIONS
from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.command import flockmq
from tests.harness.logs import OneNode
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.web.http_client import HttpClient


@pytest.fixture
def store() -> str:
    return "sqlite"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "tokens"
    found = {name: add(path, name, role) for name, role in (("boss", "admin"), ("viewer", "viewer"))}
    return found | {"acme": add(path, "acme-boss", "admin", "acme")}


def settings(tmp_path: Path, **more: object) -> dict[str, object]:
    return {"http.listen": "127.0.0.1:0", "http.tokens_file": str(tmp_path / "tokens"), **more}


def records(api: HttpClient, **query: object) -> list[dict[str, Any]]:
    return list(api.get("/audit-log", **query)["items"])


def outlines(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(record["operation"], record["by"], record["result"]) for record in found]


def test_a_change_has_its_author_and_both_states(
    start_broker: StartBroker, tmp_path: Path, tokens: dict[str, str]
) -> None:
    api = HttpClient(start_broker(settings(tmp_path)), tokens["boss"])
    ban = {"kind": "client_id", "value": "eve"}
    for reason in ("spam", "theft"):
        assert api.ask("POST", "/bans", {**ban, "reason": reason}).status == 200
    assert api.ask("DELETE", "/bans", **ban).status == 204
    assert api.ask("DELETE", "/bans", **ban).status == 404
    missing, removed, replaced, made = records(api)
    assert (missing["result"], missing["detail"]) == ("refused", "there is no such ban")
    assert (removed["operation"], removed["result"], removed["before"][0]["reason"]) == ("unban", "done", "theft")
    assert (replaced["before"][0]["reason"], replaced["after"]["reason"]) == ("spam", "theft")
    assert made["before"] == [] and made["arguments"] == {**ban, "reason": "spam"}
    shown = {name: made[name] for name in ("by", "role", "credential", "tenant", "address", "via", "detail")}
    assert shown == {
        "by": "boss", "role": "admin", "credential": "token", "tenant": "", "address": "127.0.0.1", "via": "api",
        "detail": "",
    }  # fmt: skip
    assert outlines(records(api, result="refused")) == [("unban", "boss", "refused")]
    assert outlines(records(api, operation="ban", limit=1)) == [("ban", "boss", "done")]
    page = api.get("/audit-log", limit=3)
    assert [each["id"] for each in records(api, after=page["next"])] == [made["id"]]
    assert records(api, since=int(made["time"]), until=int(made["time"]) + 60)[-1] == made


def test_kill_9_loses_no_record(start_broker: StartBroker, tmp_path: Path, tokens: dict[str, str]) -> None:
    broker = start_broker(settings(tmp_path))
    api = HttpClient(broker, tokens["boss"])
    assert api.ask("POST", "/bans", {"kind": "client_id", "value": "eve"}).status == 200
    broker.kill()
    broker.start()
    (record,) = records(HttpClient(broker, tokens["boss"]))
    assert record["operation"] == "ban"
    assert record["result"] in ("done", "unknown")  # the end of a change is stored after the change


def test_no_operation_alters_the_audit_log() -> None:
    assert {operation.method for operation in OPERATIONS if "audit" in operation.path} == {"GET"}


def test_attempts_without_the_right_are_on_record_but_never_push_changes_out(
    start_broker: StartBroker, tmp_path: Path, tokens: dict[str, str]
) -> None:
    broker = start_broker(settings(tmp_path))
    api, viewer = HttpClient(broker, tokens["boss"]), HttpClient(broker, tokens["viewer"])
    for _ in range(40):
        assert viewer.ask("PUT", "/log-level", {"level": "debug"}).status == 403
    assert viewer.ask("GET", "/audit-log").status == 403  # names and addresses of administrators
    assert HttpClient(broker, "wrong").ask("PUT", "/log-level", {"level": "debug"}).status == 401
    found = records(api)
    assert set(outlines(found)) == {("set_log_level", "viewer", "refused")}
    assert len(found) == 10
    assert "role admin" in found[0]["detail"]


def test_a_tenant_sees_its_own_changes(start_broker: StartBroker, tmp_path: Path, tokens: dict[str, str]) -> None:
    tenants = json.dumps([{"name": "acme", "listener": "default"}])
    broker = start_broker(settings(tmp_path, tenants=tenants))
    api, acme = HttpClient(broker, tokens["boss"]), HttpClient(broker, tokens["acme"])
    assert api.ask("POST", "/bans", {"kind": "address", "value": "192.0.2.1"}).status == 200
    assert acme.ask("POST", "/bans", {"kind": "client_id", "value": "eve"}).status == 200
    assert acme.ask("PUT", "/log-level", {"level": "debug"}).status == 403
    assert outlines(records(acme)) == [("set_log_level", "acme-boss", "refused"), ("ban", "acme-boss", "done")]
    assert "192.0.2.1" not in json.dumps(records(acme))
    assert len(records(api)) == 3


def test_a_client_with_the_right_is_told_of_each_change(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0", "audit.publish": True})
    with SocketClient(broker.port, "watcher") as watcher:
        watcher.subscribe(("$SYS/broker/events/audit", 1))
        HttpClient(broker).ask("PUT", "/log-level", {"level": "warning"})
        message = watcher.receive()
    record = json.loads(message.payload)
    assert (record["operation"], record["result"]) == ("set_log_level", "done")
    assert list(record["before"]["nodes"].values()) == ["info"]


def test_the_log_of_messages_has_them(tmp_path: Path) -> None:
    node = OneNode(
        tmp_path, {"http.listen": "127.0.0.1:0", "audit.publish": True, "analytics.topics": "$SYS/broker/events/audit"}
    )
    node.start()
    api = HttpClient(node)
    api.ask("PUT", "/log-level", {"level": "info"})
    until(lambda: read_log(api.url, "$SYS/broker/events/audit").num_rows)
    (payload,) = read_log(api.url, "$SYS/broker/events/audit").column("payload").to_pylist()
    assert json.loads(payload)["operation"] == "set_log_level"
    assert node.stop() == 0


def test_reloads_are_on_record(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "flockmq.toml"
    path.write_text("[limits]\nmax_inflight = 7\n")
    broker = start_broker({"http.listen": "127.0.0.1:0"}, arguments=["--config", str(path)])
    api = HttpClient(broker)
    for text, result in (("max_inflight = 9", "done"), ("wrong = 1", "failed")):
        path.write_text(f"[limits]\n{text}\n")
        broker.signal(signal.SIGHUP)
        until(lambda result=result: records(api, result=result))
    failed, done = records(api)
    assert (done["via"], done["operation"]) == ("signal", "reload")
    assert done["after"]["changed"] == ["limits.max_inflight: 7 -> 9"]
    assert "wrong" in failed["detail"]


def test_changed_files_of_users_and_rules_are_on_record_by_name(start_broker: StartBroker, tmp_path: Path) -> None:
    access = AccessFiles(tmp_path)
    access.rules("topic read a/#")
    access.users("ada")
    api = HttpClient(access.start(start_broker))
    access.rules("topic read b/#")
    until(lambda: records(api))
    (record,) = records(api)
    assert (record["operation"], record["via"]) == ("read_access_files", "file")
    assert record["arguments"] == {"files": [str(access.acl)]}


def test_all_nodes_have_all_records_also_of_commands_on_redis(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0"}, nodes="ab")
    apis = [HttpClient(cluster[name]) for name in "ab"]
    apis[0].command("groups", "add", "$share/g/jobs")
    with SocketClient(cluster["a"].port, "c", clean_start=False):
        address = cluster.redis.url
        flockmq("session", "kick", "c", "--redis", address)
        flockmq("session", "purge", "nobody", "--redis", address, status=1)
    wanted = {
        ("declare_group", "command", "done"),
        ("session_kick", "command", "done"),
        ("session_purge", "command", "failed"),
    }
    for api in apis:
        until(lambda api=api: len(records(api)) == 3)
        assert {(each["operation"], each["via"], each["result"]) for each in records(api)} == wanted
    cluster["a"].kill()
    assert len(records(apis[1])) == 3


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_syslog(kind: str, tmp_path: Path) -> None:
    async def follow() -> None:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        if kind == "tcp":

            async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
                while line := await reader.readline():
                    lines.put_nowait(line)

            server = await asyncio.start_server(take, "127.0.0.1", 0)
            address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        else:

            class Take(asyncio.DatagramProtocol):
                def datagram_received(self, data: bytes, _: object) -> None:
                    lines.put_nowait(data)

            family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
            receiver = socket.socket(family, socket.SOCK_DGRAM)
            receiver.bind(str(tmp_path / "log") if kind == "unix" else ("127.0.0.1", 0))
            receiver.setblocking(False)
            await loop.create_datagram_endpoint(Take, sock=receiver)
            address = f"unix:{tmp_path}/log" if kind == "unix" else f"udp://127.0.0.1:{receiver.getsockname()[1]}"
        given = {"http.listen": "127.0.0.1:0", "audit.syslog": address}
        broker = await loop.run_in_executor(None, BrokerProcess(tmp_path, settings=given).start)
        api = await loop.run_in_executor(None, HttpClient, broker)
        for level in ("warning", "info"):
            await loop.run_in_executor(None, api.ask, "PUT", "/log-level", {"level": level})
            line = (await lines.get()).decode()
            head, _, text = line.partition(" audit - ")
            assert head.startswith("<85>1 20") and " flockmq " in head
            assert json.loads(text)["arguments"] == {"level": level}
        assert await loop.run_in_executor(None, broker.stop) == 0

    asyncio.run(follow())


def test_a_syslog_server_that_is_away_stops_nothing(tmp_path: Path) -> None:
    given = {"http.listen": "127.0.0.1:0", "audit.syslog": f"unix:{tmp_path}/nothing"}
    broker = BrokerProcess(tmp_path, settings=given).start()
    api = HttpClient(broker)
    assert api.ask("PUT", "/log-level", {"level": "info"}).status == 200
    broker.wait_for_log("the syslog server does not get the audit log")
    assert outlines(records(api)) == [("set_log_level", "this machine", "done")]
    assert broker.stop() == 0


def test_changes_of_users_and_roles_are_on_record_without_passwords(start_broker: StartBroker) -> None:
    api = HttpClient(start_broker({"http.listen": "127.0.0.1:0"}))
    rules = ["topic read a/#"]
    assert api.ask("POST", "/roles", {"name": "r", "rules": rules}).status == 200
    assert api.ask("POST", "/users", {"name": "ann", "password": "geheim-1"}).status == 200
    assert api.ask("PATCH", "/user", {"roles": ["r"], "password": "geheim-2"}, name="ann").status == 200
    assert api.ask("DELETE", "/user", name="ann").status == 204
    found = records(api)
    assert [record["operation"] for record in found] == ["remove_user", "change_user", "add_user", "add_role"]
    removed, changed, _, role = found
    assert (changed["before"]["roles"], changed["after"]["roles"]) == ([], ["r"])
    assert changed["arguments"] == {"name": "ann", "roles": ["r"], "password": "..."}
    assert removed["before"]["name"] == "ann" and role["after"]["rules"] == rules
    assert "geheim" not in json.dumps(found) and "$argon2" not in json.dumps(found)


def test_no_client_reads_it_unless_the_operator_wants_it(start_broker: StartBroker) -> None:
    """Also not with a filter that has all below $SYS, and without access rules."""
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    with SocketClient(broker.port, "watcher") as watcher:
        watcher.subscribe(("$SYS/broker/events/audit", 1), ("mark", 0))
        HttpClient(broker).ask("PUT", "/log-level", {"level": "info"})
        HttpClient(broker).ask("POST", "/messages", {"topic": "mark"})
        assert watcher.receive().topic_name == "mark"
