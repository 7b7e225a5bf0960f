"""State of the broker itself that outlives a restart, and that all nodes of a cluster have: hidden retained messages.

The topic name of a hidden message begins with $, so that no wildcard at the first level matches it. It has a NUL, which
no packet may hold [MQTT-1.5.3-2]. So no client can publish, read or clear one.
"""

from collections.abc import Callable, Iterator

from ..._speedups.codec.properties import encode_block
from .data_plane import DataPlane

ROOT = "$\x00flockmq/"


class HiddenMessages:
    """The hidden messages of one kind, by name.

    Args:
        data_plane: of the node.
        kind: first level of their names; "" = all kinds.
    """

    def __init__(self, data_plane: DataPlane, kind: str = "") -> None:
        self._data_plane = data_plane
        self._prefix = f"{ROOT}{kind}/" if kind else ROOT

    def find(self, name: str) -> bytes | None:
        """A payload; None: there is no such message, or it has expired."""
        found = self._data_plane.router.retained.matching(self._topic(name))
        return next((bytes(payload) for _, payload, _ in found), None)

    def each(self) -> Iterator[tuple[str, bytes]]:
        """Name and payload of each, found as they are asked for, within one turn."""
        for topic, payload, _ in self._data_plane.router.retained.matching(self._topic("#")):
            yield topic.decode().removeprefix(self._prefix), bytes(payload)

    def all(self) -> dict[str, bytes]:
        """The payloads of all, by name."""
        return dict(self.each())

    def put(
        self, name: str, payload: bytes, *, seconds: int = 0, on_stored: Callable[[], object] | None = None
    ) -> None:
        """Store a message, in place of an earlier one of this name.

        The limits of retained messages may have no room for it: then it is dropped.

        Args:
            name: of the message.
            payload: of the message; empty = remove it.
            seconds: after which it expires; 0 = never.
            on_stored: called when the store has it.
        """
        self.record(name, payload, seconds=seconds)
        if on_stored is not None:
            self._data_plane.after_step(on_stored)
        self._data_plane.end_turn()

    def record(self, name: str, payload: bytes, *, seconds: int = 0) -> None:
        """As `put`, within a turn: the message is in the same block as the other records of the turn."""
        expiry = encode_block({"message_expiry_interval": seconds}) if seconds else b""
        self._data_plane.router.publish(self._topic(name), payload, 0, True, properties=expiry)

    def remove(self, name: str, *, on_stored: Callable[[], object] | None = None) -> None:
        """Remove a message; `on_stored` as in `put`."""
        self.put(name, b"", on_stored=on_stored)

    def _topic(self, name: str) -> bytes:
        return f"{self._prefix}{name}".encode()
