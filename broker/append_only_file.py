"""The append-only file of Redis: its end is mended before Redis starts.

The command is `python -m flockmq.broker.append_only_file REDIS ...`.

kill -9 and a loss of power can cut off the last write; no node has acknowledged its messages. Redis 7.0 then truncates
the file within a transaction, and applies its beginning together with its next writes (valkey-io/valkey#4342). So
the file is cut here, to its last whole transaction. A file that is damaged in any other way is left unchanged: Redis
refuses it, and no data is dropped silently.
"""

import mmap
import os
import re
import sys
from pathlib import Path

DATA = "appendonlydir"  # in Redis' directory
MANIFEST = "appendonly.aof.manifest"
COUNT, SIZE, NOTE = re.compile(rb"\*(\d+)\r\n"), re.compile(rb"\$(\d+)\r\n"), re.compile(rb"#[^\r]*\r\n")
BEGUN = re.compile(rb"[*$]\d*\r?|#[^\r]*\r?")  # one of these, cut off
MAX_LINE = 64  # bytes
Bytes = bytes | mmap.mmap


class Damaged(Exception):
    """There is no command at this place."""


def whole_size(data: Bytes) -> int:
    """The size of the commands and transactions that are whole; the rest was cut off.

    Args:
        data: commands in the protocol of Redis, as an append-only file has them.

    Raises:
        Damaged: it isn't one that was cut off.
    """
    whole = position = 0
    in_transaction = False
    size = len(data)
    while position < size:
        name = b""
        head = COUNT.match(data, position) or NOTE.match(data, position)
        if head is None:
            return _check_rest(data, position, whole)
        position = head.end()
        for index in range(int(head[1]) if head.re is COUNT else 0):
            word = SIZE.match(data, position)
            if word is None:
                return _check_rest(data, position, whole)
            position = word.end() + int(word[1]) + 2
            if index == 0:
                name = data[word.end() : position - 2].upper()
        if position > size:
            return whole
        if name == b"MULTI":
            in_transaction = True
        elif name == b"EXEC":
            in_transaction = False
        if not in_transaction:
            whole = position
    return whole


def _check_rest(data: Bytes, position: int, whole: int) -> int:
    """`whole`, if the rest is the begin of a line, or zeros, which a loss of power can leave. Raises Damaged."""
    rest = data[position:]
    if (len(rest) < MAX_LINE and BEGUN.fullmatch(rest)) or not any(rest):
        return whole
    raise Damaged(f"no command at byte {position}")


def mend(directory: Path) -> None:
    """Cut an append-only file to its whole blocks; a line on standard output reports it.

    Args:
        directory: with the manifest and the files that it names.
    """
    path = _last_file(directory)
    if path is None or not path.stat().st_size:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size, whole = len(data), whole_size(data)
        if whole < size:
            file.truncate(whole)
            os.fsync(file.fileno())
            print(f"{path}: cut off the last {size - whole} of {size} bytes: a write that was not finished", flush=True)


def _last_file(directory: Path) -> Path | None:
    """The file that Redis was writing, by the manifest."""
    found = None
    for line in (directory / MANIFEST).read_text("utf-8").splitlines():
        words = line.split()
        row = dict(zip(words[::2], words[1::2], strict=False))
        if row.get("type") == "i" and "file" in row:
            found = directory / row["file"]
    return found


def main(command: list[str]) -> None:
    """Mend the file in the working directory, then become Redis."""
    try:
        mend(Path(DATA))
    except FileNotFoundError:
        pass  # a first start
    except (OSError, ValueError, Damaged) as error:
        print(f"the append-only file was not mended: {error!r}", flush=True)  # Redis judges it
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
