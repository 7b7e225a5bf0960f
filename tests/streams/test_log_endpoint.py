"""`GET /log`: the log over HTTP, with the rights of the reader, and exact positions."""

import http.client
import io
import json
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import jwt
import pyarrow as pa
import pytest

import flockmq
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.admin.http.tokens import add
from flockmq.broker.client.log_client import LogClient
from flockmq.broker.errors import FlockError
from flockmq.cluster.analytics.log.block import SCHEMA
from flockmq.hooks import Client, Hooks, Message
from flockmq.log import LogRefused, LogUnreachable, MessagesMissing
from flockmq.testing import Broker
from tests.analytics.log_writer import LogWriter
from tests.conftest import StartBroker, StartLogging
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.logs import Logging, OneNode, entries, logged_rows
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient
from tests.model.log_block import decode
from tests.security.access_files import AccessFiles
from tests.streams.test_streams import five, numbers, publish
from tests.web.http_client import HttpClient

SETTINGS = {"analytics.topics": "#", "http.listen": "127.0.0.1:0"}
SECRET = "a secret that is long enough for HS256, at least"


def url_of(nodes: Logging, name: str = "a") -> str:
    return HttpClient(nodes[name]).url


def payloads(table: pa.Table) -> list[bytes]:
    found: list[bytes] = table["payload"].to_pylist()
    return found


def everything(nodes: Logging, name: str = "a", **more: Any) -> list[bytes]:
    return payloads(flockmq.read_log(url_of(nodes, name), since="earliest", **more))


# ---- reading ----


def test_one_node_has_the_logs_of_all(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS)
    for name in "abc":
        publish(five(nodes, name, f"writer {name}"), "site/1", *numbers(0, 20), content_type="n")
    publish(five(nodes, "c", "w"), "other", b"other")
    found = flockmq.read_log(url_of(nodes, "b"), "site/+")
    assert found.schema == SCHEMA and Counter(payloads(found)) == Counter(numbers(0, 20) * 3)
    rows = logged_rows(nodes)
    wanted = Counter(
        (row.accepted, row.client_id, row.topic, row.qos, row.payload, row.properties or None) for row in rows
    )
    both = flockmq.read_log(url_of(nodes, "b"), ["site/#", "other"], "1 h ago").to_pylist()
    assert wanted == Counter(
        (
            round(row["accepted_at"].timestamp() * 1e6),
            row["client_id"],
            row["topic"],
            row["qos"],
            row["payload"],
            row["properties"],
        )
        for row in both
    )
    names = {row["node"] for row in both}
    assert names == ({"a", "b", "c"} if isinstance(nodes, ClusterProcess) else names) and len(names) in (1, 3)
    with HttpClient(nodes["a"]).reading("/log") as reply:
        stream = pa.ipc.open_stream(reply)
        count = duckdb.from_arrow(stream).filter("topic = 'site/1'").count("*").fetchall()
    assert count == [(60,)]


def test_a_message_of_the_api_is_there(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS)
    api = HttpClient(nodes["a"])
    for qos in (0, 1, 2):
        assert api.ask("POST", "/messages", {"topic": "site/set", "payload": f"on {qos}", "qos": qos}).status == 200
    until(lambda: len(everything(nodes)) == 3)
    table = flockmq.read_log(url_of(nodes), since="earliest")
    rows = [(row["client_id"], row["topic"], row["payload"], row["qos"]) for row in table.to_pylist()]
    assert rows == [("", "site/set", b"on %d" % qos, qos) for qos in (0, 1, 2)]


def test_since_and_until(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS, nodes="a")
    writer = five(nodes, "a", "writer")
    publish(writer, "t", b"old")
    until(lambda: len(logged_rows(nodes)) == 1)
    between = datetime.fromtimestamp(logged_rows(nodes)[0].accepted / 1e6, UTC) + timedelta(microseconds=1)
    publish(writer, "t", b"new")
    url = url_of(nodes)
    assert payloads(flockmq.read_log(url, since=between)) == [b"new"]
    assert payloads(flockmq.read_log(url, since="earliest", until=between.isoformat())) == [b"old"]
    assert payloads(flockmq.read_log(url, since=between - timedelta(seconds=1), until=between)) == [b"old"]
    assert payloads(flockmq.read_log(url, since=datetime.now(UTC) + timedelta(days=1))) == []


