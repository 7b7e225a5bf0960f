"""A secret of the node, or of all nodes of its cluster, that outlives a restart."""

import secrets
from hashlib import blake2b

from .data_plane import DataPlane
from .hidden_messages import HiddenMessages

NAME = "secret"
BYTES = 32
IDENTITY_BYTES = 6


class Secret:
    """The secret; called, it returns the bytes.

    Until the node has its stored state, it can't know the secret, and returns one that is stored only if there is none.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._messages = HiddenMessages(data_plane)
        self._made = b""
        self._is_loaded = False

    def __call__(self) -> bytes:
        if found := self._find():
            return found
        if not self._made:  # it is kept here too: the limits of retained messages may have no room for it
            self._made = secrets.token_bytes(BYTES)
            if self._is_loaded:
                self._messages.put(NAME, self._made)
        return self._made

    def loaded(self) -> None:
        """The node has its stored state, with the secret if there is one."""
        self._is_loaded = True
        if self._made and not self._find():
            self._messages.put(NAME, self._made)

    def _find(self) -> bytes:
        """The stored one; empty: there is none, or it is damaged."""
        found = self._messages.find(NAME)
        return found if found is not None and len(found) == BYTES else b""

    @property
    def identity(self) -> str:
        """Names the broker to other brokers; it does not reveal the secret."""
        return blake2b(self(), digest_size=IDENTITY_BYTES, person=b"identity").hexdigest()
