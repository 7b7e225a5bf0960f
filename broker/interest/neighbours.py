"""Other brokers with a link to this one, or from it, that have reported their wanted topic filters.

A neighbour is known by the session of the link at this broker: the filters are subscriptions of that session. Their
paths are hidden retained messages, so all nodes have them, and they outlive a restart while the link is down.
"""

import json
import time
from typing import NamedTuple

from ..config.link import is_of_link
from ..core.data_plane import DataPlane
from ..core.hidden_messages import HiddenMessages
from .filters import Rows

KIND = "wanted"
FORGET_SECONDS = 60.0  # after the end of its session a neighbour is forgotten


class Neighbour(NamedTuple):
    """Another broker, and its wanted filters, as this broker has their topic names."""

    identity: str
    rows: Rows


class Neighbours:
    """All neighbours, by the client id of their session.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._sessions = data_plane.sessions
        self._messages = HiddenMessages(data_plane, KIND)
        self._raw: dict[str, bytes] = {}
        self._known: dict[bytes, Neighbour] = {}
        self._absent_since: dict[bytes, float] = {}
        self._own_links: frozenset[bytes] = frozenset()
        self.version = 0  # greater after each change

    def configure(self, own_links: frozenset[bytes]) -> None:
        """The sessions of the links of this broker that exchange wanted filters."""
        self._own_links = own_links
        self.version += 1

    def refresh(self) -> None:
        """Read the changed ones; another node may have changed them."""
        raw = self._messages.all()
        if raw == self._raw:
            return
        known: dict[bytes, Neighbour] = {}
        for name, payload in raw.items():
            client_id = bytes.fromhex(name)
            if self._raw.get(name) == payload:
                known[client_id] = self._known[client_id]
            else:
                found = json.loads(payload)
                rows = {topic_filter: tuple(path) for topic_filter, path in found["rows"]}
                known[client_id] = Neighbour(found["identity"], rows)
        self._raw, self._known = raw, known
        self.version += 1

    def tick(self) -> None:
        """Read what has changed, and forget the neighbours whose sessions have ended."""
        self.refresh()
        now = time.monotonic()
        for client_id in self._known:
            if self._sessions.knows(client_id):
                self._absent_since.pop(client_id, None)
            elif now - self._absent_since.setdefault(client_id, now) > FORGET_SECONDS:
                del self._absent_since[client_id]
                self.remove(client_id)
                break

    def get(self, client_id: bytes) -> Neighbour | None:
        """A neighbour; None: it has reported nothing."""
        self.refresh()
        return self._known.get(client_id)

    def put(self, client_id: bytes, neighbour: Neighbour) -> None:
        """Record the filters of a neighbour, within the turn."""
        found = {"identity": neighbour.identity, "rows": list(neighbour.rows.items())}
        self._messages.record(client_id.hex(), json.dumps(found).encode())

    def remove(self, client_id: bytes) -> None:
        """Forget a neighbour: its session is like any client's."""
        self._messages.remove(client_id.hex())

    @property
    def sessions(self) -> frozenset[bytes]:
        """The sessions whose subscriptions are not for this broker's clients."""
        return self._own_links.union(self._known)

    def reporting(self) -> list[Neighbour]:
        """The neighbours with a session; of a link that is not configured any more the session does not count."""
        return [
            neighbour
            for client_id, neighbour in self._known.items()
            if (client_id in self._own_links or not is_of_link(client_id)) and self._sessions.knows(client_id)
        ]