def test_a_reply_is_bounded_and_the_next_one_goes_on(start_logging: StartLogging) -> None:
    """Each reply begins exactly where the reply before it ended, wherever the reader stopped to read."""
    nodes = start_logging(SETTINGS)
    sent: list[bytes] = []
    for turn in range(10):
        for name in "abc":
            sent += (some := [b"%d %s %d" % (turn, name.encode(), number) for number in range(5)])
            publish(five(nodes, name, f"w{name}"), f"t/{name}", *some)
    found: list[bytes] = []
    position, is_end, replies = None, False, 0
    while not is_end:
        for part in LogClient(url_of(nodes, "abc"[replies % 3])).request(position, most=1):
            found += payloads(part.rows)
            position, is_end = part.position, part.is_end
            break  # the rest of the reply is lost
        replies += 1
    assert Counter(found) == Counter(sent) and replies > 2
    for name in "abc":
        own = [payload for payload in sent if payload.split()[1] == name.encode()]
        assert [payload for payload in found if payload.split()[1] == name.encode()] == own  # the order of its log


def test_a_follower_over_kill_9_of_the_nodes(start_logging: StartLogging) -> None:
    nodes = start_logging({**SETTINGS, "cluster.lease": 1.5, "cluster.timeout": 0.7, "http.listen": "127.0.0.1:0"})
    found: list[bytes] = []
    sent: list[bytes] = []
    position: dict[str, str] | None = None
    for turn in range(3):
        for name in "abc":
            sent += (some := [b"%s %d %d" % (name.encode(), turn, number) for number in range(20)])
            publish(five(nodes, name, f"w{name}"), "t", *some)
        following = flockmq.follow_log(url_of(nodes, "abc"[turn]), since="earliest", position=position)
        while len(found) < len(sent):
            table, position = next(following)
            found += payloads(table)
        if turn < 2:
            for node in nodes.nodes if isinstance(nodes, ClusterProcess) else [nodes]:
                node.kill()
            nodes.start()
    assert Counter(found) == Counter(sent)


def test_a_reader_waits_for_news(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS, nodes="ab")
    writer = five(nodes, "b", "writer")
    publish(writer, "t", b"1")
    client = LogClient(url_of(nodes), ["t"])
    position = list(client.request(None))[-1].position
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(client.request(position, wait=60)))
    reader.start()
    time.sleep(0.2)  # most likely it waits by then; the result is the same if it does not
    publish(writer, "other", b"2")  # is not for it
    publish(writer, "t", b"3")
    reader.join(DEADLINE)
    assert [payload for part in found for payload in payloads(part.rows)] == [b"3"]
    began = time.monotonic()
    (last,) = client.request(found[-1].position, wait=1)
    assert last.is_end and last.position == found[-1].position and time.monotonic() - began >= 1


# ---- what is missing ----


def test_a_gap_is_reported(start_logging: StartLogging) -> None:
    nodes = start_logging({**SETTINGS, "analytics.log_bytes": 1 << 20}, nodes="a")
    writer = five(nodes, "a", "writer")
    publish(writer, "t", b"first")
    client = LogClient(url_of(nodes))
    position = list(client.request(None))[-1].position
    publish(writer, "t", b"second")
    while sum(row.payload == b"second" for row in logged_rows_or_less(nodes)):
        publish(writer, "t", b"x" * 100_000)
    publish(writer, "t", *[b"x" * 100_000] * 60)  # what is newest is also in the memory of a node
    with pytest.raises(MessagesMissing, match="bytes are missing from the log of node") as error:
        list(client.request(position))
    problem = HttpClient(nodes["a"]).ask("GET", "/log", position=json.dumps(position))
    assert problem.status == 410 and problem.json["position"] == error.value.position and problem.json["bytes"] > 0
    rest = [payload for part in client.request(error.value.position) for payload in payloads(part.rows)]
    assert rest and b"second" not in rest
    assert len(rest) == len(everything(nodes))
    (node, place), *_ = position.items()
    with pytest.raises(MessagesMissing, match="is gone"):
        list(client.request({**error.value.position, "another": "1-1"}))
    with pytest.raises(MessagesMissing, match="but ends at"):
        list(client.request({node: "99999999999999-99999999999"}))
    with pytest.raises(MessagesMissing):
        list(client.request({node: f"{place.split('-')[0]}-1"}))  # within an entry


