"""Owns: the fuzz target of messages between nodes. `python tests/fuzz/fuzz_nodes.py --seconds 60`, with atheris.

The first byte of an input chooses the item: MessagePack, a message between nodes, a batch of publications, a message as
Redis has it, or an entry of a queue. Only documented errors may escape, an item that is read can be written again, and
a node that gets batches and entries serves its clients. Options: fuzzing.py.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.fuzzing import fuzz

NODE_INPUTS = 5000  # that one node gets
ITEMS, DELIVERING = 5, (1, 2)


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz."""
    packets = importlib.import_module("flockmq._speedups.codec.packets")
    msgpack = importlib.import_module("flockmq._speedups.base.msgpack")
    errors = importlib.import_module("flockmq._speedups.codec.errors")
    arrivals = importlib.import_module("flockmq._speedups.cluster.redis_deliveries")
    message_codec = importlib.import_module("flockmq._speedups.cluster.message_codec")
    inprocess = importlib.import_module("tests.harness.inprocess")
    batches = importlib.import_module("flockmq._speedups.cluster.batches")
    wire = importlib.import_module("flockmq.cluster.peers.wire")
    node = session = None
    watchers = []
    inputs = 0

    def begin() -> None:
        nonlocal node, session, watchers
        if node is not None:
            node.close()
        node = inprocess.Node(max_queued_messages=50)
        watchers = [inprocess.Client(node, f"watcher {level}", level=level) for level in (4, 5)]
        for watcher in watchers:
            watcher.send(packets.Subscribe(packet_id=1, topic_filters=[("#", 1)]))
        session = node.sessions.share(b"shared", 1)

    def unpack(data: bytes) -> None:
        found = msgpack.unpack(data)
        try:
            packed = msgpack.pack(found)
        except (TypeError, OverflowError):  # a type that nodes don't write
            return
        assert msgpack.unpack(packed) == found, data

    def read_message(data: bytes) -> None:
        topic, payload, qos, retain, properties, deadline = message_codec.decode_message(data)
        if not deadline and len(topic) < 1 << 16 and qos < 3:
            written = message_codec.encode_message(topic, payload, qos, retain, properties)
            assert message_codec.decode_message(written) == (topic, payload, qos, retain, properties, 0), data

    def deliver(data: bytes) -> None:
        try:
            node.router.deliver(data)
        finally:
            node.end_turn()

    def receive(data: bytes) -> None:
        subscribers = {b"node": batches.Progress()}
        try:
            batches.Batches(node.router, subscribers, {}, lambda *_: None, wire.decode).receive(b"channel", data)
        finally:
            node.end_turn()

    def arrive(data: bytes) -> None:
        arrivals.arrive(session, inputs, data)

    def check_watchers(data: bytes) -> None:
        for watcher in watchers:
            try:
                watcher.take()
            except errors.MalformedPacket:  # nodes trust each other's topic names and payloads
                begin()
                return
            watcher.send(packets.Pingreq())
            assert any(isinstance(packet, packets.Pingresp) for packet in watcher.take()), data

    items = (unpack, receive, deliver, read_message, arrive)

    def target(data: bytes) -> None:
        nonlocal inputs
        if not data:
            return
        if inputs % NODE_INPUTS == 0:
            begin()
        inputs += 1
        with contextlib.suppress(ValueError):  # DamagedMessage is one
            items[data[0] % ITEMS](data[1:])
        if data[0] % ITEMS in DELIVERING:
            check_watchers(data)

    return target


def seeds() -> list[bytes]:
    """Items of each kind, with properties and without."""
    pack = importlib.import_module("flockmq._speedups.base.msgpack").pack
    encode_message = importlib.import_module("flockmq._speedups.cluster.message_codec").encode_message
    wire = importlib.import_module("flockmq.cluster.peers.wire")
    properties = b"\x03\0\x04text\x26\0\x01a\0\x01b"
    plain, rich = (encode_message(b"a/b", b"payload", 1, True, block) for block in (b"", properties))
    body = b"\0\x03a/b" + bytes([len(properties)]) + properties + b"payload"
    batches = [b"\x30\x0c\0\x03a/bpayload", bytes([0x00, len(body)]) + body, bytes([0x08, len(body)]) + body]
    deadline = rich[:1].replace(rich[:1], bytes([rich[0] | 8])) + rich[1:7] + bytes(8) + rich[7:]
    messages = [plain, rich, deadline]
    items = [
        [pack([b"pushed", [plain, rich], [[b"shared", 1, 1, 2]]]), pack([0, 1 << 40, "text", [[], [1]]])],
        [wire.batch_header(wire.QOS_0, b"node", 7) + batches[0], wire.ask(b"node", 1, "method", "{}")],
        [*batches, b"".join(batches)],
        messages,
        [*messages, *(bytes([0x30 | flags]) + b"\0\x02\x05\x06" + plain for flags in range(16))],
    ]
    return [bytes([kind]) + item for kind, of_kind in enumerate(items) for item in of_kind]


if __name__ == "__main__":
    sys.exit(fuzz("Fuzz what nodes send each other.", make_target, seeds, 512))
