"""Authentication by an HTTP back end; deploy/docs/ACCESS.md has the contract.

POST of {"username", "password", "client_id", "address", "listener"} is answered with 200 and {"allow": true, "rules":
[...], "expires": 1767225600}, or {"allow": false}, or 4xx: refused. Any other response, or none in time, is a failure
of the back end: code 3.

- A field missing in CONNECT is null there, never a word that could be a user's (CVE-2026-32696).
- An accepted client is remembered for a while, under a keyed hash of the request: no password is stored.
- After some failures in a row the back end gets no requests for some seconds; until then clients are refused at once.
"""

import hashlib
import json
import secrets
import sys
import time
from collections.abc import Awaitable
from typing import Any

import urllib3

from ..config.redis_url import masked
from ..core.networks import network_of
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .back_end import AWAY, PAUSED, BackEnd, Remembered
from .rules import parse_rules, read_json
from .work_pool import WorkPool

MAX_ANSWER = 1 << 20  # bytes
REFUSED = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="the back end refuses it")


class HttpUsers:
    """Sends credentials to a back end.

    Args:
        url: of it.
        timeout: of a request, in seconds.
        remember: seconds for which an accepted client is remembered.
        pool: threads that wait for it.
    """

    name = "http"
    dummy_hash = None

    def __init__(self, url: str, timeout: float, remember: float, pool: WorkPool) -> None:
        self._url = url
        self._back_end = BackEnd(masked(url))
        self._known: Remembered[Verdict] = Remembered(remember)
        self._pool = pool
        self._http = urllib3.PoolManager(
            maxsize=pool.threads, timeout=urllib3.Timeout(total=timeout), retries=urllib3.Retry(0, redirect=False)
        )
        self._key = secrets.token_bytes(32)

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """The verdict, which is final: this method is the last."""
        question = question_of(credentials)
        digest = hashlib.blake2b(question, digest_size=16, key=self._key).digest()
        verdict = self._known.find(digest)
        if verdict is not None and (verdict.identity.expires is None or time.time() < verdict.identity.expires):
            return verdict
        return self._request(question, digest, credentials.username) if self._back_end.takes() else PAUSED

    async def _request(self, question: bytes, digest: bytes, username: str | None) -> Verdict:
        try:
            verdict = await self._pool.run(self._post, question, username)
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            self._back_end.failed(error)
            return AWAY
        self._back_end.answered()
        if verdict.code == ReasonCode.ACCEPTED:
            self._known.keep(digest, verdict)
        return verdict

    def _post(self, question: bytes, username: str | None) -> Verdict:
        """In a thread.

        Raises:
            HTTPError, ValueError, OSError: there was no response, or an invalid one.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        answer = self._http.request("POST", self._url, body=question, headers=headers, preload_content=False)
        try:
            data = answer.read(MAX_ANSWER + 1)
        finally:
            answer.release_conn()
        if 400 <= answer.status < 500:
            return REFUSED
        if answer.status != 200 or len(data) > MAX_ANSWER:
            raise ValueError(f"status {answer.status}, {len(data)} bytes")
        return verdict_of(read_json(data), username)

    def renew(self, identity: Identity) -> Identity | None:
        """The back end decides again at the next CONNECT."""
        return identity


def question_of(credentials: Credentials) -> bytes:
    """The request body. Bytes of a password that is not UTF-8 are written as U+DC80 to U+DCFF."""
    password = credentials.password
    question = {
        "username": credentials.username,
        "password": None if password is None else password.decode("utf-8", "surrogateescape"),
        "client_id": credentials.client_id,
        "address": network_of(credentials.address),
        "listener": credentials.listener,
    }
    return json.dumps(question).encode()


def verdict_of(answer: Any, username: str | None) -> Verdict:
    """The verdict that a response means.

    Raises:
        ValueError: it is invalid.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("allow"), bool):
        raise ValueError('the answer has no "allow": true or false')
    if not answer["allow"]:
        return REFUSED
    expires = answer.get("expires")
    is_number = isinstance(expires, (int, float)) and not isinstance(expires, bool)
    if expires is not None and not (is_number and abs(expires) <= sys.float_info.max):  # false of NaN, too
        raise ValueError('"expires" is to be seconds since 1970')
    identity = Identity(username or None, expires=expires, rules=parse_rules(answer.get("rules")))
    return Verdict(ReasonCode.ACCEPTED, identity)
