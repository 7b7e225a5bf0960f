"""The description of a node: the fields of its hash in Redis, for operators and for nodes on the same machine."""

import os
import socket

from ...broker.core.data_plane import DataPlane
from ...broker.version import version
from ..peers.liveness import process_name
from ..replication.changes import Changes
from ..replication.routes import Routes
from ..sessions.takeover import TakeOver
from .reconnection import Reconnection


class Description:
    """Describes this node.

    Args:
        plane: of this node.
        name: of this node in its cluster.
        changes: of this node.
        routes: of this node.
        takeover: of this node.
        reconnection: of this node.
    """

    def __init__(
        self,
        plane: DataPlane,
        name: str,
        changes: Changes,
        routes: Routes,
        takeover: TakeOver,
        reconnection: Reconnection,
    ) -> None:
        self._plane = plane
        self._name = name
        self._changes = changes
        self._routes = routes
        self._takeover = takeover
        self._reconnection = reconnection

    def fields(self) -> dict[str, str | int]:
        """The fields."""
        plane, counted = self._plane, self._plane.turn.counted()
        return {
            "name": self._name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": process_name(os.getpid()),
            "version": version(),
            "clients": plane.sessions.connected,
            "sessions": plane.sessions.count,
            "subscriptions": plane.router.filters.count,
            "publish_received": counted["publish_received"],
            "publish_sent": counted["publish_sent"],
            "change": self._changes.last,
            "routes": len(self._routes),
            "fights": self._takeover.fights,
            "links_lost": self._reconnection.links_lost,
        }
