"""Users in a directory: LDAP, Active Directory. The node searches the entry of a user, then binds as it to verify.

- A value of a client stands in a filter only escaped (RFC 4515), so that no character of it has a meaning there.
- A bind with a name and an empty password is no authentication, and succeeds (RFC 4513, 5.1.2): so an empty password is
  never sent, nor one with a NUL, at which libraries may cut it.
- Referrals are not followed: the password would go to a server that is not configured.
- The groups of the user, by an attribute or by a search, become roles.

An unknown user costs the directory as much as a wrong password. A right one is remembered for a while, as a keyed hash.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, NamedTuple

import ldap
import ldap.dn
import ldap.filter

from ..config.ldap_roles import ALL, LdapRole
from ..config.placeholders import Template
from ..core.networks import network_of
from ..errors import ConfigError
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .back_end import AWAY, BackEnd, Remembered, log
from .connections import Connections, Lost, Refused
from .rules import is_text
from .stored_user import Away
from .users import DISABLED, WRONG
from .work_pool import WorkPool

NO_ATTRIBUTES = ["1.1"]
ACCOUNT_CONTROL = "userAccountControl"  # of Active Directory
ACCOUNT_DISABLED = 2  # a bit of it
MAX_GROUPS = 1000  # that a search may find
LOST = (
    ldap.SERVER_DOWN,
    ldap.CONNECT_ERROR,
    ldap.TIMEOUT,
    ldap.TIMELIMIT_EXCEEDED,
    ldap.BUSY,
    ldap.UNAVAILABLE,
    ldap.OPERATIONS_ERROR,  # Active Directory has forgotten the bind of the connection
)
WRONG_PASSWORD = (
    ldap.INVALID_CREDENTIALS,
    ldap.INAPPROPRIATE_AUTH,  # the entry has no password
    ldap.UNWILLING_TO_PERFORM,  # the account is locked
    ldap.CONSTRAINT_VIOLATION,
    ldap.INSUFFICIENT_ACCESS,
    ldap.NO_SUCH_OBJECT,
)


class LdapSettings(NamedTuple):
    """How users and their groups are found."""

    url: str
    base: str
    filter: str = "(uid=${username})"
    username: str = "uid"  # attribute
    group_attribute: str = "memberOf"
    group_base: str = ""  # empty: groups are not searched
    group_filter: str = "(member=${dn})"
    roles: tuple[LdapRole, ...] = ()
    bind_dn: str = ""
    password: str = ""
    start_tls: bool = True
    ca_file: str = ""
    timeout: float = 3.0  # seconds
    remember: float = 60.0  # seconds
    claims: tuple[str, ...] = ()  # names of attributes that rules of tenants name


class Entry(NamedTuple):
    """The entry of a user."""

    dn: str
    values: dict[str, list[bytes]]  # by attribute, in small letters

    def texts(self, attribute: str) -> list[str]:
        """The values of an attribute."""
        return [value.decode("utf-8", "replace") for value in self.values.get(attribute.lower(), ())]


class LdapUsers:
    """Accepts users of a directory.

    Args:
        settings: where they are.
        pool: threads that wait for the directory.

    Raises:
        ConfigError: the name of a group or the file of authorities is invalid.
    """

    name = "ldap"
    dummy_hash = None

    def __init__(self, settings: LdapSettings, pool: WorkPool) -> None:
        if len({url.partition(":")[0] for url in settings.url.split()}) > 1:
            raise ConfigError(f"auth.ldap_url = {settings.url!r} mixes schemes", "all ldap://, or all ldaps://")
        self._settings = settings
        self._pool = pool
        self._filter = Template.parse(settings.filter)
        self._group_filter = Template.parse(settings.group_filter)
        self._roles = [(rule.role, _group(rule.group)) for rule in settings.roles]
        self._back_end = BackEnd(settings.url)
        self._searchers: Connections[Any] = Connections(self._connect_searcher, _unbind)
        self._binders: Connections[Any] = Connections(self._connect, _unbind)
        self._key = secrets.token_bytes(32)
        self._known: Remembered[Verdict] = Remembered(settings.remember)
        self._connect_to_nobody()

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """None: the user is unknown."""
        values = self._values_of(credentials)
        if values is None:
            return None
        digest = self._digest(values, credentials.password or b"")
        return self._known.find(digest) or self._authenticate(values, credentials.password or b"", digest)

    async def _authenticate(self, values: dict[str, str], password: bytes, digest: bytes) -> Verdict | None:
        if not self._back_end.takes():
            return AWAY
        try:
            verdict = await self._pool.run(self._verify, values, password, self._back_end.pauses)
        except Away:
            return AWAY
        except Lost as error:
            self._back_end.failed(error)
            return AWAY
        except (Refused, ValueError) as error:
            log.error("a user can't be read from the directory", url=self._settings.url, error=error)
            return AWAY
        self._back_end.answered()
        if verdict is not None and verdict.code == ReasonCode.ACCEPTED:
            self._known.keep(digest, verdict)
        return verdict

    def _values_of(self, credentials: Credentials) -> dict[str, str] | None:
        """The values of the placeholders; None: the directory can't have such a user."""
        if not credentials.username:
            return None
        values = {
            "username": credentials.username,
            "client_id": credentials.client_id,
            "address": network_of(credentials.address),
            "listener": credentials.listener,
        }
        is_usable = all("\0" not in value and is_text(value) for value in values.values())
        return values if is_usable else None

    def _digest(self, values: dict[str, str], password: bytes) -> bytes:
        parts = [*(value.encode() for value in values.values()), password]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.blake2b(message, digest_size=16, key=self._key).digest()

    # ---- in a thread ----

    def _verify(self, values: dict[str, str], password: bytes, pauses: int) -> Verdict | None:
        """The verdict; None: the user is unknown. Raises Lost, Refused, ValueError, Away."""
        if self._back_end.pauses != pauses:  # it has failed while this call waited for its thread
            raise Away
        entry = self._searchers.call(lambda connection: self._search(connection, values))
        if entry is None or not _is_sendable(password):
            nobody = f"cn={secrets.token_hex(8)},{self._settings.base}"
            self._binders.call(lambda connection: _bind(connection, nobody, secrets.token_hex(8)))
            return None if entry is None else WRONG
        if not self._binders.call(lambda connection: _bind(connection, entry.dn, password.decode())):
            return WRONG
        if any(int(value) & ACCOUNT_DISABLED for value in entry.texts(ACCOUNT_CONTROL)):
            return DISABLED
        return Verdict(ReasonCode.ACCEPTED, self._identity(entry, values))

    def _search(self, connection: Any, values: dict[str, str]) -> Entry | None:
        """The entry of a user; None: there is none."""
        settings = self._settings
        attributes = [settings.username, settings.group_attribute, ACCOUNT_CONTROL, *settings.claims]
        found = self._find(connection, settings.base, self._filter, values, [name for name in attributes if name], 2)
        if len(found) > 1:
            raise Refused("auth.ldap_filter finds several entries for a user")
        return found[0] if found else None

    def _find(
        self, connection: Any, base: str, wanted: Template, values: dict[str, str], attributes: list[str], most: int
    ) -> list[Entry]:
        """Entries of the directory. Raises Lost, Refused."""
        text = wanted.filled(*(ldap.filter.escape_filter_chars(values[name]) for name in wanted.names))
        try:
            found = connection.search_ext_s(
                base, ldap.SCOPE_SUBTREE, text, attributes, timeout=self._settings.timeout, sizelimit=most
            )
        except ldap.SIZELIMIT_EXCEEDED:
            raise Refused(f"a filter finds more than {most} entries: {text}") from None
        except LOST as error:
            raise Lost(_reason(error)) from None
        except ldap.LDAPError as error:
            raise Refused(f"{_reason(error)} (search below {base})") from None
        # An entry without a name is a referral.
        return [Entry(dn, {name.lower(): given for name, given in has.items()}) for dn, has in found if dn]

    def _identity(self, entry: Entry, values: dict[str, str]) -> Identity:
        """Raises ValueError: an attribute is missing."""
        settings = self._settings
        names = entry.texts(settings.username)
        given = values["username"]
        name = next((name for name in names if name.casefold() == given.casefold()), next(iter(names), ""))
        if not name:
            raise ValueError(f"{entry.dn} has no attribute {settings.username!r}: see auth.ldap_username")
        claims = []
        for claim in settings.claims:
            texts = entry.texts(claim)
            if len(texts) > 1:
                raise ValueError(f"{entry.dn} has several values of {claim!r}, which a rule of tenants names")
            claims += [(claim, text) for text in texts]
        return Identity(name, roles=tuple(self._roles_of(entry, values)), claims=tuple(claims))

    def _roles_of(self, entry: Entry, values: dict[str, str]) -> Iterable[str]:
        if not self._roles:
            return ()
        groups = set(map(_normal, entry.texts(self._settings.group_attribute)))
        base = self._settings.group_base
        if base:
            wanted = {**values, "dn": entry.dn}
            groups |= {
                _normal(group.dn)
                for group in self._searchers.call(
                    lambda connection: self._find(
                        connection, base, self._group_filter, wanted, NO_ATTRIBUTES, MAX_GROUPS
                    )
                )
            }
        return dict.fromkeys(role for role, group in self._roles if group in (ALL, *groups))

    # ---- connections ----

    def _connect_to_nobody(self) -> None:
        """Options that libldap refuses are an error at the start. Raises ConfigError."""
        try:
            self._new()
        except Lost as error:
            raise ConfigError(f"auth.ldap_url or auth.ldap_ca_file can't be used: {error}", "check both") from None

    def _new(self) -> Any:
        """A connection that has not begun. Raises Lost."""
        settings = self._settings
        options = [
            (ldap.OPT_PROTOCOL_VERSION, ldap.VERSION3),
            (ldap.OPT_REFERRALS, ldap.OPT_OFF),
            (ldap.OPT_NETWORK_TIMEOUT, settings.timeout),
            (ldap.OPT_TIMEOUT, settings.timeout),
            (ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND),
            *([(ldap.OPT_X_TLS_CACERTFILE, settings.ca_file)] if settings.ca_file else []),
            (ldap.OPT_X_TLS_NEWCTX, 0),  # the last: it applies the options of TLS
        ]
        try:
            connection = ldap.initialize(settings.url)
            connection.timeout = settings.timeout
            for option, value in options:
                connection.set_option(option, value)
        except (ldap.LDAPError, ValueError) as error:
            raise Lost(_reason(error)) from None
        return connection

    def _connect(self) -> Any:
        """An encrypted connection that is not bound. Raises Lost."""
        connection = self._new()
        if self._settings.start_tls and self._settings.url.startswith("ldap:"):
            try:
                connection.start_tls_s()
            except ldap.LDAPError as error:
                _unbind(connection)
                raise Lost(f"StartTLS failed: {_reason(error)}") from None
        return connection

    def _connect_searcher(self) -> Any:
        """A connection that may search. Raises Lost."""
        connection = self._connect()
        if self._settings.bind_dn:
            try:
                connection.simple_bind_s(self._settings.bind_dn, self._settings.password)
            except ldap.LDAPError as error:
                _unbind(connection)
                raise Lost(f"{self._settings.bind_dn} can't bind: {_reason(error)}") from None
        return connection

    def renew(self, identity: Identity) -> Identity | None:
        """The directory is asked again at the next CONNECT."""
        return identity

    def close(self) -> None:
        """End the connections."""
        self._searchers.close()
        self._binders.close()


