"""The log of messages of a node: what goes in, when blocks are closed, and who may know of it.

The blocks are made in `_speedups.message_log`; the store writes them. Layout and keys: deploy/docs/CLUSTER.md, "The log
of messages".
"""

import asyncio
import json
import time

from _speedups.cluster.message_log import MessageLog
from broker.config.schema import AnalyticsConfig
from broker.core.data_plane import DataPlane
from cluster.redis.keys import Keys
from cluster.redis.link import Link, ignore
from cluster.redis.store import RedisStore

WAIT_SECONDS = 0.02  # that messages of QoS 0 wait for others, so that a quiet node doesn't write one entry for each


class LoggedMessages:
    """The log of this node.

    Args:
        data_plane: of the node; its ledger takes what commits must hold.
        store: writes the rest.
        keys, node, name: of the cluster, and the node's id and name in it.
    """

    def __init__(self, data_plane: DataPlane, store: RedisStore, keys: Keys, node: bytes, name: str) -> None:
        self._data_plane = data_plane
        self._store = store
        self._keys = keys
        self._node = node
        self._registration = {"name": name, "began": int(time.time() * 1000)}
        self._loop = asyncio.get_running_loop()
        self._topics: set[str] = set()
        self.log = MessageLog(data_plane.turn, store.log, self._wait)
        store.follow(self.log)

    def configure(self, config: AnalyticsConfig, link: Link | None) -> None:
        """Log what matches these filters from now on. Tells the cluster over `link`, if there is one."""
        self._config = config
        self._store.bound_log(config.log_bytes, config.log_seconds, config.max_waiting_bytes)
        filters = self._data_plane.router.filters
        topics = set(config.topics)
        if link is not None and topics:  # said before there is an entry
            said = json.dumps(self._registration | {"seconds": config.log_seconds})
            link.call(ignore, "HSET", self._keys.analytics_logs, self._node, said)
        for name in self._topics - topics:
            filters.unsubscribe(self.log, name.encode())
        for name in topics - self._topics:
            filters.subscribe(self.log, name.encode(), 0)
        self._topics = topics

    def _wait(self) -> None:
        self._loop.call_later(WAIT_SECONDS, self.log.close)
