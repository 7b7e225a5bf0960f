"""Password hashes, made and compared: argon2id and SCRAM; and the formats of other programs, which are only read.

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH        OWASP's parameters: 19 MiB of memory, some 25 ms
    $scram-sha-256$ROUNDS$SALT$STORED$SERVER        PBKDF2 with SHA-256: the keys of SCRAM-SHA-256 (RFC 7677)
    $7$ITERATIONS$SALT$HASH                         PBKDF2 with SHA-512, as mosquitto_passwd writes
    $6$SALT$HASH                                    SHA-512 once: weak, from before Mosquitto 2.0
    PBKDF2$sha512$ITERATIONS$SALT$HASH              mosquitto-go-auth's, also with sha256
    $pbkdf2-sha512$i=ITERATIONS,l=LENGTH$SALT$HASH  ChirpStack's, base64 without padding
    $2b$COST$SALTHASH                               bcrypt, also $2a$ and $2y$: of most web frameworks, and pgcrypto

Verifying compares in constant time and releases the interpreter's lock while it works.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import argon2
from argon2.exceptions import Argon2Error

from .saslprep import saslprep

HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, hash_len=32, salt_len=16)
ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=[1-9]\d{0,8},t=[1-9]\d{0,3},p=[1-9]\d{0,3}(\$[A-Za-z0-9+/]{11,200}){2}", re.ASCII
)
MAX_MEMORY = 1 << 20  # KiB that a hash made elsewhere may need
MAX_ITERATIONS = 10_000_000
SCRAM_SCHEME = "scram-sha-256"
SCRAM_ROUNDS = 100_000  # some 25 ms; the client computes them at each login, unless it keeps the keys
SCRAM_MIN_ROUNDS = 4096  # RFC 7677's
MAX_PREPARED = 1024  # bytes of a password, and characters of its prepared form
SCRAM_SALT_BYTES = 16
SCRAM_KEY_BYTES = 32
FINGERPRINT_BYTES = 16
BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", re.ASCII)
MAX_BCRYPT_COST = 16  # some 4 s
MAX_BCRYPT_PASSWORD = 72  # bytes: bcrypt ignores all further ones, so a longer password matches nothing
PHC_PBKDF2 = re.compile(r"i=(\d{1,9})(?:,l=\d{1,4})?", re.ASCII)
MIN_DIGEST = 16  # bytes
MAX_DUMMIES = 16  # kinds of hashes
MAX_PASSWORD = 65_535  # bytes: MQTT's fields are no longer


@dataclass(frozen=True, slots=True)
class StoredHash:
    """A valid password hash, as a file or a database holds it."""

    text: str
    scheme: str  # "argon2id", "scram-sha-256", "pbkdf2", "bcrypt" or "sha512"
    iterations: int = 0
    salt: bytes = b""
    digest: bytes = b""  # of SCRAM: StoredKey
    server_key: bytes = b""  # of SCRAM
    algorithm: str = "sha512"  # of PBKDF2

    @property
    def fingerprint(self) -> bytes:
        """Changes with the stored hash, and says nothing about the password."""
        return hashlib.blake2b(self.text.encode(), digest_size=FINGERPRINT_BYTES).digest()

    @property
    def cost(self) -> tuple[object, ...]:
        """Equal for hashes that take as long to verify."""
        parameters = self.text.split("$")[:4] if self.scheme == "argon2id" else ()
        return self.scheme, self.iterations, self.algorithm, *parameters

    def matches(self, password: bytes) -> bool:
        """Whether it is the hash of this password; slow on purpose."""
        if self.scheme == "argon2id":
            try:
                return HASHER.verify(self.text, password)
            except Argon2Error:
                return False
        if self.scheme == "bcrypt":
            return len(password) <= MAX_BCRYPT_PASSWORD and bcrypt().checkpw(password, self.text.encode())
        if self.scheme == SCRAM_SCHEME:
            found = _scram_keys(_prepared(password), self.salt, self.iterations)[0]
        elif self.scheme == "pbkdf2":
            found = hashlib.pbkdf2_hmac(self.algorithm, password, self.salt, self.iterations, len(self.digest))
        else:
            found = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(found, self.digest)

    def dummy(self) -> "StoredHash":
        """A hash that no password matches, and that takes as long to verify: for unknown users."""
        if self.scheme == "bcrypt":
            salt = bcrypt().gensalt(self.iterations)
            return replace(self, text=bcrypt().hashpw(secrets.token_bytes(32), salt).decode())
        if self.scheme != "argon2id":
            return replace(self, digest=secrets.token_bytes(len(self.digest)))
        parameters = argon2.extract_parameters(self.text)
        hasher = argon2.PasswordHasher.from_parameters(parameters)
        return replace(self, text=hasher.hash(secrets.token_bytes(32)))


def hash_password(password: bytes) -> StoredHash:
    """The hash of a password, to be stored."""
    return parse_hash(HASHER.hash(password))


@cache
def usual_dummy() -> StoredHash:
    """A hash that no password matches, as `hash_password` makes them: for users that are unknown."""
    return hash_password(b"").dummy()


class Dummies:
    """Hashes to verify for unknown users: no password matches one, and each takes as long as the hashes of users do."""

    def __init__(self) -> None:
        self.present = usual_dummy()
        self._made = {self.present.cost: self.present}

    def follow(self, stored: StoredHash) -> None:
        """Take as long as this hash of a user from now on; slow for the first hash of its cost."""
        if stored.cost not in self._made:
            if len(self._made) >= MAX_DUMMIES:
                self._made.clear()
            self._made[stored.cost] = stored.dummy()
        self.present = self._made[stored.cost]


def scram_credentials(password: bytes, rounds: int = SCRAM_ROUNDS, salt: bytes = b"") -> StoredHash:
    """The credentials of SCRAM-SHA-256, which verify a plain password too.

    Args:
        password: UTF-8.
        rounds: of PBKDF2; a client computes them at each login.
        salt: a random one if empty.

    Raises:
        ValueError: the password is not UTF-8, or has characters that SASLprep does not allow.
    """
    salt = salt or secrets.token_bytes(SCRAM_SALT_BYTES)
    keys = _scram_keys(saslprep(password.decode(), stored=True).encode(), salt, rounds)
    return parse_hash("$".join(["", SCRAM_SCHEME, str(rounds), *map(_encoded, (salt, *keys))]))


def _scram_keys(password: bytes, salt: bytes, rounds: int) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey (RFC 5802, section 3)."""
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")


