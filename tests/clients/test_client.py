"""The client and the commands `pub` and `sub`: against a real broker, and against one that follows a script."""

import asyncio
import json
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flockmq._speedups.codec.packets")

from flockmq._speedups.codec import packets
from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.protocol.client_session import Will
from flockmq.broker.cli import main
from flockmq.broker.client.client import Client
from flockmq.broker.client.options import Options
from flockmq.broker.errors import ClientError, ConnectError, ConnectionLostError, ConnectRefusedError
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

LEVELS = pytest.mark.parametrize("level", [3, 4, 5])


@pytest.fixture(scope="module", params=["flockmq", "mosquitto"])
def broker_port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a broker that answers: ours, and one that judges the client from outside."""
    directory = tmp_path_factory.mktemp("broker")
    if request.param == "flockmq":
        broker = BrokerProcess(directory, settings={"limits.max_queued_messages": 100_000}).start()
        yield broker.port
        assert broker.stop() == 0
        broker.check()
    else:
        yield from mosquitto(directory)


def mosquitto(directory: Path) -> Iterator[int]:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n", "utf-8")
    process = nursery.start([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "mosquitto has ended"
                assert time.monotonic() < deadline, "mosquitto does not answer"
                time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()


def run(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(limited())


def options(port: int, **more: Any) -> Options:
    more.setdefault("client_id", "c1")
    return Options(port=port, **more)


# ---- against a broker -----------------------------------------------------------------------------------------------


@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_receive(broker_port: int, level: int, qos: int) -> None:
    async def work() -> None:
        async with Client(options(broker_port, level=level)) as client:
            assert (await client.subscribe([("pr/#", qos), ("other", 0)])).reason_codes == [qos, 0]
            for payload in (b"", b"x", bytes(range(256)) * 1000):
                await client.publish("pr/a", payload, qos)
                message = await client.receive()
                assert (message.topic_name, message.payload, message.qos) == ("pr/a", payload, qos)
                assert not message.retain
                assert not message.dup
            await client.unsubscribe(["pr/#"])
            await client.publish("pr/a", b"unseen", qos)
            await client.publish("other", b"seen", qos)
            assert (await client.receive()).payload == b"seen"

    run(work())


@LEVELS
def test_many_in_flight_arrive_in_order(broker_port: int, level: int) -> None:
    async def work() -> None:
        async with Client(options(broker_port, level=level, max_inflight=10)) as client:
            await client.subscribe([("many", 2)])
            for qos in (1, 2):
                pending = [await client.start_publish("many", b"%d" % n, qos) for n in range(3000)]
                assert [(await client.receive()).payload for _ in range(3000)] == [b"%d" % n for n in range(3000)]
                await asyncio.gather(*pending)

    run(work())


@LEVELS
def test_what_was_not_acknowledged_comes_again(broker_port: int, level: int) -> None:
    async def work() -> None:
        kept = {"session_expiry_interval": 60} if level == 5 else {}
        client = Client(
            options(broker_port, level=level, clean_start=False, client_id=f"again-{level}", properties=kept)
        )
        await client.connect()
        await client.subscribe([("again", 2)])
        for qos in (1, 2):
            await client.publish("again", b"%d" % qos, qos)
        first = [await client.receive(acknowledge=False) for _ in range(2)]
        client.abort()
        with pytest.raises(ConnectionLostError):
            await client.receive()
        client.acknowledge(first[1])  # QoS 2, taken over without a connection: must not come again
        await client.connect()
        repeated = await client.receive()
        assert (repeated.payload, repeated.dup) == (b"1", True)
        await client.publish("again", b"end")
        assert (await client.receive()).payload == b"end"
        await client.disconnect()
        assert not client.connected

    run(work())


def test_will_comes_after_abort(broker_port: int) -> None:
    async def work() -> None:
        async with Client(options(broker_port)) as watcher:
            await watcher.subscribe([("will", 1)])
            doomed = Client(options(broker_port, client_id="c2", will=Will("will", b"gone", 1)))
            await doomed.connect()
            doomed.abort()
            assert (await watcher.receive()).payload == b"gone"

    run(work())


def test_keep_alive_sends_pings(broker_port: int) -> None:
    async def work() -> None:
        answered = asyncio.Event()

        def on_packet(direction: str, packet: Any) -> None:
            if isinstance(packet, packets.Pingresp):
                answered.set()

        async with Client(options(broker_port, keep_alive=1), on_packet=on_packet):
            await answered.wait()

    run(work())


def test_nobody_there() -> None:
    with pytest.raises(ConnectError, match="connection refused; is a broker there"):
        run(Client(Options(port=free_port())).connect())
    with pytest.raises(ConnectError, match=r"cannot find host 'nosuch\.invalid'"):
        run(Client(Options(host="nosuch.invalid")).connect())


def test_what_cannot_be_encoded_is_a_client_error(broker_port: int) -> None:
    async def work() -> None:
        async with Client(options(broker_port, max_inflight=1)) as client:
            for topic in ("a/#", "", "x" * 70000):
                with pytest.raises(ClientError):
                    await client.publish(topic, b"", 1)
            await client.publish("a", b"", 1)  # the window is not lost

    run(work())


# ---- against a script -----------------------------------------------------------------------------------------------


class Script:
    """The broker's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, level: int) -> None:
        self.reader, self.writer, self.level = reader, writer, level
        self.decoder = Decoder(level)
        self.received: list[Any] = []

    async def expect(self, kind: type) -> Any:
        while not self.received:
            data = await self.reader.read(65536)
            assert data, f"no {kind.__name__} but the end"
            self.received += self.decoder.feed(data)
        packet = self.received.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    def send(self, *sent: Any) -> None:
        frames = (packet if isinstance(packet, bytes) else encode(packet, self.level) for packet in sent)
        self.writer.write(b"".join(frames))


