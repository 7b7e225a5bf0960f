"""The log of messages as files: its content for a reader after each end of its writer, within its bounds."""

import os
import resource
import time
from itertools import pairwise
from pathlib import Path

import pytest

from flockmq.broker.errors import StoreError
from flockmq.broker.storage.log_files import LogEntry, LogFiles
from flockmq.broker.storage.log_segments import FRAME, HEAD, Frame, LogReader, segment_path, segments
from tests.model.log_block import Row, encode

BEGAN = int(time.time() * 1000)


class Writer:
    """Writes a log, and keeps a copy of it."""

    def __init__(self, folder: Path, known: int | None = None) -> None:
        self.files = LogFiles(folder, sync=True)
        self.files.open(known)
        self.total = self.files.end
        self.ms = max(BEGAN, self.files.reached.ms)

    def entry(self, size: int = 100, *, is_bound: bool = False) -> LogEntry:
        row = Row(self.ms * 1000, "client", "topic", 1, False, False, bytes(size))
        block = encode([row], bytes_before=self.total)
        self.ms += 1
        self.total += len(block)
        return LogEntry(self.ms, self.total, block, is_bound)

    def write(self, count: int, size: int = 100, *, is_bound: bool = False) -> list[LogEntry]:
        entries = [self.entry(size, is_bound=is_bound) for _ in range(count)]
        self.files.append(entries, durable=True)
        return entries


def read(folder: Path, after: int | None = None, since: int = 0) -> list[Frame]:
    """All entries, in small pieces."""
    reader, found, at_end = LogReader(folder), list[Frame](), False
    while not at_end:
        piece, at_end = reader.read(after, since, count=3, size=2000)
        assert len(piece) <= 3
        found += piece
        after = found[-1].total if found else after
    return found


def blocks(entries: list[LogEntry] | list[Frame]) -> list[bytes]:
    return [entry.block for entry in entries]


def test_entries_are_read_from_each_place_and_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log")
    writer.files.bound(1 << 20, 3600)
    entries = writer.write(300, 1000)
    assert len(segments(tmp_path / "log")) > 2
    for number in (0, 1, 57, 150, 299):
        assert blocks(read(tmp_path / "log", entries[number].total)) == blocks(entries[number + 1 :])
        assert blocks(read(tmp_path / "log", None, entries[number].ms)) == blocks(entries[number:])
    assert read(tmp_path / "log", None, writer.ms + 1) == []
    again = Writer(tmp_path / "log", writer.total)
    assert again.files.reached == (writer.ms, writer.total, 1, 0)
    assert again.files.id == writer.files.id != Writer(tmp_path / "another").files.id
    more = again.write(10)
    assert blocks(read(tmp_path / "log")) == blocks(entries + more)


@pytest.mark.parametrize("missing", [1, 100, 200, 300])
def test_a_torn_tail_is_cut_off(tmp_path: Path, missing: int) -> None:
    folder = tmp_path / "log"
    entries = Writer(folder).write(20)
    path = segments(folder)[0].path
    os.truncate(path, path.stat().st_size - missing)
    again = Writer(folder)
    kept = [entry for entry in entries if entry.total <= again.total]
    assert 18 <= len(kept) < 20
    assert blocks(read(folder)) == blocks(kept)
    more = again.write(5)
    assert blocks(read(folder)) == blocks(kept + more)


@pytest.mark.parametrize("size", [0, 7, HEAD.size, HEAD.size + 5])
def test_a_segment_that_was_begun_is_begun_again(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 20, 3600)
    entries = writer.write(100, 1000)
    *_, before, last = segments(folder)
    os.truncate(last.path, size)
    again = Writer(folder)
    assert again.total == last.before
    entries = [entry for entry in entries if entry.total <= last.before]
    more = again.write(3)
    assert blocks(read(folder)) == blocks(entries + more)
    assert before in segments(folder)


