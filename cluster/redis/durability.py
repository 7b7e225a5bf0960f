"""Durability of acknowledged messages: how this Redis persists its data, in words for the operator.

The node sends CONFIG GET and INFO, and changes nothing. If its user may not use CONFIG (ACLs, managed services), INFO
alone is used; it has less, and the text states that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import redis
import redis.asyncio

from ...broker.coordination.coordinator import Risk

CONFIG_KEYS = (
    "appendfsync",
    "save",
    "no-appendfsync-on-rewrite",
    "client-output-buffer-limit",
    "cluster-require-full-coverage",
)
# By appendfsync of the append-only file: the data that a loss of power destroys, and the risk.
LOSS_OF_POWER: dict[str, tuple[str, Risk | None]] = {
    "everysec": ("can take the last second or two", None),
    "no": (
        "can take half a minute",
        Risk(
            "Redis never syncs its append-only file, the kernel writes it at some time",
            "set appendfsync everysec or always (for the Redis of --workers: store.sync = full)",
        ),
    ),
}
UNKNOWN_FSYNC = ("takes as much as appendfsync allows, which this user may not read", None)


@dataclass(frozen=True)
class Durability:
    """The durability behind a PUBACK, and the settings that the operator should change."""

    sentence: str
    risks: tuple[Risk, ...]


@dataclass(frozen=True)
class Facts:
    """The settings of Redis; None where the user may not read them."""

    aof: bool | None = None
    fsync: str | None = None  # always, everysec, no
    fsync_on_rewrite: bool = True
    snapshots: bool | None = None
    maxmemory: int = 0
    policy: str = ""
    role: str = "master"
    replicas: int | None = None  # connected
    mode: str = "standalone"
    full_coverage: bool = False  # of a Redis Cluster: it stops while one of its slots has no primary
    write_failed: str = ""  # files that Redis failed to write recently
    max_pending_output: int = 0  # bytes for one subscriber, above which Redis closes its connection; 0 = no limit


async def inspect(
    client: redis.Redis | redis.asyncio.Redis, replicas: int = 0, max_message: int = 0, in_slot: bool = False
) -> Durability:
    """Read the settings of Redis.

    Args:
        client: of the Redis; with a blocking client this never suspends.
        replicas: the configuration key `cluster.replicas`.
        max_message: the configuration key `limits.max_packet_size`; 0 = don't check it.
        in_slot: whether the keys are in one slot of a Redis Cluster; the client is of the primary that owns it.

    Raises:
        redis.RedisError: Redis is unreachable; a forbidden command is no error.
    """
    info = await _reply(client.info)
    settings = await _reply(client.config_get, *CONFIG_KEYS)
    return describe(facts(info or {}, settings), replicas, max_message, in_slot)


async def _reply(command: Callable[..., Any], *arguments: str) -> Any:
    """The reply; None if the user may not use the command."""
    try:
        reply = command(*arguments)
        return await reply if isawaitable(reply) else reply
    except redis.ResponseError:
        return None


def facts(info: Mapping[str, Any], settings: Mapping[Any, Any] | None) -> Facts:
    """The facts in the replies of INFO and CONFIG GET (None: forbidden)."""
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
        replicas=int(info["connected_slaves"]) if "connected_slaves" in info else None,
        mode=str(info.get("redis_mode", "standalone")),
        write_failed=" and ".join(failed),
        full_coverage=read.get("cluster-require-full-coverage") == "yes",
        max_pending_output=_max_pending_output(read.get("client-output-buffer-limit", "")),
    )


def describe(found: Facts, replicas: int = 0, max_message: int = 0, in_slot: bool = False) -> Durability:
    """These facts in words; the other arguments are as for `inspect`."""
    sentence, risk = _kept(found)
    risks = [risk] if risk else []
    if found.aof and found.fsync != "no" and not found.fsync_on_rewrite:
        risks.append(
            Risk(
                "Redis does not sync its append-only file while it rewrites it: loss of power can then take half a "
                "minute",
                "set no-appendfsync-on-rewrite no",
            )
        )
    if replicas:
        sentence += f"; before it is acknowledged, {_count(replicas)} of Redis must have it"
    elif found.replicas:
        sentence += "; a failover can lose data that the replica had not received yet (cluster.replicas waits for it)"
    if found.replicas is not None and replicas > found.replicas and found.role == "master":
        risks.append(
            Risk(
                f"cluster.replicas = {replicas}, but Redis has {_count(found.replicas)} connected: no message is "
                "acknowledged until there are more",
                "start replicas, or lower cluster.replicas",
            )
        )
    if found.role != "master":
        risks.append(Risk("this Redis is a read-only replica", "configure the master, or its Sentinels"))
    if found.mode == "cluster" and not in_slot:
        risks.append(Risk("this is a Redis Cluster", "its URL is redis+cluster://HOST:PORT,HOST:PORT"))
    if found.full_coverage and in_slot:
        risks.append(
            Risk("this Redis stops when another primary of its cluster is away", "set cluster-require-full-coverage no")
        )
    if found.maxmemory and found.policy.startswith("allkeys-"):
        risks.append(
            Risk(
                "DANGER: Redis deletes sessions, queues and retained messages when its memory is full "
                f"(maxmemory-policy {found.policy})",
                "set maxmemory-policy noeviction",
            )
        )
    if found.max_pending_output and max_message * 2 > found.max_pending_output:
        risks.append(
            Risk(
                f"Redis closes the connection of a node with {found.max_pending_output >> 20} MiB of pending output, "
                f"and a message may have {max_message >> 20} MiB",
                f"set client-output-buffer-limit pubsub {max_message * 4} {max_message * 4} 60",
            )
        )
    if found.write_failed:
        risks.append(Risk(f"Redis could not write its {found.write_failed}", "check its log and its disk"))
    return Durability(sentence, tuple(risks))


def _kept(found: Facts) -> tuple[str, Risk | None]:
    """The data that survives, and the risk where that is little."""
    begin = "an acknowledged message is in Redis and"
    if found.aof is None:
        return (
            f"{begin} survives as the settings of this Redis allow, which this user may not read (CONFIG, INFO)",
            Risk(
                "the durability of Redis is unknown",
                "allow this user INFO and CONFIG|GET, or ask the operator of Redis",
            ),
        )
    if found.aof and found.fsync == "always":
        return f"{begin} on its disk: it survives the loss of power", None
    if found.aof:
        lost, risk = LOSS_OF_POWER.get(found.fsync or "", UNKNOWN_FSYNC)
        return f"{begin} in its append-only file: it survives the death of Redis; loss of power {lost}", risk
    if found.snapshots is False:
        return (
            f"{begin} nowhere else: the death of Redis loses all sessions, queues and retained messages",
            Risk("Redis keeps nothing on disk", "set appendonly yes and appendfsync everysec or always"),
        )
    at_best = "" if found.snapshots else "at best "
    return (
        f"{begin} {at_best}in its next snapshot: the death of Redis loses the data since the last one",
        Risk(f"Redis keeps {at_best}snapshots only", "set appendonly yes and appendfsync everysec or always"),
    )


def _max_pending_output(limits: str) -> int:
    """The hard limit of class `pubsub` in "normal 0 0 0 ... pubsub 33554432 8388608 60"."""
    words = limits.split()
    return int(words[words.index("pubsub") + 1]) if "pubsub" in words else 0


def _count(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
