"""Addresses to listen on: their sockets, and whether an address is of this machine or trusted."""

import re
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network

from broker.config.listen_url import split_address
from broker.errors import ListenError

TRUST_CACHE = 1024  # addresses of proxies: usually few


def bind(address: str, shared: bool = False) -> socket.socket:
    """A socket bound to HOST:PORT; `shared` as configuration key `listen_shared`.

    Raises:
        ListenError: with the remedy.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    except OSError as error:
        raise ListenError(f"can't listen on {address}: {error.strerror}", "check the host name") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(1)  # the port is taken from here on: bind alone doesn't take it
    except OSError as error:
        listener.close()
        hints = {
            98: "another program has the port: stop it, or choose another with --listen or FLOCKMQ_LISTEN",
            13: "ports below 1024 need a privilege",
        }
        raise ListenError(
            f"can't listen on {address}: {error.strerror}", hints.get(error.errno or 0, "check the address")
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """HOST:PORT of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address, HOST:PORT or as in `listen`."""
    return address.startswith(("unix:", "fd:")) or address.rpartition("://")[2].startswith(("127.", "[::1]"))


def host_name() -> str:
    """This machine's name, with the characters that a node's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "node"


def truster(networks: Iterable[str]) -> Callable[[str], bool]:
    """Whether HOST:PORT is of one of these networks, as a function; ::ffff: may stand before an IPv4 address."""
    trusted = [ip_network(network) for network in networks]

    @lru_cache(TRUST_CACHE)
    def is_trusted(host: str) -> bool:
        if host == "unix":
            return True  # the permissions of the socket decide
        address = ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in trusted)

    return lambda address: is_trusted(address.rpartition(":")[0].strip("[]"))


def is_own_address(host: str) -> bool:
    """Whether this is an IP address of this machine: packets to it would come from itself. None is sent."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 1))
            return bool(probe.getsockname()[0] == host)
    except (ValueError, OSError):
        return False
