"""Files that outlive a loss of power: replaced in one step, in folders that are synced."""

import contextlib
import os
import tempfile
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names of a folder: files that were made, renamed or removed there.

    Raises:
        OSError: the folder can't be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step, or make it. Only its owner may read it; a symbolic link stays.

    Args:
        path: of the file.
        text: that it will have, in UTF-8; bytes that were read with "surrogateescape" are as they were.

    Raises:
        OSError: it can't be written; the file is as it was.
    """
    place = Path(path).absolute()
    if place.is_symlink():
        place = place.resolve()
    handle, fresh = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)  # mode 0600
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            owner = (place if place.exists() else place.parent).stat()  # root may write for the user of a service
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        os.replace(fresh, place)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    sync_folder(place.parent)
