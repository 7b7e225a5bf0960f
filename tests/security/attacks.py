"""What attackers do, in a process of their own: `attacks.py PORT malformed COUNT`, or `slow COUNT`."""

import itertools
import socket
import sys
import time
from contextlib import suppress

from tests.security.test_protocol import HELLO, ROWS

TOGETHER = 100  # connections at a time


def ended(client: socket.socket) -> None:
    """Wait until the node has closed the connection."""
    client.settimeout(20)
    with suppress(ConnectionResetError):
        while client.recv(65536):
            pass


def malformed(port: int, count: int) -> None:
    """Send so many malformed packets, each on a connection of its own, as far as it is one that ends it."""
    rows = itertools.cycle([row for row in ROWS.values() if len(row) < 1000])
    for _ in range(max(1, count // TOGETHER)):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(TOGETHER)]
        for client in clients:
            client.sendall(next(rows))
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            ended(client)
            client.close()


def slow(port: int, count: int) -> None:
    """Open so many connections and say CONNECT a byte at a time, for ever; those that are closed come again."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    print("open", flush=True)
    for number in itertools.count():
        for index, client in enumerate(clients):
            try:
                client.sendall(HELLO[number % 8 : number % 8 + 1])
            except (BrokenPipeError, ConnectionResetError):
                client.close()
                clients[index] = socket.create_connection(("127.0.0.1", port))
        time.sleep(1)


if __name__ == "__main__":
    {"malformed": malformed, "slow": slow}[sys.argv[2]](int(sys.argv[1]), int(sys.argv[3]))
