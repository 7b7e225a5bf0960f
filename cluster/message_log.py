"""Registers the message log of a node in Redis, so that readers find it. Keys: deploy/docs/internals/log.md."""

import asyncio
import json
import time
from collections.abc import Callable

from ..broker.config.schema import AnalyticsConfig
from ..broker.core.data_plane import DataPlane
from ..broker.storage.store import LogStore
from ..broker.streams import logged_messages
from .peers.node_link import NodeLink
from .redis.link import Reply, ReplyError

REGISTER_AGAIN_SECONDS = 1.0


class LoggedMessages(logged_messages.LoggedMessages):
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
        store: LogStore,
        link: NodeLink,
        name: str,
        config: Callable[[], AnalyticsConfig],
    ) -> None:
        super().__init__(plane, store, config)
        self._link = link
        self._registration = {"name": name, "began": int(time.time() * 1000)}
        store.follow(self.log)

    def configure(self) -> None:
        """Log the messages that match the configured filters; register the log in Redis if the node is connected."""
        self._register()  # before its first entry
        super().configure()

    def _register(self) -> None:
        config = self._config()
        if self._link.connected and config.topics:
            record = json.dumps(self._registration | {"seconds": config.log_seconds})
            self._link.call(self._registered, "HSET", self._link.keys.analytics_logs, self._link.node_id, record)

    def _registered(self, reply: Reply) -> None:
        if isinstance(reply, ReplyError):  # it has no memory left: readers would never find the log
            asyncio.get_running_loop().call_later(REGISTER_AGAIN_SECONDS, self._register)
