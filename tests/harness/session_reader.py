"""A session that keeps all messages of a broker until a test reads them."""

from typing import Any

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.harness.socket_client import SocketClient

END = b"end"
READER: dict[str, Any] = {"level": 5, "clean_start": False, "properties": {"session_expiry_interval": 3600}}


def subscribe(port: int, topic_filter: str = "#") -> None:
    """Begin the session `reader`."""
    with SocketClient(port, "reader", **READER) as client:
        client.subscribe((topic_filter, 2))


def read(port: int, count: int) -> list[bytes]:
    """The payloads of the messages of the session `reader`, each acknowledged: so many, and further ones."""
    found: list[bytes] = []
    is_asked = False
    with SocketClient(port, "reader", **READER) as client:
        while found[-1:] != [END]:
            if len(found) == count and not is_asked:
                is_asked = True
                client.send(Publish("end", END, 1, packet_id=1))  # behind all that is queued
            packet = client.receive()
            assert packet is not None
            if isinstance(packet, Publish):
                found.append(packet.payload)
                client.send(Pubrec(packet.packet_id) if packet.qos == 2 else Puback(packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))
    return found[:-1]
