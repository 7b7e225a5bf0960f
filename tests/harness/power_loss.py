"""Disks as a loss of power may leave them: all that was synced, and any part of the rest.

A process runs with a library (power_loss.c) that notes, in order, its changes below a folder. `Disk` repeats the notes
up to any moment, and notes which of them a sync has made safe. `Disk.after_loss` makes the folder as it may be
then: it is stricter than most file systems.

| of a file or folder | safe after | else |
| --- | --- | --- |
| bytes, size | fsync or fdatasync of the file | each write is there, or is not, or some of its sectors are |
| a name: new, changed, removed | fsync of its folder | each name is the new or an older one; a rename is one step |
"""

import enum
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.harness.preload import preload

SOURCE = Path(__file__).with_suffix(".c")
HEAD = struct.Struct("=IIQQ")  # kind, size of the text or data after it, inode, offset or size
SECTORS = (512, 4096)  # bytes that a disk writes whole


def variables(folder: Path, notes: Path) -> dict[str, str]:
    """Of the environment of a process, so that it notes what it changes below a folder."""
    return preload(SOURCE) | {"POWER_LOSS_FOLDER": str(folder), "POWER_LOSS_NOTES": str(notes)}


class Note(NamedTuple):
    """The changes that the process has made."""

    kind: str
    file: int  # inode, or the number of a mark
    offset: int  # or the size to which a file was cut
    data: bytes  # written, or names with a zero between them

    @property
    def names(self) -> list[str]:
        """The path, or both paths, from the folder on."""
        return self.data.decode().split("\0")


def read_notes(path: Path) -> Iterator[Note]:
    """All notes, the oldest first."""
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            kind, size, inode, offset = HEAD.unpack(head)
            yield Note(chr(kind), inode, offset, file.read(size))


class Left(enum.Enum):
    """Which of the changes that no sync has made safe are on the disk."""

    NONE = "none"
    ALL = "all"
    SOME = "some"  # each by chance, whole
    TORN = "torn"  # and each sector of it by chance


@dataclass(eq=False)
class File:
    """A file, or a folder.

    Attributes:
        data: that is safe.
        unsafe: later writes: where, and the bytes; None: it was cut to this size.
        names: of a folder that are safe.
        changes: of these names since; the changes of one step are together.
    """

    is_folder: bool = False
    data: bytearray = field(default_factory=bytearray)
    unsafe: list[tuple[int, bytes | None]] = field(default_factory=list)
    names: "dict[str, File]" = field(default_factory=dict)
    changes: "list[dict[str, File | None]]" = field(default_factory=list)

    def now(self) -> "dict[str, File]":
        """The names of a folder, as the process sees them."""
        found = dict(self.names)
        for step in self.changes:
            _change(found, step)
        return found

    def sync(self) -> None:
        """All of it is safe."""
        for where, data in self.unsafe:
            _write(self.data, where, data)
        self.names = self.now()
        self.unsafe, self.changes = [], []


class Disk:
    """The folder of a process, as it is in memory and on the disk.

    Args:
        folder: as it is before the process starts: all of it is safe.
        is_synced: whether a sync of this path, from the folder on, is one; a disk that lies for a deliberate fault.
    """

    def __init__(self, folder: Path, is_synced: Callable[[str], bool] = lambda name: True) -> None:
        self._inodes: dict[int, File] = {}
        self._root = self._load(folder)
        self._is_synced = is_synced

    def _load(self, path: Path) -> File:
        file = self._inodes[path.stat().st_ino] = File(path.is_dir())
        if file.is_folder:
            file.names = {child.name: self._load(child) for child in path.iterdir()}
        else:
            file.data = bytearray(path.read_bytes())
        return file

    def _at(self, name: str) -> File:
        """The file or folder of this path."""
        file = self._root
        for part in Path(name).parts:
            file = file.now()[part]
        return file

    def _rename(self, *changes: tuple[str, File | None]) -> None:
        """Names of one folder change in one step."""
        (folder,) = {str(Path(name).parent) for name, _ in changes}
        self._at(folder).changes.append({Path(name).name: file for name, file in changes})

    def apply(self, note: Note) -> None:
        """The process has done this."""
        match note.kind:
            case "c":
                file = self._inodes[note.file] = File()
                self._rename((note.names[0], file))
            case "m":
                self._rename((note.names[0], File(is_folder=True)))
            case "w":
                self._inodes[note.file].unsafe.append((note.offset, note.data))
            case "t":
                self._inodes[note.file].unsafe.append((note.offset, None))
            case "s" if self._is_synced(note.names[0]):
                self._inodes[note.file].sync()
            case "d" if self._is_synced(note.names[0] or "."):
                self._at(note.names[0]).sync()
            case "r":
                old, new = note.names
                self._rename((old, None), (new, self._at(old)))
            case "l":
                old, new = note.names
                self._rename((new, self._at(old)))
            case "u":
                self._rename((note.names[0], None))

    def after_loss(self, target: Path, left: Left, rng: Random) -> None:
        """Make the folder as a loss of power at this moment may leave it.

        Args:
            target: a folder that does not exist.
            left: the parts of unsafe changes that are left.
            rng: chance.
        """
        self._make(self._root, target, left, rng, {})

    def _make(self, file: File, path: Path, left: Left, rng: Random, made: dict[int, Path]) -> None:
        if id(file) in made:
            os.link(made[id(file)], path)
            return
        made[id(file)] = path
        if not file.is_folder:
            path.write_bytes(_content(file, left, rng))
            return
        path.mkdir()
        names = dict(file.names)
        for step in file.changes:
            if _is_left(left, rng):
                _change(names, step)
        for name, child in names.items():
            self._make(child, path / name, left, rng, made)


def _change(names: dict[str, File], step: dict[str, File | None]) -> None:
    for name, file in step.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _is_left(left: Left, rng: Random) -> bool:
    return left is Left.ALL or (left is not Left.NONE and rng.random() < 0.5)


def _content(file: File, left: Left, rng: Random) -> bytearray:
    """The bytes of a file after the loss."""
    data = bytearray(file.data)
    sector = rng.choice(SECTORS)
    for where, written in file.unsafe:
        if left is not Left.TORN or written is None:
            if _is_left(left, rng):
                _write(data, where, written)
            continue
        at = where
        while at < where + len(written):
            end = min((at // sector + 1) * sector, where + len(written))
            if _is_left(left, rng):
                _write(data, at, written[at - where : end - where])
            at = end
    return data


def _write(data: bytearray, where: int, written: bytes | None) -> None:
    """Write bytes, or cut the file if there are none; a gap becomes zeros."""
    if len(data) < where:
        data.extend(bytes(where - len(data)))
    if written is None:
        del data[where:]
    else:
        data[where : where + len(written)] = written
