"""Sockets that stay open for a while, so that clients can read a last packet, when the node drops its state."""

import gc
import os

from flockmq._speedups.codec.packets import Disconnect
from flockmq._speedups.protocol.close_reasons import NODE_STOPS
from tests.harness.inprocess import Client, Node


def sockets() -> int:
    gc.collect()  # earlier tests' sockets
    return len(os.listdir("/proc/self/fd"))


def dismissed(node: Node) -> Client:
    """A client to which the node has sent DISCONNECT; no more turns of its reactor follow."""
    client = Client(node, "client", level=5)
    client.take()
    for connection in node.reactor:
        connection.close(NODE_STOPS)
    node.reactor.abandon()
    return client


def test_the_state_that_follows_closes_them() -> None:
    before, after = Node(), Node()
    client = dismissed(before)
    after.reactor.succeed(before.reactor)
    assert [packet.reason_code for packet in client.take() if isinstance(packet, Disconnect)] == [NODE_STOPS.code]
    before.close()
    open_sockets = sockets()
    after.advance(1)
    assert sockets() == open_sockets - 1, "the client has closed its end"


def test_they_are_closed_with_the_loop() -> None:
    node = Node()
    client = dismissed(node)
    client.socket.close()
    open_sockets = sockets()
    node.reactor.close()
    assert sockets() == open_sockets - 3, "of the client, and two of the loop"
