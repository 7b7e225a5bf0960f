"""The file of a backup: a tar archive of a few members, the last of which has the checksums of all others.

`backup.json` is the first member: the kind of the state, its time and its version. `flockmq.db` is the store of a node,
`log/*.log` its log of messages; `redis-1.rdb` and so on are the state of a cluster, a file of each Redis.
`flockmq.toml` is the configuration without secrets. `SHA256SUMS` is the last member, so an archive that was cut has
none. `sha256sum -c` reads it, too.
"""

import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from ..errors import FlockError

HEAD, SUMS = "backup.json", "SHA256SUMS"
STORE, SNAPSHOT, SETTINGS = "flockmq.db", "redis-{}.rdb", "flockmq.toml"
LOG = re.compile(r"log/(\d{20}\.log)", re.ASCII)
NODE, CLUSTER = "node", "cluster"  # kinds
FORM = 1  # of the archive
CHUNK = 1 << 20  # bytes
ANOTHER = "use an older backup"


def now() -> str:
    """The time, in ISO 8601 and UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Shard(NamedTuple):
    """Where a shard of a cluster is in a backup."""

    snapshot: str  # name of the member
    prefix: str  # of its keys
    db: int  # number of the database


@dataclass(frozen=True)
class Head:
    """The description of a backup."""

    kind: str  # NODE or CLUSTER
    version: str  # of FlockMQ
    source: str  # the name of the node, or the addresses of Redis
    made: str = field(default_factory=now)  # time of the copy
    shards: tuple[Shard, ...] = ()  # of a cluster, in their order
    form: int = FORM


class Member(NamedTuple):
    """A file of the archive."""

    name: str
    content: bytes | Path


def chunks(head: Head, members: Iterable[Member]) -> Iterator[bytes]:
    """An archive in pieces, none of which is empty.

    Each file is read when it is reached. A file that has been removed is left out.

    Raises:
        OSError: a file can't be read.
    """
    sums = []
    for member in (Member(HEAD, json.dumps(asdict(head), indent=1).encode() + b"\n"), *members):
        try:
            file = io.BytesIO(member.content) if isinstance(member.content, bytes) else member.content.open("rb")
        except FileNotFoundError:  # a segment of the log that was dropped
            continue
        with closing(file):
            digest = hashlib.sha256()
            yield from _packed(member.name, file, digest.update)
        sums.append(f"{digest.hexdigest()}  {member.name}\n")
    yield from _packed(SUMS, io.BytesIO("".join(sums).encode()))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _packed(name: str, file: IO[bytes], seen: Callable[[bytes], object] = len) -> Iterator[bytes]:
    """A member: its head, its bytes, and zeros up to the next block of the archive. The file may grow at its end."""
    size = left = file.seek(0, io.SEEK_END)
    file.seek(0)
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(time.time()), 0o600
    yield entry.tobuf()
    while left:
        piece = file.read(min(CHUNK, left))
        if not piece:
            raise OSError(f"{name} was cut while it was read")
        seen(piece)
        left -= len(piece)
        yield piece
    if padding := -size % tarfile.BLOCKSIZE:
        yield bytes(padding)


def write(path: Path, pieces: Iterable[bytes]) -> int:
    """Write an archive under its name when it is whole; returns its bytes. Only its owner may read it.

    Raises:
        FlockError: the file exists, or can't be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        if path.exists():
            raise FlockError(f"{path} exists", "choose another name: a backup never replaces another one")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError as error:
        raise FlockError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


class Archive:
    """A backup that is whole: every member has its checksum.

    Args:
        path: of the file.

    Raises:
        FlockError: it is no backup, is damaged or was cut, or can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found: dict[str, str] = {}
        content: dict[str, bytes] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for entry in tar:
                    file = tar.extractfile(entry)
                    if file is None:
                        raise self._damaged(f"{entry.name} is no file")
                    found[entry.name] = _digest(file)
                    if entry.name in (HEAD, SUMS):
                        file.seek(0)
                        content[entry.name] = file.read()
        except OSError as error:
            raise FlockError(f"{path} can't be read: {error.strerror or error}") from error
        except tarfile.TarError as error:
            raise self._damaged(str(error)) from error
        self.names = [name for name in found if name not in (HEAD, SUMS)]
        self._check(found, content)
        self.head = self._read_head(content[HEAD])

    def _check(self, found: dict[str, str], content: dict[str, bytes]) -> None:
        if HEAD not in content:
            raise FlockError(f"{self.path} is no backup of FlockMQ: it has no {HEAD}")
        if SUMS not in content:
            raise self._damaged("it was cut")
        lines = (line.partition("  ") for line in content[SUMS].decode("ascii", "replace").splitlines())
        sums = {name: digest for digest, _, name in lines}
        del found[SUMS]
        wrong = [name for name in {**found, **sums} if found.get(name) != sums.get(name)]
        if wrong:
            raise self._damaged(f"{', '.join(sorted(wrong))}: the checksum is wrong")

    def _read_head(self, content: bytes) -> Head:
        fields = json.loads(content)
        if fields.get("form") != FORM:
            raise FlockError(
                f"{self.path} has form {fields.get('form')}, this version reads form {FORM}",
                f"use FlockMQ {fields.get('version')}, which made it",
            )
        shards = tuple(Shard(*shard) for shard in fields.pop("shards"))
        return Head(**fields, shards=shards)

    def _damaged(self, reason: str) -> FlockError:
        return FlockError(f"{self.path} is damaged: {reason}", ANOTHER)

    def extract(self, name: str, target: Path) -> None:
        """Write a member to a new file, which only its owner may read; returns when the disk has it. Raises OSError."""
        with tarfile.open(self.path, "r:") as tar, open(_new(target), "wb") as file:
            source = tar.extractfile(name)
            assert source is not None
            while piece := source.read(CHUNK):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(CHUNK):
        digest.update(piece)
    return digest.hexdigest()


def _new(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
