"""Dead letters: rows that a pipe could not write, as lines of JSON in a file."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from ...broker import logs
from ..follow.target import TargetError
from .query import json_lines

log = logs.get("flockmq.connect")


class DeadLetters:
    """The file of a pipe.

    Args:
        pipe: its name.
        path: of the file; it is made when there is a first line.
    """

    def __init__(self, pipe: str, path: Path) -> None:
        self._pipe = pipe
        self._path = path
        self.count = 0
        self._is_synced = True

    def add(self, rows: pa.Table, reason: str) -> None:
        """Append rows. They are on the disk after `sync`.

        Raises:
            TargetError: the file can't be written.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = [
            json.dumps({"at": at, "pipe": self._pipe, "reason": reason, "row": json.loads(row)}, ensure_ascii=False)
            for row in json_lines(rows)
        ]
        try:
            with open(self._path, "a", encoding="utf-8", opener=_private) as file:
                file.write("".join(line + "\n" for line in lines))
        except OSError as error:
            raise TargetError(
                f"{self._path}: {error.strerror}", "dead letters need a file that can be written"
            ) from None
        if not self.count:
            log.warning(
                "rows are refused; they are in the file of dead letters",
                pipe=self._pipe,
                file=str(self._path),
                reason=reason,
            )
        self.count += len(lines)
        self._is_synced = False

    def sync(self) -> None:
        """Wait until all rows are on the disk: before the position of the pipe moves on.

        Raises:
            TargetError: the file can't be written.
        """
        if self._is_synced:
            return
        try:
            with open(self._path, "a", opener=_private) as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise TargetError(f"{self._path}: {error.strerror}") from None
        self._is_synced = True


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: rows have payloads."""
    return os.open(path, flags, 0o600)
