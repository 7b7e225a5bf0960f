"""A client that sends packets by hand over a socket, for conversations that no library would have."""

import socket
from typing import Any

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connack, Connect, Packet, Pingreq, Pingresp, Suback, Subscribe
from tests.harness.broker_process import settle, take_turns
from tests.harness.deadline import DEADLINE


class SocketClient:
    """A connection to a node.

    Args:
        port: of the node.
        client_id: send CONNECT with it, and take CONNACK; None does neither.
        level: protocol level.
        host: of the node.
        connected: a socket that is connected to it already; else one is made.
        connect: more fields of CONNECT.

    Raises:
        ConnectionError: by all but `receive`, when the node closes the connection in place of an answer.
    """

    def __init__(
        self,
        port: int,
        client_id: str | None = None,
        *,
        level: int = 4,
        host: str = "127.0.0.1",
        connected: socket.socket | None = None,
        **connect: Any,
    ) -> None:
        self.socket = connected or socket.create_connection((host, port), DEADLINE)
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = port
        self.level = level
        self.connack: Connack | None = None
        self._decoder = Decoder(level)
        self._packets: list[Packet] = []
        if client_id is not None:
            self.send(Connect(client_id=client_id, protocol_level=level, **{"keep_alive": 0, **connect}))
            answer = self._answer()
            assert isinstance(answer, Connack), answer
            self.connack = answer

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets, in one write. In a cluster, earlier packets of others come before them."""
        take_turns(self.port, self)
        self.socket.sendall(b"".join(p if isinstance(p, bytes) else encode(p, self.level) for p in packets))

    def receive(self, timeout: float = DEADLINE) -> Packet | None:
        """The next packet; None at the end of the connection.

        Raises:
            TimeoutError: nothing comes.
        """
        self.socket.settimeout(timeout)
        while not self._packets:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    def subscribe(self, *topic_filters: tuple[str, int], packet_id: int = 1) -> list[int]:
        """Subscribe; returns the codes of SUBACK."""
        self.send(Subscribe(packet_id=packet_id, topic_filters=list(topic_filters)))
        answer = self._answer()
        assert isinstance(answer, Suback), answer
        return list(answer.reason_codes)

    def ping(self) -> list[Packet]:
        """The packets before the answer to a PINGREQ; in a cluster, to one after all nodes have settled."""
        before = self._ping()
        return before + self._ping() if settle(self.port) else before

    def _ping(self) -> list[Packet]:
        self.send(Pingreq())
        before: list[Packet] = []
        while not isinstance(packet := self._answer(), Pingresp):
            before.append(packet)
        return before

    def _answer(self) -> Packet:
        packet = self.receive()
        if packet is None:
            raise ConnectionResetError("the node has closed the connection")
        return packet

    def close(self) -> None:
        """Be gone, without a word."""
        self.socket.close()

    def __enter__(self) -> "SocketClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
