"""The keys of TLS session tickets: made, renewed, and kept by the store or by the cluster's Redis.

Each key is a hidden message that expires. So a node finds the keys again after a restart, all nodes of a cluster have
the same ones, and a client resumes its session at any of them.

A node makes a key if none was made in the last `RENEW_SECONDS`. Several nodes may do so at once: all keys open tickets.
The newest key seals, but only `SETTLE_SECONDS` after it was made: before that, other nodes may not have it. Times are
of the wall clock. Where clocks differ, nodes may make and use different keys to seal, but open the same tickets.
"""

import secrets
import time
from collections.abc import Callable

from ..._speedups.net.ticket_keys import KEY_SIZE, TicketKeyRing
from ..config.listen_url import ListenUrl
from ..config.schema import Config, ListenerConfig
from .data_plane import DataPlane
from .hidden_messages import HiddenMessages

RENEW_SECONDS = 12 * 3600
SETTLE_SECONDS = 10
TIME_SIZE = 8  # bytes of the time that a stored key begins with


class TicketKeys:
    """Keeps the key ring of a node up to date.

    Args:
        data_plane: of the node.
        ring: of its listeners.
        clock: returns the seconds since 1970.
    """

    def __init__(self, data_plane: DataPlane, ring: TicketKeyRing, clock: Callable[[], float] = time.time) -> None:
        self._data_plane = data_plane
        self._ring = ring
        self._clock = clock
        self._messages = HiddenMessages(data_plane, "tickets")
        self._own = b""  # made here; kept here too: the limits of retained messages may have no room for it

    def refresh(self) -> None:
        """Use the stored keys, after making one if it is time; to be called every second."""
        lifetime = session_lifetime(self._data_plane.config)
        if not lifetime:
            return
        now = int(self._clock())
        if self._own and not _is_recent(self._own, now):
            self._own = b""
        keys = {key for key in (*self._messages.all().values(), self._own) if len(key) == TIME_SIZE + KEY_SIZE}
        if not any(_is_recent(key, now) for key in keys):
            self._own = self._make(now, lifetime)
            keys.add(self._own)
        newest_first = sorted(keys, reverse=True)
        seals = next((key for key in newest_first if now - _made(key) >= SETTLE_SECONDS), newest_first[0])
        newest_first.remove(seals)
        self._ring.use(key[TIME_SIZE:] for key in (seals, *newest_first))

    def _make(self, now: int, lifetime: float) -> bytes:
        key = now.to_bytes(TIME_SIZE, "big") + secrets.token_bytes(KEY_SIZE)
        # It is to open the last ticket that it seals.
        self._messages.put(secrets.token_hex(8), key, seconds=int(lifetime) + RENEW_SECONDS + 2 * SETTLE_SECONDS)
        return key


def session_lifetime(config: Config) -> float:
    """Seconds for which TLS sessions can be resumed, the longest of all listeners; 0 = none can."""
    return max((each.tls.session_lifetime for each in config.listeners if _has_tls(each)), default=0)


def _has_tls(listener: ListenerConfig) -> bool:
    return any(ListenUrl.parse(address).secure for address in listener.listen)


def _made(key: bytes) -> int:
    return int.from_bytes(key[:TIME_SIZE], "big")


def _is_recent(key: bytes, now: int) -> bool:
    """Whether the key was made in the last `RENEW_SECONDS`, or is from a clock that is ahead by less than that."""
    return abs(now - _made(key)) < RENEW_SECONDS
