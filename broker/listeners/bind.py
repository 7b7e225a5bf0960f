"""Addresses to listen on: their sockets, and whether an address is of this machine or trusted."""

import errno
import re
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network

from ..config.listen_url import hosts_and_port
from ..errors import ListenError

TRUST_CACHE = 1024  # addresses of proxies: usually few
SETTING = "--listen or FLOCKMQ_LISTEN"
ATTEMPTS = 20  # to find a port that is free in both families
MISSING = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # of an address whose family the machine does not have
HINTS = {
    errno.EADDRINUSE: "another program has the port: stop it, or choose another with {}",
    errno.EACCES: "ports below 1024 need a privilege",
    socket.EAI_NONAME: "check the host name",
    socket.EAI_AGAIN: "check the host name",
    socket.EAI_NODATA: "check the host name",
}


def bind(address: str, shared: bool = False, setting: str = SETTING) -> list[socket.socket]:
    """Sockets bound to an address to listen on, HOST:PORT: one for each of its hosts.

    Of the two hosts of `*` and `localhost`, one may be missing: the machine may have no IPv6.

    Args:
        address: as in `listen`; with port 0, all have the port that the kernel chooses for the first.
        shared: as configuration key `listen_shared`.
        setting: by which another port can be chosen.

    Raises:
        ListenError: with the remedy.
    """
    hosts, port = hosts_and_port(address)
    for attempts_left in reversed(range(1 if port else ATTEMPTS)):
        bound: list[socket.socket] = []
        failures: list[OSError] = []
        for host in hosts:
            try:
                bound.append(_bind(host, port or (bound[0].getsockname()[1] if bound else 0), shared))
            except OSError as error:
                failures.append(error)
        faults = [error for error in failures if error.errno not in MISSING or not bound]
        if not faults:
            return bound
        for each in bound:
            each.close()
        if faults[0].errno == errno.EADDRINUSE and attempts_left:
            continue  # another program has the chosen port of the other family
        hint = HINTS.get(faults[0].errno or 0, "check the address")
        raise ListenError(f"can't listen on {address}: {faults[0].strerror}", hint.format(setting)) from faults[0]
    raise AssertionError("the last attempt raises")


def _bind(host: str, port: int, shared: bool) -> socket.socket:
    """A socket bound to the first address of one host. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listener = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(1)  # the port is taken from here on: bind alone doesn't take it
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    """HOST:PORT of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a bound address, HOST:PORT or a URL."""
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
