"""A back end over HTTP that says who a client is; deploy/docs/ACCESS.md has the contract.

POST of {"username", "password", "client_id", "address", "listener"} is answered with 200 and {"allow": true, "rules":
[...], "expires": 1767225600}, or {"allow": false}, or 4xx: refused. Anything else, and no answer in time, is a failure
of the back end: code 3.

- What is missing in CONNECT is null there, never a word that could be somebody's (CVE-2026-32696).
- Who was let in is remembered for a while, under a keyed hash of what was asked: no password is kept.
- After some failures in a row the back end is left alone for some seconds, in which clients are refused at once.
"""

import hashlib
import json
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any

import urllib3

from broker import logs
from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.auth.penalties import network_of
from broker.auth.rules import parse_rules, read_json
from broker.auth.work_pool import WorkPool

FAILURES_MOST = 5  # in a row, until the back end is left alone ...
PAUSE_SECONDS = 5.0  # ... for so long; then one client tries
ANSWER_MOST = 1 << 20  # bytes
REMEMBERED_MOST = 100_000
REFUSED = Verdict(ReturnCode.BAD_USERNAME_OR_PASSWORD, reason="the back end refuses it")
AWAY = Verdict(ReturnCode.SERVER_UNAVAILABLE, reason="the back end does not answer as it should")
LEFT_ALONE = Verdict(ReturnCode.SERVER_UNAVAILABLE, reason="the back end has failed lately, and is left alone")

log = logs.get("flockmq.auth")


class HttpUsers:
    """Asks a back end.

    Args:
        url: of it.
        timeout: seconds that it may take.
        remember: seconds for which who was let in is not asked for again.
        pool: where threads wait for it.
    """

    name = "http"
    decoy = None

    def __init__(self, url: str, timeout: float, remember: float, pool: WorkPool) -> None:
        self._url = url
        self._remember = remember
        self._pool = pool
        self._http = urllib3.PoolManager(
            maxsize=pool.threads, timeout=urllib3.Timeout(total=timeout), retries=urllib3.Retry(0, redirect=False)
        )
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, Verdict]] = OrderedDict()  # until when; the oldest first
        self._failures = 0
        self._left_alone_until = 0.0

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """It is final: there is nobody behind it who is to be asked."""
        question = question_of(credentials)
        digest = hashlib.blake2b(question, digest_size=16, key=self._key).digest()
        until, verdict = self._known.get(digest, (0.0, REFUSED))
        now = time.monotonic()
        expires = verdict.identity.expires
        if now < until and (expires is None or time.time() < expires):
            return verdict
        if now < self._left_alone_until:
            return LEFT_ALONE
        if self._failures >= FAILURES_MOST:
            self._left_alone_until = now + PAUSE_SECONDS  # for all but this one, who tries
        return self._ask(question, digest, credentials.username)

    async def _ask(self, question: bytes, digest: bytes, username: str | None) -> Verdict:
        try:
            verdict = await self._pool.run(self._post, question, username)
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            self._failures += 1
            if self._failures >= FAILURES_MOST:
                self._left_alone_until = time.monotonic() + PAUSE_SECONDS
            log.error("the back end of users fails", url=self._url, failures=self._failures, error=error)
            return AWAY
        self._failures = 0
        self._left_alone_until = 0.0
        if verdict.code == ReturnCode.ACCEPTED and self._remember:
            self._known.pop(digest, None)
            self._known[digest] = time.monotonic() + self._remember, verdict
            if len(self._known) > REMEMBERED_MOST:
                self._known.popitem(last=False)
        return verdict

    def _post(self, question: bytes, username: str | None) -> Verdict:
        """In a thread.

        Raises:
            HTTPError, ValueError, OSError: there was no answer, or none that can be understood.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        answer = self._http.request("POST", self._url, body=question, headers=headers, preload_content=False)
        try:
            data = answer.read(ANSWER_MOST + 1)
        finally:
            answer.release_conn()
        if 400 <= answer.status < 500:
            return REFUSED
        if answer.status != 200 or len(data) > ANSWER_MOST:
            raise ValueError(f"status {answer.status}, {len(data)} bytes")
        return verdict_of(read_json(data), username)

    def renew(self, identity: Identity) -> Identity | None:
        """It is asked again when the client comes back."""
        return identity


def question_of(credentials: Credentials) -> bytes:
    """What the back end is asked. A password that is not UTF-8 is given with its bytes as U+DC80 to U+DCFF."""
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
    """What an answer means.

    Raises:
        ValueError: it can't be understood, so nobody is let in by it.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("allow"), bool):
        raise ValueError('the answer has no "allow": true or false')
    if not answer["allow"]:
        return REFUSED
    expires = answer.get("expires")
    if expires is not None and (isinstance(expires, bool) or not isinstance(expires, (int, float))):
        raise ValueError('"expires" is to be seconds since 1970')
    if expires is not None and not math.isfinite(expires):
        raise ValueError('"expires" is to be seconds since 1970')
    identity = Identity(username or None, expires=expires, rules=parse_rules(answer.get("rules")))
    return Verdict(ReturnCode.ACCEPTED, identity)