def converse(
    script: Callable[[Script], Awaitable[None]],
    work: Callable[[Client], Awaitable[None]],
    level: int = 4,
    on_packet: Callable[[str, Any], None] | None = None,
    **more: Any,
) -> None:
    """Run `work` with a client whose every connection is answered by `script`."""

    async def both() -> None:
        failed: list[BaseException] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await script(Script(reader, writer, level))
            except BaseException as error:
                failed.append(error)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            await work(Client(options(port, level=level, **more), on_packet=on_packet))
        finally:
            server.close()
            assert not failed, failed

    run(both())


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "protocol version"), (2, "identifier"), (3, "unavailable"), (4, "password"), (5, "authorized")],
)
def test_refused_by_name(code: int, words: str) -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(False, code))

    async def work(client: Client) -> None:
        with pytest.raises(ConnectRefusedError, match=words) as caught:
            await client.connect()
        assert caught.value.return_code == code
        assert not client.connected

    converse(script, work)


def test_refused_at_level_5() -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(False, 0x84, {"reason_string": "only 4"}))

    async def work(client: Client) -> None:
        with pytest.raises(ConnectRefusedError, match="Unsupported Protocol Version: only 4; try another -V") as caught:
            await client.connect()
        assert caught.value.return_code == 0x84

    converse(script, work, 5)


def test_a_faulty_level_5_broker_gets_the_reason() -> None:
    codes = []

    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        first, second = (packets.Publish("a", b"x", 1, packet_id=number) for number in (1, 2))
        peer.send(packets.Connack(), first, second)
        codes.append((await peer.expect(packets.Disconnect)).reason_code)

    async def work(client: Client) -> None:
        await client.connect()
        assert (await client.receive(acknowledge=False)).packet_id == 1
        with pytest.raises(ConnectionLostError, match="Receive Maximum"):
            await client.receive()

    converse(script, work, 5, properties={"receive_maximum": 1})
    assert codes == [0x93]


def test_disconnect_with_a_reason() -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(properties={"assigned_client_identifier": "given", "server_keep_alive": 7}))
        found = await peer.expect(packets.Disconnect)
        assert (found.reason_code, found.properties) == (4, {"session_expiry_interval": 9})

    async def work(client: Client) -> None:
        await client.connect()
        assert client.client_id == "given"
        await client.disconnect(4, {"session_expiry_interval": 9})

    converse(script, work, 5, client_id="", properties={"session_expiry_interval": 1})


