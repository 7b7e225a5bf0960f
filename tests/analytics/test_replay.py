"""`flockmq replay` publishes the logged messages again, in their order, and reports missing messages."""

import asyncio
import base64
import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq._speedups.codec.properties import encode_block
from flockmq._speedups.codec.reason_codes import ReasonCode
from flockmq.broker.cli import main
from flockmq.broker.client.client import Client
from flockmq.broker.client.options import Options
from flockmq.cluster.analytics.times import iso
from tests.analytics.written_logs import WrittenLog, row
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.certificates import Authority
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.logs import logged_rows
from tests.harness.ports import free_port
from tests.harness.redis_process import RedisProcess
from tests.harness.transports import make_node, ports, tls_settings
from tests.model.log_block import Row

SECOND = 1_000_000
T0 = 1_769_860_800 * SECOND  # 2026-01-31T12:00:00Z
SINCE, UNTIL = ("--since", iso(T0)), ("--until", iso(T0 + 1000 * SECOND))


class Told:
    """The output of a command."""

    def __init__(self, status: int, out: str, errors: str) -> None:
        self.status, self.out, self.errors = status, out, errors

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Replay = Callable[..., Told]


def replay_of(url: str, *arguments: str) -> Told:
    """Run the command in a separate process."""
    result = subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "replay", "--redis", url, *arguments],
        capture_output=True,
        env=environment(),
        timeout=DEADLINE,
    )
    return Told(result.returncode, result.stdout.decode(), result.stderr.decode())


