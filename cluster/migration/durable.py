"""Makes what was just written to Redis durable, as far as this Redis writes to disks and to replicas."""

import time
from typing import Any

import redis

from ...broker.errors import FlockError
from ..redis.durability import inspect

WAIT_MILLISECONDS = 10_000  # for replicas
FSYNC_SECONDS = 2.0  # after which Redis has synced its append-only file, if it does so every second
SAVE_SECONDS = 600.0  # that a snapshot may take
PAUSE = 0.1


def make_durable(client: redis.Redis, replicas: int, *, in_slot: bool) -> list[str]:
    """Wait until Redis has written everything that it was sent; returns warnings.

    Args:
        client: of Redis.
        replicas: number that must have it (`cluster.replicas`).
        in_slot: whether it is the primary of one slot of a Redis Cluster.

    Raises:
        FlockError: Redis can't write its files, or too few replicas have the data.
    """
    if replicas and (found := int(client.wait(replicas, WAIT_MILLISECONDS))) < replicas:
        raise FlockError(f"only {found} of {replicas} replicas have the data", "repeat the command when there are more")
    try:
        written: dict[str, Any] = client.info("persistence")
    except redis.ResponseError:
        return ["whether Redis has the state on its disk is unknown: this user may not use INFO"]
    if written.get("aof_enabled"):
        if written.get("aof_last_write_status", "ok") != "ok":
            raise FlockError("Redis can't write its append-only file", "look into its log; then repeat the command")
        time.sleep(FSYNC_SECONDS)  # no command before Redis 7.2 waits for it
        return _warnings(client, in_slot)
    warnings = _warnings(client, in_slot)
    if any("nothing on disk" in warning for warning in warnings):
        return warnings
    try:
        _save(client)
    except redis.ResponseError as error:  # a rented service makes its snapshots by itself
        warnings.append(f"Redis did not write a snapshot when it was asked to: {error}")
    return warnings


def _warnings(client: redis.Redis, in_slot: bool) -> list[str]:
    """`flockmq serve` warns of the same."""
    step = inspect(client, in_slot=in_slot)
    try:
        step.send(None)
    except StopIteration as found:
        return [str(risk) for risk in found.value.risks]
    raise AssertionError("a blocking client never suspends")


def _save(client: redis.Redis) -> None:
    """Write a snapshot."""
    try:
        client.bgsave()
    except redis.ResponseError as error:
        if "in progress" not in str(error):
            raise
        client.bgsave(schedule=True)
    end = time.monotonic() + SAVE_SECONDS
    while True:
        state = client.info("persistence")
        if not state["rdb_bgsave_in_progress"] and not state.get("rdb_bgsave_scheduled"):
            break
        if time.monotonic() > end:
            raise FlockError("Redis did not write its snapshot", "look into its log; then repeat the command")
        time.sleep(PAUSE)
    if state["rdb_last_bgsave_status"] != "ok":
        raise FlockError("Redis can't write its snapshot", "look into its log; then repeat the command")
