"""A real systemd as process 1 of new namespaces, with only the units that it is given.

It sees the machine's files (read-only where a unit has it so), its network and its processes' own cgroup; /run, /tmp
and /var/lib are its own and empty, so that nothing is left behind. Its end is the end of everything that it started.
Needs root and a kernel that lets it mount: `unavailable` gives the reason if not.
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from uuid import uuid4

from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE

SYSTEMD = Path("/lib/systemd/systemd")
# Targets that units may name; empty, since only the test's units are to be started.
TARGETS = ("trial", "sysinit", "basic", "shutdown", "multi-user", "network-online", "umount", "final", "exit")
PLACE = "/run/trial"  # the place of the test's directory and of bound files inside
BOOT = f"""\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p {PLACE}/directory
mount --bind "$DIRECTORY" {PLACE}/directory
for pair in $BINDS; do mkdir -p "{PLACE}/${{pair%%=*}}"; mount --rbind "${{pair#*=}}" "{PLACE}/${{pair%%=*}}"; done
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs -o mode=1777 tmpfs /tmp
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
export container=unshare SYSTEMD_UNIT_PATH={PLACE}/directory/units SYSTEMD_LOG_TARGET=console
exec {SYSTEMD} --system --unit=trial.target
"""


def cgroups() -> Path | None:
    """Where the machine has its unified hierarchy of control groups."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


def unavailable() -> str:
    """Why there can be no systemd for tests; empty if there can."""
    if os.geteuid() != 0:
        return "only root can start a systemd"
    if not SYSTEMD.exists() or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "there is no systemd, unshare or nsenter"
    if cgroups() is None:
        return "no control groups of version 2 are mounted"
    tried = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount", "--cgroup", "--mount-proc", "mount", "-t", "cgroup2", "x", "/mnt"],
        capture_output=True,
        text=True,
    )
    return f"namespaces can't be made: {tried.stderr}" if tried.returncode else ""


class SystemdProcess:
    """A systemd.

    Args:
        directory: for units and logs; units see it as /run/trial/directory.
        units: name -> text.
        binds: name -> a directory that units see as /run/trial/NAME.
    """

    def __init__(self, directory: Path, units: dict[str, str], binds: dict[str, Path]) -> None:
        self.directory = directory
        (directory / "units").mkdir()
        for target in TARGETS:
            units = {f"{target}.target": "[Unit]\nDefaultDependencies=no\n", **units}
        for name, text in units.items():
            (directory / "units" / name).write_text(text)
        group = cgroups()
        assert group is not None
        self._group = group / f"flockmq-test-{uuid4().hex[:8]}"
        self._group.mkdir()
        variables = {
            **os.environ,
            "DIRECTORY": str(directory),
            "BINDS": " ".join(f"{n}={path}" for n, path in binds.items()),
        }
        with open(directory / "systemd.log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    'echo $$ > "$0/cgroup.procs"; exec unshare --fork --pid --mount --ipc --uts --cgroup '
                    '--mount-proc --kill-child sh -c "$1"',
                    self._group,
                    BOOT,
                ],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._pid = until(self._first, "systemd has not begun")
            until(lambda: self.run("systemctl", "show-environment").returncode == 0, "systemd does not answer")
        except BaseException:
            self.close()
            raise

    def _first(self) -> int:
        """The process that is number 1 inside, once it is systemd."""
        assert self._process.poll() is None, (self.directory / "systemd.log").read_text()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        with contextlib.suppress(OSError):
            if children and os.path.samefile(f"/proc/{children[0]}/exe", SYSTEMD):
                return int(children[0])
        return 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=DEADLINE)

    def show(self, unit: str, what: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", unit, "--property", what, "--value").stdout.strip()

    def close(self) -> None:
        """End it and all that it started."""
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            os.kill(int(child), 9)  # process 1: the kernel ends the others
        self._process.kill()
        self._process.wait(20)
        end = time.monotonic() + 20
        while self._group.exists() and time.monotonic() < end:
            for place, _, _ in os.walk(self._group, topdown=False):
                with contextlib.suppress(OSError):  # the kernel has not taken its last process away yet
                    os.rmdir(place)
            time.sleep(0.01)
