"""Attackers, in a separate process: `attacks.py PORT malformed COUNT`, or `slow COUNT`."""

import itertools
import socket
import sys
import time

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect
from tests.cases.packets import CASES
from tests.security.test_protocol import HELLO, ROWS, hurl

CONNECT = 0x10  # the first byte of one


def of_all_levels() -> list[bytes]:
    """The wrong frames of each level, behind a CONNECT of that level if they aren't one."""
    wrong = [(case.data, level) for case in CASES if isinstance(case.packet, type) for level in case.levels]
    return [
        data
        if data[:1] == bytes([CONNECT])
        else encode(Connect(f"c{number}", True, protocol_level=level), level) + data
        for number, (data, level) in enumerate(wrong)
    ]


def malformed(port: int, count: int) -> None:
    """Send so many malformed packets, each on a new connection, if the packet ends it."""
    hurl(port, [row for row in [*ROWS.values(), *of_all_levels()] if len(row) < 1000], count)


def slow(port: int, count: int) -> None:
    """Open so many connections and send CONNECT a byte at a time, for ever; closed connections come again."""
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