@pytest.fixture
def replay(redis_server: RedisProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Run the command on the test's own Redis."""
    monkeypatch.setenv("FLOCKMQ_CLUSTER_REDIS", redis_server.url)

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        return Told(main(["replay", *arguments]), *capsys.readouterr())

    return run


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that is played to."""
    directory = tmp_path / "target"
    directory.mkdir()
    broker = BrokerProcess(directory, settings={"mqtt.sys_interval": 0, "limits.max_inflight": 1000}).start()
    yield broker
    broker.close()


class Listener:
    """A subscriber to everything, with all that it has received."""

    def __init__(self, port: int, level: int = 5) -> None:
        self._client = Client(Options(port=port, client_id="listener", level=level))
        self.received: list[Publish] = []
        self.times: list[float] = []

    async def __aenter__(self) -> "Listener":
        await self._client.connect()
        await self._client.subscribe([("#", 2)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.disconnect()

    async def wait_for(self, count: int) -> None:
        """Until as many have come."""
        async with asyncio.timeout(DEADLINE):
            while len(self.received) < count:
                message = await self._client.receive()
                if not message.retain:  # else it was there before
                    self.received.append(message)
                    self.times.append(time.monotonic())

    async def expect_no_more(self) -> None:
        """Nothing else has come: a message that is published now is the next."""
        await self._client.publish("end", b"", 2)
        async with asyncio.timeout(DEADLINE):
            assert (await self._client.receive()).topic_name == "end"


async def played(port: int, count: int, url: str, *arguments: str, level: int = 5) -> tuple[Told, Listener]:
    """Replay to a port; returns the messages that came there."""
    async with Listener(port, level) as listener:
        work = asyncio.to_thread(replay_of, url, "--to", f"mqtt://127.0.0.1:{port}", *arguments)
        told, _ = await asyncio.gather(work, listener.wait_for(count))
        await listener.expect_no_more()
    return told, listener


# ---- which messages ----


def test_a_range_is_exact_and_merged_by_time(redis_server: RedisProcess, replay: Replay) -> None:
    one, two = WrittenLog(redis_server, "n1", "a"), WrittenLog(redis_server, "n2", "b")
    one.write([row(T0 - 1, payload=b"early"), row(T0, payload=b"1"), row(T0 + 3, payload=b"4")], at=T0 + 50_000)
    two.write([row(T0 + 1, payload=b"2"), row(T0 + 2, payload=b"3")])
    two.write([row(T0 + 4, payload=b"5"), row(T0 + 1000 * SECOND - 1, payload=b"6")], at=T0 + 1003 * SECOND)
    one.write([row(T0 + 1000 * SECOND, payload=b"late")])
    told = replay(*SINCE, *UNTIL, "--dry-run", "--json")
    assert [line["payload"] for line in told.lines] == ["1", "2", "3", "4", "5", "6"]
    assert [line["node"] for line in told.lines] == ["a", "b", "b", "a", "b", "b"]
    assert told.lines[1] == {
        "accepted_at": "2026-01-31T12:00:00.000001Z",
        "node": "b",
        "client_id": "c",
        "topic": "t",
        "qos": 0,
        "retain": False,
        "payload": "2",
    }
    assert (told.status, told.errors) == (0, "")


def test_late_blocks_with_early_messages_are_read_too(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0 + 1, payload=b"1")])
    # Redis was away for a minute: these waited for it.
    log.write([row(T0 + 2, payload=b"2"), row(T0 + 60 * SECOND, payload=b"x")], at=T0 + 60 * SECOND)
    log.write([row(T0 + 61 * SECOND, payload=b"x")])
    log.write([row(T0 + 3, payload=b"never reached: blocks of an order that no node writes")], at=T0 + 70 * SECOND)
    told = replay(*SINCE, "--until", iso(T0 + 10), "--dry-run", "--json")
    assert [line["payload"] for line in told.lines] == ["1", "2"]


def test_a_clock_that_was_set_back_does_not_change_a_nodes_order(redis_server: RedisProcess, replay: Replay) -> None:
    one, two = WrittenLog(redis_server, "n1", "a"), WrittenLog(redis_server, "n2", "b")
    one.write([row(T0 + 50, payload=b"1")])
    one.write([row(T0 + 10, payload=b"2")], at=T0 + 50)
    one.write([row(T0 + 60, payload=b"4")])
    two.write([row(T0 + 55, payload=b"3")])
    told = replay(*SINCE, *UNTIL, "--dry-run", "--json")
    assert [line["payload"] for line in told.lines] == ["1", "2", "3", "4"]


FILTERED = [
    ([], "abcdef"),
    (["--filter", "site/#"], "abcd"),
    (["--filter", "site/+/temp"], "ac"),
    (["--filter", "site/1/#", "--filter", "other"], "abe"),
    (["--filter", "#"], "abcde"),
    (["--client", "pump"], "bcd"),
    (["--client", "pump", "--client", "new"], "bcdf"),
    (["--node", "b"], "def"),
    (["--node", "n2"], "def"),
    (["--node", "a", "--node", "b"], "abcdef"),
    (["--filter", "site/#", "--client", "pump", "--node", "a"], "bc"),
    (["--limit", "2"], "ab"),
    (["--filter", "nothing"], ""),
]


@pytest.mark.parametrize(("flags", "expected"), FILTERED, ids=lambda value: " ".join(value))
def test_what_is_chosen(redis_server: RedisProcess, replay: Replay, flags: list[str], expected: str) -> None:
    one, two = WrittenLog(redis_server, "n1", "a"), WrittenLog(redis_server, "n2", "b")
    one.write(
        [
            row(T0, "site/1/temp", b"a", "door"),
            row(T0 + 1, "site/1/hum", b"b", "pump"),
            row(T0 + 2, "site/2/temp", b"c", "pump"),
        ]
    )
    two.write([row(T0 + 3, "site", b"d", "pump"), row(T0 + 4, "other", b"e"), row(T0 + 5, "$own", b"f", "new")])
    told = replay(*SINCE, *UNTIL, *flags, "--dry-run", "--json")
    assert "".join(line["payload"] for line in told.lines) == expected


def test_it_counts(redis_server: RedisProcess, replay: Replay) -> None:
    one, two = WrittenLog(redis_server, "n1", "a"), WrittenLog(redis_server, "n2", "b")
    one.write([row(T0 + index, payload=bytes(1000)) for index in range(30)])
    two.write([row(T0 + 40, payload=bytes(24))])
    told = replay(*SINCE, *UNTIL, "--count")
    assert [line.split() for line in told.out.splitlines()] == [
        ["node", "messages", "payloads", "first", "last"],
        ["a", "30", "29.3", "KiB", "2026-01-31T12:00:00.000Z", "2026-01-31T12:00:00.000Z"],
        ["b", "1", "24", "B", "2026-01-31T12:00:00.000Z", "2026-01-31T12:00:00.000Z"],
        ["all", "31", "29.3", "KiB"],
    ]
    document = replay(*SINCE, *UNTIL, "--count", "--json").json
    assert (document["messages"], document["payload_bytes"], document["missing_bytes"]) == (31, 30_024, 0)
    assert document["nodes"][1]["first"] == "2026-01-31T12:00:00.000040Z"


def test_a_dry_run_escapes_what_clients_chose(redis_server: RedisProcess, replay: Replay) -> None:
    WrittenLog(redis_server, "n1", "a").write([row(T0, "a\x1b[31m/\n", b"\xff", "evil\u202e id")])
    told = replay(*SINCE, *UNTIL, "--dry-run")
    assert told.out == '2026-01-31T12:00:00.000Z a "evil\\u202e id" "a\\x1b[31m/\\n" QoS 0, 1 bytes\n'
    assert replay(*SINCE, *UNTIL, "--dry-run", "--json").lines[0]["payload_base64"] == "/w=="


# ---- what is missing ----


def test_what_was_trimmed_before_the_range_began_is_told(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0 + SECOND)])
    second = log.write([row(T0 + 5 * SECOND, payload=b"left")])
    size = log.bytes // 2
    log.trim(second)
    told = replay(*SINCE, *UNTIL, "--count")
    assert "all          1" in told.out
    assert re.fullmatch(
        r"flockmq: the log of node a begins at 2026-01-31T12:00:05.000Z: \d+ bytes before it were trimmed \(.*\)\n",
        told.errors,
    )
    assert abs(int(re.findall(r"(\d+) bytes", told.errors)[0]) - size) <= 8
    # Asked from where it begins, nothing is missing.
    assert replay("--since", iso(T0 + 5 * SECOND), *UNTIL, "--count").errors == ""


def test_a_hole_is_told_with_its_ids(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    first = log.write([row(T0, payload=b"1")])
    gone = [log.write([row(T0 + SECOND * index, payload=bytes(100))]) for index in (1, 2)]
    log.write([row(T0 + 3 * SECOND, payload=b"2")])
    redis_server.client().xdel(log.key, *gone)
    told = replay(*SINCE, *UNTIL, "--count", "--json")
    missing = int(gone[1].partition("-")[2]) - int(first.partition("-")[2])
    assert told.json["missing_bytes"] == missing
    assert told.json["messages"] == 2
    assert f"{missing} bytes of the log of node a are missing, after {first} up to " in told.errors
    assert len(told.errors.splitlines()) == 1


def test_a_deleted_log_is_told(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "gone", began=T0 // 1000)
    log.delete(log.write([row(T0 + SECOND)]))
    told = replay(*SINCE, *UNTIL, "--count")
    assert "the log of node gone was deleted; it went from 2026-01-31T12:00:00.000Z to 2026-01-31T12:00:01.000Z" in (
        told.errors
    )
    assert replay("--since", iso(T0 + 9 * SECOND), *UNTIL, "--count").errors == ""


def test_messages_that_were_never_logged_are_counted(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0 - 1)], lacking=5)
    for index, lacking in enumerate((5, 7, 7, 10)):
        log.write([row(T0 + index)], lacking=lacking)
    told = replay(*SINCE, *UNTIL, "--count")
    assert told.errors == "flockmq: 5 messages of QoS 0 were never logged: Redis or the disk was slow or away\n"


def test_a_damaged_block_is_one_line(redis_server: RedisProcess, replay: Replay) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0)])
    redis_server.client().xadd(log.key, {"b": b"FQ\x01"}, id=f"{T0 // 1000 + 1}-{log.bytes + 3}")
    told = replay(*SINCE, *UNTIL, "--count")
    assert told.status == 1
    assert re.fullmatch(r"flockmq: error: .*block.*\n", told.errors)


# ---- publishing ----


async def publish_some(cluster: ClusterProcess, each: int) -> list[tuple[str, bytes, int, bool]]:
    """Some clients at all nodes publish with all QoS; returns what."""
    rng = random.Random(4)
    published = []
    nodes = cluster.nodes
    clients = [Client(Options(port=nodes[index % len(nodes)].port, client_id=f"p{index}")) for index in range(4)]
    for client in clients:
        await client.connect()
    for number in range(each):
        for index, client in enumerate(clients):
            qos, retain = rng.randrange(3), rng.random() < 0.1
            payload = f"{index}:{number}".encode()
            topic = f"site/{index}/{rng.randrange(3)}"
            await client.publish(topic, payload, qos, retain)
            published.append((topic, payload, qos, retain))
    for client in clients:
        await client.disconnect()
    return published


def in_order(messages: list[tuple[str, bytes, int]]) -> dict[tuple[str, int], list[bytes]]:
    """Payloads by topic name and QoS: within these there is an order (G2), since each topic has one publisher."""
    found = defaultdict(list)
    for topic, payload, qos in messages:
        found[topic, qos].append(payload)
    return dict(found)


def wait_until_logged(cluster: ClusterProcess, count: int) -> list[Row]:
    """QoS 0 takes a moment."""
    until(lambda: len(logged_rows(cluster)) >= count, f"{count} logged messages")
    return logged_rows(cluster)


def test_what_real_nodes_logged_arrives_elsewhere_as_it_was(
    start_cluster: Callable[..., ClusterProcess], target: BrokerProcess
) -> None:
    cluster = start_cluster({"analytics.topics": "#"}, nodes="ab")

    async def scenario() -> None:
        published = await publish_some(cluster, 60)
        wait_until_logged(cluster, len(published))
        told, listener = await played(
            target.port, len(published), cluster.url(), "--since", "5 min ago", "--speed", "max", "--json"
        )
        got = [(message.topic_name, message.payload, message.qos) for message in listener.received]
        assert in_order(got) == in_order([(topic, payload, qos) for topic, payload, qos, _ in published])
        acknowledged = sum(qos > 0 for _, _, qos, _ in published)
        assert told.status == 0, told.errors
        assert (told.json["published"], told.json["acknowledged"]) == (len(published), acknowledged)
        assert (told.json["unacknowledged"], told.json["interrupted"]) == (0, False)
        # The last message with RETAIN of each topic is retained there.
        expected = {topic: payload for topic, payload, _, retain in published if retain}
        async with Client(Options(port=target.port, client_id="later")) as later:
            await later.subscribe([("#", 0)])
            kept = [await later.receive() for _ in expected]
        assert {message.topic_name: message.payload for message in kept} == expected
        assert all(message.retain for message in kept)

    asyncio.run(scenario())


def test_replaying_into_the_logged_cluster_ends(start_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = start_cluster({"analytics.topics": "#"}, nodes="a")

    async def scenario() -> None:
        published = await publish_some(cluster, 50)
        wait_until_logged(cluster, len(published))
        port, count = cluster.nodes[0].port, len(published)
        told, _ = await played(port, count, cluster.url(), "--since", "5 min ago", "--speed", "max")
        assert told.status == 0, told.errors
        # All of it is logged once more, with the mark of the test's end; that was not replayed.
        rows = wait_until_logged(cluster, 2 * count + 1)
        assert sum(row.topic == "end" for row in rows) == 1
        assert len(rows) == 2 * count + 1

    asyncio.run(scenario())


def test_the_pace_is_kept_or_multiplied(redis_server: RedisProcess, target: BrokerProcess) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    for index in range(5):
        log.write([row(T0 + index * 400_000, payload=b"%d" % index)])

    async def spread(*arguments: str) -> float:
        _, listener = await played(target.port, 5, redis_server.url, *SINCE, *UNTIL, *arguments)
        assert [message.payload for message in listener.received] == [b"0", b"1", b"2", b"3", b"4"]
        return listener.times[-1] - listener.times[0]

    # On a loaded machine the first may arrive late.
    assert any(asyncio.run(spread()) > 1.5 for _ in range(3))
    assert any(asyncio.run(spread("--speed", "2x")) > 0.7 for _ in range(3))
    assert asyncio.run(spread("--speed", "max")) < 1.0
    assert asyncio.run(spread("--max-pause", "100 ms")) < 1.4


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_other_transports(redis_server: RedisProcess, tmp_path: Path, scheme: str) -> None:
    """TLS with a certificate that the target demands; WebSocket."""
    authority = Authority(tmp_path)
    lamp = authority.client("lamp")
    strict = {"client_ca": authority.ca, "client_certificate": "required"}
    target = make_node(tmp_path / "target", tls_settings(authority.server(), **strict))
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0, payload=b"1"), row(T0 + 1, payload=bytes(300_000), qos=1), row(T0 + 2, payload=b"3", qos=2)])
    to = ["--to", f"{scheme}://localhost:{ports(target)[scheme]}"]
    trust = [] if scheme == "ws" else ["--cafile", authority.ca, "--cert", lamp.cert, "--key", lamp.key]

    async def replayed() -> list[bytes]:
        async with Listener(target.port) as listener:
            told = await asyncio.to_thread(replay_of, redis_server.url, *SINCE, *UNTIL, *to, *trust)
            assert told.status == 0, told.errors
            await listener.wait_for(3)
            return [message.payload for message in listener.received]

    assert asyncio.run(replayed()) == [b"1", bytes(300_000), b"3"]
    if trust:
        told = replay_of(redis_server.url, *SINCE, *UNTIL, *to)
        assert told.status == 1
        assert "its certificate can't be trusted" in told.errors
    assert target.stop() == 0


def test_what_is_published_can_be_changed(redis_server: RedisProcess, target: BrokerProcess) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    retained = Row(T0 + 2, "pump", "r", 1, True, False, b"\xff\x00")
    log.write([row(T0, "site/1", b"21.5", "pump", 2), row(T0 + 1, "x" * 65_530), retained])
    arguments = [*SINCE, *UNTIL, "--topic-prefix", "replay/", "--qos", "1", "--no-retain", "--with-times"]

    async def scenario() -> None:
        told, listener = await played(target.port, 2, redis_server.url, *arguments, "--json")
        first, second = listener.received
        assert (first.topic_name, first.qos, second.topic_name) == ("replay/site/1", 1, "replay/r")
        assert json.loads(first.payload) == {
            "accepted_at": "2026-01-31T12:00:00.000000Z",
            "node": "a",
            "client_id": "pump",
            "topic": "site/1",
            "qos": 2,
            "retain": False,
            "payload": "21.5",
        }
        assert base64.b64decode(json.loads(second.payload)["payload_base64"]) == b"\xff\x00"
        assert told.json["left_out"] == 1
        async with Client(Options(port=target.port, client_id="later")) as later:
            await later.subscribe([("#", 0)])
            await later.publish("end")
            assert (await later.receive()).topic_name == "end"  # nothing is retained

    asyncio.run(scenario())


def test_what_clears_a_retained_message_stays_empty(redis_server: RedisProcess, target: BrokerProcess) -> None:
    WrittenLog(redis_server, "n1", "a").write([Row(T0, "c", "r", 0, True, False, b"")])
    _, listener = asyncio.run(played(target.port, 1, redis_server.url, *SINCE, *UNTIL, "--with-times"))
    assert listener.received[0].payload == b""


PROPERTIES = {
    "message_expiry_interval": 30,
    "content_type": "text/plain",
    "response_topic": "answers",
    "correlation_data": b"\xff",
    "user_property": [("tenant", "one")],
}


def rows_with_properties() -> list[Row]:
    return [
        row(T0, payload=b"1", qos=1)._replace(properties=encode_block(PROPERTIES)),
        row(T0 + 1, payload=b"2", qos=1),
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {name: value for name, value in PROPERTIES.items() if name != "message_expiry_interval"}),
        (["--keep-expiry"], PROPERTIES),
        (["--keep-expiry", "--topic-prefix", "replay/"], PROPERTIES | {"response_topic": "replay/answers"}),
    ],
    ids=" ".join,
)
def test_properties_are_published_again(
    redis_server: RedisProcess, target: BrokerProcess, flags: list[str], expected: dict[str, Any]
) -> None:
    WrittenLog(redis_server, "n1", "a").write(rows_with_properties())
    told, listener = asyncio.run(played(target.port, 2, redis_server.url, *SINCE, *UNTIL, *flags))
    assert told.status == 0, told.errors
    assert [message.properties for message in listener.received] == [expected, {}]


def test_properties_in_json(redis_server: RedisProcess, target: BrokerProcess, replay: Replay) -> None:
    WrittenLog(redis_server, "n1", "a").write(rows_with_properties())
    first, second = replay(*SINCE, *UNTIL, "--dry-run", "--json").lines
    assert first["properties"] == {
        "message-expiry-interval": 30,
        "content-type": "text/plain",
        "response-topic": "answers",
        "correlation-data-base64": "/w==",
        "user-properties": {"tenant": "one"},
    }
    assert "properties" not in second
    _, listener = asyncio.run(played(target.port, 2, redis_server.url, *SINCE, *UNTIL, "--with-times"))
    message = listener.received[0]
    assert json.loads(message.payload) == first
    assert message.properties.keys() == {"response_topic", "correlation_data", "user_property"}


@contextlib.asynccontextmanager
async def without_level_5(target: int) -> AsyncIterator[int]:
    """The port of a proxy before a node that refuses CONNECT of level 5, as a broker of another kind may."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begin = await reader.readuntil(b"MQTT") + await reader.readexactly(1)
        if begin[-1] == 5:
            writer.write(bytes([0x20, 3, 0, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 0]))
            writer.close()
            return
        answers, node = await asyncio.open_connection("127.0.0.1", target)
        node.write(begin)
        await asyncio.gather(pump(reader, node), pump(answers, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def test_a_broker_without_level_5_gets_no_properties(redis_server: RedisProcess, target: BrokerProcess) -> None:
    WrittenLog(redis_server, "n1", "a").write(rows_with_properties())

    async def replayed() -> tuple[Told, Listener]:
        async with without_level_5(target.port) as port:
            return await played(port, 2, redis_server.url, *SINCE, *UNTIL, level=4)

    told, listener = asyncio.run(replayed())
    assert told.status == 0, told.errors
    assert [message.payload for message in listener.received] == [b"1", b"2"]
    assert told.errors.endswith("1 without their properties: the broker speaks no MQTT 5.0\n")


def test_refused_messages_are_counted(redis_server: RedisProcess, target: BrokerProcess) -> None:
    WrittenLog(redis_server, "n1", "a").write([row(T0, "$SYS/x", qos=1), row(T0 + 1, "t", b"2", qos=1)])
    told, _ = asyncio.run(played(target.port, 1, redis_server.url, *SINCE, *UNTIL))
    assert told.status == 1
    assert "1 of 2 acknowledged; 1 refused, at first: the message was refused: Not authorized" in told.errors


# ---- how it ends ----


def started(url: str, *arguments: str, **popen: Any) -> "subprocess.Popen[bytes]":
    """The command, running."""
    command = [sys.executable, "-m", "flockmq.broker.cli", "replay", "--redis", url, *arguments]
    return subprocess.Popen(command, env=environment(), **popen)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_count(redis_server: RedisProcess, target: BrokerProcess, signum: int) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0 + index, payload=b"%d" % index, qos=1) for index in range(20)])
    log.write([row(T0 + 900 * SECOND, qos=1)])

    async def scenario() -> tuple[int, str]:
        async with Listener(target.port) as listener:
            process = started(
                redis_server.url, *SINCE, *UNTIL, "--to", f"127.0.0.1:{target.port}", stderr=subprocess.PIPE
            )
            await listener.wait_for(20)
            process.send_signal(signum)
            _, errors = await asyncio.to_thread(process.communicate, timeout=DEADLINE)
        return process.returncode, errors.decode()

    status, errors = asyncio.run(scenario())
    assert status == 128 + signum
    assert re.fullmatch(
        r"flockmq: 20 messages published in [\d.]+ s; 20 of 20 acknowledged; ended before all was published, "
        r"--since 2026-01-31T12:00:00.000019Z goes on\n",
        errors,
    )