def logged_rows_or_less(nodes: Logging) -> list[Any]:
    """The rows of the entries that are still there: the first is not the first of the log any more."""
    return [row for _, _, block in entries(nodes) for row in decode(block)]


def test_logs_of_nodes_that_are_no_more(start_cluster: Callable[..., ClusterProcess]) -> None:
    """A log that was read to its end, and deleted, is no gap, also when its record is gone; else it is one."""
    cluster = start_cluster(SETTINGS, nodes="a")
    redis = cluster.redis.client(decode_responses=False)
    gone = LogWriter(redis, "gone", "gone", began=int(time.time() * 1000))
    rows = gone.fill(2)
    client = LogClient(url_of(cluster))
    position = list(client.request(None))[-1].position
    assert position["gone"] == gone.ids[-1]
    before = {**position, "gone": gone.ids[0]}
    redis.delete(gone.key)
    redis.hset(gone.registry, "gone", json.dumps({**gone.said, "last": gone.ids[-1], "ended": 1}))
    (part,) = client.request(position)
    assert part.position["gone"] == f"{gone.ids[-1]} ended" and not part.rows.num_rows
    with pytest.raises(MessagesMissing):
        list(client.request(before))
    redis.hdel(gone.registry, "gone")
    (part,) = client.request(part.position)
    assert "gone" not in part.position and len(rows) == 20
    with pytest.raises(MessagesMissing, match="is gone"):
        list(client.request(position))


