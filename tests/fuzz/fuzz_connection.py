"""Owns: the fuzz target of a whole connection. `python tests/fuzz/fuzz_connection.py --seconds 60`, with atheris.

Every input is a stream of bytes after (or instead of) a good CONNECT, cut into pieces, to a node in this process. It
may end its own connection and nothing else: another client is still served, and what the node's journal says can be
read back. The first byte of an input chooses level, session, CONNECT and the size of the pieces. A CONNECT of level 5
names an authentication method, which takes any data and ends where that is empty. Options: fuzzing.py.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.fuzzing import fuzz

NODE_INPUTS = 500  # that one node gets, before another one reads its journal
PIECES = (1, 2, 3, 5, 17, 64, 1 << 20, 1 << 20)


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz."""
    packets = importlib.import_module("_speedups.codec.packets")
    encode = importlib.import_module("_speedups.codec.encode").encode
    inprocess = importlib.import_module("tests.harness.inprocess")
    broker = importlib.import_module("broker.broker")
    authenticator = importlib.import_module("broker.auth.authenticator")
    accepted = authenticator.Verdict(authenticator.ReasonCode.ACCEPTED)

    class Authenticator:
        def authenticate(self, credentials: object) -> object:
            return accepted

        def exchange(self, credentials: object, method: str) -> object:
            return self if method else None

        def start(self, client: object, data: bytes) -> object:
            return self.step(data)

        def step(self, data: bytes) -> object:
            return authenticator.Challenge(data) if data else accepted

    def report(self: object, error: Exception, **where: object) -> None:
        raise SystemExit(f"internal error {where}: {error!r}")

    broker.Broker._report = report
    pingreq = encode(packets.Pingreq())
    inputs = 0
    node = watcher = None

    def begin() -> None:
        nonlocal node, watcher
        store = None
        if node is not None:
            store = inprocess.KeepingStore(node.store.after(len(node.store.told)))
            node.close()
        limits = {"max_queued_messages": 50, "max_outgoing_bytes": 1 << 20}
        node = inprocess.Node(store, authenticator=Authenticator(), **limits)
        if inputs % (NODE_INPUTS * 10) == 0:  # or reading back takes ever longer
            node = inprocess.Node(authenticator=Authenticator(), **limits)
        watcher = inprocess.Client(node, "watcher")
        watcher.send(packets.Subscribe(packet_id=1, topic_filters=[("#", 0)]))

    def target(data: bytes) -> None:
        nonlocal inputs
        if not data:
            return
        if inputs % NODE_INPUTS == 0:
            begin()
        inputs += 1
        level, clean = (5 if data[0] & 64 else 3 + (data[0] & 1)), bool(data[0] & 2)
        client = inprocess.Client(node)
        stream = data[1:]
        if data[0] & 4:
            connect = packets.Connect("fuzz", clean, 0, protocol_level=level, will_topic="w", will_payload=b"x")
            if level == 5:
                connect.properties = {"authentication_method": "FUZZ"}
                if data[0] & 1:
                    connect.properties["authentication_data"] = b"more"
            stream = encode(connect, level) + stream
        size = PIECES[data[0] >> 3 & 7]
        for start in range(0, len(stream), size):
            try:
                client.send(stream[start : start + size])
            except ConnectionError:
                break
        client.close()
        watcher.take()
        watcher.send(pingreq)
        assert any(isinstance(packet, packets.Pingresp) for packet in watcher.take()), data

    return target


def seeds() -> list[bytes]:
    cases = importlib.import_module("tests.cases.packets")
    return [bytes([first]) + case.data for case in cases.CASES for first in (4 + 1, 4 + 2 + 48, 64 + 4 + 1, 64 + 4)]


if __name__ == "__main__":
    sys.exit(fuzz("Fuzz a connection of a node.", make_target, seeds, 1024))
