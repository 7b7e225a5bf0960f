"""Whether another node's process is surely dead, asked of the kernel that both run on.

A node that was killed need not be waited for when its machine can be asked. A process is named by what no other has had
since the machine was booted: boot, namespace of process ids, process id, and when it was started.
"""

import os
from pathlib import Path

PROC = Path("/proc")


def _here() -> str:
    """This machine since it was booted, and the processes that can be seen from here."""
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
    """A name for a process that runs here; empty where there is no /proc."""
    here, started = _here(), _started(pid)
    return f"{here}/{pid}/{started}" if here and started else ""


def is_gone(name: bytes) -> bool:
    """Whether this process ran here, and runs no more."""
    where, _, pid = name.decode("utf-8", "replace").rpartition("/")[0].rpartition("/")
    if not where or where != _here() or not pid.isdigit():
        return False
    return not _exists(int(pid)) or process_name(int(pid)) not in ("", name.decode())


def _exists(pid: int) -> bool:
    """Whether there is a process; its /proc may be hidden from us, as systemd's ProtectProc does with other users'."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
