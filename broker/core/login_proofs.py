"""Proofs of logins, kept by the store or by the cluster's Redis, so that they outlive a restart."""

from .data_plane import DataPlane
from .hidden_messages import HiddenMessages


class LoginProofs:
    """The proofs, by name.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._messages = HiddenMessages(data_plane, "login")

    def find(self, name: str) -> bytes | None:
        """A proof; None: there is none, or it has expired."""
        return self._messages.find(name)

    def keep(self, name: str, proof: bytes, seconds: int) -> None:
        """Keep a proof for these seconds, in place of an earlier one."""
        self._messages.put(name, proof, seconds=seconds)
