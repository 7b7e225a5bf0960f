"""Redis as a place that a migration moves state from and to: one primary, or several with a shard each."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import redis

from ...broker.auth.access_store import Kind
from ...broker.config.schema import Config
from ...broker.errors import FlockError
from ..peers.liveness import is_gone
from ..redis.clients import RedisAddress
from ..redis.keys import ARRIVING, LAYOUT, MOVED
from ..redis.shard_addresses import Place as ShardPlace
from ..redis.shard_addresses import check_place, places_of
from .durable import make_durable
from .endpoints import Mark, Place, Stage
from .key_writer import KeyWriter, StateWriter
from .redis_state import AT_ONCE, ENTRIES, Client, RedisState
from .sharded_state import ShardedState
from .state import Access, Moved, State

TIMEOUT = 60.0  # seconds for a reply: a pipeline of large messages takes a while
PAUSE = 0.1  # seconds between two looks at heartbeats


class RedisShard:
    """The keys of a cluster with one shard, or of one of several, while the place is open.

    Args:
        address: of Redis, and the prefix of the keys.
        place: the shards at its server.
        config: of the nodes.
        client: of Redis.

    Raises:
        FlockError: its layout is not known.
    """

    def __init__(self, address: RedisAddress, place: ShardPlace, config: Config, client: Client) -> None:
        self.name = str(address)
        self.keys = address.keys
        self.client = client
        self._place = place
        self._config = config
        self.mark = self._read_mark()
        self._position = self._read_position()

    def _read_mark(self) -> Mark:
        keys, client = self.keys, self.client
        written = client.get(keys.layout) or b"%d" % LAYOUT
        layout = int(written) if written.isdigit() else 0
        noted = {name.decode(): value.decode() for name, value in client.hgetall(keys.migration).items()}
        stage = {ARRIVING: Stage.ARRIVING, MOVED: Stage.MOVED}.get(layout, Stage.OWN)
        if stage == Stage.OWN and layout != LAYOUT:
            raise FlockError(
                f"Redis at {self.name} has layout {written.decode('utf-8', 'replace')}, "
                f"and this version layout {LAYOUT}",
                "use the version of its nodes",
            )
        return Mark(stage, *(noted.get(name, "") for name in ("id", "place", "options")))

    def check_shards(self, *, as_source: bool) -> None:
        """Raise FlockError: the cluster there has other shards than the command line."""
        if self.mark.stage == Stage.ARRIVING:
            return
        noted = check_place(self.client, self._place, self.name)
        if as_source and self._place.shards and not noted and self.has_state:
            raise FlockError(
                f"Redis at {self.name} has a cluster of one shard, and the command line names several",
                "name the one URL of the cluster",
            )

    @property
    def has_state(self) -> bool:
        """Whether it has state, whoever may use it."""
        return not self.read().is_empty or bool(self.client.exists(self.keys.nodes))

    def read(self) -> RedisState:
        """Its state."""
        return RedisState(self.client, self.keys, self._config)

    def heartbeats(self) -> dict[bytes, bytes]:
        """The heartbeats of the nodes that may live."""
        nodes = self.client.hgetall(self.keys.nodes)
        return {
            node: count
            for node, count in nodes.items()
            if not is_gone(self.client.hget(self.keys.node(node), "process") or b"")
        }

    def name_of(self, node: bytes) -> str:
        """The name of a node."""
        return (self.client.hget(self.keys.node(node), "name") or node).decode()

    def _read_position(self) -> list[object]:
        """Keys that grow or change whenever a node lives."""
        keys = self.keys
        nodes = self.client.hgetall(keys.nodes)
        commits = [self.client.hget(keys.node(node), "seq") for node in nodes]
        return [*self.client.mget(keys.layout, keys.epoch, keys.change), nodes, commits]

    def note_position(self) -> None:
        """What was written so far is no change."""
        self._position = self._read_position()

    def write_access(self, key: bytes, documents: list[tuple[str, bytes]]) -> None:
        """Replace all users, or all roles."""
        self.client.unlink(key, key + b":names")
        for start in range(0, len(documents), ENTRIES):
            some: dict[Any, Any] = dict(documents[start : start + ENTRIES])
            self.client.hset(key, mapping=some)
            self.client.zadd(key + b":names", dict.fromkeys(some, 0))

    def clear(self) -> None:
        """Delete the earlier state: it was moved away, or is a part of a migration."""
        found = []
        for key in self.client.scan_iter(self.keys.prefix + b"*", count=ENTRIES):
            if self.keys.is_state(key):
                found.append(key)
            if len(found) >= AT_ONCE:
                self.client.unlink(*found)
                found.clear()
        if found:
            self.client.unlink(*found)

    def write_shards(self) -> None:
        """Write which shards the server has."""
        if self._place.shards:
            self.client.set(self._place.base.encode() + b"shards", self._place.shards)

    def set_mark(self, mark: Mark) -> None:
        """As `Place.set_mark`."""
        keys = self.keys
        layout = {Stage.ARRIVING: ARRIVING, Stage.MOVED: MOVED, Stage.OWN: LAYOUT}[mark.stage]
        noted: dict[Any, Any] = {"id": mark.id, "place": mark.place, "options": mark.options}

        def change(pipe: "redis.client.Pipeline") -> None:
            if self._read_position() != self._position:
                raise FlockError(
                    f"the state in Redis at {self.name} has changed since the migration began",
                    "stop all nodes and other migrations, then repeat the command",
                )
            pipe.multi()
            pipe.delete(keys.migration)
            if mark.id:
                pipe.hset(keys.migration, mapping=noted)
            pipe.set(keys.layout, layout)
            for key, aside in self._nodes_aside():
                if mark.stage == Stage.MOVED and key in present:
                    pipe.rename(key, aside)
                elif mark.stage == Stage.OWN and aside in present:
                    pipe.rename(aside, key)

        nodes = [key for pair in self._nodes_aside() for key in pair]
        present = {key for key in nodes if self.client.exists(key)}
        self.client.transaction(change, keys.layout, keys.epoch, keys.change, *nodes)
        self.note_position()

    def _nodes_aside(self) -> list[tuple[bytes, bytes]]:
        """The keys that make dead nodes members, and where they are while the state is moved away.

        Redis refuses every step of a node that is no member. So one that only slept can't change state that was moved.
        """
        keys = self.keys
        aside = keys.prefix + b"moved:"
        nodes: set[Any] = {*self.client.hkeys(keys.nodes), *self.client.hkeys(aside + b"nodes")}
        return [(keys.nodes, aside + b"nodes"), *((keys.node(node), aside + b"node:" + node) for node in sorted(nodes))]


class RedisPlace(Place):
    """The keys of a cluster in Redis.

    Args:
        addresses: of its shards, in their order: Redis, and the prefix of the keys.
        config: of the nodes.
        warn: called with a sentence.
    """

    def __init__(self, addresses: list[RedisAddress], config: Config, warn: Callable[[str], object]) -> None:
        self.addresses = addresses
        self._config = config
        self._warn = warn
        first, is_one = addresses[0], len({str(address) for address in addresses}) == 1
        self.name = str(first) if is_one else " ".join(map(str, addresses))
        self.options = "" if first.prefix == "mq:" else f" --prefix {first.prefix}"
        self.options += f" --shards {len(addresses)}" if is_one and len(addresses) > 1 else ""

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[bool]:
        try:
            with ExitStack() as stack:
                self.shards = [
                    self._open(address, place, stack)
                    for address, place in zip(self.addresses, places_of(self.addresses), strict=True)
                ]
                self.mark = combined([shard.mark for shard in self.shards])
                for shard in self.shards:
                    shard.check_shards(as_source=not create)
                self._check_nodes()
                for shard in self.shards:
                    shard.note_position()
                yield True
        except (redis.RedisError, OSError) as error:
            raise FlockError(f"can't use Redis at {self.name}: {error}") from error

    def _open(self, address: RedisAddress, place: ShardPlace, stack: ExitStack) -> RedisShard:
        client = stack.enter_context(address.client(TIMEOUT))
        try:
            return RedisShard(address, place, self._config, client)
        except (redis.RedisError, OSError) as error:
            raise FlockError(f"can't use Redis at {address}: {error}") from error

    def _check_nodes(self) -> None:
        """Wait until it is certain that no node lives: no heartbeat for a lease, or the process is gone."""
        end = time.monotonic() + self._config.cluster.lease
        first = [shard.heartbeats() for shard in self.shards]
        now = first
        while any(now):
            for shard, counts, before in zip(self.shards, now, first, strict=True):
                for node, count in counts.items():
                    if count != before.get(node):
                        raise FlockError(
                            f"the node {shard.name_of(node)} uses Redis at {shard.name}",
                            "stop all nodes of the cluster first",
                        )
            if time.monotonic() > end:
                return
            time.sleep(PAUSE)
            now = [shard.heartbeats() for shard in self.shards]

    def read(self) -> State:
        states = [shard.read() for shard in self.shards]
        return states[0] if len(states) == 1 else ShardedState(states)

    @property
    def has_state(self) -> bool:
        return any(shard.has_state for shard in self.shards if shard.mark.stage == Stage.OWN)

    def access(self) -> Access:
        first = self.shards[0]
        found: Access = {
            kind: [(name.decode(), document) for name, document in first.client.hscan_iter(key, count=ENTRIES)]
            for kind in Kind
            if first.client.exists(key := first.keys.access(kind))
        }
        return found

    def write(self, state: State, access: Access, mark: Mark) -> Moved:
        writers = [
            KeyWriter(shard.client, shard.keys, self._config, state, shard=number, shards=len(self.shards))
            for number, shard in enumerate(self.shards)
        ]
        writer = StateWriter(writers, state)

        def write_all() -> None:
            writer.write()
            for kind, documents in access.items():
                first = self.shards[0]
                first.write_access(first.keys.access(kind), documents)

        self.fill(mark, write_all)
        return writer.moved

    def fill(self, mark: Mark, write: Callable[[], object]) -> None:
        """Set the mark, then replace all state; returns when it is durable.

        Args:
            mark: by which nodes do not use the place.
            write: writes the state.
        """
        self.set_mark(mark)
        for shard in self.shards:
            shard.clear()
        write()
        for shard in self.shards:
            shard.write_shards()
            shard.note_position()
        durable = partial(make_durable, replicas=self._config.cluster.replicas, in_slot=bool(self.shards[0].keys.tag))
        with ThreadPoolExecutor(len(self.shards)) as threads:
            found = [*threads.map(durable, [shard.client for shard in self.shards])]
        for warning in dict.fromkeys(warning for warnings in found for warning in warnings):
            self._warn(warning)

    def set_mark(self, mark: Mark) -> None:
        for shard in self.shards:
            shard.set_mark(mark)

    def losses(self) -> list[str]:
        first = self.shards[0]
        has_log = first.client.exists(first.keys.analytics_logs)
        return ["the log of messages for analytics stays in Redis"] if has_log else []


def combined(marks: list[Mark]) -> Mark:
    """The mark of a place whose shards have these: a command may have been killed between two of them.

    A place is closed to nodes if one of its shards is.
    """
    by_stage = {mark.stage: mark for mark in reversed(marks)}
    return by_stage.get(Stage.ARRIVING) or by_stage.get(Stage.MOVED) or marks[0]