def test_entries_without_their_records_are_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 20, 3600)
    entries = writer.write(90, 1000, is_bound=True)
    free = writer.write(3)
    writer.write(1, is_bound=True)  # the store does not have its records
    writer.write(80, 1000)
    again = Writer(folder, entries[-1].total)
    assert again.total == free[-1].total
    more = again.write(2)
    assert blocks(read(folder)) == blocks(entries + free + more)


def test_all_entries_may_lack_their_records(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    Writer(folder).write(3, is_bound=True)
    again = Writer(folder, 0)
    assert again.total == 0 and segments(folder) == []
    more = again.write(2)
    assert blocks(read(folder)) == blocks(more)


def test_a_log_that_is_shorter_than_the_store_knows_goes_on_with_a_gap(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    entries = writer.write(5)
    again = Writer(folder, writer.total + 1000)
    assert again.total == writer.total + 1000
    more = again.write(5)
    found = read(folder)
    assert blocks(found) == blocks(entries + more)
    missing = [after.total - len(after.block) - before.total for before, after in pairwise(found)]
    assert missing == [0] * 4 + [1000] + [0] * 4
    assert blocks(read(folder, writer.total + 500)) == blocks(more)


def test_a_damaged_entry_hides_no_later_segment(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 20, 3600)
    entries = writer.write(200, 1000)
    first, second, *_ = segments(folder)
    with first.path.open("r+b") as file:
        file.seek(HEAD.size + FRAME.size + 10)
        file.write(b"\xff")
    found = read(folder)
    assert blocks(found) == blocks([entry for entry in entries if entry.total > second.before])


def test_the_log_is_bounded_by_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 20, 3600)
    entries: list[LogEntry] = []
    for _ in range(100):
        entries += writer.write(30, 1000)
        assert sum(segment.path.stat().st_size for segment in segments(folder)) <= 1 << 20
    found = read(folder)
    assert blocks(found) == blocks(entries[-len(found) :])
    assert sum(len(frame.block) for frame in found) > (1 << 20) * 7 // 8
    assert blocks(read(folder, entries[10].total)) == blocks(found)  # the rest begins later


def test_the_log_is_bounded_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 30, 3600)
    writer.ms -= 7_200_000
    writer.write(10)
    writer.ms = BEGAN
    kept = writer.write(10)
    assert blocks(read(folder)) == blocks(kept)


def test_an_append_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    writer = Writer(folder)
    writer.files.bound(1 << 24, 3600)
    entries = writer.write(3)
    more = [writer.entry(100_000) for _ in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                writer.files.append(more, durable=True)
            assert blocks(read(folder)) == blocks(entries)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.files.append(more, durable=True)
    assert blocks(read(folder)) == blocks(entries + more)
    assert Writer(folder, writer.total).total == writer.total


def test_a_file_that_is_no_segment_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    Writer(folder).write(3)
    path = segments(folder)[0].path
    data = path.read_bytes()
    path.write_bytes(b"FQLOG\0\0\2" + data[8:])
    with pytest.raises(StoreError, match="no segment of a log of messages that this version reads"):
        Writer(folder)
    assert path.read_bytes()[8:] == data[8:]


def test_only_the_owner_reads_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    Writer(folder).write(1)
    assert folder.stat().st_mode & 0o077 == 0
    assert segments(folder)[0].path.stat().st_mode & 0o177 == 0


def test_a_segment_of_zeros_is_none(tmp_path: Path) -> None:
    """A loss of power had left the size of a new segment, and not its bytes. The node did not start."""
    folder = tmp_path / "log"
    writer = Writer(folder)
    entries = writer.write(3, is_bound=True)
    segment_path(folder, writer.total).write_bytes(bytes(4096))
    again = Writer(folder, writer.total)
    assert again.files.id == writer.files.id
    assert blocks(read(folder)) == blocks(entries)
    more = again.write(2)
    assert blocks(read(folder)) == blocks(entries + more)
