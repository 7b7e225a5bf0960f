"""Where the shards of a cluster are: URLs, prefixes of keys, slots of a Redis Cluster."""

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of, topic_shard
from flockmq.broker.config.schema import ClusterConfig
from flockmq.cluster.redis.keys import SLOTS
from flockmq.cluster.redis.shard_addresses import addresses_of

CLIENTS = [b"client %d" % number for number in range(10_000)]


def test_one_url_is_one_shard() -> None:
    (only,) = addresses_of(ClusterConfig(redis="redis://r:1"))
    assert (only.hosts, only.prefix) == ((("r", 1),), "mq:")


def test_each_url_is_a_shard_with_keys_of_its_own() -> None:
    found = addresses_of(ClusterConfig(redis="redis://r:1 redis://r:2  redis://r:1"))
    assert [(each.hosts[0][1], each.prefix) for each in found] == [(1, "mq:"), (2, "mq:p1:"), (1, "mq:p2:")]


@pytest.mark.parametrize("shards", [2, 3, 16, 64])
def test_shards_of_a_redis_cluster_have_slots_that_are_spread_evenly(shards: int) -> None:
    """So each primary has as many of them as any other."""
    found = addresses_of(ClusterConfig(redis="redis+cluster://r:1", shards=shards))
    assert found[0].keys.prefix == b"{mq}:"
    ranges = [each.keys.slot * shards // SLOTS for each in found]
    assert ranges == [(ranges[0] + i) % shards for i in range(shards)]
    assert len({each.keys.prefix for each in found}) == shards


@pytest.mark.parametrize("shards", [1, 2, 3, 64])
def test_names_are_spread_evenly(shards: int) -> None:
    counts = [0] * shards
    for name in CLIENTS:
        counts[shard_of(name, shards)] += 1
    assert min(counts) > len(CLIENTS) / shards * 0.7


@pytest.mark.parametrize("kind", ["streams", "searches"])
def test_a_place_that_is_kept_for_a_client_is_in_its_shard(kind: str) -> None:
    """It is in the block of the client's queue."""
    for name in CLIENTS[:100]:
        topic = f"$\x00flockmq/{kind}/{name.hex()}".encode()
        assert topic_shard(topic, 7) == shard_of(name, 7)
    assert topic_shard(b"t/1", 7) == shard_of(b"t/1", 7)
