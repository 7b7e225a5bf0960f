"""The backup of a cluster: a snapshot of each Redis; and the way back, into Redis without state of a cluster.

A restore copies the keys from a Redis of this machine that has loaded the snapshot. The target is closed to nodes until
it has all, as the target of a migration is. The nodes of the copied cluster are members in the snapshot: new nodes
declare them dead after the lease, and publish the wills of their clients. Snapshots of several Redis are not of one
moment: what was under way between two of them may be repeated.
"""

import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from ...broker.backup.archive import CLUSTER, SETTINGS, SNAPSHOT, Archive, Head, Member, Shard, chunks
from ...broker.config.schema import Config
from ...broker.config.toml_text import to_toml
from ...broker.errors import FlockError
from ..migration.endpoints import Mark, Stage
from ..migration.migration import BACKUP, unfinished
from ..migration.redis_place import RedisPlace
from ..redis.clients import RedisAddress
from ..redis.keys import Keys
from ..redis.shard_addresses import check_place, places_of
from .redis_snapshot import loaded, snapshot

AT_ONCE = 200  # keys
BATCH_BYTES = 32 << 20
LARGE = 64 << 20  # bytes of a key that is copied in parts: Redis accepts no argument above 512 MiB


def pieces(addresses: list[RedisAddress], version: str, config: Config, folder: Path) -> Iterator[bytes]:
    """The archive of a cluster, in pieces. All Redis are copied at the same time.

    Args:
        addresses: of the shards, in their order.
        version: of FlockMQ.
        config: that the archive has.
        folder: for the snapshots until they are in the archive.

    Raises:
        FlockError: Redis gives no snapshot, or the cluster has other shards.
        OSError: a snapshot can't be written.
    """
    _check(addresses)
    servers = list(dict.fromkeys(map(_server_of, addresses)))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".flockmq-") as directory:
        files = [Path(directory) / SNAPSHOT.format(number) for number in range(1, len(servers) + 1)]
        with ThreadPoolExecutor(len(servers)) as threads:
            for _ in threads.map(_write_snapshot, servers, files):
                pass
        names = [files[servers.index(_server_of(address))].name for address in addresses]
        shards = tuple(
            Shard(name, address.keys.prefix.decode(), address.db)
            for name, address in zip(names, addresses, strict=True)
        )
        source = " ".join(dict.fromkeys(map(str, addresses)))
        settings = Member(SETTINGS, to_toml(config, changed=True).encode())
        members = [settings, *(Member(file.name, file) for file in files)]
        yield from chunks(Head(CLUSTER, version, source, shards=shards), members)


def _check(addresses: list[RedisAddress]) -> None:
    """Raise FlockError: the cluster has other shards than these."""
    for address, place in zip(addresses, places_of(addresses), strict=True):
        try:
            with address.client() as client:
                check_place(client, place, str(address))
        except redis.ResponseError:
            continue  # its snapshot says what is wrong
        except (redis.RedisError, OSError) as error:
            raise FlockError(f"no snapshot of Redis at {address}: {error}") from error


def _server_of(address: RedisAddress) -> RedisAddress:
    """One address for all shards of a server. In a Redis Cluster the prefix decides which server it is."""
    return address if address.kind == "cluster" else replace(address, prefix="")


def _write_snapshot(server: RedisAddress, path: Path) -> None:
    with path.open("wb") as file:
        for piece in snapshot(server):
            file.write(piece)


def restore(archive: Archive, place: RedisPlace, *, with_log: bool) -> None:
    """Copy the state of a backup into Redis.

    Raises:
        FlockError: the place has state or another number of shards, a node uses it, or it can't be written.
    """
    shards = archive.head.shards
    if len(shards) != len(place.addresses):
        raise FlockError(
            f"{archive.path} has {len(shards)} shards, and {place.name} is to have {len(place.addresses)}",
            f"name {len(shards)} URLs, or one for all; then `flockmq migrate` moves the state to more or fewer",
        )
    name = f"{BACKUP}{archive.path.absolute()}"
    with place.opened(create=True):
        if place.mark.stage == Stage.ARRIVING and place.mark.place != name:
            raise unfinished(place)
        if place.has_state:
            raise FlockError(
                f"{place.name}{place.options} has state already, which would be lost",
                "choose another Redis or --prefix, or delete its keys",
            )

        def copy_all() -> None:
            for shard, target in zip(shards, place.shards, strict=True):
                with loaded(archive, shard) as source:
                    copy(source, shard.prefix.encode(), target.client, target.keys, with_log=with_log)

        place.fill(Mark(Stage.ARRIVING, secrets.token_hex(8), name), copy_all)
        place.set_mark(Mark(Stage.OWN))


def copy(source: "redis.Redis", prefix: bytes, target: "redis.Redis", keys: Keys, *, with_log: bool) -> None:
    """Copy the keys of a cluster.

    Args:
        source: has the keys.
        prefix: of the keys there.
        target: gets the keys.
        keys: that it gets.
        with_log: whether the logs of messages are among them.
    """
    names: list[tuple[bytes, bytes]] = []
    for key in source.scan_iter(_literal(prefix) + b"*", count=AT_ONCE):
        name = keys.prefix + key[len(prefix) :]
        if keys.is_kept(name) and (with_log or not name.startswith(keys.message_log(b""))):
            names.append((key, name))
        if len(names) >= AT_ONCE:
            _copy(source, target, names)
            names.clear()
    _copy(source, target, names)


def _literal(text: bytes) -> bytes:
    """A pattern of SCAN that matches this text."""
    return b"".join(b"\\" + bytes([char]) if char in b"*?[]\\" else bytes([char]) for char in text)


def _copy(source: "redis.Redis", target: "redis.Redis", names: list[tuple[bytes, bytes]]) -> None:
    """Copy some keys, in batches of a bounded size."""
    pipe = source.pipeline(transaction=False)
    for key, _ in names:
        pipe.memory_usage(key)
    batch: list[tuple[bytes, bytes]] = []
    total = 0
    for pair, size in zip(names, pipe.execute(), strict=True):
        if size is not None and size > LARGE:
            _copy_in_parts(source, target, *pair)
            continue
        if total + (size or 0) > BATCH_BYTES:
            _copy_batch(source, target, batch)
            batch, total = [], 0
        batch.append(pair)
        total += size or 0
    _copy_batch(source, target, batch)


def _copy_batch(source: "redis.Redis", target: "redis.Redis", names: list[tuple[bytes, bytes]]) -> None:
    pipe: Any = source.pipeline(transaction=False)
    for key, _ in names:
        pipe.dump(key)
        pipe.pttl(key)
    found = pipe.execute()
    pipe = target.pipeline(transaction=False)
    for (_, name), content, left in zip(names, found[::2], found[1::2], strict=True):
        if content is not None:  # else it has expired
            pipe.restore(name, max(0, left), content, replace=True)
    pipe.execute()


def _copy_in_parts(source: "redis.Redis", target: "redis.Redis", key: bytes, name: bytes) -> None:
    """Copy a large key; none of these expires."""
    kind = source.type(key)
    target.unlink(name)
    if kind == b"hash":
        pairs: dict[Any, Any] = {}
        for field, value in source.hscan_iter(key, count=AT_ONCE):
            pairs[field] = value
            if len(pairs) >= AT_ONCE:
                target.hset(name, mapping=pairs)
                pairs.clear()
        if pairs:
            target.hset(name, mapping=pairs)
    elif kind == b"list":
        start = 0
        while found := source.lrange(key, start, start + AT_ONCE - 1):
            target.rpush(name, *found)
            start += len(found)
    else:
        _copy_batch(source, target, [(key, name)])
