"""Who can reach a listener, and whether it asks them who they are.

Without configuration everybody on this machine may do everything, and nobody else may do anything: a listener that
others reach needs a way to authenticate, or the words `allow_anonymous = true`.
"""

from collections.abc import Iterator
from ipaddress import ip_address

from broker.config.listen_url import NETWORK, ListenUrl, split_address
from broker.config.schema import Config, ListenerConfig
from broker.errors import ConfigError

HINT = (
    "make users (`flockmq passwd passwords NAME`) and name the file (--password-file passwords), "
    "or let everybody in: --set auth.allow_anonymous=true"
)


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address to listen on."""
    url = ListenUrl.parse(address)
    if url.scheme not in NETWORK:
        return True
    host = split_address(url.address)[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_encrypted(address: str) -> bool:
    """Whether TLS is spoken at an address to listen on."""
    return ListenUrl.parse(address).secure


def reachable(config: Config) -> Iterator[tuple[ListenerConfig, str]]:
    """Listeners with an address of each that others than this machine can reach, if only through a load balancer."""
    for listener in config.listeners:
        for address, proxied in listener.places:
            if proxied or not is_local(address):
                yield listener, address
                break


def authenticates(listener: ListenerConfig) -> bool:
    """Whether it has a way to authenticate."""
    auth = listener.auth
    ways = (auth.password_file, auth.jwt_secret_file, auth.jwt_keys, auth.redis, auth.http_url)
    return any(ways) or verifies_certificates(listener)


def check(config: Config, *, asked: bool = False) -> None:
    """Refuse to be open to the network by mistake.

    Args:
        config: of the node.
        asked: hooks are asked about clients of all listeners.

    Raises:
        ConfigError: a listener is.
    """
    for listener, address in reachable(config):
        if not (asked or listener.auth.allow_anonymous or authenticates(listener)):
            local = is_local(address)
            how = "lets others in through a load balancer" if local else "can be reached from other machines"
            where = "" if listener.name == "default" else f" (listeners.{listener.name})"
            raise ConfigError(f"{address}{where} {how}, and nothing says who may connect to it", HINT)


def verifies_certificates(listener: ListenerConfig) -> bool:
    """Whether clients are known by their certificates."""
    return listener.tls.username_from != "none"
