"""One side of a link has lost its session: the other one acts on it, also if the attempt that saw it has failed."""

import socket
from collections.abc import Iterator

import pytest

from flockmq._speedups.codec.packets import Connack, Connect, Disconnect, Publish, Pubrec, Pubrel, Suback, Subscribe
from tests.conftest import StartBroker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.links.test_wanted import links, received, table

pytestmark = pytest.mark.parametrize("store", ["sqlite"])


class OtherBroker:
    """The other broker of a link, packets by hand."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE)
        self.port = self._listener.getsockname()[1]

    def accept(self) -> tuple[SocketClient, Connect]:
        """The next connection, which awaits CONNACK."""
        client = SocketClient(self.port, level=5, connected=self._listener.accept()[0])
        packet = client.receive()
        assert isinstance(packet, Connect)
        return client, packet

    def subscribed(self, client: SocketClient, *, present: bool) -> None:
        """Accept the link and its subscription."""
        client.send(Connack(session_present=present))
        packet = client.receive()
        assert isinstance(packet, Subscribe)
        client.send(Suback(packet.packet_id, [2] * len(packet.topic_filters)))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def other() -> Iterator[OtherBroker]:
    found = OtherBroker()
    yield found
    found.close()


def test_messages_of_a_lost_session_there_are_released_by_a_later_attempt(
    start_broker: StartBroker, other: OtherBroker
) -> None:
    """Its packet identifier was taken for the old message's: the new one was lost."""
    plain = {"wanted_only": False, "retry": 0.1}
    here = start_broker(links(far=table(other.port, "a in 2", **plain)) | {"limits.max_connections": 2})
    with SocketClient(here.port, "reader") as reader:
        reader.subscribe(("a", 1))
        first, _ = other.accept()
        other.subscribed(first, present=False)
        first.send(Publish("a", b"old", qos=2, packet_id=7))
        assert isinstance(first.receive(), Pubrec)
        first.close()
        second, _ = other.accept()
        with SocketClient(here.port, "full"):  # this node has no room for the link now
            before = len(here.log)
            second.send(Connack(session_present=False))  # the other broker has lost its session
            here.wait_for_log("link is not connected", since=before)
        second.close()
        third, _ = other.accept()
        other.subscribed(third, present=True)
        third.send(Publish("a", b"new", qos=2, packet_id=7))
        assert isinstance(third.receive(), Pubrec)
        third.send(Pubrel(7))
        assert received(reader, 2) == ["old", "new"]
        third.close()


def test_a_session_there_ends_though_the_first_attempt_to_end_it_fails(
    start_broker: StartBroker, other: OtherBroker
) -> None:
    here = start_broker(links(far=table(other.port, "a in 2", wanted_only=False, retry=0.1)))
    for refused in (True, False):
        client, packet = other.accept()
        assert not packet.clean_start
        client.send(Connack(session_present=True))  # the session at this broker is new
        ending, packet = other.accept()
        assert packet.clean_start
        if not refused:
            ending.send(Connack())
            assert isinstance(ending.receive(), Disconnect)
        ending.close()
        client.close()
    client, packet = other.accept()
    assert not packet.clean_start
    other.subscribed(client, present=False)
    here.wait_for_log("link is connected")
    client.close()
