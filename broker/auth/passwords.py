"""Password hashes: argon2id, which FlockMQ writes, and Mosquitto's two formats, which it only reads.

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH        OWASP's parameters: 19 MiB of memory, some 25 ms
    $7$ITERATIONS$SALT$HASH                         PBKDF2 with SHA-512, as mosquitto_passwd writes
    $6$SALT$HASH                                    SHA-512 once: weak, from before Mosquitto 2.0

Verifying compares in constant time and releases the interpreter's lock while it works.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace

import argon2
from argon2.exceptions import Argon2Error

HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, hash_len=32, salt_len=16)
ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=[1-9]\d{0,8},t=[1-9]\d{0,3},p=[1-9]\d{0,3}(\$[A-Za-z0-9+/]{11,200}){2}", re.ASCII
)
MAX_MEMORY = 1 << 20  # KiB that a hash made elsewhere may need
MAX_ITERATIONS = 10_000_000
MAX_PASSWORD = 65_535  # bytes: MQTT's fields are no longer


@dataclass(frozen=True, slots=True)
class StoredHash:
    """A valid password hash, as a file or a database holds it."""

    text: str
    scheme: str  # "argon2id", "pbkdf2" or "sha512"
    iterations: int = 0
    salt: bytes = b""
    digest: bytes = b""

    def matches(self, password: bytes) -> bool:
        """Whether it is the hash of this password; slow on purpose."""
        if self.scheme == "argon2id":
            try:
                return HASHER.verify(self.text, password)
            except Argon2Error:
                return False
        if self.scheme == "pbkdf2":
            found = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations, len(self.digest))
        else:
            found = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(found, self.digest)

    def dummy(self) -> "StoredHash":
        """A hash that no password matches, and that takes as long to verify: for unknown users."""
        if self.scheme != "argon2id":
            return replace(self, digest=secrets.token_bytes(len(self.digest)))
        parameters = argon2.extract_parameters(self.text)
        hasher = argon2.PasswordHasher.from_parameters(parameters)
        return replace(self, text=hasher.hash(secrets.token_bytes(32)))


def hash_password(password: bytes) -> StoredHash:
    """The hash of a password, to be stored."""
    return parse_hash(HASHER.hash(password))


def parse_hash(text: str) -> StoredHash:
    """Parse a stored hash.

    Raises:
        ValueError: the format is unknown; the text has the reason, and nothing of the hash.
    """
    if text.startswith("$argon2id$"):
        return _argon2id(text)
    parts = text.split("$")
    try:
        if parts[:2] == ["", "7"] and len(parts) == 5 and parts[2].isascii() and parts[2].isdigit():
            found = StoredHash(text, "pbkdf2", int(parts[2]), *map(_decoded, parts[3:]))
        elif parts[:2] == ["", "6"] and len(parts) == 4:
            found = StoredHash(text, "sha512", 1, *map(_decoded, parts[2:]))
        else:
            raise ValueError("it is not a password hash in a supported format")
    except binascii.Error:
        raise ValueError("its base64 is damaged") from None
    if not found.salt or len(found.digest) != 64 or not 1 <= found.iterations <= MAX_ITERATIONS:
        raise ValueError("the hash is cut short, or not as Mosquitto writes it")
    return found


def _argon2id(text: str) -> StoredHash:
    if not ARGON2ID.fullmatch(text):
        raise ValueError("the argon2id hash is damaged")
    parameters = argon2.extract_parameters(text)
    if parameters.memory_cost > MAX_MEMORY or parameters.time_cost > 100 or parameters.hash_len < 16:
        raise ValueError("an argon2id hash with unusable parameters")
    return StoredHash(text, "argon2id")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
