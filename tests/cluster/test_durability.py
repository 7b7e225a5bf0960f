"""The meaning of PUBACK with a Redis set up in each way, read from a real one."""

import asyncio
from collections.abc import Callable

import pytest
import redis

from flockmq.cluster.redis.clients import RedisAddress
from flockmq.cluster.redis.durability import Durability, Facts, describe, inspect
from tests.harness.broker_process import until
from tests.harness.redis_process import RedisProcess

StartRedis = Callable[..., RedisProcess]


def ask(url: str, replicas: int = 0) -> Durability:
    """With a client of each kind."""

    async def ask_async() -> Durability:
        client = address.async_client()
        try:
            return await inspect(client, replicas)
        finally:
            await client.aclose()

    address = RedisAddress.parse(url)
    found = asyncio.run(ask_async())
    with address.client() as client:
        assert asyncio.run(inspect(client, replicas)) == found
    return found


AOF = ["--appendonly", "yes", "--appendfsync"]


@pytest.mark.parametrize(
    ("arguments", "sentence", "risks"),
    [
        ([*AOF, "always"], "survives the loss of power", []),
        ([*AOF, "everysec"], "the last second", []),
        ([*AOF, "no"], "half a minute", ["appendfsync everysec"]),
        ([*AOF, "always", "--no-appendfsync-on-rewrite", "yes"], "loss of power", ["no-appendfsync-on-rewrite no"]),
        (["--save", "60", "1"], "in its next snapshot", ["snapshots only"]),
        ([], "loses all sessions", ["keeps nothing on disk"]),
        ([*AOF, "always", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], "power", ["noeviction"]),
        ([*AOF, "always", "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"], "power", []),
        ([*AOF, "always", "--maxmemory-policy", "allkeys-lru"], "power", []),
        ([*AOF, "always", "--cluster-enabled", "yes"], "power", ["Redis Cluster"]),
    ],
)
def test_how_redis_keeps_it(start_redis: StartRedis, arguments: list[str], sentence: str, risks: list[str]) -> None:
    found = ask(start_redis(arguments).url)
    assert sentence in found.sentence
    assert len(found.risks) == len(risks), found.risks
    for risk, words in zip(found.risks, risks, strict=True):
        assert words in str(risk)


@pytest.mark.parametrize(
    ("rules", "arguments", "sentence", "risk"),
    [
        (["-config"], [*AOF, "always"], "as much as appendfsync allows", ""),
        (["-config"], [], "at best in its next snapshot", "at best"),
        (["-config", "-info"], [*AOF, "always"], "this user may not read", "is unknown"),
    ],
)
def test_what_may_not_be_asked(
    start_redis: StartRedis, rules: list[str], arguments: list[str], sentence: str, risk: str
) -> None:
    server = start_redis(arguments)
    server.client().execute_command("ACL", "SETUSER", "node", "on", ">sesame", "~*", "+@all", *rules)
    found = ask(f"redis://node:sesame@127.0.0.1:{server.port}")
    assert sentence in found.sentence
    assert [risk in str(one) for one in found.risks] == ([True] if risk else [])


def test_replicas(start_redis: StartRedis) -> None:
    master = start_redis([*AOF, "always"])
    assert "0 replicas connected" in ask(master.url, 1).risks[0].finding
    replica = start_redis(["--replicaof", "127.0.0.1", str(master.port), *AOF, "always"])
    until(lambda: master.client().info("replication")["connected_slaves"] == 1)
    assert "a failover can lose" in ask(master.url).sentence
    found = ask(master.url, 1)
    assert found.sentence.endswith("; before it is acknowledged, 1 replica of Redis must have it")
    assert not found.risks
    assert "1 replica connected" in ask(master.url, 2).risks[0].finding
    assert "a read-only replica" in ask(replica.url).risks[0].finding


def test_a_disk_that_fails() -> None:
    found = describe(Facts(aof=True, fsync="always", write_failed="append-only file"))
    assert "could not write its append-only file" in found.risks[0].finding


@pytest.mark.parametrize(("pending", "max_message", "warned"), [(32, 2, False), (32, 17, True), (0, 256, False)])
def test_messages_too_large_for_a_subscriber(pending: int, max_message: int, warned: bool) -> None:
    found = describe(Facts(aof=True, fsync="always", max_pending_output=pending << 20), max_message=max_message << 20)
    assert bool(found.risks) == warned
    assert all(f"pubsub {4 * max_message << 20} " in risk.remedy for risk in found.risks)


def test_nobody_to_ask(redis_server: RedisProcess) -> None:
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        ask(redis_server.url)
