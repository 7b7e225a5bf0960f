"""Every packet of the table of cases at a real node: a malformed packet ends its own connection, and nothing else.

Also the nine combinations of QoS, and the codec's cases sent byte by byte.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from flockmq._speedups.codec.decode import decode
from flockmq._speedups.codec.errors import MalformedPacket, UnacceptableProtocol
from flockmq._speedups.codec.packets import Publish
from flockmq.broker.metrics import METRICS
from tests.cases.packets import CASES, Case
from tests.harness.cluster_process import Broker, make_broker
from tests.protocol.wire import Wire, frame_size

MALFORMED_TOPIC = "$SYS/broker/" + next(metric.topic for metric in METRICS if metric.name == "malformed_packets")


def is_whole(data: bytes) -> bool:
    """Whether the bytes are one frame: fewer are no fault yet, more are the next packet's."""
    return 0 < len(data) == frame_size(data) or data[1:5] == b"\x80\x80\x80\x80"


def is_connect(case: Case) -> bool:
    """Whether the case begins a connection; its protocol level is then in its bytes."""
    return case.data[0] >> 4 == 1


def connect_level(case: Case) -> int:
    """The level of the answer to a CONNECT: level 5 for a CONNECT with the name MQTT and a level from 5 on."""
    at = case.data.find(b"\0\4MQTT", 0, 10)
    return 5 if 0 < at < len(case.data) - 6 and case.data[at + 6] >= 5 else 4


BAD = [
    pytest.param(case, level, id=f"{case.name} [{level}]")
    for case in CASES
    if isinstance(case.packet, type) and is_whole(case.data)
    for level in ((connect_level(case),) if is_connect(case) else case.levels)
]
BAD_LATER = [param for param in BAD if not is_connect(param.values[0])]
FROM_BROKER = [
    pytest.param(case, level, id=f"{case.name} [{level}, from a client]")
    for case in CASES
    if type(case.packet).__name__ in ("Connack", "Suback", "Unsuback", "Pingresp")
    for level in (4, 5)
    if level in case.levels
]


# The nodes of a cluster read packets by the same code as a node alone: a sample shows that the rest is whole, too.
ALONE = pytest.mark.parametrize("node", ["memory"], indirect=True)
IN_A_CLUSTER = pytest.mark.parametrize("node", ["cluster"], indirect=True)


