"""Packets written as lines, for tests that send them and tests that await them.

A line has the packet's name, its fields in their order, and named values. Fields that only level 5 has (properties,
reason codes of acknowledgements) may stand in lines of all levels: they are left out below level 5. So one conversation
can be played at every level.
"""

import contextlib
import functools
import shlex
from typing import Any

from flockmq._speedups.codec import packets
from flockmq._speedups.codec.decode import decode
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Packet
from flockmq._speedups.codec.tables import PROPERTIES
from flockmq.broker.config.limits_config import LimitsConfig
from flockmq.broker.config.schema import MqttConfig

NUMBERS = {"payload_format_indicator", "message_expiry_interval", "subscription_identifier", "session_expiry_interval"}
NUMBERS |= {"server_keep_alive", "request_problem_information", "will_delay_interval", "request_response_information"}
NUMBERS |= {"receive_maximum", "topic_alias_maximum", "topic_alias", "maximum_qos", "retain_available"}
NUMBERS |= {"maximum_packet_size", "wildcard_subscription_available", "subscription_identifier_available"}
NUMBERS |= {"shared_subscription_available"}
BINARY = {"correlation_data", "authentication_data"}
NAMES = {row.name for row in PROPERTIES}
SHORT_NAMES = {"user": "user_property", "reason": "reason_string"}
NEVER = 0xFFFFFFFF
OPTIONS = {"nl": 4, "rap": 8, "rh1": 0x10, "rh2": 0x20}  # of a subscription, beside its QoS
FILTER_REASON = "filter "  # how a SUBACK's user properties with the reason of a refused filter begin
# The properties of every CONNACK of level 5, unless the line or the settings differ.
CONNACK_PROPERTIES: dict[str, Any] = {
    "receive_maximum": LimitsConfig().receive_maximum,
    "maximum_packet_size": LimitsConfig().max_packet_size,
    "topic_alias_maximum": MqttConfig().topic_alias_maximum,
}


@functools.cache
def split(line: str) -> tuple[str, ...]:
    """The words of a line: each is read many times, for each level, way and store."""
    return tuple(shlex.split(line))


class Line:
    """The words of a line, by kind.

    Args:
        line: see `parse_packet`.
        level: protocol level.
    """

    def __init__(self, line: str, level: int) -> None:
        self.name, *words = split(line)
        self.level = level
        self.named: dict[str, str] = {}
        self.plain: list[str] = []
        self.properties: dict[str, Any] = {}
        self.will_properties: dict[str, Any] = {}
        self.contained: dict[str, str] = {}  # property -> text that it contains
        flags = {"clean", "present", "dup", "retain", "q0", "q1", "q2"}
        keys = {"id", "clean", "keep", "user", "pass", "will", "message", "level", "code"}
        if self.name != "connect":
            keys.remove("user")
        for word in words:
            key, equals, value = word.partition("=")
            tilde_key, tilde, text = word.partition("~")
            if equals and key in keys:
                self.named[key] = value
            elif equals and key.startswith("will.") and key[5:] in NAMES | SHORT_NAMES.keys():
                put_property(self.will_properties, key[5:], value, "publish")
            elif equals and key in NAMES | SHORT_NAMES.keys():
                put_property(self.properties, key, value, self.name)
            elif tilde and tilde_key in NAMES | SHORT_NAMES.keys():
                self.contained[SHORT_NAMES.get(tilde_key, tilde_key)] = text
            elif self.name in ("connect", "connack", "publish") and word in flags:
                self.named[word] = "1"
            else:
                self.plain.append(word)
        self.code = int(self.named.get("code", "0"), 0) if level == 5 else 0
        if level < 5:
            self.properties, self.will_properties, self.contained = {}, {}, {}


def put_property(properties: dict[str, Any], name: str, text: str, packet: str) -> None:
    """Add the value of a property, as a line writes it."""
    name = SHORT_NAMES.get(name, name)
    if name == "user_property":
        key, _, value = text.partition(":")
        properties.setdefault(name, []).append((key, value))
    elif name == "subscription_identifier" and packet == "publish":
        properties.setdefault(name, []).append(int(text))
    elif name in NUMBERS:
        properties[name] = int(text)
    else:
        properties[name] = text.encode() if name in BINARY else text


def parse_packet(line: str, level: int, client_id: str = "c") -> bytes:
    """The bytes of a packet written as a line.

    connect [id=ID] [clean=0] [keep=N] [user=U] [pass=P] [will=TOPIC [message=M] [q1] [retain]] [level=N]
    connack [present] [N]              publish TOPIC [PAYLOAD] [q1 id=N] [dup] [retain]
    puback|pubrec|pubrel|pubcomp N     subscribe N FILTER:QOS[,nl][,rap][,rh1] ...      suback N CODE ...
    unsubscribe N FILTER ...           unsuback N [CODE ...]           pingreq|pingresp|disconnect
    hex 10 0c 00 ...                   text beside bytes: hex 30 06 0003 =a/b

    At level 5 also: code=N; NAME=VALUE for each property, user=KEY:VALUE (in CONNECT user_property=KEY:VALUE), and
    will.NAME=VALUE. `clean=0` without a session_expiry_interval asks for a session that never ends, as below level 5.
    A `connack` of success has the CONNACK_PROPERTIES; a property that the line names replaces its default.
    """
    parsed = Line(line, level)
    if parsed.name == "hex":
        words = split(line)[1:]
        return b"".join(word[1:].encode() if word[0] == "=" else bytes.fromhex(word) for word in words)
    named, plain = parsed.named, parsed.plain
    level = int(named.get("level", level))
    return encode(packet_of(parsed if level == parsed.level else Line(line, level), named, plain, client_id), level)


