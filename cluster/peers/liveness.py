"""Whether the process of another node on this machine is dead, from /proc.

The death of a process of this machine is certain at once: other nodes need not wait for its lease. A process name is
unique: boot id, namespace of process ids, process id, start time.
"""

import os
from functools import cache
from pathlib import Path

PROC = Path("/proc")


@cache
def _here() -> str:
    """The boot id of this machine and the namespace of process ids."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def process_name(pid: int) -> str:
    """The name of a running process; empty without /proc."""
    here, started = _here(), _started(pid)
    return f"{here}/{pid}/{started}" if here and started else ""


def is_gone(name: bytes) -> bool:
    """Whether a process of this machine and namespace has ended."""
    where, _, pid = name.decode("utf-8", "replace").rpartition("/")[0].rpartition("/")
    if not where or where != _here() or not pid.isdigit():
        return False
    return not _exists(int(pid)) or process_name(int(pid)) not in ("", name.decode())


def _exists(pid: int) -> bool:
    """Whether there is such a process. Its /proc may be hidden, as systemd's ProtectProc hides other users'."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
