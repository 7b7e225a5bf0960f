"""The processes that listen on a port of this machine, so that users need not look up process ids."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"  # state of a socket in /proc/net/tcp


def listening_pids(port: int) -> list[int]:
    """Processes that accept connections at the port, as far as this user may see them."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    return [pid for pid in _processes() if sockets & _files(pid)]


def process_name(pid: int) -> str:
    """The name of a process, or its id if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return str(pid)


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _processes() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(entry.path))
    return found
