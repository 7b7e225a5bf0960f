"""The sessions of a cluster by their client ids: Redis has them."""

from ...broker.coordination.coordinator import QueueLimits, StoredSessions
from ...broker.core.data_plane import DataPlane
from ..peers.node_link import NodeLink
from ..redis.link import away_is_not_now, ignore
from ..redis.packed_session import PackedSession


class RedisSessions(StoredSessions):
    """The sessions of all nodes.

    Args:
        data_plane: of this node.
        link: of this node.
    """

    def __init__(self, data_plane: DataPlane, link: NodeLink) -> None:
        self._data_plane = data_plane
        self._link = link

    async def end(self, client_id: bytes) -> bool:
        with away_is_not_now():
            outcome, *_ = await self._link.ask_function("purge", client_id)
            return bool(outcome != b"unknown")

    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        self._data_plane.turn.limit_queue(client_id, limits)
        if self._link.connected:
            value = "" if limits is None else "{} {} {:d}".format(*limits)
            self._link.function(ignore, "limit", client_id, value)

    async def queue_of(self, client_id: bytes) -> dict[str, int] | None:
        link, keys = self._link, self._link.keys
        with away_is_not_now():
            text = await link.ask("GET", keys.session(client_id))
            listed = await link.ask("LLEN", keys.queue(client_id))
        if text is None:
            return None
        session = PackedSession.decode(text)
        entries = listed if session.listed else len(session.entries)
        return {"queued_messages": entries - session.done, "queued_bytes": session.queued_bytes}

    def expires_in(self, client_id: bytes) -> None:
        return None
