"""What an acknowledgement is worth: how this Redis is set up to keep what it holds, in words for the operator.

Redis is asked with CONFIG GET and INFO. Where a user may not use CONFIG (ACLs, managed services) INFO tells less, and
the words say so. Nothing is changed in Redis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio

CONFIG_KEYS = ("appendfsync", "save", "no-appendfsync-on-rewrite", "client-output-buffer-limit")
# What loss of power takes with an append-only file, by its appendfsync; and a warning.
LOSS_OF_POWER = {
    "everysec": ("can take the last second or two", ""),
    "no": (
        "can take half a minute",
        "Redis leaves it to the kernel when its append-only file gets to the disk: set appendfsync everysec or always",
    ),
}
UNKNOWN_FSYNC = ("takes what appendfsync allows, which it doesn't tell this user", "")


@dataclass(frozen=True)
class Durability:
    """What PUBACK means, and what the operator should change."""

    sentence: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What Redis says about itself; None where it doesn't."""

    aof: bool | None = None
    fsync: str | None = None  # always, everysec, no
    fsync_on_rewrite: bool = True
    snapshots: bool | None = None
    maxmemory: int = 0
    policy: str = ""
    role: str = "master"
    replicas: int = 0  # connected
    mode: str = "standalone"
    write_failed: str = ""  # what Redis could not write lately
    most_waiting: int = 0  # bytes for one subscriber, above which Redis ends its connection; 0 = no limit


async def inspect(client: redis.asyncio.Redis, replicas: int = 0, largest: int = 0) -> Durability:
    """Ask Redis.

    Args:
        client: of the Redis.
        replicas: the configuration key `cluster.replicas`.
        largest: the configuration key `limits.max_packet_size`.

    Raises:
        redis.RedisError: Redis can't be asked; that a question is forbidden isn't an error.
    """
    try:
        info = await client.info()
    except redis.ResponseError:
        info = {}
    try:
        settings = await client.config_get(*CONFIG_KEYS)
    except redis.ResponseError:
        settings = None
    return describe(facts(info, settings), replicas, largest)


def inspect_now(client: redis.Redis, replicas: int = 0) -> Durability:
    """As `inspect`, with a blocking client."""
    info: Any
    settings: Any
    try:
        info = client.info()
    except redis.ResponseError:
        info = {}
    try:
        settings = client.config_get(*CONFIG_KEYS)
    except redis.ResponseError:
        settings = None
    return describe(facts(info, settings), replicas)


def facts(info: Mapping[str, Any], settings: Mapping[Any, Any] | None) -> Facts:
    """The replies of INFO and CONFIG GET, as far as there are any."""
    read = {_text(name): _text(value) for name, value in (settings or {}).items()}
    failed = [
        what
        for what, field in (("append-only file", "aof_last_write_status"), ("snapshot", "rdb_last_bgsave_status"))
        if info.get(field, "ok") != "ok"
    ]
    return Facts(
        aof=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        fsync=read.get("appendfsync"),
        fsync_on_rewrite=read.get("no-appendfsync-on-rewrite") != "yes",
        snapshots=bool(read["save"]) if "save" in read else None,
        maxmemory=int(info.get("maxmemory", 0)),
        policy=str(info.get("maxmemory_policy", "")),
        role=str(info.get("role", "master")),
        replicas=int(info.get("connected_slaves", 0)),
        mode=str(info.get("redis_mode", "standalone")),
        write_failed=" and ".join(failed),
        most_waiting=_most_waiting(read.get("client-output-buffer-limit", "")),
    )


def describe(found: Facts, replicas: int = 0, largest: int = 0) -> Durability:
    """The words for these facts; the other arguments are those of `inspect`."""
    sentence, warning = _kept(found)
    warnings = [warning] if warning else []
    if found.aof and found.fsync != "no" and not found.fsync_on_rewrite:
        warnings.append(
            "Redis doesn't sync its append-only file while it rewrites it: loss of power can then take half a minute; "
            "set no-appendfsync-on-rewrite no"
        )
    if replicas:
        sentence += f"; {_count(replicas)} of Redis must have it before it is acknowledged"
    elif found.replicas:
        sentence += "; a failover can lose what the replica had not received yet (cluster.replicas waits for it)"
    if replicas > found.replicas and found.role == "master":
        warnings.append(
            f"cluster.replicas = {replicas}, but Redis has {_count(found.replicas)} connected: "
            "nothing can be acknowledged until there are more"
        )
    if found.role != "master":
        warnings.append("this Redis is a replica, which can't be written to: name the master, or its Sentinels")
    if found.mode == "cluster":
        warnings.append("this is a Redis Cluster: FlockMQ needs all its keys in one Redis")
    if found.maxmemory and found.policy.startswith("allkeys-"):
        warnings.append(
            f"DANGER: Redis deletes sessions, queues and retained messages when its memory is full (maxmemory-policy "
            f"{found.policy}): set maxmemory-policy noeviction"
        )
    if found.most_waiting and largest * 2 > found.most_waiting:
        warnings.append(
            f"Redis ends the connection of a node for which {found.most_waiting >> 20} MiB wait, and messages may have "
            f"{largest >> 20} MiB: set client-output-buffer-limit pubsub {largest * 4} {largest * 4} 60"
        )
    if found.write_failed:
        warnings.append(f"Redis could not write its {found.write_failed}: look into its log and at its disk")
    return Durability(sentence, tuple(warnings))


def _kept(found: Facts) -> tuple[str, str]:
    """What survives, and a warning where that is little."""
    begin = "what is acknowledged is in Redis and"
    if found.aof is None:
        return (
            f"{begin} survives as this Redis is set up to keep it, which it doesn't tell this user (CONFIG, INFO)",
            "how Redis keeps what it holds can't be read: allow this user INFO and CONFIG|GET, or ask who runs it",
        )
    if found.aof and found.fsync == "always":
        return f"{begin} on its disk: it survives the loss of power", ""
    if found.aof:
        lost, warning = LOSS_OF_POWER.get(found.fsync or "", UNKNOWN_FSYNC)
        return f"{begin} in its append-only file: it survives the death of Redis; loss of power {lost}", warning
    if found.snapshots is False:
        return (
            f"{begin} nowhere else: the death of Redis loses all sessions, queues and retained messages",
            "Redis keeps nothing on disk: set appendonly yes and appendfsync everysec or always",
        )
    at_best = "" if found.snapshots else "at best "
    return (
        f"{begin} {at_best}in its next snapshot: the death of Redis loses what came after the last one",
        f"Redis keeps {at_best}snapshots only: set appendonly yes and appendfsync everysec or always",
    )


def _most_waiting(limits: str) -> int:
    """The hard limit of class `pubsub` in "normal 0 0 0 ... pubsub 33554432 8388608 60"."""
    words = limits.split()
    return int(words[words.index("pubsub") + 1]) if "pubsub" in words else 0


def _count(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
