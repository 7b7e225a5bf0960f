"""A secret of the node, or of all nodes of its cluster, that outlives a restart."""

import secrets
from hashlib import blake2b

from broker.core.data_plane import DataPlane
from broker.core.hidden_messages import HiddenMessages

NAME = "secret"
BYTES = 32
IDENTITY_BYTES = 6


class Secret:
    """The secret; called, it returns the bytes.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._messages = HiddenMessages(data_plane)
        self._made = b""

    def __call__(self) -> bytes:
        found = self._messages.find(NAME)
        if found is not None and len(found) == BYTES:
            return found
        if not self._made:  # it is kept here too: the limits of retained messages may have no room for it
            self._made = secrets.token_bytes(BYTES)
            self._messages.put(NAME, self._made)
        return self._made

    @property
    def identity(self) -> str:
        """Names the broker to other brokers; it does not reveal the secret."""
        return blake2b(self(), digest_size=IDENTITY_BYTES, person=b"identity").hexdigest()
