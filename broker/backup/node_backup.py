"""The backup of one node: its store, its log of messages, its configuration; and the way back.

A running node copies its store by itself, since no other process can open it. The log of messages is copied after the
store, so it reaches at least as far as the store has noted. A start cuts off the rest.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..config.schema import Config
from ..config.toml_text import to_toml
from ..errors import FlockError
from ..files import sync_folder
from ..storage import sqlite_file
from ..storage.confirmed_note import ConfirmedNote
from ..storage.log_segments import folder_of, segments
from ..storage.store import Store
from .archive import LOG, NODE, SETTINGS, STORE, Archive, Head, Member, chunks

PLACE = "-backup-"  # in the name of the folder of a copy, after the name of the store


@contextmanager
def _folder(store: Path) -> Iterator[Path]:
    """A folder beside the store for a copy: removed at the end, or by the next backup if the node was killed."""
    for left in store.parent.iterdir():
        if left.name.startswith(f"{store.name}{PLACE}"):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{store.name}{PLACE}", dir=store.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _members(store: Path, copy: Path, config: Config, *, with_log: bool) -> list[Member]:
    found = [Member(SETTINGS, to_toml(config, changed=True).encode()), Member(STORE, copy)]
    if with_log:
        found += [Member(f"log/{segment.path.name}", segment.path) for segment in segments(folder_of(store))]
    return found


def head_of(version: str, name: str) -> Head:
    """The description of a backup that is made now."""
    return Head(NODE, version, name)


async def of_running(store: Store, config: Config, head: Head, *, with_log: bool) -> AsyncGenerator[bytes]:
    """The archive of a node that runs, in pieces.

    Raises:
        OSError, sqlite3.Error: the copy can't be written beside the store.
        StoreError: the node stops.
    """
    loop = asyncio.get_running_loop()
    assert store.file is not None, "it has none"
    with _folder(store.file) as folder:
        copied: asyncio.Future[Exception | None] = loop.create_future()
        store.copy(folder / STORE, partial(_set, copied))
        if (error := await copied) is not None:
            raise error
        pieces = chunks(head, _members(store.file, folder / STORE, config, with_log=with_log))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


def _set(copied: "asyncio.Future[Exception | None]", error: Exception | None) -> None:
    if not copied.done():  # else the request has ended
        copied.set_result(error)


def of_stopped(path: Path, config: Config, head: Head, *, with_log: bool) -> Iterator[bytes]:
    """The archive of a node that does not run, in pieces.

    Raises:
        StoreError: its store is in use, damaged, or can't be copied.
    """
    with sqlite_file.reported(path), _folder(path) as folder:
        database = sqlite_file.connect(path)
        try:
            sqlite_file.copy(database, folder / STORE, lambda: None)
            yield from chunks(head, _members(path, folder / STORE, config, with_log=with_log))
        finally:
            database.close()


@contextmanager
def opened(archive: Archive) -> Iterator[Path]:
    """The store of a backup as a file, for a look into it."""
    with tempfile.TemporaryDirectory(prefix="flockmq-") as folder:
        path = Path(folder) / STORE
        archive.extract(STORE, path)
        yield path


def restore(archive: Archive, path: Path, *, with_log: bool) -> None:
    """Make the store of a backup at a path where none is.

    Raises:
        FlockError: there is a store, or a log of messages; or the files can't be written.
    """
    folder = folder_of(path)
    for there in (path, folder):
        if there.exists():
            raise FlockError(f"{there} exists", "a restore replaces nothing: move it away, or choose another path")
    mark = f".restored-{secrets.token_hex(4)}"
    fresh, fresh_folder = path.with_name(path.name + mark), folder.with_name(folder.name + mark)
    with sqlite_file.reported(path):
        try:
            archive.extract(STORE, fresh)
            fresh_folder.mkdir(mode=0o700)
            for found in filter(None, map(LOG.fullmatch, archive.names if with_log else [])):
                archive.extract(found[0], fresh_folder / found[1])
            sync_folder(fresh_folder)
            if any(fresh_folder.iterdir()):
                os.rename(fresh_folder, folder)
            ConfirmedNote(path, "full").remove()
            os.rename(fresh, path)
            sync_folder(path.parent)
        finally:
            fresh.unlink(missing_ok=True)
            shutil.rmtree(fresh_folder, ignore_errors=True)