def test_a_damaged_entry_is_a_gap(start_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = start_cluster(SETTINGS, nodes="a")
    redis = cluster.redis.client(decode_responses=False)
    log = LogWriter(redis, "n1", "n1", began=int(time.time() * 1000))
    first = log.fill(2)
    block = b"FQ\x01\x00 no block"
    log.bytes += len(block)
    log.ms += 1
    redis.xadd(log.key, {"b": block}, id=f"{log.ms}-{log.bytes}")
    last = log.fill(2)
    client = LogClient(url_of(cluster))
    parts = list(client.request(None))
    assert [payload for part in parts for payload in payloads(part.rows)] == [row.payload for row in first]
    assert not parts[-1].is_end
    with pytest.raises(MessagesMissing, match="can't be read: ") as error:
        list(client.request(parts[-1].position))
    rest = [payload for part in client.request(error.value.position) for payload in payloads(part.rows)]
    assert rest == [row.payload for row in last]


# ---- rights ----


@pytest.fixture
def store() -> str:
    return "sqlite"


def test_users_get_what_they_may_subscribe_to(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("ann", "bob", "eve", "writer")
    files.rules(
        "user ann", "topic read site/1/#", "user bob", "topic read #", "topic deny site/2/#", "user writer",
        "topic readwrite #",
    )  # fmt: skip
    token = add(tmp_path / "tokens", "operator", "admin")
    broker = start_broker(
        files.settings(
            analytics__topics="#",
            http__tokens_file=tmp_path / "tokens",
            auth__jwt_secret_file=secret_file(tmp_path),
        )
    )
    writer = SocketClient(broker.port, "w", username="writer", password=b"writer")
    for topic in ("site/1/a", "site/2/a", "site/3/a"):
        publish(writer, topic, topic.encode())
    url = HttpClient(broker).url

    def read(name: str, topic_filter: str = "#", password: str = "") -> list[bytes]:
        return sorted(payloads(flockmq.read_log(url, topic_filter, username=name, password=password or name)))

    assert read("ann") == [b"site/1/a"] == read("ann", "site/+/a")
    assert read("bob") == [b"site/1/a", b"site/3/a"]
    assert payloads(flockmq.read_log(url, "site/2/#", token=token)) == [b"site/2/a"]
    claims = {"sub": "tom", "exp": time.time() + 60, "acl": ["topic read site/2/#"]}
    assert payloads(flockmq.read_log(url, token=jwt.encode(claims, SECRET, "HS256"))) == [b"site/2/a"]
    for refused, status in (
        (lambda: read("ann", "site/2/#"), 403),
        (lambda: read("eve"), 403),
        (lambda: read("ann", "$tenant/+/#"), 403),
        (lambda: read("ann", password="wrong"), 401),
        (lambda: read("nobody"), 401),
        (lambda: flockmq.read_log(url), 401),
        (lambda: flockmq.read_log(url, token="wrong"), 401),
        (lambda: flockmq.read_log(url, token=jwt.encode(claims, SECRET + "x", "HS256")), 401),
        (lambda: read("bob", "$share/g/#"), 422),
        (lambda: read("bob", "a/#/b"), 422),
    ):
        with pytest.raises(LogRefused, match=rf"\({status}\)"):
            refused()
    client = HttpClient(broker, token)
    for kind, value in (("username", "ann"), ("address", "127.0.0.1")):
        assert client.ask("POST", "/bans", {"kind": kind, "value": value}).status < 300
        with pytest.raises(LogRefused, match=r"\(403\): this client is banned"):
            read("ann")


def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def test_tenants_have_their_own_names(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    token = add(tmp_path / "tokens", "acme", "viewer", "acme")
    rules = json.dumps([{"name": "*", "user": "*-device"}])
    settings = {"analytics__topics": "#", "tenants": rules, "http__tokens_file": tmp_path / "tokens"}
    broker = start_broker(files.settings(**settings))
    for name in ("acme-device", "globex-device"):
        publish(SocketClient(broker.port, "c", username=name, password=name.encode()), "a/b", name.encode())
    url = HttpClient(broker).url
    for own in ({"username": "acme-device", "password": "acme-device"}, {"token": token}):
        for topic_filter in ("#", "a/+"):
            (row,) = flockmq.read_log(url, topic_filter, **own).to_pylist()  # type: ignore[arg-type]
            found = (row["node"], row["client_id"], row["topic"], row["payload"])
            assert found == ("", "c", "a/b", b"acme-device")
        with pytest.raises(LogRefused):
            flockmq.read_log(url, "$tenant/globex/#", **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
def test_clients_without_credentials(listen: str, start_broker: StartBroker, tmp_path: Path) -> None:
    """A broker that is open to its own machine only is not open to others by HTTP."""
    add(tmp_path / "tokens", "operator", "viewer")
    broker = start_broker(
        {**SETTINGS, "http.tokens_file": tmp_path / "tokens", "auth.allow_anonymous": True}, listen=listen
    )
    publish(SocketClient(broker.port, "w"), "t", b"1")
    client = HttpClient(broker)
    assert client.ask("GET", "/log").status == 200
    forwarded = client.ask("GET", "/log", headers={"X-Forwarded-For": "192.0.2.1"})
    assert forwarded.status == (401 if listen.startswith("127") else 200)
    assert client.ask("GET", "/log", headers={"Origin": "http://example.com"}).status == 403
    assert client.ask("GET", "/clients").status == 401


def test_wrong_requests(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS, nodes="a")
    client = HttpClient(nodes["a"])

    def status(**query: object) -> int:
        return client.ask("GET", "/log", **query).status

    assert status(since="soon") == status(until="-") == status(position="x") == status(position='{"a": "1"}') == 422
    assert status(wait=61) == status(bytes=0) == status(filters="#") == status(filter="") == 400
    assert client.ask("POST", "/log").status == 405
    for wrong in ("node:1", "http://ann:secret@node:1"):
        with pytest.raises(FlockError, match=r"expected http://HOST:PORT"):
            flockmq.read_log(wrong)
    with pytest.raises(FlockError, match="not both"):
        flockmq.read_log("http://node", token="t", username="u")
    with pytest.raises(LogUnreachable):
        flockmq.read_log("http://127.0.0.1:1")


def test_without_a_log(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    reply = HttpClient(broker).ask("GET", "/log")
    assert reply.status == 409 and "analytics.topics" in reply.json["detail"]


def test_without_pyarrow(start_broker: StartBroker) -> None:
    encoder = "flockmq.broker.admin.api.operations.message_log.ENCODER"
    reply = HttpClient(start_broker({**SETTINGS, encoder: "pyarrow_that_is_not_there"})).ask("GET", "/log")
    assert reply.status == 501 and "pip install 'flockmq[log]'" in reply.json["detail"]


class Decides(Hooks):
    """Refuses a user, and a filter."""

    def connect(self, client: Client) -> bool:
        return client.username != "eve"

    async def authorize(self, client: Client, action: str, topic: str) -> bool:
        return topic != "secret/#"


class Delivers(Hooks):
    """Decides over each message."""

    def deliver(self, client_id: str, message: Message) -> bool:
        return True


def test_hooks_decide(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("ann", "eve")
    url = f"http://127.0.0.1:{free_port()}"
    settings = {**files.settings(), **SETTINGS, "http.listen": [url.removeprefix("http://")]}
    for number, hooks in enumerate((Decides(), Delivers())):
        with Broker({**settings, "store.url": f"sqlite:{tmp_path / str(number)}.db"}, [hooks]) as broker:
            with SocketClient(broker.port, "w", username="ann", password=b"ann") as writer:
                publish(writer, "secret/1", b"1")
            if number:
                with pytest.raises(LogRefused, match="hooks of this node decide over each delivery"):
                    flockmq.read_log(url, username="ann", password="ann")
            else:
                assert payloads(flockmq.read_log(url, "secret/+", username="ann", password="ann")) == [b"1"]
                for user, topic_filter in (("ann", "secret/#"), ("eve", "secret/+")):
                    with pytest.raises(LogRefused, match="a hook refuses"):
                        flockmq.read_log(url, topic_filter, username=user, password=user)
            assert payloads(flockmq.read_log(url)) == [b"1"]  # this machine, without tokens


# ---- memory ----


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A reader that does not read, and messages whose batches are far larger than their blocks."""
    node = OneNode(tmp_path, {**SETTINGS, "analytics.max_waiting_bytes": 1 << 28, "mqtt.sys_interval": 0})
    node.start()
    try:
        writer = five(node, "a", "x" * 60_000)  # each block has it once, each row of a batch has it
        for _ in range(10):
            writer.socket.sendall(encode(Publish("small", b""), 5) * 1000)
        for _ in range(40):
            writer.socket.sendall(encode(Publish("bulk", b"x" * 100_000), 5) * 10)
        writer.send(Publish("last", b"", qos=1, packet_id=1))
        assert isinstance(writer.receive(), Puback)
        before = node.rss()
        slow = [slow_reader(node) for _ in range(4)]
        peak, rows, size = node.rss(), 0, 0
        for batch in batches_of(node, "small"):
            assert batch.nbytes < 16 << 20
            peak, rows, size = max(peak, node.rss()), rows + len(batch), size + batch.nbytes
        assert rows == 10_000 and size > 600_000_000
        assert sum(len(batch) for batch in batches_of(node, "bulk")) == 400
        assert peak - before < 250 << 20
        for each in slow:
            each.close()
        assert everything(node, filter="last") == [b""]  # the places of the slow readers are free again
    finally:
        assert node.stop() == 0, node.log_text()
    node.check()


def batches_of(node: BrokerProcess, topic_filter: str) -> Iterator[pa.RecordBatch]:
    with HttpClient(node).reading(f"/log?filter={topic_filter}") as reply:
        yield from pa.ipc.open_stream(io.BufferedReader(reply, 1 << 20))


def slow_reader(node: BrokerProcess) -> socket.socket:
    """A reader that has read the head of the reply, and reads no more."""
    client = HttpClient(node)
    found = socket.create_connection((client.host, client.port), DEADLINE)
    found.sendall(b"GET /api/v1/log HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.recv(12) == b"HTTP/1.1 200"
    return found


def test_too_many_readers(start_logging: StartLogging) -> None:
    nodes = start_logging(SETTINGS, nodes="a")
    client = HttpClient(nodes["a"])
    waiting: dict[socket.socket, http.client.HTTPConnection] = {}
    for _ in range(9):
        connection = http.client.HTTPConnection(client.host, client.port, timeout=DEADLINE)
        connection.request("GET", "/api/v1/log?wait=60")
        waiting[connection.sock] = connection
    (refused, *others), _, _ = select.select(waiting, (), (), DEADLINE)
    reply = waiting[refused].getresponse()
    assert not others and reply.status == 503 and b"too many programs" in reply.read()
    for connection in waiting.values():
        connection.close()
    until(lambda: client.ask("GET", "/log").status == 200)
