"""`flockmq cluster status`: the nodes, their state in Redis, and the durability of acknowledged messages.

Reads only. Heartbeats are counters: they are read until they have grown, or the lease has passed. Memory is exact for
keys of the cluster and of nodes; for keys of sessions it is scaled up from a sample.
"""

import asyncio
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ...broker.commands.output import print_json, size, table, text
from ...broker.commands.parser import Parser
from . import log_status
from .connection import Cluster, RedisUnusable, add_redis_options, addresses_of, connected

if TYPE_CHECKING:
    import redis

EXAMPLES = """\
  flockmq cluster status --redis redis://10.0.0.5:6379
  FLOCKMQ_CLUSTER_REDIS=redis://10.0.0.5:6379 flockmq cluster status --json"""
HEARTBEAT_PAUSE = 0.1  # seconds between two reads
SAMPLE = 5000  # keys
AT_ONCE = 500
SESSION_KINDS = {
    "s": "sessions",
    "q": "long queues",
    "st": "QoS states",
    "in": "QoS 2 received",
    "subs": "subscriptions",
    "rare": "rare fields",
}
NODE_KINDS = {"node": "nodes", "routes": "routes", "wills": "wills", "log": "logs", "owned": "owned sessions"}
SINGLE_KINDS = {"retained": "retained messages", "changes": "changes", "sessions": "index of sessions"}


@dataclass(frozen=True)
class NodeStatus:
    """A row of the table; None where Redis has no value."""

    name: str
    id: str
    host: str
    pid: int | None
    version: str
    state: str
    heartbeat: bool  # whether it has grown since the first read
    clients: int | None
    sessions: int | None
    log_entries: int
    log_bytes: int | None
    behind: int | None  # changes that it has not applied yet


@dataclass(frozen=True)
class Memory:
    """The memory of one kind of key."""

    kind: str
    keys: int
    bytes: int


def run(arguments: list[str]) -> int:
    """Print the status; returns the exit status."""
    parser = Parser("cluster", "The nodes of a cluster and their state in Redis.", "status [OPTION...]", EXAMPLES)
    parser.add_argument("action", nargs="?", default="status", choices=["status"], metavar="status", help="[status]")
    parser.add_argument(
        "--wait", type=float, metavar="SECONDS", help="for the heartbeats of all nodes, at most [the lease]"
    )
    add_redis_options(parser)
    args = parser.parse(arguments)
    count = len(addresses_of(args))
    found = [read_shard(args, number, count) for number in range(count)]
    if len(found) == 1:
        print_json(found[0]) if args.json else print(render(found[0]))
    elif args.json:
        print_json({"shards": found})
    else:
        for number, status in enumerate(found, 1):
            shown = status["error"] if "error" in status else render(status)
            print(f"shard {number} of {count}\n{shown}" + "\n" * (number < count))
    return int(any("error" in status for status in found))


def read_shard(args: Namespace, number: int, count: int) -> dict[str, Any]:
    """The status of a shard. If it is one of several, and its Redis is away, there is only `error`."""
    try:
        with connected(args, shard=number) as cluster:
            return read(cluster, cluster.config.lease if args.wait is None else args.wait)
    except RedisUnusable as error:
        if count == 1:
            raise
        return {"error": error.message}


def read(cluster: Cluster, seconds: float) -> dict[str, Any]:
    """The whole status, as JSON can hold it."""
    from ..redis.durability import inspect

    client, keys = cluster.client, cluster.keys
    prefix = keys.prefix.decode()
    kept = asyncio.run(inspect(client, cluster.config.replicas, in_slot=bool(keys.tag)))
    nodes = read_nodes(client, prefix, seconds)
    logs = log_status.read_logs(client, keys)
    with client.pipeline(transaction=False) as pipe:
        pipe.get(f"{prefix}layout")
        pipe.scard(f"{prefix}sessions")
        pipe.hlen(f"{prefix}retained")
        pipe.get(f"{prefix}change")
        layout, sessions, retained, change = pipe.execute()
    return {
        "redis": cluster.address,
        "prefix": prefix,
        "layout": layout and text(layout),
        "nodes": [vars(node) for node in nodes],
        "persistent_sessions": sessions,
        "retained_messages": retained,
        "last_change": int(change or 0),
        "memory": [vars(kind) for kind in read_memory(client, prefix, [node.id for node in nodes])],
        "logs": [vars(log) for log in logs],
        "jobs": [job._asdict() for job in log_status.read_jobs(client, keys, logs)],
        "durability": kept.sentence,
        "warnings": [str(risk) for risk in kept.risks],
    }


def read_nodes(client: "redis.Redis", prefix: str, seconds: float) -> list[NodeStatus]:
    """The live nodes, by name; waits for their heartbeats."""
    heartbeats = read_heartbeats(client, prefix)
    alive = wait_for_heartbeats(client, prefix, heartbeats, seconds) if heartbeats else set()
    last_change = int(cast(Any, client.get(f"{prefix}change")) or 0)
    nodes = []
    for node_id in heartbeats:
        with client.pipeline(transaction=False) as pipe:
            pipe.hgetall(f"{prefix}node:{node_id}")
            pipe.xlen(f"{prefix}log:{node_id}")
            found, entries = pipe.execute()
        if not found:
            continue  # it has just left
        fields = {text(name): text(value) for name, value in found.items()}
        applied = number(fields, "change")
        nodes.append(
            NodeStatus(
                name=fields.get("name", "-"),
                id=node_id,
                host=fields.get("host", "-"),
                pid=number(fields, "pid"),
                version=fields.get("version", "-"),
                state=fields.get("state", "-"),
                heartbeat=node_id in alive,
                clients=number(fields, "clients"),
                sessions=number(fields, "sessions"),
                log_entries=entries,
                log_bytes=measure(client, [f"{prefix}log:{node_id}"]).get(f"{prefix}log:{node_id}"),
                behind=None if applied is None else max(0, last_change - applied),
            )
        )
    return sorted(nodes, key=lambda node: (node.name, node.id))