def packet_of(line: Line, named: dict[str, str], plain: list[str], client_id: str) -> Packet:
    """The packet of a line."""
    properties, level = line.properties, line.level
    match line.name:
        case "connect":
            return connect_of(line, client_id)
        case "connack":
            code = line.code or (int(plain[0], 0) if plain else 0)
            if level == 5 and not code:
                properties = {**CONNACK_PROPERTIES, **properties}
            return packets.Connack("present" in named and level > 3, code, properties)
        case "publish":
            topic_name, payload = (*plain, "", "")[:2]
            return packets.Publish(
                topic_name,
                payload.encode(),
                qos_of(named),
                "retain" in named,
                "dup" in named,
                int(named.get("id", "0")),
                properties,
            )
        case "subscribe":
            pairs = [word.rpartition(":") for word in plain[1:]]
            filters = [(topic_filter, options_of(options, level)) for topic_filter, _, options in pairs]
            return packets.Subscribe(int(plain[0]), filters, properties)
        case "unsubscribe":
            return packets.Unsubscribe(int(plain[0]), plain[1:], properties)
        case "suback":
            return packets.Suback(int(plain[0]), [int(code, 0) for code in plain[1:]], properties)
        case "unsuback":
            codes = [int(code, 0) for code in plain[1:]] if level == 5 else []
            return packets.Unsuback(int(plain[0]), codes, properties)
        case "pingreq" | "pingresp":
            assert not plain, line
            return packets.Pingreq() if line.name == "pingreq" else packets.Pingresp()
        case "disconnect" | "auth":
            assert len(plain) <= (level == 5), plain
            code = int(plain[0], 0) if plain else line.code
            return packets.Disconnect(code, properties) if line.name == "disconnect" else packets.Auth(code, properties)
        case "puback" | "pubrec" | "pubrel" | "pubcomp":
            (number,) = plain
            made: Packet = getattr(packets, line.name.capitalize())(int(number), line.code, properties)
            return made
    raise ValueError(f"unknown packet {line.name!r}")


def connect_of(line: Line, client_id: str) -> Packet:
    named, level = line.named, line.level
    password = named.get("pass")
    properties = line.properties
    if level == 5 and named.get("clean") == "0":
        properties = {"session_expiry_interval": NEVER, **properties}
    return packets.Connect(
        named.get("id", client_id),
        clean_start=named.get("clean", "1") == "1",
        keep_alive=int(named.get("keep", "0")),
        username=named.get("user"),
        password=None if password is None else password.encode(),
        will_topic=named.get("will"),
        will_payload=named.get("message", "").encode(),
        will_qos=qos_of(named),
        will_retain="retain" in named,
        will_properties=line.will_properties,
        properties=properties,
        protocol_level=level,
    )


def qos_of(named: dict[str, str]) -> int:
    return next((n for n in (1, 2) if f"q{n}" in named), 0)


def options_of(text: str, level: int) -> int:
    """The options of a subscription: its QoS, and at level 5 the others."""
    qos, *others = text.split(",")
    return int(qos) | (sum(OPTIONS[option] for option in others) if level == 5 else 0)


class Awaited:
    """A packet that is to come.

    Args:
        wanted: its line, or its bytes. In a line, NAME~TEXT is a property that has to contain the text; `reason` stands
            for the reason string. With `reason~` the user properties that explain a SUBACK are not looked at.
        level: protocol level.
        client_id: as for `parse_packet`.
    """

    def __init__(self, wanted: str | bytes, level: int, client_id: str = "c") -> None:
        self.level = level
        self.contained: dict[str, str] = {}
        if isinstance(wanted, bytes):
            self.data, self.text = wanted, shown(wanted, level)
        else:
            self.data, self.text = parse_packet(wanted, level, client_id), wanted
            if not wanted.startswith("hex"):
                self.contained = Line(wanted, level).contained

    def matches(self, found: bytes | None) -> bool:
        """Whether this frame is it: the same bytes, but the order of properties is free."""
        if found == self.data or found is None or self.level < 5 or found[0] != self.data[0]:
            return found == self.data
        try:
            came, wanted = decode(found, self.level), decode(self.data, self.level)
        except ValueError:
            return False
        if not self.contained:
            return len(found) == len(self.data) and bool(came == wanted)
        properties = dict(getattr(came, "properties", {}))
        for name, text in self.contained.items():
            if text not in properties.pop(name, ""):
                return False
        if "reason_string" in self.contained and isinstance(came, packets.Suback):
            users = properties.pop("user_property", [])
            if left := [pair for pair in users if not pair[0].startswith(FILTER_REASON)]:
                properties["user_property"] = left
        setattr(came, "properties", properties)  # noqa: B010 (not every packet has it)
        return bool(came == wanted)


def shown(frame: bytes | None, level: int) -> str:
    """A frame as a person reads it."""
    if frame is None:
        return "closed"
    with contextlib.suppress(ValueError):
        text = repr(decode(frame, level))
        return text if len(text) < 500 else text[:500] + "..."
    return frame[:100].hex(" ")
