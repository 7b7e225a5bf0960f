"""The embedded store after a loss of power: it has all that it confirmed before that moment, and nothing is damaged.

A process does work with a store (`power_loss_work.py`). At moments of its life the disk is made as a loss of power may
leave it (`tests/harness/power_loss.py`), and opened. One of these disks is the next process's.

FLOCKMQ_TEST_SEED and FLOCKMQ_TEST_SECONDS are the seed, and the length of the long form.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from flockmq.broker.storage import confirmed_note
from flockmq.broker.storage.log_files import LogFiles
from flockmq.broker.storage.log_segments import LogReader, folder_of
from flockmq.broker.storage.sqlite import SqliteStore
from tests.harness.broker_process import ROOT, environment
from tests.harness.cluster_process import new_seed
from tests.harness.power_loss import Disk, Left, Note, read_notes, variables
from tests.storage.power_loss_work import Piece, asked, confirmed, number_of, pieces_of

NAME = "store.db"
PROCESSES = 3  # one after the other, each on a disk that the process before has left
MOMENTS = 25  # of each
NAMES = re.compile(rb"known|cut off, in a new segment|cut off|cut|end|new")
PAYLOAD = re.compile(rb"#(\d{8})#")


class Held(NamedTuple):
    """The content of a store, by numbers of pieces of work."""

    blocks: list[int]
    logged: list[int]


class Life:
    """A store, and the processes that have worked with it, one after the other, with losses of power between them.

    Args:
        folder: for disks.
        seed: of the work, and of the losses.
        sync: of the store.
        is_synced: as for Disk.
    """

    def __init__(
        self, folder: Path, seed: int, sync: str = "full", is_synced: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._folder = folder
        self._rng = Random(seed)
        self._seed = seed
        self._sync = sync
        self._wrong = ("WARNING", "ERROR") if sync == "full" else ("ERROR",)  # levels of lines in the node's log
        self._is_synced = is_synced
        self._held = Held([], [])  # by the disk on which the process began
        self._first = 1  # number of its first piece

    def live(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        """Run all processes. Returns findings."""
        disk = self._folder / "0"
        disk.mkdir(parents=True)
        for number in range(1, PROCESSES + 1):
            pieces = pieces_of(self._seed + number, self._first)
            notes = self._work(disk, self._seed + number)
            chosen = self._folder / str(number)
            if found := self._lose(chosen, pieces, notes, caplog):
                return [f"process {number}: {finding}" for finding in found]
            disk = chosen
        return []

    def _work(self, disk: Path, seed: int) -> list[Note]:
        """Run a process on a copy of a disk. Returns what it did."""
        live, notes = self._folder / "live", self._folder / "notes"
        shutil.rmtree(live, ignore_errors=True)
        notes.unlink(missing_ok=True)
        shutil.copytree(disk, live)
        self._disk = Disk(live, self._is_synced)
        command = [sys.executable, "-m", "tests.storage.power_loss_work", str(live / NAME), self._sync]
        command += [str(seed), str(self._first)]
        subprocess.run(command, cwd=ROOT, env=environment() | variables(live, notes), check=True)
        return list(read_notes(notes))

    def _lose(
        self, chosen: Path, pieces: list[Piece], notes: list[Note], caplog: pytest.LogCaptureFixture
    ) -> list[str]:
        """Lose power at some moments, and open the disk of each; a late one's disk is kept for the next process.

        Args:
            chosen: where it is kept.
            pieces, notes: the work that the process was asked for, and its changes of the disk.
            caplog: of the lines that the store logs.

        Returns:
            Findings at the first moment that has some.
        """
        confirmations = [i for i, note in enumerate(notes) if note.kind == "k" and note.file & 1]
        moments = sorted(
            self._rng.choice((self._rng.randrange(len(notes)), self._rng.choice(confirmations))) for _ in range(MOMENTS)
        )
        kept = self._rng.choice(moments[MOMENTS // 2 :])
        marks: set[int] = set()
        after = self._held
        for place, note in enumerate(notes):
            if note.kind == "k":
                marks.add(note.file)
            self._disk.apply(note)
            if place not in moments:
                continue
            left = self._rng.choice(list(Left))
            lost = self._folder / "lost"
            shutil.rmtree(lost, ignore_errors=True)
            self._disk.after_loss(lost, left, self._rng)
            if place == kept and not chosen.exists():
                shutil.copytree(lost, chosen)
            try:
                held, found = self._check(lost, pieces, marks, caplog)
            except Exception as error:
                held, found = Held([], []), [f"it does not open: {error!r}"]
            if found:
                return [f"after note {place}, {left}: {finding}" for finding in found]
            if place == kept:
                after = held
        self._held, self._first = after, pieces[-1].number + 1
        return []

    def _check(
        self, disk: Path, pieces: list[Piece], marks: set[int], caplog: pytest.LogCaptureFixture
    ) -> tuple[Held, list[str]]:
        """Open the store on a disk. Returns what it has, and findings."""
        caplog.clear()
        store = SqliteStore(disk / NAME, sync=self._sync)
        records = list(store.open())
        end = store.log_files.end
        store.close()
        frames, _ = LogReader(folder_of(disk / NAME)).read(None, 0, count=1 << 30, size=1 << 40)
        held = Held([*map(number_of, records)], [int(n) for frame in frames for n in PAYLOAD.findall(frame.block)])
        found = [record.getMessage() for record in caplog.records if record.levelname in self._wrong]
        if self._sync == "full" and frames and frames[-1].total != end:
            found.append(f"the log ends at {frames[-1].total}, and its store takes {end} for its end")
        return held, found + self._judge(held, records, pieces, marks)

    def _judge(self, held: Held, records: list[bytes], pieces: list[Piece], marks: set[int]) -> list[str]:
        """Compare the content of a store with the pieces that it has confirmed."""
        stored = self._held.blocks + [piece.number for piece in pieces if piece.size]
        by_number = {piece.number: piece for piece in pieces}
        starts = self._held.blocks[:1]  # the oldest block may be one of these
        blocks = list(self._held.blocks)
        for piece in pieces:
            if asked(piece) in marks:
                if piece.size:
                    blocks.append(piece.number)
                elif piece.forgets is not None:
                    kept = blocks[len(blocks) - piece.forgets :]
                    starts.append(kept[0] if kept else piece.number)
        is_full = self._sync == "full"
        done = [piece for piece in pieces if is_full and confirmed(piece) in marks]
        needed = [*self._held.blocks, *(piece.number for piece in done if piece.size)] if is_full else []
        oldest = max(starts, default=0)
        found = []
        found += [f"block {n} was confirmed, and is lost" for n in needed if n >= oldest and n not in held.blocks]
        if held.blocks:
            begin = stored.index(held.blocks[0])
            if held.blocks != stored[begin : begin + len(held.blocks)]:
                found.append(f"blocks are {held.blocks} of {stored}")
            if needed and held.blocks[-1] < needed[-1]:
                found.append(f"the newest block is {held.blocks[-1]}, and {needed[-1]} was confirmed")
        for block in records:
            piece = by_number.get(number_of(block))
            if piece is not None and piece.records != block:
                found.append(f"block {piece.number} has changed")
        return found + self._judge_log(held, by_number, done, oldest)

    def _judge_log(self, held: Held, by_number: dict[int, Piece], done: list[Piece], oldest: int) -> list[str]:
        """The same for the log of messages: confirmed entries, and none of a block that the store lacks."""
        logged = [*self._held.logged, *(piece.number for piece in done if piece.logged)] if self._sync == "full" else []
        found = [f"entry {n} of the log was confirmed, and is lost" for n in logged if n not in held.logged]
        if held.logged != sorted(set(held.logged)):
            found.append(f"entries of the log are out of order: {held.logged}")
        for n in held.logged:
            piece = by_number.get(n)
            is_bound = piece is not None and piece.size > 0 and self._sync == "full"
            if is_bound and n >= oldest and n not in held.blocks:
                found.append(f"entry {n} of the log has no records")
        return found


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")


@pytest.mark.parametrize("seed", range(1, 4))
def test_nothing_that_was_confirmed_is_lost(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    assert Life(tmp_path, seed * 100).live(caplog) == []


@pytest.mark.parametrize("seed", range(1, 3))
def test_without_syncs_the_store_is_of_an_earlier_time_and_whole(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    boot.write_text("another one")
    monkeypatch.setattr(confirmed_note, "BOOT_ID", boot)
    assert Life(tmp_path / "disks", seed * 100, "normal").live(caplog) == []


@pytest.mark.parametrize("deaf", ["store.db", "store.db-wal", "store.db-log", "."])
def test_a_disk_that_ignores_syncs_is_found(tmp_path: Path, deaf: str, caplog: pytest.LogCaptureFixture) -> None:
    """The deliberate fault: the syncs of one file, of the log, or of the folder do nothing."""

    def is_synced(name: str) -> bool:
        return name != deaf and not name.startswith(f"{deaf}/")

    assert any(Life(tmp_path / str(seed), seed, is_synced=is_synced).live(caplog) for seed in range(100, 1000, 100))


def work_on_a_log(folder: Path, work: str) -> tuple[Disk, Note]:
    """Let a process work on a log of messages. Returns the disk after it, and the last of its notes."""
    live, path = folder / "live", folder / "notes"
    live.mkdir()
    disk = Disk(live)
    command = [sys.executable, "-m", "tests.storage.power_loss_work", work, str(live / "log")]
    subprocess.run(command, cwd=ROOT, env=environment() | variables(live, path), check=True)
    notes = list(read_notes(path))
    for note in notes:
        disk.apply(note)
    return disk, notes[-1]


def test_what_was_cut_off_a_log_does_not_return(tmp_path: Path) -> None:
    """A segment that was removed at a start had its name again, and hid the entries that others have written since."""
    lost = tmp_path / "lost"
    disk, note = work_on_a_log(tmp_path, "log")
    disk.after_loss(lost, Left.NONE, Random(1))
    files = LogFiles(lost / "log", sync=True)
    files.open(note.file)
    files.close()
    frames, _ = LogReader(lost / "log").read(None, 0, count=100, size=1 << 30)
    assert frames[-1].total == note.file == files.end
    assert [name for frame in frames for name in NAMES.findall(frame.block)] == [b"known", b"new"]


def test_the_end_that_was_cut_off_a_segment_does_not_return(tmp_path: Path) -> None:
    """It stood behind an entry that was written in place of its first, and was as long."""
    lost = tmp_path / "lost"
    disk, _ = work_on_a_log(tmp_path, "equal")
    seen = set()
    for seed in range(40):
        disk.after_loss(lost, Left.TORN, Random(seed))
        frames, _ = LogReader(lost / "log").read(None, 0, count=100, size=1 << 30)
        seen.add(tuple(name for frame in frames for name in NAMES.findall(frame.block)))
        shutil.rmtree(lost)
    assert seen <= {(b"known",), (b"known", b"new")}
    assert (b"known", b"new") in seen


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_that_was_confirmed_is_lost_for_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    seed = new_seed()
    while time.monotonic() < end:
        print(f"FLOCKMQ_TEST_SEED={seed}")
        assert Life(tmp_path / str(seed), seed).live(caplog) == []
        shutil.rmtree(tmp_path / str(seed))
        seed = seed % (1 << 32) + 1