def test_a_broker_that_does_not_read_does_not_hold_up_the_end(
    redis_server: RedisProcess, target: BrokerProcess
) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    for number in range(50):
        log.write([row(T0 + number * 100 + index, payload=bytes(20_000), qos=1) for index in range(100)])

    async def scenario() -> tuple[int, str]:
        async with Listener(target.port) as listener:
            process = started(
                redis_server.url, *SINCE, *UNTIL, "--to", f"127.0.0.1:{target.port}", stderr=subprocess.PIPE
            )
            await listener.wait_for(1)
            target.signal(signal.SIGSTOP)
            try:
                process.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):  # it waits for acknowledgements
                    await asyncio.to_thread(process.wait, 1)
                process.send_signal(signal.SIGINT)
                _, errors = await asyncio.to_thread(process.communicate, timeout=DEADLINE)
            finally:
                target.signal(signal.SIGCONT)
        return process.returncode, errors.decode()

    status, errors = asyncio.run(scenario())
    assert status == 130
    published, acknowledged, expected = map(
        int, re.findall(r"(\d+) (?:messages|of|acknowledged)", errors.replace(",", ""))
    )
    assert acknowledged < expected == published
    assert "Z goes on" in errors


def test_a_broker_that_dies_is_told_with_where_to_go_on(redis_server: RedisProcess, target: BrokerProcess) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0, qos=1), row(T0 + 7, qos=1), row(T0 + 900 * SECOND, qos=1)])

    async def scenario() -> tuple[int, str]:
        async with Listener(target.port) as listener:
            process = started(
                redis_server.url, *SINCE, *UNTIL, "--to", f"127.0.0.1:{target.port}", stderr=subprocess.PIPE
            )
            await listener.wait_for(2)
            target.kill()
            _, errors = await asyncio.to_thread(process.communicate, timeout=DEADLINE)
        return process.returncode, errors.decode()

    status, errors = asyncio.run(scenario())
    assert status == 1
    count, error = errors.splitlines()
    assert count.startswith("flockmq: 2 messages published in ")
    assert re.fullmatch(
        r"flockmq: error: connection to 127.0.0.1:\d+ lost: .*; --since 2026-01-31T12:00:00.00000[07]Z goes on", error
    )