def _prepared(password: bytes) -> bytes:
    """A password as a client of SCRAM prepares it; one that can't be prepared, and matches nothing, as it is.

    The preparation takes time per character, and any client can ask for it: so its length is limited.
    """
    try:
        return saslprep(password[: MAX_PREPARED + 1].decode(), most=MAX_PREPARED).encode()
    except ValueError:
        return password


def parse_hash(text: str) -> StoredHash:
    """Parse a stored hash.

    Raises:
        ValueError: the format is unknown; the text has the reason, and nothing of the hash.
    """
    if text.startswith("$argon2id$"):
        return _argon2id(text)
    if text.startswith(f"${SCRAM_SCHEME}$"):
        return _scram(text)
    if text.startswith(("$2a$", "$2b$", "$2y$")):
        return _bcrypt(text)
    try:
        found = _repeated(text, text.split("$"))
    except binascii.Error:
        raise ValueError("its base64 is damaged") from None
    if not found.salt or len(found.digest) < MIN_DIGEST or not 1 <= found.iterations <= MAX_ITERATIONS:
        raise ValueError("the hash is cut short, or its number of iterations is unusable")
    return found


def _repeated(text: str, parts: list[str]) -> StoredHash:
    """The fields of a hash of PBKDF2, or of SHA-512 once. Raises ValueError, binascii.Error."""
    match parts:
        case ["", "7", iterations, salt, digest] if iterations.isascii() and iterations.isdigit():
            found = StoredHash(text, "pbkdf2", int(iterations[:10]), _decoded(salt), _decoded(digest))
        case ["", "6", salt, digest]:
            found = StoredHash(text, "sha512", 1, _decoded(salt), _decoded(digest))
        case ["PBKDF2", "sha256" | "sha512" as name, rounds, salt, digest] if rounds.isascii() and rounds.isdigit():
            values = int(rounds[:10]), _decoded(salt), _decoded(digest)
            return StoredHash(text, "pbkdf2", *values, algorithm=name)
        case ["", "pbkdf2-sha256" | "pbkdf2-sha512" as name, options, salt, digest] if PHC_PBKDF2.fullmatch(options):
            values = int(options[2:].partition(",")[0]), _decoded(_padded(salt)), _decoded(_padded(digest))
            return StoredHash(text, "pbkdf2", *values, algorithm=name.partition("-")[2])
        case _:
            raise ValueError("it is not a password hash in a supported format")
    if len(found.digest) != hashlib.sha512().digest_size:
        raise ValueError("the hash is cut short, or not as Mosquitto writes it")
    return found


def _bcrypt(text: str) -> StoredHash:
    found = BCRYPT.fullmatch(text)
    if found is None:
        raise ValueError("the bcrypt hash is damaged")
    cost = int(found[1])
    if not 4 <= cost <= MAX_BCRYPT_COST:
        raise ValueError(f"bcrypt hashes have a cost of 4 to {MAX_BCRYPT_COST}")
    bcrypt()
    return StoredHash(text, "bcrypt", cost)


def bcrypt() -> Any:
    """The package, which only such hashes need.

    Raises:
        ValueError: it is missing.
    """
    try:
        return import_module("bcrypt")
    except ModuleNotFoundError:
        raise ValueError("bcrypt hashes need the package bcrypt: pip install 'flockmq[auth]'") from None


def _argon2id(text: str) -> StoredHash:
    if not ARGON2ID.fullmatch(text):
        raise ValueError("the argon2id hash is damaged")
    parameters = argon2.extract_parameters(text)
    if parameters.memory_cost > MAX_MEMORY or parameters.time_cost > 100 or parameters.hash_len < 16:
        raise ValueError("an argon2id hash with unusable parameters")
    return StoredHash(text, "argon2id")


def _scram(text: str) -> StoredHash:
    parts = text.split("$")
    if len(parts) != 6 or not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 10):
        raise ValueError("the SCRAM credentials are damaged")
    try:
        salt, stored, server = map(_decoded, parts[3:])
    except binascii.Error:
        raise ValueError("its base64 is damaged") from None
    rounds = int(parts[2])
    if not salt or len(stored) != SCRAM_KEY_BYTES or len(server) != SCRAM_KEY_BYTES:
        raise ValueError("the SCRAM credentials are cut short")
    if not SCRAM_MIN_ROUNDS <= rounds <= MAX_ITERATIONS:
        raise ValueError(f"SCRAM credentials have {SCRAM_MIN_ROUNDS} to {MAX_ITERATIONS} rounds")
    return StoredHash(text, SCRAM_SCHEME, rounds, salt, stored, server)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