@pytest.fixture(scope="module", params=["memory", "cluster"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A node that many cases share."""
    settings = {"log.level": "debug", "mqtt.sys_interval": 0.1}  # debug: a line for each case
    process = make_broker(tmp_path_factory.mktemp("node"), request.param, settings).start()
    yield process
    status = process.stop()
    process.close()
    process.check()
    assert status == 0


@pytest.fixture(scope="module")
def witness(node: Broker) -> Iterator[Wire]:
    """A client that has nothing to do with it."""
    with Wire(node.port, name="witness") as client:
        client.connect().subscribe("witness:1")
        yield client


def works(witness: Wire) -> None:
    """The witness publishes and receives."""
    witness.send("publish witness still q0")
    witness.expect("publish witness still")


@ALONE
@pytest.mark.parametrize(("case", "level"), BAD + FROM_BROKER)
def test_a_malformed_packet_ends_its_connection_only(case: Case, level: int, node: Broker, witness: Wire) -> None:
    ends_its_connection_only(case, level, node, witness)


@IN_A_CLUSTER
@pytest.mark.parametrize(("case", "level"), (BAD + FROM_BROKER)[::8])
def test_it_ends_its_connection_only_in_a_cluster(case: Case, level: int, node: Broker, witness: Wire) -> None:
    ends_its_connection_only(case, level, node, witness)


def reason_code(case: Case) -> int:
    """The reason code that the client gets. Packets that only a broker sends are protocol errors."""
    if not isinstance(case.packet, type):
        return 0x82
    return case.code or case.packet("").code  # type: ignore[return-value]


def ends_its_connection_only(case: Case, level: int, node: Broker, witness: Wire) -> None:
    first = is_connect(case)
    seen = len(node.log)
    with Wire(node.port, level, "sinner") as client:
        if not first:
            client.connect()
        client.send(case.data)
        if level == 5:
            client.expect(f"{'connack' if first else 'disconnect'} {reason_code(case)} reason~")
        elif first and case.packet is UnacceptableProtocol:
            client.expect("connack 1")
        client.expect(None)
        line = node.wait_for_log(
            "refused" if case.packet is UnacceptableProtocol else "ended", seen, address=client.address
        )
        if not first and isinstance(case.packet, type) and case.statement.startswith("MQTT"):
            assert line["level"] == "info"
        assert line.get("reason") or line.get("code")
    works(witness)


@pytest.mark.parametrize(("case", "level"), [param for param in BAD_LATER if param.values[1] < 5][::5])
def test_what_stands_before_and_after_a_malformed_packet(case: Case, level: int, node: Broker, witness: Wire) -> None:
    with Wire(node.port, level, "sinner") as client:
        client.connect()
        client.send("publish witness before", case.data, "publish witness after", "pingreq")
        witness.expect("publish witness before")
        client.expect(None)
    works(witness)


@pytest.mark.one_node
def test_malformed_packets_are_counted(start_broker: Callable[..., Broker]) -> None:
    node = start_broker({"mqtt.sys_interval": 0.1})
    with Wire(node.port, name="reader") as reader:
        reader.connect().subscribe(f"{MALFORMED_TOPIC}:0")
        assert reader.packet().payload == b"0"
        for i in range(3):
            with Wire(node.port, name=f"sinner{i}") as client:
                client.connect()
                client.send(b"\x36\x05\x00\x01t\x00\x01")
                client.expect(None)
        with Wire(node.port) as client:
            client.send(b"\x10\x0d\x00\x04MQTT\x04\x03\x00\x00\x00\x01a")
            client.expect(None)
        while reader.packet().payload != b"4":
            pass


@pytest.mark.one_node
def test_every_packet_sent_is_counted(start_broker: Callable[..., Broker]) -> None:
    """PINGRESP is made where no object and no queue is."""
    node = start_broker({"mqtt.sys_interval": 0.1})
    with Wire(node.port, name="reader") as reader, Wire(node.port, name="pings") as client:
        reader.connect().send("subscribe 1 $SYS/broker/messages/sent:0")
        # An update may come before SUBACK (section 3.8.4).
        figures = (int(packet.payload) for packet in iter(reader.packet, None) if isinstance(packet, Publish))
        before = next(figures)
        client.connect()
        client.send(*["pingreq"] * 5000)
        for _ in range(5000):
            client.expect("pingresp")
        # Each update of the figure is itself a packet sent, but ten a second don't make 5000.
        assert any(figure >= before + 5000 for figure in islice(figures, 20)), "PINGRESP is not counted"


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos_is_the_lower_of_published_and_granted(published: int, granted: int, level: int, node: Broker) -> None:
    qos = min(published, granted)
    with Wire(node.port, level, "s") as subscriber, Wire(node.port, level, "p") as publisher:
        publisher.connect()
        subscriber.connect().subscribe(f"qos/+:{granted}")
        for number in (1, 2):
            publisher.send(f"publish qos/x {number}{f' q{published} id={number}' if published else ''}")
            if published == 1:
                publisher.expect(f"puback {number}")
            elif published == 2:
                publisher.expect(f"pubrec {number}")
                publisher.send(f"pubrel {number}")
                publisher.expect(f"pubcomp {number}")
            subscriber.expect(f"publish qos/x {number}{f' q{qos} id={number}' if qos else ''}")
            if qos == 1:
                subscriber.send(f"puback {number}")
            elif qos == 2:
                subscriber.send(f"pubrec {number}")
                subscriber.expect(f"pubrel {number}")
                subscriber.send(f"pubcomp {number}")
        publisher.settle()
        subscriber.expect_nothing()
        subscriber.close()


def valid_from_a_client(level: int) -> list[Any]:
    names = ("Publish", "Puback", "Pubrec", "Pubrel", "Pubcomp", "Subscribe", "Unsubscribe", "Pingreq")
    return [case for case in CASES if type(case.packet).__name__ in names and level in case.levels]


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_valid_packets_get_the_same_answers_however_they_come(level: int, size: int, node: Broker) -> None:
    """Every packet of the table in one stream, in pieces of `size`; the answers packet by packet are the measure."""
    # A wrong wildcard ends a connection of level 3; a topic alias without a name, and an identifier, one of level 5.
    ends = ("wrong wildcard", "topic alias only", "subscription_identifier in publish")
    data = [case.data for case in valid_from_a_client(level) if not any(name in case.name for name in ends)]
    stream = b"".join(data)

    def answers(pieces: list[bytes], *, settling: bool) -> list[bytes]:
        with Wire(node.port, level, "many") as client:
            client.connect()
            for piece in pieces:
                client.send(piece)
                if settling:
                    client.settle()
            client.settle()
            found = sorted(client.frames)
            client.close()
            return found

    wanted = answers(data, settling=True)
    assert len(wanted) > 10
    assert answers([stream[i : i + size] for i in range(0, len(stream), size)], settling=False) == wanted


def test_the_table_is_used() -> None:
    assert len(BAD) > 100
    for param in BAD:
        case, level = param.values[:2]
        with pytest.raises(MalformedPacket):
            decode(case.data, level)
