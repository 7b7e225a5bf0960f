"""Ports for servers that are given one before they bind it, such as Redis, HAProxy and Prometheus.

They lie below the range that the kernel takes the ports of outgoing connections from, and the answers to a bind of
port 0, so that neither can take them between choosing and binding. Each process of the tests has its block, marked by
an abstract Unix socket, which ends with the process: workers of pytest-xdist, and several runs on one machine, never
choose the same port.
"""

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST = 12_000  # below are the well-known ports of servers that may run on the machine
BLOCK = 200  # ports of one process: a port is chosen again after so many others
LOCAL_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_ports: dict[int, Iterator[int]] = {}  # by process, since a fork must not use its parent's
_marks: list[socket.socket] = []


def free_port() -> int:
    """A port on which no server listens, and that no other process of the tests chooses.

    Raises:
        OSError: there is none.
    """
    ports = _ports.get(os.getpid())
    if ports is None:
        ports = _ports[os.getpid()] = itertools.cycle(_block())
    for port in itertools.islice(ports, BLOCK):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
    raise OSError("all ports of this process are in use")


def _block() -> range:
    """The first block of ports that no process has marked."""
    end = int(LOCAL_PORT_RANGE.read_text().split()[0])
    for first in range(FIRST, end - BLOCK + 1, BLOCK):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0flockmq-tests-ports-{first}")
        except OSError:
            mark.close()
            continue
        _marks.append(mark)
        return range(first, first + BLOCK)
    raise OSError(f"no block of {BLOCK} ports is free from {FIRST} to {end}")
