"""The authentication methods, in the order in which a listener tries them, and whether a listener has one.

`ChainBuilder` makes them. Commands such as `flockmq check-config` ask here, where no method is loaded.
"""

from collections.abc import Callable

from ..config.schema import ListenerConfig

PASSWORD = "password"  # in `auth.methods`: the credentials are in CONNECT

# The cheapest first.
METHODS: dict[str, Callable[[ListenerConfig], bool]] = {
    "certificate": lambda listener: listener.tls.username_from != "none",
    "token": lambda listener: bool(listener.auth.jwt_secret_file or listener.auth.jwt_keys),
    "password file": lambda listener: bool(listener.auth.password_file),
    "users": lambda listener: listener.auth.users,
    "SQL": lambda listener: bool(listener.auth.sql_url),
    "LDAP": lambda listener: bool(listener.auth.ldap_url),
    "HTTP": lambda listener: bool(listener.auth.http_url),
}


def authenticates(listener: ListenerConfig) -> bool:
    """Whether it has an authentication method."""
    return any(is_configured(listener) for is_configured in METHODS.values())
