"""Session tickets under several keys, at a listener in the test's own process."""

import os
import socket
import ssl

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect
from flockmq._speedups.net.listener import Endpoint, Listener
from flockmq._speedups.net.ticket_keys import KEY_SIZE, TicketKeyRing
from flockmq._speedups.net.tls import TlsContext
from tests.harness.certificates import Authority
from tests.harness.inprocess import Node

OLD, NEW, OTHER = (os.urandom(KEY_SIZE) for _ in range(3))


class Server:
    """A listener with TLS at an in-process node, and its key ring."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.server()
        self.node = Node()
        self.ring = TicketKeyRing()
        context = TlsContext(pair.cert, pair.key, ticket_keys=self.ring, session_lifetime=3600)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.node.reactor.listen(Endpoint(Listener(tls=context), self._socket, "mqtts"))

    def connect(
        self, context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> tuple[bool, ssl.SSLSession | None, bytes]:
        """Whether a connection has resumed the session, its own session, and the server's bytes."""
        with socket.create_connection(self._socket.getsockname()) as plain:
            plain.setblocking(False)
            received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(received, to_send, server_hostname="localhost", session=session)
            sent = b""

            def exchange() -> None:
                nonlocal sent
                plain.sendall(to_send.read())
                self.node.run()
                try:
                    data = plain.recv(1 << 16)
                except BlockingIOError:
                    return
                sent += data
                received.write(data)

            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    exchange()
            tls.write(encode(Connect(client_id="a", protocol_level=4), 4))
            while True:
                try:
                    assert tls.read(4) == b"\x20\x02\x00\x00"
                    break
                except ssl.SSLWantReadError:
                    exchange()
            return bool(tls.session_reused), tls.session, sent


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(authority: Authority) -> Server:
    return Server(authority)


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def context(request: pytest.FixtureRequest, authority: Authority) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.ca)
    made.minimum_version = made.maximum_version = request.param
    return made


def test_all_keys_open(server: Server, context: ssl.SSLContext) -> None:
    server.ring.use([OLD])
    _, session, _ = server.connect(context)
    server.ring.use([NEW, OTHER, OLD])
    assert server.connect(context, session)[0]
    server.ring.use([NEW, OTHER])
    assert not server.connect(context, session)[0]


def test_the_client_of_an_older_key_gets_a_ticket_of_the_first(server: Server, context: ssl.SSLContext) -> None:
    server.ring.use([OLD])
    _, session, _ = server.connect(context)
    server.ring.use([NEW, OLD])
    is_resumed, session, _ = server.connect(context, session)
    assert is_resumed
    server.ring.use([NEW])
    assert server.connect(context, session)[0]


def test_the_client_of_an_unknown_key_gets_a_ticket_of_the_first(server: Server, context: ssl.SSLContext) -> None:
    server.ring.use([OLD])
    _, session, _ = server.connect(context)
    server.ring.use([NEW])
    is_resumed, session, _ = server.connect(context, session)
    assert not is_resumed
    assert server.connect(context, session)[0]


def test_each_connection_of_1_3_gets_a_ticket(server: Server, context: ssl.SSLContext) -> None:
    """Its clients use a ticket once. Clients of 1.2 keep theirs."""
    _, first, _ = server.connect(context)
    is_resumed, second, _ = server.connect(context, first)
    assert is_resumed
    assert (second != first) == (context.minimum_version == ssl.TLSVersion.TLSv1_3)


@pytest.mark.parametrize("at", [0, KEY_SIZE // 2, KEY_SIZE - 1], ids=["name", "cipher", "mac"])
def test_each_part_of_a_key_counts(server: Server, context: ssl.SSLContext, at: int) -> None:
    server.ring.use([OLD])
    _, session, _ = server.connect(context)
    server.ring.use([OLD[:at] + bytes((OLD[at] ^ 1,)) + OLD[at + 1 :]])
    assert not server.connect(context, session)[0]


def test_the_first_key_names_the_ticket(server: Server, authority: Authority) -> None:
    """Its name is in plain text: at TLS 1.2 the ticket itself is."""
    context = ssl.create_default_context(cafile=authority.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server.ring.use([NEW, OLD])
    _, _, sent = server.connect(context)
    assert sent.count(NEW[:16]) == 1
    assert OLD[:16] not in sent
    assert NEW[16:48] not in sent


def test_a_ring_of_its_own_until_it_gets_keys(authority: Authority, context: ssl.SSLContext) -> None:
    first, second = Server(authority), Server(authority)
    _, session, _ = first.connect(context)
    assert first.connect(context, session)[0]
    assert not second.connect(context, session)[0]


@pytest.mark.parametrize("keys", [[], [b""], [OLD, OLD[1:]], [OLD + b"x"]], ids=["none", "empty", "short", "long"])
def test_keys_of_another_size(keys: list[bytes]) -> None:
    ring = TicketKeyRing()
    with pytest.raises(ValueError, match="expected keys of 80 bytes"):
        ring.use(keys)
