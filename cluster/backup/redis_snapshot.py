"""Snapshots of Redis (RDB): how one is taken over the network, and how one is read.

To take one is the request by which a replica begins (SYNC): Redis forks, and sends its memory as it is at that moment.
So it needs no access to the disk of Redis. Services that rent Redis out forbid it; they make snapshots by themselves.
To read one needs a server on this machine, which loads it.
"""

import asyncio
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BufferedReader
from pathlib import Path

import redis

from ...broker.backup.archive import Archive, Shard
from ...broker.errors import FlockError
from ...broker.private_redis import SOCKET, server_path
from ...broker.supervised_process import end_with_parent
from ..redis.clients import TIMEOUT, RedisAddress

SILENCE = 60.0  # seconds that Redis may be silent; while it prepares the snapshot it sends newlines
CHUNK = 1 << 20  # bytes
MARK = 40  # bytes behind a snapshot whose length Redis does not know before
PAUSE = 0.02  # seconds between attempts


def snapshot(address: RedisAddress) -> Iterator[bytes]:
    """A snapshot of Redis in pieces.

    Raises:
        FlockError: Redis can't be reached, refuses, or the connection ended.
    """
    try:
        place = asyncio.run(address.endpoint())
        with closing(_connected(address, place)) as connection, connection.makefile("rb") as file:

            def ask(*words: str) -> bytes:
                connection.sendall(b"*%d\r\n" % len(words) + b"".join(map(_argument, words)))
                return file.readline()

            if address.password:
                _expect_ok(ask("AUTH", address.username or "default", address.password), address)
            ask("REPLCONF", "capa", "eof")
            ask("REPLCONF", "rdb-only", "1")  # nothing of what is written after it; Redis below 7.0 refuses it
            head = ask("SYNC")
            while head == b"\n":
                head = file.readline()
            if not head.startswith(b"$"):
                _expect_ok(head, address)
            connection.settimeout(SILENCE)
            yield from _content(file, head[1:].strip())
    except (redis.RedisError, OSError, EOFError) as error:
        raise FlockError(f"no snapshot of Redis at {address}: {error}") from error


def _connected(address: RedisAddress, place: tuple[str, int] | str) -> socket.socket:
    if isinstance(place, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SILENCE)
        connection.connect(place)
        return connection
    connection = socket.create_connection(place, TIMEOUT)
    connection.settimeout(SILENCE)
    context = address.ssl_context()
    return connection if context is None else context.wrap_socket(connection, server_hostname=place[0])


def _argument(word: str) -> bytes:
    data = word.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _expect_ok(reply: bytes, address: RedisAddress) -> None:
    if not reply.startswith(b"+"):
        raise FlockError(
            f"Redis at {address} gives no snapshot: {reply[1:].decode('utf-8', 'replace').strip() or 'no reply'}",
            "its user needs the right to SYNC and REPLCONF; a service that rents it out has snapshots of its own",
        )


def _content(file: BufferedReader, size: bytes) -> Iterator[bytes]:
    """The bytes of the snapshot: as many as `size` says, or up to the mark that it has."""
    mark = size.removeprefix(b"EOF:")
    if mark == size:
        left = int(size)
        while left:
            piece = file.read(min(CHUNK, left))
            if not piece:
                raise EOFError("the connection has ended")
            left -= len(piece)
            yield piece
        return
    kept = b""  # perhaps the begin of the mark
    while not kept.endswith(mark):
        piece = file.read1(CHUNK)
        if not piece:
            raise EOFError("the connection has ended")
        data = kept + piece
        kept = data[-MARK:]
        yield data[:-MARK]


@contextmanager
def loaded(archive: Archive, shard: Shard) -> Iterator[redis.Redis]:
    """A Redis of this machine that has loaded the snapshot of a shard; it has no password, and its owner alone.

    Raises:
        FlockError: no server is installed, or it can't load the snapshot.
    """
    server = server_path()
    if server is None:
        raise FlockError(
            f"the snapshot in {archive.path} is read by a redis-server, and none is installed",
            "apt install redis-server (or valkey)",
        )
    with tempfile.TemporaryDirectory(prefix="flockmq-") as name:
        folder = Path(name)
        archive.extract(shard.snapshot, folder / shard.snapshot)
        settings = {"port": "0", "unixsocket": SOCKET, "save": "", "appendonly": "no", "dbfilename": shard.snapshot}
        words = [word for setting, value in settings.items() for word in (f"--{setting}", value)]
        process = subprocess.Popen(
            [server, *words], cwd=folder, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent()
        )
        try:
            with redis.Redis(unix_socket_path=str(folder / SOCKET), db=shard.db, protocol=2) as client:
                _wait(client, process, archive)
                yield client
        finally:
            process.kill()
            process.communicate()


def _wait(client: redis.Redis, process: "subprocess.Popen[str]", archive: Archive) -> None:
    """Wait until Redis has loaded the snapshot."""
    while True:
        try:
            client.ping()
            return
        except (redis.ConnectionError, redis.BusyLoadingError) as error:
            if process.poll() is not None:
                *_, reason = ["", *process.communicate()[0].splitlines()]
                raise FlockError(
                    f"redis-server can't load the snapshot in {archive.path}: {reason}",
                    "a Redis that is as new as the source's is needed",
                ) from error
        time.sleep(PAUSE)
