"""The sessions of a cluster by their client ids: Redis has them."""

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
        link, keys = self._link, self._link.keys
        found: dict[bytes, dict[str, Any]] = {}
        with away_is_not_now():
            now = int((await link.ask("TIME"))[0])
            texts = await link.ask("MGET", *map(keys.session, client_ids)) if client_ids else []
            for client_id, text in zip(client_ids, texts, strict=True):
                session = None if text is None else decoded(text)
                if session is not None:
                    listed = await link.ask("LLEN", keys.queue(client_id)) if session.listed else 0
                    found[client_id] = self._shown(session, listed, now)
        return found

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
