"""A client that stages messages in transactions, and commits them."""

import json

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Puback, Publish
from tests.harness.socket_client import SocketClient

# Reason codes of PUBACK.
DONE, COMMITTED, MISSING, WRONG_TOPIC, WRONG_CHUNK, FULL, DENIED = 0, 0x10, 0x83, 0x90, 0x99, 0x97, 0x87


def row(topic: str, payload: bytes, qos: int = 1, *, retain: bool = False, **properties: object) -> bytes:
    """A message of a chunk."""
    return encode(Publish(topic, payload, qos, retain, packet_id=1 if qos else 0, properties=properties), 5)


class TransactionClient(SocketClient):
    """A client that stages and commits."""

    def __init__(self, port: int, client_id: str = "spark", **options: object) -> None:
        super().__init__(port, client_id, level=5, **options)
        self._last = 0

    def ask(self, topic: str, payload: bytes) -> int:
        """Publish with QoS 1; returns the reason code."""
        self._last += 1
        self.send(Publish(f"$transaction/{topic}", payload, 1, packet_id=self._last))
        packet = self.receive()
        assert isinstance(packet, Puback)
        assert packet.packet_id == self._last
        return packet.reason_code

    def stage(self, place: str, *rows: bytes) -> int:
        return self.ask(place, b"".join(rows))

    def commit(self, transaction: str, **parts: int) -> int:
        return self.ask(transaction, json.dumps(parts).encode())
