"""Where the shards of a cluster are: the primary and the keys of each."""

from dataclasses import replace

from ...broker.config.schema import ClusterConfig
from ..redis.clients import RedisAddress
from ..redis.keys import SLOTS, Keys

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


def _numbered(prefix: str, name: str) -> str:
    return f"{prefix.rstrip(':')}:{name}:"


def _in_slots(prefix: str, shards: int) -> list[str]:
    """The prefixes of all shards but the first: their slots are spread evenly over all slots."""
    found: list[str] = []
    base, number, size = Keys(prefix, in_slot=True).slot, 0, SLOTS / shards
    for i in range(1, shards):
        while True:
            number += 1
            name = f"{prefix.rstrip(':')}.{number}:"
            at = (Keys(name, in_slot=True).slot - base) % SLOTS
            if i * size <= at < (i + 1) * size:
                found.append(name)
                break
    return found
