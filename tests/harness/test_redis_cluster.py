"""The harness's Redis Cluster does what tests rely on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.redis_cluster import RedisCluster

KEY = "{mq}:a"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RedisCluster]:
    group = RedisCluster(tmp_path)
    try:
        yield group.start()
    finally:
        group.stop()


def test_the_slot_goes_round(servers: RedisCluster) -> None:
    first = servers.owner
    first.client().set(KEY, 1)
    servers.fail_over()
    assert servers.replica is first
    assert servers.owner.client().get(KEY) == "1"
    target = servers.other_primary()
    servers.move_slot(target)
    assert servers.owner is target
    assert target.client().get(KEY) == "1"
    servers.wait_until_whole()
    old = servers.kill_owner()
    assert servers.owner.client().get(KEY) == "1"
    old.start()
    servers.wait_until_whole()
    assert servers.replica is old
