"""Keys and channels: as they are in one Redis, and in one slot of a Redis Cluster."""

import pytest
import redis.crc

from flockmq.cluster.redis.keys import Keys


def test_one_redis() -> None:
    keys = Keys("mq:")
    assert (keys.prefix, keys.tag) == (b"mq:", b"")
    assert (keys.publish, keys.subscribe) == (b"PUBLISH", b"SUBSCRIBE")
    assert keys.function("beat") == [b"FCALL", b"flockmq_beat", b"0", b"mq:"]


@pytest.mark.parametrize(
    ("prefix", "tag", "tagged"),
    [
        ("mq:", b"{mq}", b"{mq}:"),
        ("fleet", b"{fleet}", b"{fleet}"),
        ("a:b:", b"{a:b}", b"{a:b}:"),
        ("x/y::", b"{x/y}", b"{x/y}::"),
        (":", b"{:}", b"{:}"),
    ],
)
def test_one_slot(prefix: str, tag: bytes, tagged: bytes) -> None:
    """The declared key is never one of the keys, and all of them are in its slot."""
    keys = Keys(prefix, in_slot=True)
    assert (keys.prefix, keys.tag) == (tagged, tag)
    assert (keys.publish, keys.subscribe) == (b"SPUBLISH", b"SSUBSCRIBE")
    assert keys.function("beat") == [b"FCALL", b"flockmq_beat", b"1", tag, tagged]
    for key in (tag, keys.access("user"), keys.all, keys.to(b"n"), keys.session(b"{other}"), keys.queue(b"}{")):
        assert redis.crc.key_slot(key) == keys.slot
    assert tag not in (keys.access("user"), keys.all, keys.session(b""))