def test_a_terminal_sees_how_far_it_is(redis_server: RedisProcess, target: BrokerProcess) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(T0), row(T0 + SECOND), row(T0 + 900 * SECOND)])
    ours, theirs = pty.openpty()
    process = started(redis_server.url, *SINCE, *UNTIL, "--to", f"127.0.0.1:{target.port}", stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"messages" not in seen:
        seen += os.read(ours, 4096)
    assert re.search(rb"\rat \d\d:\d\d:\d\d of \d\d:\d\d:\d\d: \d messages, \d+/s", seen)
    process.send_signal(signal.SIGINT)
    while b"published" not in seen:
        seen += os.read(ours, 4096)
    assert process.wait(DEADLINE) == 130
    os.close(ours)


def test_memory_does_not_grow_with_the_range(redis_server: RedisProcess) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    for index in range(1200):
        log.write([row(T0 + index * 1000, payload=bytes(200_000))])  # 240 MB
    code = (
        "import re, sys; from flockmq.broker.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)\n"
        "sys.exit(status)"
    )
    flags = [*SINCE, *UNTIL, "--count", "--json"]
    command = [sys.executable, "-c", code, "replay", "--redis", redis_server.url, *flags]
    result = subprocess.run(command, env=environment(), capture_output=True, check=True)
    assert json.loads(result.stdout)["payload_bytes"] == 240_000_000
    assert int(result.stderr) < 190_000, f"{result.stderr!r} KiB, where a piece of a log has 8192"


# ---- wrong usage ----


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no --since"),
        (["--since", "soon"], "--since 'soon': expected a time such as"),
        (["--since", "1 min ago", "--until", "2 min ago"], "is not before --until"),
        (["--since", "1 h ago", "--filter", "a/#/b"], "--filter 'a/#/b'"),
        (["--since", "1 h ago", "--speed", "fast"], "--speed 'fast': expected a factor such as 10x or 0.5x, or max"),
        (["--since", "1 h ago", "--speed", "0x"], "--speed '0x'"),
        (["--since", "1 h ago", "--max-pause", "long"], "--max-pause 'long': expected a duration such as"),
        (["--since", "1 h ago", "--to", "http://host"], "--to is no broker's address"),
        (["--since", "1 h ago", "--to", "mqtts://host/topic"], "--topic-prefix is for topic names"),
        (["--since", "1 h ago", "--to", "mqtts://host", "--cafile", "/none"], "--cafile /none: No such file"),
        (["--since", "1 h ago", "--to", "mqtts://host", "--key", "k"], "--key needs --cert"),
        (["--since", "1 h ago", "--to", "ws://host", "--insecure"], "are for --to mqtts:// or wss://"),
        (["--since", "1 h ago", "--to", "mqtt://host/topic"], "--topic-prefix is for topic names"),
        (["--since", "1 h ago", "--topic-prefix", "a/#"], "--topic-prefix 'a/#'"),
        (["--since", "1 h ago", "--count", "--dry-run"], "exclude each other"),
        (["--since", "1 h ago", "--qos", "3"], "--qos"),
        (["--since", "1 h ago", "--sped", "2x"], "did you mean --speed?"),
    ],
)
def test_wrong_usage_is_one_line(replay: Replay, flags: list[str], words: str) -> None:
    told = replay(*flags)
    assert told.status == 2
    assert words in told.errors
    assert len(told.errors.splitlines()) == 1


def test_no_logs_and_no_such_node_are_told(redis_server: RedisProcess, replay: Replay) -> None:
    told = replay("--since", "1 h ago")
    assert (told.status, "`analytics.topics`" in told.errors) == (1, True)
    WrittenLog(redis_server, "n1", "a")
    told = replay("--since", "1 h ago", "--node", "b")
    assert told.errors == "flockmq: error: there is no log of node b; there are those of a\n"
    told = replay("--since", "1 h ago", "--to", f"127.0.0.1:{free_port()}")
    assert (told.status, "connection refused" in told.errors) == (1, True)


def test_a_password_is_never_shown(redis_server: RedisProcess, replay: Replay) -> None:
    WrittenLog(redis_server, "n1", "a")
    for to in ("mqtt://u:sesame@127.0.0.1:1/x", "mqtt://:sesame@127.0.0.1", f"mqtt://u:sesame@127.0.0.1:{free_port()}"):
        told = replay("--since", "1 h ago", "--to", to)
        assert told.status in (1, 2)
        assert "sesame" not in told.errors + told.out
