"""Where the shards of a cluster are: the primary and the keys of each."""

from dataclasses import replace
from typing import NamedTuple

import redis

from ...broker.config.schema import ClusterConfig
from ...broker.errors import FlockError
from .clients import RedisAddress
from .keys import SLOTS, Keys

MOST_SHARDS = 64


def addresses_of(config: ClusterConfig) -> list[RedisAddress]:
    """The address of each shard, in their order.

    `cluster.redis` has a URL for each. Or it is one URL, and there are `cluster.shards`: in a Redis Cluster each has a
    slot of its own.

    Raises:
        ValueError: a URL is none.
    """
    urls = config.redis.split()
    if len(urls) > 1:
        prefixes = [config.prefix, *(_numbered(config.prefix, f"p{i}") for i in range(1, len(urls)))]
        return [RedisAddress.parse(url, prefix) for url, prefix in zip(urls, prefixes, strict=True)]
    first = RedisAddress.parse(config.redis, config.prefix)
    if first.kind != "cluster":
        return [first, *(replace(first, prefix=_numbered(config.prefix, f"p{i}")) for i in range(1, config.shards))]
    return [first, *(replace(first, prefix=prefix) for prefix in _in_slots(config.prefix, config.shards))]


class Place(NamedTuple):
    """The shards at a server, as nodes compare them: the URLs have one order, and none may be missing.

    Attributes:
        base: the prefix of the first shard there; in a Redis Cluster, of this shard.
        shards: the number of shards, a colon, and the places of those that the server has, from 0; empty: there is one.
    """

    base: str
    shards: str


def places_of(addresses: list[RedisAddress]) -> list[Place]:
    """The place of each shard."""
    if len(addresses) == 1:
        return [Place(addresses[0].keys.prefix.decode(), "")]
    found = []
    for number, address in enumerate(addresses):
        beside = [n for n, other in enumerate(addresses) if replace(other, prefix=address.prefix) == address]
        if address.kind == "cluster":
            found.append(Place(address.keys.prefix.decode(), f"{len(addresses)}:{number}"))
        else:
            found.append(Place(addresses[0].prefix, f"{len(addresses)}:{' '.join(map(str, beside))}"))
    return found


def stored_addresses(config: ClusterConfig) -> list[RedisAddress]:
    """As `addresses_of`, for a cluster that exists: one URL is of all the shards that are there.

    Raises:
        ValueError: a URL is none.
        FlockError: Redis can't be reached.
    """
    addresses = addresses_of(config)
    if len(config.redis.split()) > 1:
        return addresses
    first = addresses[0]
    try:
        with first.client() as client:
            count = as_bytes(client.get(first.keys.prefix + b"shards")).partition(b":")[0]
    except (redis.RedisError, OSError) as error:
        raise FlockError(f"can't use Redis at {first}: {error}") from error
    shards = int(count) if count.isdigit() else 1
    return addresses_of(replace(config, shards=min(max(1, shards), MOST_SHARDS)))


def check_place(client: redis.Redis, place: Place, name: str) -> bool:
    """Whether the server has noted its shards, and so has a cluster with several.

    Args:
        client: of the server.
        place: the shards that it has by the command line.
        name: of the server.

    Raises:
        FlockError: it has others.
    """
    found = as_bytes(client.get(place.base.encode() + b"shards"))
    if found and found != place.shards.encode():
        raise FlockError(
            f"Redis at {name} has {in_words(found)}, and the command line names {in_words(place.shards.encode())}",
            "name all URLs of the cluster in their order, as cluster.redis has them",
        )
    return bool(found)


def as_bytes(value: object) -> bytes:
    """The reply of a client whose replies are bytes; empty: there is no value."""
    return value if isinstance(value, bytes) else b""


def in_words(shards: bytes) -> str:
    """The shards of a place for people."""
    count, _, places = shards.decode(errors="replace").partition(":")
    numbers = [str(int(each) + 1) for each in places.split() if each.isdigit()]
    return f"shard {', '.join(numbers)} of {count}" if numbers else "a cluster of one shard"


def _numbered(prefix: str, name: str) -> str:
    return f"{prefix.rstrip(':')}:{name}:"


def _in_slots(prefix: str, shards: int) -> list[str]:
    """The prefixes of all shards but the first.

    Primaries have equal ranges of slots. So each shard is in the middle of another one of as many equal ranges as there
    are shards: with as many primaries as shards, each primary has one.
    """
    found: list[str] = []
    first, number = Keys(prefix, in_slot=True).slot * shards // SLOTS, 0
    for i in range(1, shards):
        while True:
            number += 1
            name = f"{prefix.rstrip(':')}.{number}:"
            at = Keys(name, in_slot=True).slot * shards / SLOTS - (first + i) % shards
            if 0.25 <= at < 0.75:
                found.append(name)
                break
    return found
