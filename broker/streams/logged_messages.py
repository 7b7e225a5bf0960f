"""The message log of a node: which messages it has, and when blocks are closed.

`_speedups/log/message_log.pyx` makes the blocks; the store writes them. Their layout:
deploy/docs/internals/log.md.
"""

import asyncio
from collections.abc import Callable

from ..._speedups.log.message_log import MessageLog
from ..config.schema import AnalyticsConfig
from ..core import tenants
from ..core.data_plane import DataPlane
from ..storage.store import LogStore

WAIT_SECONDS = 0.02  # that messages of QoS 0 wait for more, so that a quiet node doesn't write one entry for each


class LoggedMessages:
    """The log of messages of this node.

    Args:
        plane: of the node.
        store: of the node.
        config: returns the configuration in force.
    """

    def __init__(self, plane: DataPlane, store: LogStore, config: Callable[[], AnalyticsConfig]) -> None:
        self._filters = plane.router.filters
        self._store = store
        self._config = config
        self._topics: set[str] = set()
        self.log = MessageLog(plane.turn, store.log, self._wait)

    def start(self) -> None:
        """The store is open: go on with its log."""
        self._store.follow(self.log)
        self.configure()

    def configure(self) -> None:
        """Log the messages that match the configured filters."""
        config = self._config()
        self._store.bound_log(config.log_bytes, config.log_seconds, config.max_waiting_bytes)
        topics = {name for each in config.topics for name in (each, f"{tenants.ROOT}+/{each}")}
        for name in self._topics - topics:
            self._filters.unsubscribe(self.log, name.encode())
        for name in topics - self._topics:
            self._filters.subscribe(self.log, name.encode(), 0)
        self._topics = topics

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(WAIT_SECONDS, self.log.close)
