"""A note of the newest confirmed block beside a store, which shows whether the store has lost blocks.

SQLite takes a damaged end of its write-ahead log for the end of the log. An old copy of the file, a file
without its `-wal` file and a new file in place of a deleted one look whole, too. The note has a higher position then.

It is one line: position, `store.sync`, id of the machine's boot. The thread of the store overwrites it after each
transaction, after the confirmation and without a sync, so no acknowledgement waits for it. It never has a position that
the store did not confirm before; after a loss of power it may have an older one. A store that becomes empty may count
its blocks from 1 again. So the note is 0 before that, and this is synced: else it could have a higher position of
before. With `store.sync` "normal" a loss of power may take newer blocks from the store than from the note: the id of
the boot shows that.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from .. import logs
from ..files import sync_folder

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
POSITION_SIZE = 20  # bytes
MAX_SIZE = 200  # bytes of a note

log = logs.get("flockmq.store")


class Noted(NamedTuple):
    """The content of a note."""

    position: int  # of the newest confirmed block
    is_certain: bool  # a loss of power does not explain that the store lacks it


class ConfirmedNote:
    """The note of one store.

    Args:
        path: of the store.
        sync: as for SqliteStore.
    """

    def __init__(self, path: Path, sync: str) -> None:
        self.path = path.with_name(path.name + "-confirmed")
        self._sync = sync
        self._file: int | None = None

    def check(self, newest: int) -> None:
        """Report blocks that the store has confirmed and lacks.

        Args:
            newest: position of the newest block in the store; 0 = it has none.
        """
        noted = self._read()
        if noted is None or noted.position <= newest:
            return
        where = {"path": self.path, "newest_block": newest, "confirmed_block": noted.position}
        if noted.is_certain:
            log.error(
                "store lacks blocks that it has confirmed: sessions and messages are of an earlier time; "
                "if this is no copy that you have restored, check the disk and restore a newer copy",
                **where,
            )
        else:
            log.warning(
                "store lacks its newest blocks after a loss of power: acknowledged messages may be lost; "
                "store.sync = full prevents it",
                **where,
            )

    def write(self, position: int) -> None:
        """Note the newest confirmed block. An error leaves the note as it is.

        Args:
            position: of the block; 0 = the store may soon have none, and the disk has the note when this returns.
        """
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
                os.pwrite(self._file, f" {self._sync} {_boot_id()}\n".encode(), POSITION_SIZE)
            os.pwrite(self._file, b"%0*d" % (POSITION_SIZE, position), 0)
            if not position:
                os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Forget the note: other blocks are about to replace the store's."""
        self.close()
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _read(self) -> Noted | None:
        """None: there is no note, or none that is whole."""
        try:
            with self.path.open(encoding="ascii") as file:
                position, sync, boot = file.read(MAX_SIZE).split()
            return Noted(int(position), sync == "full" or boot == _boot_id())
        except (OSError, ValueError):
            return None


def _boot_id() -> str:
    """Of the running kernel; another one each time if it has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return os.urandom(16).hex()
