"""Redis as a place that a migration moves state from and to."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from ...broker.auth.access_store import Kind
from ...broker.config.schema import Config
from ...broker.errors import FlockError
from ..peers.liveness import is_gone
from ..redis.clients import RedisAddress
from ..redis.keys import ARRIVING, LAYOUT, MOVED
from .durable import make_durable
from .endpoints import Mark, Place, Stage
from .redis_state import AT_ONCE, ENTRIES, KeyWriter, RedisState
from .state import Access, Moved, State

TIMEOUT = 60.0  # seconds for a reply: a pipeline of large messages takes a while
PAUSE = 0.1  # seconds between two looks at heartbeats


class RedisPlace(Place):
    """The keys of a cluster in Redis.

    Args:
        address: of Redis, and the prefix of the keys.
        config: of the nodes.
        warn: called with a sentence.
    """

    def __init__(self, address: RedisAddress, config: Config, warn: Callable[[str], object]) -> None:
        self._address = address
        self._config = config
        self._warn = warn
        self.keys = address.keys
        self.name = str(address)
        self.options = "" if address.prefix == "mq:" else f" --prefix {address.prefix}"

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[bool]:
        try:
            with self._address.client(TIMEOUT) as self.client:
                self._check_layout()
                self._check_nodes()
                self._position = self._read_position()
                yield True
        except (redis.RedisError, OSError) as error:
            raise FlockError(f"can't use Redis at {self.name}: {error}") from error

    def _check_layout(self) -> None:
        keys = self.keys
        written = self.client.get(keys.layout) or b"%d" % LAYOUT
        layout = int(written) if written.isdigit() else 0
        noted = {name.decode(): value.decode() for name, value in self.client.hgetall(keys.migration).items()}
        stage = {ARRIVING: Stage.ARRIVING, MOVED: Stage.MOVED}.get(layout, Stage.OWN)
        if stage == Stage.OWN and layout != LAYOUT:
            raise FlockError(
                f"Redis at {self.name} has layout {written.decode('utf-8', 'replace')}, "
                f"and this version layout {LAYOUT}",
                "use the version of its nodes",
            )
        self.mark = Mark(stage, *(noted.get(name, "") for name in ("id", "place", "options")))

    def _check_nodes(self) -> None:
        """Wait until it is certain that no node lives: no heartbeat for a lease, or the process is gone."""
        end = time.monotonic() + self._config.cluster.lease
        first = self.client.hgetall(self.keys.nodes)
        counts = first
        while waiting := [node for node in counts if not self._is_gone(node)]:
            grown = [node for node in waiting if counts[node] != first.get(node)]
            if grown:
                name = (self.client.hget(self.keys.node(grown[0]), "name") or grown[0]).decode()
                raise FlockError(f"the node {name} uses Redis at {self.name}", "stop all nodes of the cluster first")
            if time.monotonic() > end:
                return
            time.sleep(PAUSE)
            counts = self.client.hgetall(self.keys.nodes)

    def _is_gone(self, node: bytes) -> bool:
        return is_gone(self.client.hget(self.keys.node(node), "process") or b"")

    def _read_position(self) -> list[object]:
        """Keys that grow or change whenever a node lives."""
        keys = self.keys
        nodes = self.client.hgetall(keys.nodes)
        commits = [self.client.hget(keys.node(node), "seq") for node in nodes]
        return [*self.client.mget(keys.layout, keys.epoch, keys.change), nodes, commits]

    def read(self) -> State:
        return RedisState(self.client, self.keys, self._config)

    @property
    def has_state(self) -> bool:
        return not self.read().is_empty or bool(self.client.exists(self.keys.nodes))

    def access(self) -> Access:
        found: Access = {
            kind: [(name.decode(), document) for name, document in self.client.hscan_iter(key, count=ENTRIES)]
            for kind in Kind
            if self.client.exists(key := self.keys.access(kind))
        }
        return found

    def write(self, state: State, access: Access, mark: Mark) -> Moved:
        writer = KeyWriter(self.client, self.keys, self._config, state)

        def write_all() -> None:
            writer.write()
            for kind, documents in access.items():
                self._write_access(self.keys.access(kind), documents)

        self.fill(mark, write_all)
        return writer.moved

    def _write_access(self, key: bytes, documents: list[tuple[str, bytes]]) -> None:
        self.client.unlink(key, key + b":names")
        for start in range(0, len(documents), ENTRIES):
            some: dict[Any, Any] = dict(documents[start : start + ENTRIES])
            self.client.hset(key, mapping=some)
            self.client.zadd(key + b":names", dict.fromkeys(some, 0))

    def fill(self, mark: Mark, write: Callable[[], object]) -> None:
        """Set the mark, then replace all state; returns when it is durable.

        Args:
            mark: by which nodes do not use the place.
            write: writes the state.
        """
        self.set_mark(mark)
        self._clear()
        write()
        self._position = self._read_position()
        for warning in make_durable(self.client, self._config.cluster.replicas, in_slot=bool(self.keys.tag)):
            self._warn(warning)

    def _clear(self) -> None:
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

    def set_mark(self, mark: Mark) -> None:
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
        self._position = self._read_position()

    def _nodes_aside(self) -> list[tuple[bytes, bytes]]:
        """The keys that make dead nodes members, and where they are while the state is moved away.

        Redis refuses every step of a node that is no member. So one that only slept can't change state that was moved.
        """
        keys = self.keys
        aside = keys.prefix + b"moved:"
        nodes: set[Any] = {*self.client.hkeys(keys.nodes), *self.client.hkeys(aside + b"nodes")}
        return [(keys.nodes, aside + b"nodes"), *((keys.node(node), aside + b"node:" + node) for node in sorted(nodes))]

    def losses(self) -> list[str]:
        found = []
        if self.client.exists(self.keys.analytics_logs):
            found.append("the log of messages for analytics stays in Redis")
        return found
