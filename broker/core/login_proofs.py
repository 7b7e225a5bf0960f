"""Proofs of logins, kept by the store or by the cluster's Redis, so that they outlive a restart.

Each is the retained message of a topic name that no client can use, as bans are: the name has a NUL [MQTT-1.5.3-2].
"""

from _speedups.codec.properties import encode_block
from broker.core.data_plane import DataPlane

ROOT = b"$\x00flockmq/login/"


class LoginProofs:
    """The proofs, by name.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    def find(self, name: str) -> bytes | None:
        """A proof; None: there is none, or it has expired."""
        found = self._data_plane.router.retained.matching(ROOT + name.encode())
        return next((bytes(payload) for _, payload, _ in found), None)

    def keep(self, name: str, proof: bytes, seconds: int) -> None:
        """Keep a proof for these seconds, in place of an earlier one."""
        expiry = encode_block({"message_expiry_interval": seconds})
        self._data_plane.router.publish(ROOT + name.encode(), proof, 0, True, properties=expiry)
        self._data_plane.end_turn()
