"""The authentication chain of one listener: its methods, tried one after the other, and the access rules.

- A method returns None for an unknown user, and the next is tried; any other result is final. So a wrong
  password is never tried elsewhere, and a back end that is unavailable refuses (code 3) instead of falling through.
- A client without credentials is anonymous, and accepted only if the listener allows it.
- The refusal of an unknown user takes as long as the refusal of a wrong password.
- An exchange of several steps [5: 4.12] belongs to a hook, else to the tokens, else to the stored users.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from ..._speedups.protocol.close_reasons import PASSWORD_CHANGED, USER_REMOVED, CloseReason
from ..._speedups.session.rights import Rights
from ..core import tenants as names
from .acl_file import AclFile
from .authenticator import (
    NO_RIGHTS,
    SHARED,
    Challenge,
    Credentials,
    Exchange,
    Identity,
    ReasonCode,
    Step,
    Verdict,
    shared,
    verified,
)
from .methods import PASSWORD
from .passwords import SCRAM_ROUNDS, StoredHash
from .right_check import Action, Decision, Place, Placed, decide
from .roles import USERS, Roles
from .rules import Rule, Rules, RuleSet, is_text
from .scram import NAME as SCRAM
from .scram import Find, ScramSha256
from .stored_user import StoredUser, UserStore
from .tenants import Tenants
from .users import WRONG
from .verifier import Verifier

# The present identity of clients, and the rules by which a client identifier gives rights; None: it has its rights.
Renewal = tuple[Identity, RuleSet | None]

NO_TENANTS = Tenants(())
WITHOUT_TENANT = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its credentials have no name that a tenant may have")
OF_ANOTHER = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its tenant has users of its own, and it is none of them")
NEEDS_CREDENTIALS = Verdict(ReasonCode.NOT_AUTHORIZED, reason="it sent no credentials")
NO_PASSWORDS = Verdict(ReasonCode.BAD_AUTHENTICATION_METHOD, reason="this listener accepts no passwords in CONNECT")
UNKNOWN = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="unknown user")
WITHOUT_NAME = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="its user name is no text: half a surrogate pair")


class Method(Protocol):
    """One way to authenticate."""

    name: str

    @property
    def dummy_hash(self) -> StoredHash | None:
        """The hash to verify for an unknown user; None: the method has no passwords."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """The verdict; None: the user is unknown here."""

    def renew(self, identity: Identity) -> Identity | None:
        """The present identity of a client that it has accepted; None: it would be refused now."""


@runtime_checkable
class StepByStep(Protocol):
    """A method that makes its own exchanges."""

    name: str

    def exchange(self, name: str) -> Exchange | None:
        """An exchange of an authentication method; None: the name is unknown here."""


class Chain:
    """Authenticates the clients of one listener.

    Args:
        methods: of authentication, in their order.
        verifier: compares passwords.
        anonymous: whether clients without credentials are accepted.
        acl: access rules; None: only the user's rules apply.
        allowed: names of the built-in ways to authenticate, as in `auth.methods`.
        close_on_password_change: whether a client whose stored credentials have changed since may not stay connected.
        tenants: assigns clients to tenants.
        name: of the listener.
        roles: of the node.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        verifier: Verifier,
        *,
        anonymous: bool,
        acl: AclFile | None = None,
        allowed: Sequence[str] = (PASSWORD, SCRAM),
        close_on_password_change: bool = True,
        tenants: Tenants = NO_TENANTS,
        roles: Roles | None = None,
        name: str = "default",
    ) -> None:
        self.name = name
        self._tenants = tenants
        self._roles = Roles() if roles is None else roles
        self._rule_set = lru_cache(SHARED)(self._make_rule_set)
        self.methods = tuple(methods)
        self._by_name = {method.name: method for method in reversed(methods)}
        self.acl = acl
        self.anonymous = anonymous
        self._allowed = frozenset(allowed)
        self._close_on_password_change = close_on_password_change
        self._verifier = verifier

    def authenticate(self, credentials: Credentials) -> Verdict | Coroutine[Any, Any, Verdict]:
        """The verdict with the rights of the client, at once unless a method has to wait."""
        has_password = credentials.password is not None  # level 5 needs no user name for it
        if has_password and self.methods and PASSWORD not in self._allowed:
            return NO_PASSWORDS
        has_credentials = has_password or credentials.username is not None or credentials.certificate is not None
        if self.methods and has_credentials:
            rest = iter(self.methods)
            for method in rest:
                answer = method.authenticate(credentials)
                if isinstance(answer, Verdict):
                    return self._admitted(credentials, answer, method.name)
                if answer is not None:
                    return self._ask(credentials, method, answer, rest)
            return self._refuse_unknown(credentials)
        if not self.anonymous:
            return NEEDS_CREDENTIALS
        return self._admitted(credentials, Verdict(ReasonCode.ACCEPTED, Identity()), "")

    async def _ask(
        self, credentials: Credentials, method: Method, waiting: Awaitable[Verdict | None], rest: Iterator[Method]
    ) -> Verdict:
        answer = await waiting
        while answer is None:
            following = next(rest, None)
            if following is None:
                return await self._refuse_unknown(credentials)
            method = following
            found = method.authenticate(credentials)
            answer = await found if isinstance(found, Awaitable) else found
        if answer is WRONG and method.dummy_hash is None and self._dummy_hash is not None:
            await self._verifier.matches(self._dummy_hash, credentials.password)  # as for a user that is unknown
        return self._admitted(credentials, answer, method.name)

    async def _refuse_unknown(self, credentials: Credentials) -> Verdict:
        """The user is unknown to all methods."""
        if (
            credentials.username is None and credentials.password is None and self.anonymous
        ):  # a certificate that no method needs
            return self._admitted(credentials, Verdict(ReasonCode.ACCEPTED, Identity()), "")
        if self._dummy_hash is not None:
            await self._verifier.matches(self._dummy_hash, credentials.password)
        return UNKNOWN

    @property
    def _dummy_hash(self) -> StoredHash | None:
        """The hash to verify for an unknown user: a database's is as its users have them."""
        return next((method.dummy_hash for method in self.methods if method.dummy_hash is not None), None)

    # ---- several steps ----

    def exchange(self, name: str, find: Find, secret: Callable[[], bytes]) -> tuple[Exchange, str] | None:
        """An exchange of the method that a client names, and the name of the method of the chain that has it.

        Args:
            name: as the client gives it.
            find: looks up a user of this listener.
            secret: as for ScramSha256.
        """
        for method in self.methods:
            found = method.exchange(name) if isinstance(method, StepByStep) else None
            if found is not None:
                return found, method.name
        stores = [method for method in self.methods if isinstance(method, UserStore)]
        if name != SCRAM or SCRAM not in self._allowed or not stores:
            return None
        rounds = next((rounds for store in stores if (rounds := store.usual_rounds()) is not None), SCRAM_ROUNDS)
        return ScramSha256(find, rounds, secret), ""  # the identity names the store that has the user

    async def find_user(self, username: str) -> StoredUser | None:
        """The user with stored credentials, of the first method that knows it; None: there is none. Raises Away."""
        for method in self.methods:
            found = await method.find_user(username) if isinstance(method, UserStore) else None
            if found is not None:
                return found
        return None

    def admitted(self, credentials: Credentials, step: Step, method: str) -> Step:
        """A step of an exchange; a verdict that accepts the client with its rights."""
        if isinstance(step, Challenge):
            return step
        return self._admitted(credentials, step, method or step.identity.method)

    def _admitted(self, credentials: Credentials, verdict: Verdict, method: str) -> Verdict:
        if verdict.code != ReasonCode.ACCEPTED:
            return verdict
        found = verdict.identity
        if not is_text(found.username or ""):
            return WITHOUT_NAME
        identity = verified(found, method, credentials.listener)
        if self._tenants:
            tenant = self._tenants.tenant_of(credentials, identity)
            if tenant is None:
                return WITHOUT_TENANT
            if (self._tenants.auth_of(tenant) or credentials.listener) != self.name:
                return OF_ANOTHER
            identity = identity.replace(tenant=tenant)
        identity = self._with_rights(identity, credentials.client_id)
        return Verdict(verdict.code, identity, verdict.reason, verdict.data)

    def _with_rights(self, identity: Identity, client_id: str) -> Identity:
        """The identity with the present rights of a client."""
        return shared(identity_of(self._renewal(identity), client_id))

    def _renewal(self, identity: Identity) -> Renewal:
        if identity.granted is not None:
            return _having(identity, identity.granted), None
        rules = self._rules_of(identity)
        if rules is None or not rules.needs_client_id:
            rights = None if rules is None else rules.rights(identity.username, "")
            return _having(identity, rights), None
        return identity, rules

    def _rules_of(self, identity: Identity) -> RuleSet | None:
        """The rules of a client; None: nothing restricts it."""
        roles = self._roles.of(identity)
        if self.acl is None and identity.rules is None and not roles:
            return None
        section = "" if self.acl is None else self.acl.section(identity.username)
        return self._rule_set(section, identity.rules or (), roles, self._roles.number)

    def _make_rule_set(self, section: str | None, own: Rules, roles: tuple[str, ...], number: int) -> RuleSet:
        """The rules of a section of the ACL file, of a user and of roles, as of a change of roles with this number."""
        of_file = () if self.acl is None else self.acl.rules(section)
        return RuleSet((*of_file, *own, *self._roles.rules(roles)))

    # ---- the check of a right ----

    def decide(self, identity: Identity, client_id: str, action: Action, topic: str) -> Decision:
        """Whether a client may do this, and by which rule; `topic` is without the prefix of its tenant."""
        rules = self._placed(identity)
        if rules is None:
            return Decision(True, "nothing restricts the client: it has no rules, and no roles")
        return decide(rules, identity.username, client_id, action, topic)

    def _placed(self, identity: Identity) -> list[Placed] | None:
        """The rules of a client, with their places; None: nothing restricts it."""
        if identity.granted is not None:
            place = Place(identity.method)
            return [(place, Rule(allow, access, name.decode())) for allow, access, name in identity.granted.key]
        roles = self._roles.of(identity)
        if self.acl is None and identity.rules is None and not roles:
            return None
        found: list[Placed] = []
        if self.acl is not None:
            numbered = self.acl.numbered(self.acl.section(identity.username))
            found += [(Place("file", self.acl.path, line), rule) for line, rule in numbered]
        own = Place("user" if identity.method == USERS else identity.method, identity.username or "")
        found += [(own, rule) for rule in identity.rules or ()]
        return found + [(Place("role", name), rule) for name in roles for rule in self._roles.rules((name,))]

    def renewal(self, identity: Identity) -> Renewal | CloseReason:
        """The present rights of connected clients with an identity, or the reason for which they would be refused now.

        It is valid until users or rules change.
        """
        found = self._present(identity)
        if found is None:
            return USER_REMOVED
        if found.credential != identity.credential:
            if self._close_on_password_change:
                return PASSWORD_CHANGED
            found = found.replace(credential=identity.credential)  # the switch may be set later
        return self._renewal(found)

    def renewed(self, identity: Identity, client_id: str) -> Identity | CloseReason:
        """The present identity and rights of a connected client, or the reason for which it would be refused now."""
        found = self.renewal(identity)
        return found if isinstance(found, CloseReason) else identity_of(found, client_id)

    def rights_of_absent(self, identity: Identity, client_id: str) -> Rights | None:
        """The present rights of a client without a connection; none if it would be refused now.

        Its credentials may have changed: they were verified when it connected.
        """
        found = self._present(identity)
        return NO_RIGHTS if found is None else self._with_rights(found, client_id).rights

    def _present(self, identity: Identity) -> Identity | None:
        """The present identity of a client that was accepted; None: its user is no more."""
        if not identity.method:
            return identity if self.anonymous else None
        method = self._by_name.get(identity.method)
        found = None if method is None else method.renew(identity)
        if found is None or found.tenant == identity.tenant:
            return found
        return found.replace(tenant=identity.tenant)  # its session is there


def identity_of(renewal: Renewal, client_id: str) -> Identity:
    """The identity of a client, with its rights."""
    identity, rules = renewal
    return identity if rules is None else _having(identity, rules.rights(identity.username, client_id))


def _having(identity: Identity, rights: Rights | None) -> Identity:
    """The identity with these rights, within the names of its tenant."""
    found = _of_tenant(rights, identity.tenant) if identity.tenant else rights
    return identity if found is identity.rights else identity.having(found)


@lru_cache(SHARED)
def _of_tenant(rights: Rights | None, tenant: str) -> Rights | None:
    """The rights within the names of a tenant; without rules all names of the tenant are open.

    A client may do nothing if a filter with its client identifier or user name is too long for the prefix.
    """
    if rights is None:
        return None
    try:
        return rights.below(names.prefix_of(tenant).encode())
    except ValueError:
        return NO_RIGHTS
