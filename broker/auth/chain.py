"""The chain of one listener: the ways to authenticate, asked one after the other, and the rules of access.

- A way that doesn't know the user says None, and the next is asked; whatever else it says is final. So a wrong password
  is never tried elsewhere, and a back end that is away refuses (code 3) instead of falling through.
- Who shows nothing is anonymous, and let in only if the listener says so.
- Nobody knows the user: that takes as long as a wrong password.
"""

from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from _speedups.session.rights import Rights
from broker.auth.acl_file import AclFile
from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.auth.passwords import StoredHash
from broker.auth.rules import rights_of
from broker.auth.verifier import Verifier

NEEDS_CREDENTIALS = Verdict(ReturnCode.NOT_AUTHORIZED, reason="it shows no credentials")
UNKNOWN = Verdict(ReturnCode.BAD_USERNAME_OR_PASSWORD, reason="unknown user")


class Method(Protocol):
    """One way to authenticate."""

    name: str

    @property
    def decoy(self) -> StoredHash | None:
        """What is verified in place of the password of nobody; None: it has no passwords."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """Who it is; None: not known here, ask the next."""

    def renew(self, identity: Identity) -> Identity | None:
        """Who somebody that it let in is by now; None: nobody any more."""


class Chain:
    """What one listener asks of its clients.

    Args:
        methods: the ways to authenticate, in their order.
        verifier: compares passwords.
        anonymous: whether clients without credentials are let in.
        acl: rules of access; None: those that come with the user count alone.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        verifier: Verifier,
        *,
        anonymous: bool,
        acl: AclFile | None = None,
    ) -> None:
        self.methods = tuple(methods)
        self.acl = acl
        self.anonymous = anonymous
        self._verifier = verifier
        self._decoy = next((method.decoy for method in methods if method.decoy is not None), None)

    def authenticate(self, credentials: Credentials) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Who the client is, with its rights; at once if nobody has to wait for it."""
        shows = credentials.username is not None or credentials.certificate is not None
        if self.methods and shows:
            rest = iter(self.methods)
            for method in rest:
                answer = method.authenticate(credentials)
                if isinstance(answer, Verdict):
                    return self._admitted(credentials, answer, method.name)
                if answer is not None:
                    return self._ask(credentials, method, answer, rest)
            return self._nobody(credentials)
        if not self.anonymous:
            return NEEDS_CREDENTIALS
        return self._admitted(credentials, Verdict(ReturnCode.ACCEPTED, Identity()), "")

    async def _ask(
        self, credentials: Credentials, method: Method, waiting: Awaitable[Verdict | None], rest: Iterator[Method]
    ) -> Verdict:
        answer = await waiting
        while answer is None:
            following = next(rest, None)
            if following is None:
                return await self._nobody(credentials)
            method = following
            found = method.authenticate(credentials)
            answer = await found if isinstance(found, Awaitable) else found
        return self._admitted(credentials, answer, method.name)

    async def _nobody(self, credentials: Credentials) -> Verdict:
        """No way knows the client."""
        if credentials.username is None and self.anonymous:  # a certificate that nobody asked for
            return self._admitted(credentials, Verdict(ReturnCode.ACCEPTED, Identity()), "")
        if self._decoy is not None:
            await self._verifier.matches(self._decoy, credentials.password)
        return UNKNOWN

    def _admitted(self, credentials: Credentials, verdict: Verdict, method: str) -> Verdict:
        if verdict.code != ReturnCode.ACCEPTED:
            return verdict
        found = verdict.identity
        identity = replace(
            found, granted=found.rights, method=method, listener=credentials.listener, client_id=credentials.client_id
        )
        return replace(verdict, identity=self._judged(identity))

    def _judged(self, identity: Identity) -> Identity:
        """With the rights that it has by now."""
        return replace(identity, rights=self._rights(identity))

    def _rights(self, identity: Identity) -> Rights | None:
        if identity.granted is not None:
            return identity.granted
        if self.acl is not None:
            return self.acl.rights(identity.username, identity.client_id, identity.rules or ())
        if identity.rules is not None:
            return rights_of(identity.rules, identity.username, identity.client_id)
        return None

    def renewed(self, identity: Identity) -> Identity | None:
        """Who a connected client is by now, and what it may; None: it would not be let in any more."""
        if not identity.method:
            return self._judged(identity) if self.anonymous else None
        for method in self.methods:
            if method.name == identity.method:
                found = method.renew(identity)
                return None if found is None else self._judged(found)
        return None
