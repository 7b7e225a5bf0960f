"""What attackers do, in a process of their own: `attacks.py PORT malformed COUNT`, or `slow COUNT`."""

import itertools
import socket
import sys
import time

from tests.security.test_protocol import HELLO, ROWS, hurl


def malformed(port: int, count: int) -> None:
    """Send so many malformed packets, each on a connection of its own, as far as it is one that ends it."""
    hurl(port, [row for row in ROWS.values() if len(row) < 1000], count)


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
