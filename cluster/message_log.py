"""The log of messages of a node: which messages it has, when blocks are closed, and its record in Redis.

`_speedups/log/message_log.pyx` makes the blocks; the store writes them. Layout and keys: deploy/docs/CLUSTER.md,
"The log of messages".
"""

import asyncio
import json
import time
from collections.abc import Callable

from _speedups.log.message_log import MessageLog
from broker.config.schema import AnalyticsConfig
from broker.core.data_plane import DataPlane
from cluster.peers.node_link import NodeLink
from cluster.redis.link import ignore
from cluster.redis.store import RedisStore

WAIT_SECONDS = 0.02  # that messages of QoS 0 wait for more, so that a quiet node doesn't write one entry for each


class LoggedMessages:
    """The log of messages of this node.

    Args:
        plane: of the node.
        store: of the node.
        link: of the node.
        name: of the node in its cluster.
        config: returns the configuration in force.
    """

    def __init__(
        self,
        plane: DataPlane,
        store: RedisStore,
        link: NodeLink,
        name: str,
        config: Callable[[], AnalyticsConfig],
    ) -> None:
        self._filters = plane.router.filters
        self._store = store
        self._link = link
        self._registration = {"name": name, "began": int(time.time() * 1000)}
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._topics: set[str] = set()
        self.log = MessageLog(plane.turn, store.log, self._wait)
        store.follow(self.log)

    def configure(self) -> None:
        """Log the messages that match the configured filters; register the log in Redis if the node is connected."""
        config = self._config()
        self._store.bound_log(config.log_bytes, config.log_seconds, config.max_waiting_bytes)
        topics = set(config.topics)
        if self._link.connected and topics:  # before its first entry
            record = json.dumps(self._registration | {"seconds": config.log_seconds})
            self._link.call(ignore, "HSET", self._link.keys.analytics_logs, self._link.node_id, record)
        for name in self._topics - topics:
            self._filters.unsubscribe(self.log, name.encode())
        for name in topics - self._topics:
            self._filters.subscribe(self.log, name.encode(), 0)
        self._topics = topics

    def _wait(self) -> None:
        self._loop.call_later(WAIT_SECONDS, self.log.close)