def read_heartbeats(client: "redis.Redis", prefix: str) -> dict[str, bytes]:
    """Node id -> heartbeats so far."""
    heartbeats = cast(dict[bytes, bytes], client.hgetall(f"{prefix}nodes"))
    return {text(node_id): count for node_id, count in heartbeats.items()}


def wait_for_heartbeats(client: "redis.Redis", prefix: str, before: dict[str, bytes], seconds: float) -> set[str]:
    """The nodes whose heartbeats have grown; waits for all nodes, at most `seconds`."""
    end = time.monotonic() + seconds
    while True:
        time.sleep(min(HEARTBEAT_PAUSE, max(0.0, end - time.monotonic())))
        heartbeats = read_heartbeats(client, prefix)
        alive = {node_id for node_id, count in before.items() if node_id in heartbeats and heartbeats[node_id] != count}
        silent = (heartbeats.keys() & before.keys()) - alive
        if not silent or time.monotonic() >= end:
            return alive


def number(fields: dict[str, str], name: str) -> int | None:
    """A field as a number, if it is there and one."""
    value = fields.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


# ---- memory ----


def read_memory(client: "redis.Redis", prefix: str, nodes: Iterable[str]) -> list[Memory]:
    """The memory of each kind of key, largest first; empty if the user may not read it."""
    singles = {f"{prefix}{name}": kind for name, kind in SINGLE_KINDS.items()}
    singles |= {f"{prefix}{name}:{node}": kind for node in nodes for name, kind in NODE_KINDS.items()}
    keys, sizes = Counter[str](), Counter[str]()
    for key, found in measure(client, list(singles)).items():
        keys[singles[key]] += 1
        sizes[singles[key]] += found
    seen, sampled = sample(client, prefix)
    scale = max(1.0, client.dbsize() / seen) if seen else 1.0
    for key, found in measure(client, list(sampled)).items():
        keys[sampled[key]] += 1
        sizes[sampled[key]] += found
    for kind in SESSION_KINDS.values():
        keys[kind] = round(keys[kind] * scale)
        sizes[kind] = round(sizes[kind] * scale)
    return [Memory(kind, keys[kind], count) for kind, count in sizes.most_common() if keys[kind]]


def sample(client: "redis.Redis", prefix: str) -> tuple[int, dict[bytes, str]]:
    """The number of sampled keys, and the keys of sessions with their kind. SCAN's order is as good as random."""
    begin = prefix.encode()
    seen, cursor = 0, 0
    found: dict[bytes, str] = {}
    while True:
        cursor, batch = cast(tuple[int, list[bytes]], client.scan(cursor, count=1000))
        seen += len(batch)
        for key in batch:
            kind = key.removeprefix(begin).partition(b":")[0].decode("ascii", "replace")
            if key.startswith(begin) and b":" in key[len(begin) :] and kind in SESSION_KINDS:
                found[key] = SESSION_KINDS[kind]
        if cursor == 0 or seen >= SAMPLE:
            return seen, found


def measure(client: "redis.Redis", keys: list[Any]) -> dict[Any, int]:
    """Bytes of the keys that exist; empty if the user may not read them."""
    import redis

    found: dict[Any, int] = {}
    for start in range(0, len(keys), AT_ONCE):
        part = keys[start : start + AT_ONCE]
        with client.pipeline(transaction=False) as pipe:
            for key in part:
                pipe.memory_usage(key)
            try:
                answers = pipe.execute()
            except redis.ResponseError:
                return {}
        found |= {key: int(answer) for key, answer in zip(part, answers, strict=True) if answer is not None}
    return found


# ---- for people ----


def render(status: dict[str, Any]) -> str:
    """The status as text."""
    lines = [f"Redis {status['redis']}, keys {status['prefix']}*", ""]
    if status["nodes"]:
        head = (
            "name",
            "id",
            "host",
            "pid",
            "version",
            "state",
            "heartbeat",
            "clients",
            "sessions",
            "behind",
            "log",
            "",
        )
        rows = [head, *(row(node) for node in status["nodes"])]
        lines += [
            table(rows),
            "sessions: all persistent sessions of the cluster, and the other sessions of the clients at the node",
        ]
    else:
        lines.append("no nodes")
    counts = [
        ("persistent sessions", status["persistent_sessions"]),
        ("retained messages", status["retained_messages"]),
        ("changes so far", status["last_change"]),
    ]
    lines += ["", table(counts)]
    if status["memory"]:
        rows = [
            ("memory of", "keys", "size"),
            *((kind["kind"], kind["keys"], size(kind["bytes"])) for kind in status["memory"]),
        ]
        lines += ["", table(rows)]
    lines += log_status.render(status["logs"], status["jobs"])
    lines += ["", status["durability"], *(f"warning: {warning}" for warning in status["warnings"])]
    return "\n".join(lines)


def row(node: dict[str, Any]) -> tuple[object, ...]:
    """A node's line of the table."""
    shown = {name: "-" if value is None else value for name, value in node.items()}
    return (
        *(shown[name] for name in ("name", "id", "host", "pid", "version", "state")),
        "ok" if node["heartbeat"] else "SILENT",
        *(shown[name] for name in ("clients", "sessions", "behind", "log_entries")),
        size(node["log_bytes"]),
    )
