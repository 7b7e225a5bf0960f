"""A bridge of a mosquitto.conf as a link: its lines, read as Mosquitto 2.0.11 reads them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from ..errors import ConfigError
from .link import OPTIONS, Rule, address_of, link
from .mosquitto_directives import ADDRESSES, BRIDGE, PORT, TLS_BRIDGE, flag

BRIDGE_LINES = frozenset((*ADDRESSES, "topic", *BRIDGE, *TLS_BRIDGE, "bridge_tls_use_os_certs"))


@dataclass
class Bridge:
    """A bridge, as far as it has been read."""

    where: str  # FILE:LINE
    values: dict[str, object] = field(default_factory=lambda: {"version": "3.1.1"})
    addresses: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    secure: bool = False  # a directive means TLS

    def take(self, name: str, value: str) -> Iterator[str]:
        """Take a line of `BRIDGE_LINES`; yields notes. Raises ConfigError."""
        if name in ADDRESSES:
            if self.addresses:
                raise ConfigError("the connection has addresses already, which Mosquitto refuses")
            self.addresses += map(_place, _until_comment(value.split()))
        elif name == "topic":
            self.topics.append(_topic(value))
        elif name in BRIDGE:
            row = BRIDGE[name]
            self.values[row.key] = row.convert(value)
            kind, _ = OPTIONS[row.key]
            try:
                kind.read(self.values[row.key], is_text=False)
            except ValueError as error:
                raise ConfigError(f"expected {str(error) or kind.expected}") from None
        elif name in TLS_BRIDGE:
            self.secure = True
            yield f"{name} {value}: {TLS_BRIDGE[name]}"
        else:
            self.secure |= flag(value)

    def lines(self, name: str) -> Iterator[str]:
        """The lines of the table of its link. Raises ConfigError."""
        if not (self.addresses and self.topics):
            missing = "topic" if self.addresses else "address"
            raise ConfigError(f"{self.where}: connection {name} has no {missing}, which Mosquitto refuses")
        values = self.values
        secure = self.secure or "ca_file" in values or "certificate" in values or values.get("insecure")
        urls = [f"{'mqtts' if secure else 'mqtt'}://{place}" for place in self.addresses]
        options: dict[str, object] = {"url": urls, "topics": self.topics, **values}
        if not secure:
            options.pop("insecure", None)  # of TLS, which the bridge has not
        try:
            link(name, options)
        except ValueError as fault:
            raise ConfigError(f"{self.where}: connection {name}: expected {fault}") from None
        yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in options.items())


def _place(text: str) -> str:
    """HOST:PORT of an address of a bridge: the port is after the last colon, also after IPv6. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, PORT
    place = f"[{host}]:{port}" if ":" in host and is_of(host, "ipv6") else f"{host}:{port}"
    try:
        _, _, number = address_of(f"mqtt://{place}")
    except ValueError as fault:
        raise ConfigError(f"expected {str(fault) or 'HOST:PORT'}, not {text}") from None
    if not number:
        raise ConfigError(f"expected a port from 1 to 65535, not that of {text}")
    return place


def _topic(text: str) -> str:
    """A rule, read as Mosquitto reads a `topic` line. Raises ConfigError.

    Filter and direction may be `#`; a number begins the third word; a comment may stand from there on.
    """
    topic_filter, *rest = text.split()
    direction, more = (rest[0], [*_until_comment(rest[1:4])]) if rest else ("out", [])
    found = re.match(r"[+-]?\d+", more[0]) if more else None
    prefixes = ["" if word == '""' else word for word in more[1:]]
    try:
        rule = [topic_filter if topic_filter != '""' else "", direction.lower(), str(int(found[0]) if found else 0)]
        quoted = " ".join(word or '""' for word in (*rule, *prefixes))
        return str(Rule.parse(quoted))
    except ValueError as fault:
        raise ConfigError(f"expected {fault}") from None


def _until_comment(words: list[str]) -> Iterator[str]:
    for each in words:
        if each.startswith("#"):
            return
        yield each


def is_of(host: str, family: str) -> bool:
    """Whether a host is an address of a family."""
    try:
        return f"ipv{ip_address(host).version}" == family
    except ValueError:
        return False
