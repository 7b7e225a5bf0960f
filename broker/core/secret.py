"""A secret of the node, or of all nodes of its cluster, that outlives a restart.

It is stored as the retained message of a topic name that no client can use, as bans are: the name has a NUL
[MQTT-1.5.3-2].
"""

import secrets

from broker.core.data_plane import DataPlane

TOPIC = b"$\x00flockmq/secret"
BYTES = 32


class Secret:
    """The secret; called, it returns the bytes.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._made = b""

    def __call__(self) -> bytes:
        for _, payload, _ in self._data_plane.router.retained.matching(TOPIC):
            if len(payload) == BYTES:
                return bytes(payload)
        if not self._made:  # it is kept here too: the limits of retained messages may have no room for it
            self._made = secrets.token_bytes(BYTES)
            self._data_plane.router.publish(TOPIC, self._made, 0, True)
            self._data_plane.end_turn()
        return self._made