def _is_sendable(password: bytes) -> bool:
    """Whether a password may be sent to the directory: it is a text, and not empty."""
    try:
        return password.decode() != "" and b"\0" not in password
    except UnicodeDecodeError:
        return False


def _bind(connection: Any, dn: str, password: str) -> bool:
    """Whether the password is that of an entry. Raises Lost, Refused."""
    assert password
    try:
        connection.simple_bind_s(dn, password)
    except WRONG_PASSWORD:
        return False
    except LOST as error:
        raise Lost(_reason(error)) from None
    except ldap.LDAPError as error:
        raise Refused(f"{_reason(error)} (bind as a user)") from None
    return True


def _unbind(connection: Any) -> None:
    connection.unbind_ext_s()


def _group(dn: str) -> str:
    """The name of a configured group, as `_normal` makes it. Raises ConfigError."""
    if dn != ALL and not ldap.dn.is_dn(dn):
        raise ConfigError(f"auth.ldap_roles: {dn!r} is no distinguished name", "such as cn=operators,ou=groups,dc=org")
    return dn if dn == ALL else _normal(dn)


def _normal(dn: str) -> str:
    """A distinguished name in a form in which equal names are equal."""
    try:
        parts: Sequence[Any] = ldap.dn.str2dn(dn)
    except ldap.LDAPError:
        return dn
    pairs = (sorted((kind.lower(), " ".join(value.lower().split())) for kind, value, _ in part) for part in parts)
    return repr([*pairs])


def _reason(error: Exception) -> str:
    """Its text; an error of libldap has two."""
    found = error.args[0] if error.args and isinstance(error.args[0], dict) else {"desc": str(error)}
    words = [str(found[name]) for name in ("desc", "info") if found.get(name)]
    return ": ".join(words) or type(error).__name__
