"""Verifies passwords against stored hashes: in threads, and a right password only once in a while.

A hash takes some 25 ms of a core on purpose. Twenty thousand clients that reconnect with the same passwords must not
cost that again, so a right password is remembered for some minutes: as a keyed hash, whose key only this process has,
never in plain text. Wrong passwords are not remembered: they must be slow.
"""

import hashlib
import secrets
import time
from collections import OrderedDict

from broker.auth.passwords import StoredHash
from broker.auth.work_pool import WorkPool

THREADS = 2
MAX_WAITING = 200  # about three seconds of work: a client that waited longer would have given up
MAX_REMEMBERED = 100_000
DIGEST_BYTES = 16


class Verifier:
    """Verifies passwords, with threads that all listeners share."""

    def __init__(self) -> None:
        self._pool = WorkPool("passwords", THREADS, MAX_WAITING)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digest -> until when; the oldest first
        self._remember = 0.0
        self.verifications = 0

    def configure(self, remember: float) -> None:
        """Remember a right password for this many seconds."""
        self._remember = remember

    def remembers(self, stored: StoredHash, password: bytes | None) -> bool:
        """Whether this password was right lately."""
        return password is not None and self._right.get(self._digest(stored, password), 0.0) > time.monotonic()

    async def matches(self, stored: StoredHash, password: bytes | None) -> bool:
        """Whether the hash is of this password; no password takes as long as a wrong one.

        Raises:
            Busy: too many wait.
        """
        if self.remembers(stored, password):
            return True
        self.verifications += 1
        is_right = await self._pool.run(stored.matches, password or b"") and password is not None
        if is_right and password is not None and self._remember:
            digest = self._digest(stored, password)
            self._right.pop(digest, None)
            self._right[digest] = time.monotonic() + self._remember
            if len(self._right) > MAX_REMEMBERED:
                self._right.popitem(last=False)
        return is_right

    def _digest(self, stored: StoredHash, password: bytes) -> bytes:
        """A digest with the stored hash in it, so that a change of the password ends the memory of the old one."""
        text = stored.text.encode()
        message = len(text).to_bytes(4, "big") + text + password
        return hashlib.blake2b(message, digest_size=DIGEST_BYTES, key=self._key).digest()

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