def test_connect_packet() -> None:
    for level in (3, 4):

        async def script(peer: Script) -> None:
            packet = await peer.expect(packets.Connect)
            assert (packet.client_id, packet.clean_start, packet.keep_alive) == ("c1", False, 7)
            assert (packet.username, packet.password, packet.protocol_level) == ("u", b"p", peer.level)
            assert (packet.will_topic, packet.will_payload, packet.will_qos, packet.will_retain) == ("w", b"x", 2, True)
            peer.send(packets.Connack())
            await peer.expect(packets.Disconnect)

        async def work(client: Client) -> None:
            async with client:
                pass

        will = Will("w", b"x", 2, True)
        converse(script, work, level, clean_start=False, keep_alive=7, username="u", password=b"p", will=will)


def test_no_answer_is_told_in_time() -> None:
    async def script(peer: Script) -> None:
        await peer.reader.read()

    async def work(client: Client) -> None:
        with pytest.raises(ConnectError, match=r"did not answer within 0\.05 s"):
            await client.connect()

    converse(script, work, timeout=0.05)


def test_unanswered_ping_ends_the_connection() -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack())
        await peer.expect(packets.Pingreq)
        await peer.reader.read()

    async def work(client: Client) -> None:
        await client.connect()
        with pytest.raises(ConnectionLostError, match="no answer to PINGREQ"):
            await client.receive()

    converse(script, work, keep_alive=1, timeout=0.1)


def test_packets_in_the_same_read_as_connack() -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(True), packets.Publish("a", b"x", 1, packet_id=9), packets.Pubrel(8))
        assert (await peer.expect(packets.Pubcomp)).packet_id == 8
        assert (await peer.expect(packets.Puback)).packet_id == 9
        await peer.expect(packets.Disconnect)

    async def work(client: Client) -> None:
        async with client:
            assert await client.receive() == packets.Publish("a", b"x", 1, False, False, 9)

    converse(script, work, clean_start=False)


@LEVELS
def test_qos_2_is_received_once(level: int) -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        first = packets.Publish("a", b"1", 2, packet_id=5)
        again = packets.Publish("a", b"1", 2, dup=True, packet_id=5)
        peer.send(packets.Connack(), first, again)  # a level 3 broker may be impatient
        assert (await peer.expect(packets.Pubrec)).packet_id == 5
        peer.send(again)
        assert (await peer.expect(packets.Pubrec)).packet_id == 5
        peer.send(packets.Pubrel(5), packets.Pubrel(5), packets.Publish("a", b"2", 2, packet_id=5))
        for kind in (packets.Pubcomp, packets.Pubcomp, packets.Pubrec):
            assert (await peer.expect(kind)).packet_id == 5

    async def work(client: Client) -> None:
        await client.connect()
        assert [(await client.receive()).payload for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(ConnectionLostError):
            await client.receive()

    converse(script, work, level)


@LEVELS
def test_unacknowledged_messages_are_sent_again(level: int) -> None:
    connections = 0
    released = asyncio.Event()

    def on_packet(direction: str, packet: Any) -> None:
        if isinstance(packet, packets.Pubrel):
            released.set()

    async def script(peer: Script) -> None:
        nonlocal connections
        connections += 1
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(connections > 1 and level > 3))
        dup = connections > 1
        if connections == 1:
            first = await peer.expect(packets.Publish)
            peer.send(packets.Pubrec(first.packet_id))
        assert (await peer.expect(packets.Pubrel)).packet_id == 1
        for payload, qos in ((b"b", 1), (b"c", 2)):
            packet = await peer.expect(packets.Publish)
            assert (packet.payload, packet.qos, packet.dup) == (payload, qos, dup)
        if connections == 2:
            assert (await peer.expect(packets.Publish)).packet_id == 4
            peer.send(packets.Pubcomp(1), packets.Puback(2), packets.Pubrec(3))
            assert (await peer.expect(packets.Pubrel)).packet_id == 3
            peer.send(packets.Pubcomp(3), packets.Puback(4))

    async def work(client: Client) -> None:
        await client.connect()
        pending = [await client.start_publish("a", b"a", 2)]
        await released.wait()
        pending += [await client.start_publish("a", b"b", 1), await client.start_publish("a", b"c", 2)]
        for done in pending:
            with pytest.raises(ConnectionLostError):
                await done
        await client.connect()
        await client.publish("a", b"d", 1)

    converse(script, work, level, on_packet, clean_start=False)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\xff\xff\xff\xff\xff", "broke the protocol"),
        (encode(packets.Pingreq(), 4), "sent PINGREQ"),
        (encode(packets.Publish("a", b"x"), 4) + b"\x00\x00", "broke the protocol"),
    ],
)
def test_broker_that_breaks_the_protocol(frame: bytes, words: str) -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(), frame)
        await peer.reader.read()

    async def work(client: Client) -> None:
        await client.connect()
        with pytest.raises(ConnectionLostError, match=words):
            while True:
                assert (await client.receive()).payload == b"x"
        with pytest.raises(ConnectionLostError):
            await client.publish("a")

    converse(script, work)


