"""Exposure of listeners: the networks that reach them, and whether they authenticate.

Without configuration all clients of this machine may do everything, and no others can connect. A listener that other
machines reach needs an authentication method, or `allow_anonymous = true`.
"""

from collections.abc import Iterator
from ipaddress import ip_address

from ..config.listen_url import NETWORK, ListenUrl, hosts_and_port
from ..config.schema import Config, ListenerConfig
from ..errors import ConfigError
from .methods import authenticates

HINT = (
    "make users (`flockmq passwd passwords NAME`) and name the file (--password-file passwords), "
    "or accept all clients: --set auth.allow_anonymous=true"
)


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address to listen on."""
    url = ListenUrl.parse(address)
    if url.scheme not in NETWORK:
        return True
    try:
        return all(ip_address(host).is_loopback for host in hosts_and_port(url.address)[0])
    except ValueError:
        return False


def is_encrypted(address: str) -> bool:
    """Whether TLS is spoken at an address to listen on."""
    return ListenUrl.parse(address).secure


def reachable(config: Config) -> Iterator[tuple[ListenerConfig, str]]:
    """Listeners that other machines reach, directly or through a load balancer, with one such address each."""
    for listener in config.listeners:
        for address, proxied in listener.places:
            if proxied or not is_local(address):
                yield listener, address
                break


def check(config: Config, *, asked: bool = False) -> None:
    """Refuse to be open to the network by mistake.

    Args:
        config: of the node.
        asked: hooks authenticate clients of all listeners.

    Raises:
        ConfigError: a listener is.
    """
    for listener, address in reachable(config):
        if not (asked or listener.auth.allow_anonymous or authenticates(listener)):
            local = is_local(address)
            how = "is reached through a load balancer" if local else "can be reached from other machines"
            where = "" if listener.name == "default" else f" (listeners.{listener.name})"
            raise ConfigError(f"{address}{where} {how}, and no authentication is configured", HINT)
