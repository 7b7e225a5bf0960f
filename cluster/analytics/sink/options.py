"""The options of the sink, as fields."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..errors import OptionError
from ..option_parser import Option, boolean, parse_fields, seconds

PORTS = {"mqtt": 1883, "mqtts": 8883}
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
LEVELS = {"5": 5, "5.0": 5, "3.1.1": 4, "4": 4}
URL = "a URL such as mqtt://HOST:PORT, with USER:PASSWORD@ before HOST if the broker asks for them; mqtts:// for TLS"


@dataclass(frozen=True)
class BrokerAddress:
    """Where the broker is.

    Attributes:
        user, password: empty: none.
    """

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str = ""

    @classmethod
    def parse(cls, url: str) -> "BrokerAddress":
        """The address of a URL. Raises ValueError: the words complete "expected ..."."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise ValueError(URL) from None
        if parts.scheme not in PORTS or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(URL)
        return cls(
            parts.hostname,
            port or PORTS[parts.scheme],
            parts.scheme == "mqtts",
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


@dataclass(frozen=True)
class SinkOptions:
    """The options of `frame.write.format("flockmq")` and of `frame.writeStream.format("flockmq")`.

    Attributes:
        qos, retain: of rows without such a column.
        client_id: the beginning of the client identifiers.
        level: protocol level, 4 or 5.
        inflight: messages at most that a task has sent, and whose acknowledgements have not arrived.
        patience: seconds in which a task tries to reach the broker again.
        delivery: EXACTLY_ONCE: the broker must have transactions; AT_LEAST_ONCE: without them; empty: if it has them.
        ca_file, cert_file, key_file: of TLS; empty: the certificates of the system, no certificate.
    """

    broker: BrokerAddress
    qos: int = 1
    retain: bool = False
    client_id: str = "spark"
    level: int = 5
    inflight: int = 10_000
    patience: float = 60.0
    delivery: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    """The options as Spark passes them; the case of their names is ignored.

    Raises:
        OptionError: an option is unknown, missing or wrong.
    """
    fields = parse_fields("sink", options, OPTIONS, shown=names(), ignored=SPARKS)
    if "broker" not in fields:
        raise OptionError("the option url is missing", '.option("url", "mqtt://HOST:PORT") names the broker')
    made = SinkOptions(**fields)
    if (made.ca_file or made.cert_file) and not made.broker.tls:
        raise OptionError("certificates are for TLS", "write mqtts:// in the option url")
    if made.delivery == EXACTLY_ONCE and made.level < 5:
        raise OptionError("exactly-once needs MQTT 5.0", 'leave .option("protocol", "3.1.1") out')
    if bool(made.cert_file) != bool(made.key_file):
        raise OptionError("a certificate needs its key", "set both of certFile and keyFile")
    return made


def names() -> list[str]:
    """The options' names in their usual case."""
    return [option.name for option in OPTIONS.values()]


def _qos(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise ValueError("0, 1 or 2")
    return int(text)


def _level(text: str) -> int:
    if text not in LEVELS:
        raise ValueError("5 or 3.1.1")
    return LEVELS[text]


def _delivery(text: str) -> str:
    if text not in ("", EXACTLY_ONCE, AT_LEAST_ONCE):  # empty: exactly once if the broker can
        raise ValueError(f"{EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    return text


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,4}", text) or int(text) > 65535:
        raise ValueError("a number from 1 to 65535")
    return int(text)


OPTIONS = {
    option.name.lower(): option
    for option in (
        Option("url", "broker", BrokerAddress.parse, is_url=True),
        Option("qos", "qos", _qos),
        Option("retain", "retain", boolean),
        Option("clientId", "client_id", str),
        Option("protocol", "level", _level),
        Option("inflight", "inflight", _count),
        Option("patience", "patience", seconds),
        Option("delivery", "delivery", _delivery),
        Option("caFile", "ca_file", str),
        Option("certFile", "cert_file", str),
        Option("keyFile", "key_file", str),
    )
}
SPARKS = {"checkpointlocation", "path", "queryname"}  # options that Spark itself has added
