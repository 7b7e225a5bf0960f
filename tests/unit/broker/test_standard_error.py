"""Standard error that does not wait for its reader: order, losses and their report, and the end."""

import contextlib
import errno
import fcntl
import os
import select
import threading
from collections.abc import Iterator

import pytest

from flockmq.broker.standard_error import MAX_BYTES, StandardError
from tests.harness.deadline import DEADLINE

SMALLEST = 4096  # bytes, of a pipe


class Pipe:
    """A pipe with its smallest buffer, and a StandardError that writes to it."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        fcntl.fcntl(self.writes, fcntl.F_SETPIPE_SZ, SMALLEST)
        self.file = StandardError(self.writes, lambda lines: self.file.write(b"%d lost\n" % lines))

    def read_until(self, end: bytes) -> list[bytes]:
        """The lines up to this one."""
        found = b""
        while not found.endswith(end):
            assert select.select([self.reads], [], [], DEADLINE)[0], found[-200:]
            found += os.read(self.reads, 1 << 16)
        return found.splitlines(keepends=True)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.set_blocking(pipe.reads, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(pipe.reads, 1 << 16):
            pass
    pipe.file.drain(DEADLINE)
    os.close(pipe.reads)  # the thread keeps the other end


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    lines = [b"line %d\n" % n for n in range(5000)]
    reader = threading.Thread(target=lambda: found.extend(pipe.read_until(lines[-1])))
    found: list[bytes] = []
    reader.start()
    for line in lines:
        pipe.file.write(line)
    reader.join(DEADLINE)
    assert found == lines
    assert pipe.file.dropped == 0


def test_nobody_waits_for_a_reader_and_losses_are_reported_where_they_are(pipe: Pipe) -> None:
    line = b"x" * 999 + b"\n"
    for n in range(3 * MAX_BYTES // len(line)):
        pipe.file.write(b"%6d" % n + line)
    dropped = pipe.file.dropped
    assert dropped > MAX_BYTES // len(line)
    found = pipe.read_until(b"%d lost\n" % dropped)
    assert [int(text[:6]) for text in found[:-1]] == list(range(len(found) - 1))
    assert len(found) - 1 + dropped == 3 * MAX_BYTES // len(line), "each is written or counted"
    pipe.file.write(b"further\n")
    assert pipe.read_until(b"further\n") == [b"further\n"]


def test_a_line_of_any_length(pipe: Pipe) -> None:
    line = b"x" * (2 * MAX_BYTES) + b"\n"
    pipe.file.write(line)
    assert pipe.read_until(b"\n") == [line]


def test_a_write_has_whole_lines(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share a pipe: only writes of at most PIPE_BUF bytes are not mixed with others."""
    written: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: (written.append(bytes(data)), write(file, data))[1])
    for n in range(2000):
        pipe.file.write(b"line %d\n" % n)
    pipe.read_until(b"line 1999\n")
    assert all(len(data) <= select.PIPE_BUF and data.endswith(b"\n") for data in written)
    assert len(written) < 2000


def test_the_end_does_not_wait_for_ever(pipe: Pipe) -> None:
    pipe.file.write(b"x" * SMALLEST)
    pipe.file.write(b"one more\n")
    pipe.file.drain(0.01)
    assert pipe.read_until(b"one more\n")


def test_a_reader_without_blocking(pipe: Pipe) -> None:
    """O_NONBLOCK belongs to the pipe: another process may set it."""
    os.set_blocking(pipe.writes, False)
    lines = [b"line %d\n" % n for n in range(5000)]
    for line in lines:
        pipe.file.write(line)
    assert pipe.read_until(lines[-1]) == lines


def test_a_full_disk_is_reported_when_it_has_room(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        pipe.file.write(b"lost\n")
        pipe.file.drain(DEADLINE)
    assert pipe.file.dropped == 3
    monkeypatch.setattr(os, "write", write)
    pipe.file.write(b"written\n")
    assert pipe.read_until(b"3 lost\n") == [b"written\n", b"3 lost\n"]
