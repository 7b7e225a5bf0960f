"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the client proves that it knows the password, which never travels.

The node stores neither the password nor anything by which a thief could log in. It proves that it knows the
credentials, too: by the signature in the data of CONNACK.

An unknown user goes through the same steps as a known one, and fails at the end. Its salt follows from its name and a
secret, so it is the same each time, as a known user's salt is. A user whose password is stored in another format, and
a user that is disabled, look the same to somebody who does not know the password.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from .authenticator import Challenge, Credentials, ReasonCode, Step, Verdict
from .gs2 import parse_header, parse_name
from .passwords import SCRAM_SALT_BYTES, SCRAM_SCHEME, StoredHash
from .saslprep import saslprep
from .stored_user import Away, StoredUser

NAME = "SCRAM-SHA-256"
NONCE_BYTES = 24  # random ones, of the node
MAX_CLIENT_NONCE = 1024  # characters
MAX_MESSAGE = 4096  # bytes, of either message
MAX_NAME = 256  # bytes of a user name; and characters when it is prepared, which may be 18 times as many
FIRST = re.compile(r"n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,\0]+)*")
FINAL = re.compile(
    r"(?P<unsigned>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,\0]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)

AWAY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the users can't be looked up for now")
DISABLED = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its user is disabled")

Find = Callable[[str], Awaitable[StoredUser | None]]


class Conversation(NamedTuple):
    """The exchange after its first message."""

    username: str  # prepared
    known: StoredUser | None  # None: unknown, or its credentials can't do SCRAM
    why_unknown: str
    header: str  # of the first message
    nonce: str  # of the client and of the node
    first_messages: str  # of both, as the signatures cover them


class ScramSha256:
    """One exchange.

    Args:
        find: looks up a user; raises Away.
        rounds: of the credentials that an unknown user seems to have.
        secret: from which the salts of unknown users are derived.
        nonce: the node's part of the nonce; a test sets it.
    """

    def __init__(self, find: Find, rounds: int, secret: Callable[[], bytes], nonce: str = "") -> None:
        self._find = find
        self._rounds = rounds
        self._secret = secret
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        self._expected: str | None = None  # user name in CONNECT
        self._conversation: Conversation | None = None
        self._is_over = False

    async def start(self, client: Credentials, data: bytes) -> Step:
        """Take the client's first message, or ask for it."""
        self._expected = client.username
        return await self._first(data) if data else Challenge()

    async def step(self, data: bytes) -> Step:
        """Take the first message, if `start` had none, or the final one."""
        try:
            if self._conversation is None:
                return await self._first(data)
            return await self._final(self._conversation, data)
        except Away:
            return AWAY

    async def _first(self, data: bytes) -> Step:
        try:
            header = parse_header(_text_of(data))
            found = FIRST.fullmatch(header.rest)
            if found is None or len(found["nonce"]) > MAX_CLIENT_NONCE:
                raise ValueError("its first message is damaged")
            name = parse_name(found["name"])
            username = prepared(name)
            if header.authorization not in ("", name) and prepared(header.authorization) != username:
                return Verdict(ReasonCode.NOT_AUTHORIZED, reason="it wants to act as another user")
            if self._expected not in (None, "", name) and prepared(self._expected or "") != username:
                raise ValueError("it names another user than CONNECT")
        except ValueError as error:
            return _wrong(str(error))
        try:
            user = await self._find(username)
        except Away:
            return AWAY
        why = "" if user is not None else "unknown user"
        if user is not None and user.stored.scheme != SCRAM_SCHEME:
            user, why = None, "its password is stored in a format that SCRAM can't use: `flockmq passwd --scram`"
        rounds = self._rounds if user is None else user.stored.iterations
        salt = base64.b64encode(self._false_salt(username) if user is None else user.stored.salt).decode()
        nonce = found["nonce"] + self._nonce
        answer = f"r={nonce},s={salt},i={rounds}"
        self._conversation = Conversation(username, user, why, header.text, nonce, f"{header.rest},{answer}")
        return Challenge(answer.encode())

    def _false_salt(self, username: str) -> bytes:
        return hmac.digest(self._secret(), username.encode(), "sha256")[:SCRAM_SALT_BYTES]

    async def _final(self, conversation: Conversation, data: bytes) -> Step:
        if self._is_over:
            return _wrong("its exchange is over")
        self._is_over = True
        try:
            found = FINAL.fullmatch(_text_of(data))
            if found is None:
                raise ValueError("its final message is damaged")
            if _decoded(found["binding"]) != conversation.header.encode():
                raise ValueError("the channel binding of its two messages differs")
            proof = _decoded(found["proof"])
        except ValueError as error:
            return _wrong(str(error))
        is_fresh = hmac.compare_digest(found["nonce"].encode(), conversation.nonce.encode())
        user = conversation.known
        signed = f"{conversation.first_messages},{found['unsigned']}".encode()
        # An unknown user costs the same three hashes.
        stored = StoredHash("", SCRAM_SCHEME, digest=bytes(32), server_key=bytes(32)) if user is None else user.stored
        is_right = is_proof(stored, signed, proof)
        if not is_fresh:
            return _wrong("its nonce is not that of this exchange")
        if user is None:
            return _wrong(conversation.why_unknown)
        if not is_right:
            return _wrong("wrong password")
        present = await self._find(conversation.username)  # it may have changed since
        if present is None or present.stored.text != user.stored.text:
            return _wrong("its password has just been changed")
        if present.disabled:
            return DISABLED
        signature = base64.b64encode(hmac.digest(stored.server_key, signed, "sha256"))
        return Verdict(ReasonCode.ACCEPTED, present.identity, data=b"v=" + signature)


def prepared(name: str) -> str:
    """A user name in the form in which names are compared. Its length is limited first: this runs before a login.

    Raises:
        ValueError: it is too long, or has a character that is not allowed.
    """
    if len(name.encode()) > MAX_NAME:
        raise ValueError(f"its user name has more than {MAX_NAME} bytes")
    return saslprep(name, most=MAX_NAME)


def _text_of(data: bytes) -> str:
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"its message has more than {MAX_MESSAGE} bytes")
    return data.decode()


def is_proof(stored: StoredHash, signed: bytes, proof: bytes) -> bool:
    """Whether a proof shows knowledge of the password, compared in constant time."""
    signature = hmac.digest(stored.digest, signed, "sha256")
    if len(proof) != len(signature):
        return False
    key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.sha256(key).digest(), stored.digest)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("its base64 is damaged") from None


def _wrong(reason: str) -> Verdict:
    return Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason=reason)
