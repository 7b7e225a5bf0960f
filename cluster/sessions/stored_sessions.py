"""The sessions of a cluster by their client ids: Redis has them."""

from asyncio import gather
from collections.abc import Sequence
from typing import Any

from ...broker.coordination.coordinator import QueueLimits, StoredSessions
from ...broker.core.data_plane import DataPlane
from ...broker.core.session_expiry import NEVER
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

    async def stored(self, client_ids: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        if not client_ids:
            return {}
        link, keys = self._link, self._link.keys
        with away_is_not_now():
            (now, _), texts = await gather(link.ask("TIME"), link.ask("MGET", *map(keys.session, client_ids)))
            read = ((client_id, decoded(text)) for client_id, text in zip(client_ids, texts, strict=True) if text)
            found = {client_id: session for client_id, session in read if session is not None}
            listed = [client_id for client_id, session in found.items() if session.listed]
            lengths = await gather(*(link.ask("LLEN", keys.queue(client_id)) for client_id in listed))
        queues = dict(zip(listed, lengths, strict=True))
        return {name: self._shown(session, queues.get(name, 0), int(now)) for name, session in found.items()}

    def _shown(self, session: PackedSession, listed: int, now: int) -> dict[str, Any]:
        interval = int(session.interval) if session.interval else None
        seconds = self._data_plane.config.mqtt.session_expiry or NEVER if interval is None else interval
        is_ending = session.persistent and not session.owner and seconds != NEVER
        return {
            "queued_messages": (listed if session.listed else len(session.entries)) - session.done,
            "queued_bytes": session.queued_bytes,
            "session_expiry": interval,
            "expires_in": max(0, session.since + int(seconds) - now) if is_ending else None,
        }

    def expires_in(self, client_id: bytes) -> None:
        return None


def decoded(text: bytes) -> PackedSession | None:
    """A session; None: it is damaged."""
    try:
        return PackedSession.decode(text)
    except ValueError:
        return None