def test_limits_of_a_level_5_broker() -> None:
    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack(properties={"receive_maximum": 2, "maximum_packet_size": 100}))
        first, second = [await peer.expect(packets.Publish) for _ in range(2)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.expect(packets.Publish), 0.05)
        peer.send(packets.Puback(first.packet_id), packets.Puback(second.packet_id, 0x87))
        third = await peer.expect(packets.Publish)
        peer.send(packets.Puback(third.packet_id))
        await peer.expect(packets.Subscribe)
        peer.send(packets.Disconnect(0x8E, {"reason_string": "by node 2"}))

    async def work(client: Client) -> None:
        await client.connect()
        with pytest.raises(ClientError, match="the broker accepts 100"):
            await client.publish("a", bytes(100))
        first, second, third = [await client.start_publish("a", b"x", 1) for _ in range(3)]
        await asyncio.gather(first, third)
        with pytest.raises(ClientError, match="refused: Not authorized"):
            await second
        for ended in (client.subscribe([("a", 0)]), client.receive()):
            with pytest.raises(ConnectionLostError, match="sent DISCONNECT: Session taken over: by node 2") as caught:
                await ended
            assert caught.value.reason_code == 0x8E

    converse(script, work, 5)


def test_what_nobody_takes_is_not_read() -> None:
    async def work(client: Client) -> None:
        await client.connect()
        for _ in range(20_000):
            assert (await client.receive()).payload == payload
            assert client.waiting < 3000  # the mark, and the bytes of one read

    payload = b"x" * 1000

    async def script(peer: Script) -> None:
        await peer.expect(packets.Connect)
        peer.send(packets.Connack())
        for _ in range(20_000):
            peer.send(packets.Publish("a", payload))
            await peer.writer.drain()

    converse(script, work)


# ---- the commands ---------------------------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flockmq.broker.cli", *arguments]


