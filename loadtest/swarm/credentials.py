"""What all clients of a load test show: the password is in a file, which stands in no command line."""

from __future__ import annotations

from pathlib import Path


def password(path: str) -> bytes | None:
    """The first line of a file; None if none is named.

    Raises:
        ValueError: it can't be read.
    """
    if not path:
        return None
    try:
        return Path(path).read_bytes().partition(b"\n")[0]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
