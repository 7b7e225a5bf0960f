"""Damaged keys: the measures of this node when Redis could not apply its records for a client or a group.

Someone wrote to a key, or a fault changed it. The other records of the block are applied. Nothing of the client or
group is kept until its key is repaired or deleted.
"""

import time
from collections.abc import Callable

from ..._speedups.protocol import close_reasons
from ...broker import logs
from ..redis.link import is_forbidden
from .claim import Claims

COMPLAIN_SECONDS = 30.0  # between log lines about a key
MAX_KEYS = 1000  # about which this node remembers that it complained

log = logs.get("flockmq.cluster")


class DamagedKeys:
    """Reports damaged keys, and closes the clients whose sessions have them.

    Args:
        claims: of this node.
        on_fenced: called with the reason when records that concern all nodes are not in Redis.
    """

    def __init__(self, claims: Claims, on_fenced: Callable[[str], object]) -> None:
        self._claims = claims
        self._on_fenced = on_fenced
        self._complained: dict[bytes, float] = {}  # key -> when, monotonic

    def report(self, damaged: list[bytes]) -> None:
        """Redis could not apply some records: the owner of the key, its id or name, the key, the reason, in turn."""
        for kind, name, key, reason in zip(*(damaged[i::4] for i in range(4)), strict=True):
            text = reason.decode("utf-8", "replace")
            self._complain(kind, name, key, text)
            if kind == b"common" or is_forbidden(text):
                self._on_fenced(f"Redis has not applied its changes: {key.decode('utf-8', 'replace')}: {text}")
                return
            if kind == b"client":  # before anything is acknowledged to it
                self._claims.close(name, close_reasons.SESSION_UNREADABLE)

    def _complain(self, kind: bytes, name: bytes, key: bytes, reason: str) -> None:
        now = time.monotonic()
        if now < self._complained.get(key, now):
            return
        if len(self._complained) >= MAX_KEYS:
            self._complained.clear()
        self._complained[key] = now + COMPLAIN_SECONDS
        whose = {"client": "client_id", "group": "group"}.get(kind.decode(), "of")
        log.error(
            "a key in Redis is damaged: nothing is kept for its client or group until it is repaired or purged",
            key=key.decode("utf-8", "backslashreplace"),
            reason=reason,
            **{whose: name.decode("utf-8", "backslashreplace")},
        )
