"""Verifies passwords against stored hashes: in threads, and a right password only once in a while.

A hash takes some 25 ms of a core on purpose. Twenty thousand clients that reconnect with the same passwords must not
cost that again. So a right password is remembered in two ways, never in plain text; wrong ones are not, as they must be
slow.

- For some minutes, in memory: a keyed digest, whose key only this process has. Looking it up costs nothing.
- For some weeks, by the store: a *proof*, so that a fleet can come back after a restart, or to another node. It is an
  argon2id hash that takes a millisecond, of the password and a secret of the node. Someone with the store and the hash
  file could guess passwords 25 times as fast as with the hash file alone, not a million times, as with a plain digest.

Digest and proof depend on the stored hash, so a change of the password ends both. The proof is computed for every
password, right or wrong, of known users and unknown ones: the time that a refusal takes says nothing about them.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from argon2.low_level import Type, hash_secret_raw

from .passwords import StoredHash
from .work_pool import WorkPool

THREADS = 2
MAX_WAITING = 200  # about three seconds of work: a client that waited longer would have given up
MAX_PROVING = 5_000  # likewise
MAX_REMEMBERED = 100_000
DIGEST_BYTES = 16
PROOF_BYTES = 32
PROOF_MEMORY = 2048  # KiB: a millisecond
DAY = 86_400


class Proofs(Protocol):
    """Keeps proofs by name."""

    def find(self, name: str) -> bytes | None:
        """A proof; None: there is none."""

    def keep(self, name: str, proof: bytes, seconds: int) -> None:
        """Keep a proof for these seconds, in place of an earlier one."""


class Verifier:
    """Verifies passwords, with threads that all listeners share.

    Args:
        proofs: returns where proofs are kept; None: nowhere.
        secret: returns a secret of the node; by default one that a restart changes.
    """

    def __init__(
        self, proofs: Callable[[], Proofs | None] = lambda: None, secret: Callable[[], bytes] | None = None
    ) -> None:
        self._pool = WorkPool("passwords", THREADS, MAX_WAITING)
        self._proving = WorkPool("proofs", THREADS, MAX_PROVING)
        self._proofs = proofs
        self._key = secrets.token_bytes(32)
        self._secret = secret or (lambda: self._key)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digest -> until when; the oldest first
        self._remember = 0.0
        self._keep = 0.0
        self.verifications = 0  # slow ones

    def configure(self, remember: float, keep: float = 0.0) -> None:
        """Remember a right password for these seconds in memory, and for these by the store; 0 = not at all."""
        self._remember = remember
        self._keep = keep

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
        proofs = self._proofs() if self._keep else None
        if proofs is None:
            is_right = await self._matches_hash(stored, password)
        else:
            is_right = await self._matches_proof(proofs, stored, password)
        if is_right and password is not None and self._remember:
            digest = self._digest(stored, password)
            self._right.pop(digest, None)
            self._right[digest] = time.monotonic() + self._remember
            if len(self._right) > MAX_REMEMBERED:
                self._right.popitem(last=False)
        return is_right

    async def _matches_hash(self, stored: StoredHash, password: bytes | None) -> bool:
        self.verifications += 1
        return await self._pool.run(stored.matches, password or b"") and password is not None

    async def _matches_proof(self, proofs: Proofs, stored: StoredHash, password: bytes | None) -> bool:
        """Compare with the proof that is kept, or else with the hash; then keep the proof of a right password."""
        secret = self._secret()
        digest = hashlib.blake2b(stored.text.encode(), key=secret, digest_size=2 * DIGEST_BYTES).digest()
        name, salt = digest[:DIGEST_BYTES].hex(), digest[DIGEST_BYTES:]  # the salt is not where the proof is
        proof = await self._proving.run(make_proof, secret, salt, password or b"")
        kept = proofs.find(name) or b""
        today = int(time.time() // DAY).to_bytes(4, "big")
        is_right = hmac.compare_digest(kept[4:], proof) and password is not None
        is_right = is_right or await self._matches_hash(stored, password)
        if is_right and kept != today + proof:
            proofs.keep(name, today + proof, int(self._keep))  # once a day: this renews the expiry
        return is_right

    def _digest(self, stored: StoredHash, password: bytes) -> bytes:
        """A digest with the stored hash in it, so that a change of the password ends the memory of the old one."""
        text = stored.text.encode()
        message = len(text).to_bytes(4, "big") + text + password
        return hashlib.blake2b(message, digest_size=DIGEST_BYTES, key=self._key).digest()

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
        self._proving.close()


def make_proof(secret: bytes, salt: bytes, password: bytes) -> bytes:
    """An argon2id hash of a password and a secret that takes a millisecond."""
    keyed = hmac.digest(secret, password, "sha256")
    return hash_secret_raw(keyed, salt, 1, PROOF_MEMORY, 1, PROOF_BYTES, Type.ID)
