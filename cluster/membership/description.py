"""The description of a node: the fields of its hash in Redis, for operators and for nodes on the same machine."""

import os
import socket

from ...broker.core.data_plane import DataPlane
from ...broker.version import version
from ..peers.liveness import process_name


def describe_node(plane: DataPlane, name: str) -> dict[str, str | int]:
    """The fields that do not depend on the cluster."""
    counted = plane.turn.counted()
    return {
        "name": name,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process": process_name(os.getpid()),
        "version": version(),
        "clients": plane.sessions.connected,
        "sessions": len(plane.sessions),
        "subscriptions": plane.router.filters.count,
        "publish_received": counted["publish_received"],
        "publish_sent": counted["publish_sent"],
    }
