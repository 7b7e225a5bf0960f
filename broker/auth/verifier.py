"""Compares passwords with stored hashes: in threads, and not again for a while what was right.

A hash takes some 25 ms of a core on purpose. Twenty thousand clients that come back with the passwords with which they
came before must not cost that again, so a right password is remembered for some minutes: as a keyed hash with a key
that only this process has, never as itself. Wrong ones are not remembered: they are to be slow.
"""

import hashlib
import secrets
import time
from collections import OrderedDict

from broker.auth.passwords import StoredHash
from broker.auth.work_pool import WorkPool

THREADS = 2
WAITING_MOST = 200  # about three seconds of work: a client that waited longer would have given up
REMEMBERED_MOST = 100_000
DIGEST_BYTES = 16


class Verifier:
    """Compares, with the threads of all listeners."""

    def __init__(self) -> None:
        self._pool = WorkPool("passwords", THREADS, WAITING_MOST)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digest -> until when; the oldest first
        self.remember = 0.0  # seconds for which a right password is remembered
        self.verifications = 0

    def knows(self, stored: StoredHash, password: bytes | None) -> bool:
        """Whether it is remembered that this password is right."""
        return password is not None and self._right.get(self._digest(stored, password), 0.0) > time.monotonic()

    async def matches(self, stored: StoredHash, password: bytes | None) -> bool:
        """Whether the hash is of this password; no password takes as long as a wrong one.

        Raises:
            Busy: too many wait.
        """
        if self.knows(stored, password):
            return True
        self.verifications += 1
        is_right = await self._pool.run(stored.matches, password or b"") and password is not None
        if is_right and password is not None and self.remember:
            digest = self._digest(stored, password)
            self._right.pop(digest, None)
            self._right[digest] = time.monotonic() + self.remember
            if len(self._right) > REMEMBERED_MOST:
                self._right.popitem(last=False)
        return is_right

    def _digest(self, stored: StoredHash, password: bytes) -> bytes:
        """With the stored hash in it, so that another password ends what is remembered of the one before."""
        text = stored.text.encode()
        message = len(text).to_bytes(4, "big") + text + password
        return hashlib.blake2b(message, digest_size=DIGEST_BYTES, key=self._key).digest()

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
