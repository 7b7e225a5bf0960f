"""The password of all clients: it is in a file, because command lines are public."""

from __future__ import annotations

from pathlib import Path


def password(path: str) -> bytes | None:
    """The first line of a file; None without a path.

    Raises:
        ValueError: the file can't be read.
    """
    if not path:
        return None
    try:
        return Path(path).read_bytes().partition(b"\n")[0]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
