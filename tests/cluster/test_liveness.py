"""Whether a process of this machine is gone: only when it is certain."""

import subprocess
import sys
from pathlib import Path

import pytest

from flockmq.cluster.peers import liveness
from flockmq.cluster.peers.liveness import is_gone, process_name


@pytest.fixture
def other() -> "subprocess.Popen[bytes]":
    """A process that lives until it is killed."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(process: "subprocess.Popen[bytes]") -> None:
    """kill -9, and nothing is left of it."""
    with process:
        process.kill()


def test_a_process_is_gone_when_it_has_ended(other: "subprocess.Popen[bytes]") -> None:
    name = process_name(other.pid).encode()
    assert not is_gone(name)
    end(other)
    assert is_gone(name)


def test_a_process_id_may_be_another_process_now(other: "subprocess.Popen[bytes]") -> None:
    name = process_name(other.pid)
    assert is_gone(f"{name}1".encode())  # started at another time
    end(other)


def test_a_process_that_is_hidden_from_us_may_live(
    other: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with systemd's ProtectProc=invisible, and mounts of /proc with hidepid."""
    name = process_name(other.pid).encode()
    for path in ("sys/kernel/random", "self/ns"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").symlink_to("/proc/sys/kernel/random/boot_id")
    (tmp_path / "self/ns/pid").symlink_to("/proc/self/ns/pid")
    monkeypatch.setattr(liveness, "PROC", tmp_path)
    assert not is_gone(name)
    end(other)
    assert is_gone(name)


@pytest.mark.parametrize("name", [b"", b"elsewhere/4026531836/1/17", b"\xff/x/y"])
def test_of_other_machines_nothing_is_known(name: bytes) -> None:
    assert not is_gone(name)
