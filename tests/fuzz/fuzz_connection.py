"""Owns: the fuzz target of a whole connection. `python tests/fuzz/fuzz_connection.py --seconds 60`, with atheris.

Every input is a stream of bytes after (or instead of) a good CONNECT, cut into pieces, to a node in this process. It
may end its own connection and nothing else: another client is still served, and the node's journal can be read back.
The first byte of an input chooses level, session, CONNECT and the size of the pieces. A CONNECT of level 5 names an
authentication method, whose steps are chosen by the first byte of their data. Options: fuzzing.py.
"""

import asyncio
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.fuzzing import fuzz

TICK_INPUTS = 50  # in a quarter of a second
NODE_INPUTS = 500  # that one node gets, before another one reads its journal
PIECES = (1, 2, 3, 5, 17, 64, 1 << 20, 1 << 20)


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz."""
    packets = importlib.import_module("flockmq._speedups.codec.packets")
    encode = importlib.import_module("flockmq._speedups.codec.encode").encode
    inprocess = importlib.import_module("tests.harness.inprocess")
    authenticator = importlib.import_module("flockmq.broker.auth.authenticator")
    accepted = authenticator.Verdict(authenticator.ReasonCode.ACCEPTED)

    refused = authenticator.Verdict(authenticator.ReasonCode.NOT_AUTHORIZED)
    rights = importlib.import_module("flockmq._speedups.session.rights")
    some = authenticator.Identity("some", rights=rights.Rights([(True, rights.READ | rights.PUBLISH, b"t/#")]))
    limited = authenticator.Verdict(authenticator.ReasonCode.ACCEPTED, some)

    class Authenticator:
        """Empty data ends an exchange; `n` refuses, `r` takes rights away, `w` waits; others ask for more."""

        def authenticate(self, credentials: object) -> object:
            return accepted

        def exchange(self, credentials: object, method: str) -> object:
            return self if method else None

        def start(self, client: object, data: bytes) -> object:
            return self.step(data)

        def step(self, data: bytes) -> object:
            if data[:1] == b"w":
                return self.later(data[1:])
            if data[:1] in (b"n", b"r"):
                return refused if data[:1] == b"n" else limited
            return authenticator.Challenge(data) if data else accepted

        async def later(self, data: bytes) -> object:
            for _ in range(3):  # a piece of the input each
                await asyncio.sleep(0)
            found = self.step(data)
            return await found if asyncio.iscoroutine(found) else found

    faults: list[object] = []

    def report(error: Exception, **where: object) -> None:
        faults.append((error, where))

    for name in ("flockmq.broker.core.data_plane", "flockmq.broker.handlers.dispatch"):
        module = importlib.import_module(name)
        assert callable(module.report)
        module.report = report
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
        if inputs % (NODE_INPUTS * 10) == 0:  # or reading back takes ever longer
            store = None
        node = inprocess.Node(store, authenticator=Authenticator(), **limits)
        watcher = inprocess.Client(node, "watcher")
        watcher.send(packets.Subscribe(packet_id=1, topic_filters=[("#", 0)]))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))

    def target(data: bytes) -> None:
        loop.run_until_complete(play(data))
        if faults:
            raise SystemExit(f"internal errors: {faults}")

    async def play(data: bytes) -> None:
        nonlocal inputs
        if not data:
            return
        if inputs % NODE_INPUTS == 0:
            begin()
        if inputs % TICK_INPUTS == 0:
            node.advance(1)  # it closes the sockets that wait for clients to read a last packet
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
            await asyncio.sleep(0)
        client.close()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)
        watcher.take()
        watcher.send(pingreq)
        assert any(isinstance(packet, packets.Pingresp) for packet in watcher.take()), data

    return target


def seeds() -> list[bytes]:
    cases = importlib.import_module("tests.cases.packets")
    others = [bytes([first]) + case.data for case in cases.CASES for first in (4 + 1, 4 + 2 + 48, 64 + 4 + 1, 64 + 4)]
    return others + auth_seeds()


def auth_seeds() -> list[bytes]:
    """Exchanges before CONNACK, and re-authentication in the middle of traffic [5: 4.12]."""
    packets = importlib.import_module("flockmq._speedups.codec.packets")
    encode = importlib.import_module("flockmq._speedups.codec.encode").encode

    def auth(code: int, data: bytes = b"", method: str = "FUZZ") -> object:
        properties = {"authentication_method": method, **({"authentication_data": data} if data else {})}
        return packets.Auth(code, properties)

    def traffic(number: int) -> list[object]:
        return [
            packets.Publish("t/1", b"x", 1, packet_id=number),
            packets.Publish("t/2", b"y", 2, packet_id=number + 1),
            packets.Pubrel(number + 1),
            packets.Subscribe(number + 2, [("t/#", 2), ("$share/g/#", 1)]),
            packets.Publish("other", b"z", 0),
            packets.Pingreq(),
        ]

    more, again = 0x18, 0x19
    dialogues = [
        [auth(more, b"a"), auth(more), *traffic(1), auth(again, b"a"), *traffic(4), auth(more, b"b"), auth(more)],
        [*traffic(1), auth(again, b"wa"), *traffic(4), auth(more), *traffic(7)],
        [*traffic(1), auth(again, b"ww"), *traffic(4), auth(again), packets.Disconnect()],
        [*traffic(1), auth(again, b"r"), *traffic(4), auth(again), *traffic(7)],
        [*traffic(1), auth(again, b"wr"), *traffic(4), packets.Unsubscribe(7, ["t/#", "$share/g/#"])],
        [*traffic(1), auth(again, b"wn"), *traffic(4)],
        [auth(more, b"wa"), auth(more, b"w"), *traffic(1)],
        [auth(more, b"n")],
        [auth(again, b"a"), *traffic(1)],
        [*traffic(1), auth(again, b"a"), auth(again, b"a")],
        [*traffic(1), auth(again, b"a", "OTHER")],
        [*traffic(1), auth(again, b"a"), auth(more, b"b", "OTHER")],
        [*traffic(1), auth(more, b"a")],
        [*traffic(1), auth(0)],
        [*traffic(1), packets.Auth(again)],
        [*traffic(1), auth(again, b"a"), *(auth(more, b"b") for _ in range(9))],
        [*traffic(1), auth(again, b"a"), packets.Disconnect(4)],
    ]
    streams = [b"".join(encode(packet, 5) for packet in dialogue) for dialogue in dialogues]
    # With data in CONNECT and without; a new session or not; the stream in pieces of 5, 64 and all bytes.
    return [
        bytes([64 + 4 + options + (size << 3)]) + stream
        for stream in streams
        for options in range(4)
        for size in (3, 5, 7)
    ]


if __name__ == "__main__":
    sys.exit(fuzz("Fuzz a connection of a node.", make_target, seeds, 1024))
