"""Builds the authentication methods of a listener from its configuration, and owns the threads that they share.

Methods that request other hosts are kept at a reload, unless their configuration changed.
"""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from ..config.schema import ListenerConfig
from ..errors import ConfigError
from .certificate import CertificateUsers
from .chain import Method
from .methods import METHODS
from .password_file import PasswordFile
from .users import StoredUsers, Users
from .verifier import Proofs, Verifier
from .work_pool import WorkPool


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
        self._tokens = WorkPool("tokens", threads=2, max_waiting=500)
        self._http = WorkPool("http", threads=16, max_waiting=500)
        self._users = users
        self._claims: Collection[str] = ()
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._makers: dict[str, Callable[[ListenerConfig], Method]] = {
            "certificate": self._certificate_users,
            "token": self._token_users,
            "password file": self._password_file,
            "users": self._stored_users,
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
        return self._kept[settings]

    def close(self) -> None:
        """End the threads."""
        for pool in (self.verifier, self._tokens, self._http):
            pool.close()


def _late(module: str, needs: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigError(f"{needs} the package {package}", "pip install 'flockmq[auth]'") from error
