"""Builds the authentication methods of a listener from its configuration, and owns the threads that they share.

Methods that request other hosts are kept at a reload, unless their configuration changed.
"""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from ..config.schema import ListenerConfig
from ..errors import ConfigError
from .acl_file import read_text
from .certificate import CertificateUsers
from .chain import Method
from .methods import METHODS
from .password_file import PasswordFile
from .users import StoredUsers, Users
from .verifier import Proofs, Verifier
from .work_pool import WorkPool

SQL_THREADS = 8  # connections to a database
LDAP_THREADS = 8
MAX_WAITING = 500  # clients


@runtime_checkable
class Closable(Protocol):
    """A method, or a part of one, that has threads or connections."""

    def close(self) -> None:
        """End them."""


class ChainBuilder:
    """Builds authentication methods.

    Args:
        users: returns the users that the node has read.
        proofs, secret: as for Verifier.
    """

    def __init__(
        self, users: Callable[[], Users], proofs: Callable[[], Proofs | None], secret: Callable[[], bytes]
    ) -> None:
        self.verifier = Verifier(proofs, secret)
        self._tokens = WorkPool("tokens", threads=2, max_waiting=MAX_WAITING)
        self._http = WorkPool("http", threads=16, max_waiting=MAX_WAITING)
        self._users = users
        self._claims: Collection[str] = ()
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._used: set[tuple[Any, ...]] = set()  # keys of `_kept`
        self._makers: dict[str, Callable[[ListenerConfig], Method]] = {
            "certificate": self._certificate_users,
            "token": self._token_users,
            "password file": self._password_file,
            "users": self._stored_users,
            "SQL": self._sql_users,
            "LDAP": self._ldap_users,
            "HTTP": self._http_users,
        }

    def of(self, listener: ListenerConfig, claims: Collection[str]) -> list[Method]:
        """The methods of a listener; identities keep these `claims` of tokens.

        Raises:
            ConfigError: a file can't be used, or a package is missing.
        """
        self._claims = claims
        return [self._makers[name](listener) for name, is_configured in METHODS.items() if is_configured(listener)]

    def _certificate_users(self, listener: ListenerConfig) -> Method:
        return CertificateUsers()

    def _password_file(self, listener: ListenerConfig) -> Method:
        return PasswordFile(listener.auth.password_file, self.verifier)

    def _stored_users(self, listener: ListenerConfig) -> Method:
        return StoredUsers(self._users, self.verifier)

    def _http_users(self, listener: ListenerConfig) -> Method:
        auth = listener.auth
        settings = (auth.http_url, auth.http_timeout, auth.http_remember)
        module = _late("flockmq.broker.auth.http_users", "auth.http_url needs")
        made: Method = self._keep(settings, lambda: module.HttpUsers(*settings, self._http))
        return made

    def _sql_users(self, listener: ListenerConfig) -> Method:
        auth = listener.auth
        users = _late("flockmq.broker.auth.sql_users", "auth.sql_url needs")
        place = ("sql", auth.sql_url, _password(auth.sql_password_file, "auth.sql_password_file"), auth.sql_timeout)
        database = self._keep(place, lambda: _database(*place[1:]))
        pool = self._keep(("threads", *place), lambda: WorkPool("sql", SQL_THREADS, MAX_WAITING))
        claims = tuple(sorted(self._claims))
        settings = users.SqlSettings(auth.sql_user_query, auth.sql_rules_query, auth.sql_remember, claims)
        key = (*place, settings)
        made: Method = self._keep(key, lambda: users.SqlUsers(database, settings, pool, self.verifier))
        return made

    def _ldap_users(self, listener: ListenerConfig) -> Method:
        auth = listener.auth
        module = _late("flockmq.broker.auth.ldap_users", "auth.ldap_url needs", extra="ldap")
        settings = module.LdapSettings(
            url=auth.ldap_url,
            base=auth.ldap_base,
            filter=auth.ldap_filter,
            username=auth.ldap_username,
            group_attribute=auth.ldap_group_attribute,
            group_base=auth.ldap_group_base,
            group_filter=auth.ldap_group_filter,
            roles=auth.ldap_roles,
            bind_dn=auth.ldap_bind_dn,
            password=_password(auth.ldap_password_file, "auth.ldap_password_file"),
            start_tls=auth.ldap_start_tls,
            ca_file=auth.ldap_ca_file,
            timeout=auth.ldap_timeout,
            remember=auth.ldap_remember,
            claims=tuple(sorted(self._claims)),
        )
        pool = self._keep(("threads", settings), lambda: WorkPool("ldap", LDAP_THREADS, MAX_WAITING))
        made: Method = self._keep(("ldap", settings), lambda: module.LdapUsers(settings, pool))
        return made

    def _token_users(self, listener: ListenerConfig) -> Method:
        auth = listener.auth
        module = _late("flockmq.broker.auth.token_keys", "tokens need")
        keys = []
        if auth.jwt_secret_file:
            keys.append(module.FixedKeys([module.secret_key(auth.jwt_secret_file)]))
        if auth.jwt_keys.startswith(("http:", "https:")):
            keys.append(self._keep((auth.jwt_keys,), lambda: module.public_keys(auth.jwt_keys)))
        elif auth.jwt_keys:
            keys.append(module.public_keys(auth.jwt_keys))
        tokens = _late("flockmq.broker.auth.tokens", "tokens need")
        made: Method = tokens.TokenUsers(auth, keys, self._tokens, self._claims)
        return made

    def _keep(self, settings: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if settings not in self._kept:
            self._kept[settings] = make()
        self._used.add(settings)
        return self._kept[settings]

    def drop_unused(self) -> None:
        """Close the parts that no method made since the last call uses; clients that wait for one are served."""
        for settings in self._kept.keys() - self._used:
            made = self._kept.pop(settings)
            if isinstance(made, WorkPool):
                made.retire()
            else:
                _close(made)
        self._used.clear()

    def close(self) -> None:
        """End the threads."""
        for each in (self.verifier, self._tokens, self._http, *self._kept.values()):
            _close(each)


def _close(made: object) -> None:
    if isinstance(made, Closable):
        made.close()


def _password(path: str, key: str) -> str:
    """The password in a file; empty: there is no file. Raises ConfigError."""
    password = read_text(path, key).rstrip("\r\n") if path else ""
    if path and not password:
        raise ConfigError(f"{key} = {path!r} is empty", "write the password into it")
    return password


def _database(url: str, password: str, timeout: float) -> Any:
    """Raises ConfigError."""
    module = _late("flockmq.broker.auth.sql_database", "auth.sql_url needs")
    try:
        return module.open_database(url, password, timeout)
    except ModuleNotFoundError as error:
        raise ConfigError(f"auth.sql_url needs the package {error.name}", "pip install 'flockmq[sql]'") from error


def _late(module: str, needs: str, extra: str = "auth") -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigError(f"{needs} the package {package}", f"pip install 'flockmq[{extra}]'") from error
