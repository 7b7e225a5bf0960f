"""Addresses of `listen`: HOST:PORT, or a URL that names the protocol.

HOST:PORT, mqtt://HOST:PORT    MQTT over TCP, in plain text
mqtts://HOST:PORT              over TLS
ws://HOST:PORT                 over WebSocket
wss://HOST:PORT                over WebSocket over TLS
unix:/PATH                     a Unix socket
fd:NUMBER                      a Unix socket that another process has bound and handed down

HOST `*`, or none, is every address of this machine, of IPv4 and IPv6; `localhost` is both addresses of itself.
"""

from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Self

EXPECTED = (
    'HOST:PORT such as "127.0.0.1:1883", "[::1]:1883" or ":1883", that after mqtt://, mqtts://, ws:// or wss://, or '
    "unix:/PATH"
)
MAX_PATH = 107  # bytes that the kernel accepts
NETWORK = ("mqtt", "mqtts", "ws", "wss")
EVERYWHERE = ("0.0.0.0", "::")  # all addresses of this machine
LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class ListenUrl:
    """An address to listen on."""

    scheme: str  # "mqtt", "mqtts", "ws", "wss", "unix" or "fd"
    address: str  # HOST:PORT; of "unix" the path, of "fd" the number

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `text`. Raises ValueError, in the form of EXPECTED."""
        scheme, _, rest = text.partition(":")
        if scheme in ("unix", "fd") and not rest.startswith("//"):
            if scheme == "fd" and not (rest.isascii() and rest.isdigit()):
                raise ValueError("the number of a file descriptor after fd:")
            if scheme == "unix" and (not rest.startswith("/") or len(rest.encode()) > MAX_PATH or "\0" in rest):
                raise ValueError(f'an absolute path of at most {MAX_PATH} bytes, such as "unix:/run/flockmq.sock"')
            return cls(scheme, rest)
        if rest.startswith("//"):
            if scheme not in NETWORK:
                raise ValueError(EXPECTED)
            address = rest.removeprefix("//").removesuffix("/")
            if "/" in address:
                setting = "; websocket.path is the path" if scheme in ("ws", "wss") else ""
                raise ValueError(f"no path after the port of {text}{setting}")
        else:
            scheme, address = "mqtt", text
        hosts_and_port(address)
        return cls(scheme, address)

    def __str__(self) -> str:
        return f"{self.scheme}{'://' if self.scheme in NETWORK else ':'}{self.address}"

    @property
    def secure(self) -> bool:
        """Whether it has TLS."""
        return self.scheme in ("mqtts", "wss")

    @property
    def websocket(self) -> bool:
        """Whether it is for WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def places(self) -> list[object]:
        """The unique parts; none if the kernel chooses the port."""
        if self.scheme not in NETWORK:
            return [(self.scheme, self.address)]
        hosts, port = hosts_and_port(self.address)
        return [(host, port) for host in hosts if port]

    def at(self, address: str) -> "ListenUrl":
        """The same with another HOST:PORT."""
        return replace(self, address=address)


def clash(one: ListenUrl, other: ListenUrl) -> bool:
    """Whether two addresses can't both be listened on: all addresses of a family include each one."""
    if one.scheme not in NETWORK or other.scheme not in NETWORK:
        return str(one) == str(other)
    (hosts, port), (others, other_port) = hosts_and_port(one.address), hosts_and_port(other.address)
    if not port or port != other_port:
        return False
    pairs = [(host, known) for host in hosts for known in others if (":" in host) == (":" in known)]
    return any(host == known or host in EVERYWHERE or known in EVERYWHERE for host, known in pairs)


def hosts_and_port(address: str) -> tuple[tuple[str, ...], int]:
    """The hosts and the port of an address to listen on. Raises ValueError."""
    host, port = split_address(f"*{address}" if address.startswith(":") else address)
    mapped = _mapped(host)
    if mapped:  # a socket of IPv6 takes connections of IPv6 only
        raise ValueError(f"an address of IPv4 as IPv4 writes it, {mapped}:{port}, not [{host}]:{port}")
    return {"*": EVERYWHERE, "localhost": LOOPBACK}.get(host.lower(), (host,)), port  # names of hosts have no case


def _mapped(host: str) -> str:
    """The address of IPv4 that an address of IPv6 stands for, if it does."""
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or "")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('an IPv6 address in brackets, such as "[::1]:1883"')
    if not colon or not host or any(char.isspace() or not char.isprintable() for char in host):
        raise ValueError
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("a port from 0 to 65535 after the colon" if colon else "")
    return host, int(port)