class Sub:
    """`flockmq sub` as a process that has subscribed."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.process = nursery.start(
            command("sub", "-p", str(port), "-h", "127.0.0.1", "-d", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if b"received SUBACK" in line:
                return
        raise AssertionError(b"".join(told))

    def finish(self) -> tuple[int, bytes]:
        output, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, output


def pub(port: int, *arguments: str, stdin: bytes | None = None) -> int:
    done = nursery.run(
        command("pub", "-p", str(port), "-h", "127.0.0.1", *arguments), input=stdin, timeout=DEADLINE, check=False
    )
    return done.returncode


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_pub_to_sub(broker_port: int, version: str, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"from a file")
    sub = Sub(broker_port, "-t", "ps/#", "-q", "2", "-C", "8", "-v", "-V", version)
    common = ("-V", version, "-q", "2")
    assert pub(broker_port, "-t", "ps/m", "-m", "text", *common) == 0
    assert pub(broker_port, "-t", "ps/n", "-n", *common) == 0
    assert pub(broker_port, "-t", "ps/f", "-f", str(file), *common) == 0
    assert pub(broker_port, "-t", "ps/s", "-s", *common, stdin=b"all\nof it") == 0
    assert pub(broker_port, "-t", "ps/l", "-l", *common, stdin=b"one\ntwo") == 0
    assert pub(broker_port, "-t", "ps/r", "-m", "twice", "--repeat", "2", "--repeat-delay", "0.01", *common) == 0
    lines = b"ps/m text\nps/n (null)\nps/f from a file\nps/s all\nof it\nps/l one\nps/l two\nps/r twice\nps/r twice\n"
    assert sub.finish() == (0, lines)


def test_sub_filters_out_and_formats(broker_port: int) -> None:
    sub = Sub(broker_port, "-t", "f/#", "-T", "f/no/+", "-C", "2", "-N", "-F", "%t=%p\\n", "-q", "1")
    for topic in ("f/a", "f/no/b", "f/c"):
        assert pub(broker_port, "-t", topic, "-m", "x", "-q", "1") == 0
    assert sub.finish() == (0, b"f/a=x\nf/c=x\n")


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_subs_share_a_subscription(broker_port: int, version: str) -> None:
    subs = [Sub(broker_port, "-t", "$share/g/sh/#", "-q", "1", "-C", "2", "-V", version) for _ in range(2)]
    for number in range(4):
        assert pub(broker_port, "-t", "sh/x", "-m", str(number), "-q", "1") == 0
    outputs = [sub.finish() for sub in subs]
    assert [status for status, _ in outputs] == [0, 0]
    lines = [output.split() for _, output in outputs]
    assert [len(own) for own in lines] == [2, 2]
    assert sorted(line for own in lines for line in own) == [b"0", b"1", b"2", b"3"]


def test_retained_only_and_without_retained(broker_port: int) -> None:
    assert pub(broker_port, "-t", "ret/a", "-m", "old", "-r", "-q", "1") == 0
    only = Sub(broker_port, "-t", "ret/#", "--retained-only", "-v")
    without = Sub(broker_port, "-t", "ret/#", "-R", "-C", "1", "-v")
    assert pub(broker_port, "-t", "ret/b", "-m", "new", "-q", "1") == 0
    assert only.finish() == (0, b"ret/a old\n")
    assert without.finish() == (0, b"ret/b new\n")


def test_sub_prints_as_mosquitto_sub(broker_port: int) -> None:
    other = shutil.which("mosquitto_sub")
    if other is None:
        pytest.skip("mosquitto_sub is not installed")
    for index, payload in enumerate(("hello", '{"a":1}', "x" * 100)):
        assert pub(broker_port, "-t", f"like/{index}", "-m", payload, "-r", "-q", str(index)) == 0
    for template in (
        "%t|%p|%q|%r|%l|%m",
        "%x %X",
        "%10t|%-10t|%05l|%.2t|%10.3t",
        r"a\tb\\\e@@%%",
        "@Y-@m-@d",
        "%A%C%E",
    ):
        arguments = ["-h", "127.0.0.1", "-p", str(broker_port), "-t", "like/#", "-q", "2", "-C", "3", "-F", template]
        expected, ours = (
            nursery.run(program, capture_output=True, timeout=DEADLINE, check=True).stdout
            for program in ([other, *arguments], command("sub", *arguments))
        )
        assert ours == expected, template


def test_properties_as_mosquitto_sends_and_prints_them(broker_port: int) -> None:
    """A message of each maker's pub, retained, through each maker's sub."""
    if shutil.which("mosquitto_sub") is None or shutil.which("mosquitto_pub") is None:
        pytest.skip("mosquitto_sub is not installed")
    common = ["-h", "127.0.0.1", "-p", str(broker_port), "-V", "5"]
    given = {
        "payload-format-indicator": ["1"],
        "message-expiry-interval": ["500000"],
        "content-type": ["text/plain; ü"],
        "response-topic": ["answers/1"],
        "correlation-data": ["a\tb"],
        "user-property": ["first", "1"],
    }
    flags = [flag for name, values in given.items() for flag in ("-D", "publish", name, *values)]
    flags += ["-D", "publish", "user-property", "-second", "-D", "-m", "text", "-r", "-q", "1"]
    for number, program in enumerate((["mosquitto_pub"], command("pub"))):
        nursery.run([*program, *common, "-t", f"props/{number}", *flags], timeout=DEADLINE, check=True)
    for template in ("%C|%D|%F|%P|%R|%S|%A|%t", "%20C|%.3R"):
        flags = ["-t", "props/#", "-C", "2", "-F", template, "-D", "subscribe", "subscription-identifier", "77"]
        expected, ours = (
            nursery.run([*program, *common, *flags], capture_output=True, timeout=DEADLINE, check=True).stdout
            for program in (["mosquitto_sub"], command("sub"))
        )
        assert ours == expected, template
    assert b"ans" in expected
    flags = ["-t", "props/0", "-C", "1", "-F", "%j %E"]
    lines = [
        nursery.run([*program, *common, *flags], capture_output=True, timeout=DEADLINE, check=True).stdout
        for program in (["mosquitto_sub"], command("sub"))
    ]
    decoder = json.JSONDecoder()
    documents = []
    for line in lines:
        document, end = decoder.raw_decode(line.decode())
        assert 499_000 < int(line.decode()[end:]) <= 500_000
        document["properties"].pop("message-expiry-interval")
        document.pop("tst")
        documents.append(document)
    assert documents[0] == documents[1]


def test_the_options_of_a_subscription(broker_port: int) -> None:
    common = ["-t", "opt/#", "-F", "%t %r %p", "-q", "1"]
    assert pub(broker_port, "-t", "opt/kept", "-m", "old", "-r", "-q", "1") == 0
    never = Sub(broker_port, *common, "-C", "1", "--retain-handling", "never")
    kept = Sub(broker_port, *common, "-C", "2", "--retain-as-published")
    assert pub(broker_port, "-t", "opt/live", "-m", "new", "-r", "-q", "1") == 0
    assert never.finish() == (0, b"opt/live 0 new\n")
    assert kept.finish() == (0, b"opt/kept 1 old\nopt/live 1 new\n")


def test_the_alias_of_many_messages(broker_port: int) -> None:
    sub = Sub(broker_port, "-t", "al/#", "-C", "3", "-v", "-V", "5", "-D", "connect", "topic-alias-maximum", "5")
    assert pub(broker_port, "-t", "al/ias", "-m", "x", "--repeat", "3", "-D", "publish", "topic-alias", "2") == 0
    assert sub.finish() == (0, b"al/ias x\n" * 3)


@pytest.mark.parametrize("broker_port", ["flockmq"], indirect=True)
def test_refusals_with_their_reasons(broker_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    port = ["-p", str(broker_port), "-h", "127.0.0.1", "-V", "5"]
    assert main(["sub", *port, "-t", "a\tb", "-W", "5"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("flockmq: error: the broker refused to subscribe to a\\tb (Topic Filter invalid): ")
    assert main(["pub", *port, "-t", "$SYS/a", "-m", "x", "-q", "1"]) == 1
    assert capfd.readouterr().err.startswith("flockmq: error: the message was refused: Not authorized: ")
    assert main(["pub", *port, "-t", "a", "-m", "x", "-D", "publish", "topic-alias", "60000"]) == 1
    assert "no topic alias above" in capfd.readouterr().err


def test_persistent_sub_gets_what_it_missed(broker_port: int) -> None:
    session = ("-t", "missed", "-q", "1", "-c", "-i", "missed-1")
    sub = Sub(broker_port, *session, "-E")
    assert sub.finish() == (0, b"")
    assert pub(broker_port, "-t", "missed", "-m", "while away", "-q", "1") == 0
    assert Sub(broker_port, *session, "-C", "1").finish() == (0, b"while away\n")


def test_sub_ends_quietly_on_a_signal(broker_port: int) -> None:
    sub = Sub(broker_port, "-t", "quiet")
    sub.process.send_signal(2)
    _, told = sub.process.communicate(timeout=DEADLINE)
    assert sub.process.returncode == 0
    assert b"Traceback" not in told
    assert b"sending DISCONNECT" in told


def test_sub_into_a_closed_pipe_is_quiet(broker_port: int) -> None:
    sub = Sub(broker_port, "-t", "pipe")
    assert sub.process.stdout is not None
    assert sub.process.stderr is not None
    sub.process.stdout.close()
    assert pub(broker_port, "-t", "pipe", "-m", "x") == 0
    assert sub.process.wait(20) == 141
    assert b"Traceback" not in sub.process.stderr.read()
    sub.process.stderr.close()


def test_url(broker_port: int, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    url = f"mqtt://u%40x:p@127.0.0.1:{broker_port}/url/a%20b"
    assert main(["pub", "-L", url, "-m", "x", "-r"]) == 0
    assert main(["sub", "-L", f"mqtt://127.0.0.1:{broker_port}/url/#", "-C", "1", "-v"]) == 0
    assert capfdbinary.readouterr().out == b"url/a b x\n"


def test_sub_times_out(broker_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sub", "-p", str(broker_port), "-h", "127.0.0.1", "-t", "none", "-W", "0.05"]) == 27
    assert capfd.readouterr().err == "flockmq: timed out\n"


@pytest.mark.parametrize("broker_port", ["flockmq"], indirect=True)
def test_sub_fails_when_all_its_filters_are_refused(broker_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    common = ["sub", "-p", str(broker_port), "-h", "127.0.0.1", "-t", "a\tb"]  # `mqtt.control_characters` is false
    assert main([*common, "-W", "5"]) == 1
    assert capfd.readouterr().err == "flockmq: error: the broker refused to subscribe to a\\tb\n"
    assert main([*common, "-t", "good", "-E"]) == 0
    assert capfd.readouterr().err == "flockmq: warning: the broker refused to subscribe to a\\tb\n"


@pytest.mark.parametrize("broker_port", ["flockmq"], indirect=True)
def test_sub_reports_why_a_stream_is_refused(broker_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sub", "-p", str(broker_port), "-h", "127.0.0.1", "-t", "a", "--since", "10m", "-W", "5"]) == 1
    assert "analytics.topics keeps one" in capfd.readouterr().err


@pytest.mark.parametrize("broker_port", ["flockmq"], indirect=True)
def test_tls_to_a_port_without_it(broker_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pub", "-p", str(broker_port), "-h", "127.0.0.1", "-t", "a", "-m", "x", "--tls"]) == 1
    assert "the connection ended before TLS began; does that port speak TLS?\n" in capfd.readouterr().err


def test_a_port_that_speaks_http(capfd: pytest.CaptureFixture[str]) -> None:
    class Refuse(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 70\r\n\r\n" + b"x" * 70)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        common = ["pub", "-p", str(server.server_address[1]), "-h", "127.0.0.1", "-t", "a", "-m", "x"]
        assert main(common) == 1
        assert "HTTP is spoken there, not MQTT; --ws is MQTT over WebSocket\n" in capfd.readouterr().err
        assert main([*common, "--tls"]) == 1
        assert "does that port speak TLS?\n" in capfd.readouterr().err
        server.shutdown()


@pytest.mark.parametrize("name", ["pub", "sub"])
def test_failures_are_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    message = ["-m", "x"] if name == "pub" else []
    common = [name, "-h", "127.0.0.1", "-p", str(free_port()), "-t", "a", *message]
    assert main(common) == 1
    line = capfd.readouterr().err
    assert line.startswith("flockmq: error: cannot connect to 127.0.0.1:")
    assert line.endswith("connection refused; is a broker there?\n")
    assert main([*common, "--quiet"]) == 1
    assert capfd.readouterr().err == ""


def test_sub_connects_again(tmp_path: Path) -> None:
    """The first connection is cut after SUBACK; the second gets a message."""

    async def work() -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            peer = Script(reader, writer, 4)
            await peer.expect(packets.Connect)
            peer.send(packets.Connack(False, 3 if connections == 2 else 0))
            if connections != 2:
                packet = await peer.expect(packets.Subscribe)
                peer.send(packets.Suback(packet.packet_id, [0]))
            if connections == 3:
                peer.send(packets.Publish("a", b"back"))
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *command("sub", "-h", "127.0.0.1", "-p", str(port), "-t", "a", "-C", "1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, told = await process.communicate()
        server.close()
        assert (process.returncode, output, connections) == (0, b"back\n", 3)
        assert told.count(b"trying again in") == 2
        assert b"server unavailable" in told

    run(work())
