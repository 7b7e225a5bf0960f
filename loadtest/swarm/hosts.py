"""The addresses that clients connect to (`--host`) and from (`--source`)."""

from __future__ import annotations

import ipaddress
import socket
from itertools import islice
from urllib.parse import urlsplit

from .connection import Address

PORT = 1883
DEFAULT = "mqtt://127.0.0.1:1883"
MAX_SOURCES = 4096


def addresses(hosts: str) -> list[Address]:
    """The addresses of `mqtt://a:1883,mqtt://b`; a name may have several. Raises ValueError."""
    found: list[Address] = []
    for each in filter(None, (part.strip() for part in (hosts or DEFAULT).split(","))):
        url = urlsplit(each if "://" in each else f"mqtt://{each}")
        if url.scheme != "mqtt" or not url.hostname or url.path.strip("/"):
            raise ValueError(f"{each!r} is not a host; expected mqtt://HOST[:PORT], with commas between several")
        try:
            answers = socket.getaddrinfo(url.hostname, url.port or PORT, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ValueError(f"{url.hostname}: {error.strerror}") from None
        names = [(str(answer[4][0]), int(answer[4][1])) for answer in answers]
        # A name with both kinds of addresses, such as localhost, is one machine; brokers here listen on IPv4 first.
        found += list(dict.fromkeys([name for name in names if ":" not in name[0]] or names))
    return found


def sources(networks: str) -> list[str]:
    """The addresses of `127.0.1.0/24,10.0.0.7`. Raises ValueError."""
    found: list[str] = []
    for each in filter(None, (part.strip() for part in networks.split(","))):
        try:
            network = ipaddress.ip_network(each, strict=False)
        except ValueError:
            raise ValueError(f"{each!r} is not an address; expected for example 10.0.0.7 or 127.0.1.0/24") from None
        found += [str(address) for address in islice(network.hosts(), MAX_SOURCES)]
    return found
