"""Owns: decode and encode of every packet at levels 3, 4 and 5, read off the standard. Judges the compiled code.

A packet is a dict of its fields, with its class name under "type". Speed, memory and error texts are no concern here:
`Refused` is the only answer to bytes the standard forbids.
"""

from typing import Any

from tests.model.topics import is_text, is_topic_name

Packet = dict[str, Any]

TYPES = [
    "Reserved",
    "Connect",
    "Connack",
    "Publish",
    "Puback",
    "Pubrec",
    "Pubrel",
    "Pubcomp",
    "Subscribe",
    "Suback",
    "Unsubscribe",
    "Unsuback",
    "Pingreq",
    "Pingresp",
    "Disconnect",
    "Auth",
]
ACKS = {"Puback", "Pubrec", "Pubrel", "Pubcomp"}
FLAGS_OF_TWO = {"Pubrel", "Subscribe", "Unsubscribe"}  # all others but PUBLISH: 0 [MQTT-2.2.2-1]

ANSWERS = ACKS | {"Suback", "Unsuback"}
MESSAGE = {"Publish", "Will"}
EVERYWHERE = ANSWERS | MESSAGE | {"Connect", "Connack", "Subscribe", "Unsubscribe", "Disconnect", "Auth"}
OPENING = {"Connect", "Connack"}
# Level 5, section 2.2.2.2: identifier -> name, wire type, where it may stand. "!": must not be 0.
PROPERTIES: dict[int, tuple[str, str, set[str]]] = {
    0x01: ("payload_format_indicator", "flag", MESSAGE),
    0x02: ("message_expiry_interval", "u32", MESSAGE),
    0x03: ("content_type", "text", MESSAGE),
    0x08: ("response_topic", "topic", MESSAGE),
    0x09: ("correlation_data", "binary", MESSAGE),
    0x0B: ("subscription_identifier", "varint!", {"Publish", "Subscribe"}),
    0x11: ("session_expiry_interval", "u32", OPENING | {"Disconnect"}),
    0x12: ("assigned_client_identifier", "text", {"Connack"}),
    0x13: ("server_keep_alive", "u16", {"Connack"}),
    0x15: ("authentication_method", "text", OPENING | {"Auth"}),
    0x16: ("authentication_data", "binary", OPENING | {"Auth"}),
    0x17: ("request_problem_information", "flag", {"Connect"}),
    0x18: ("will_delay_interval", "u32", {"Will"}),
    0x19: ("request_response_information", "flag", {"Connect"}),
    0x1A: ("response_information", "text", {"Connack"}),
    0x1C: ("server_reference", "text", {"Connack", "Disconnect"}),
    0x1F: ("reason_string", "text", ANSWERS | {"Connack", "Disconnect", "Auth"}),
    0x21: ("receive_maximum", "u16!", OPENING),
    0x22: ("topic_alias_maximum", "u16", OPENING),
    0x23: ("topic_alias", "u16!", {"Publish"}),
    0x24: ("maximum_qos", "flag", {"Connack"}),
    0x25: ("retain_available", "flag", {"Connack"}),
    0x26: ("user_property", "pair", EVERYWHERE),
    0x27: ("maximum_packet_size", "u32!", OPENING),
    0x28: ("wildcard_subscription_available", "flag", {"Connack"}),
    0x29: ("subscription_identifier_available", "flag", {"Connack"}),
    0x2A: ("shared_subscription_available", "flag", {"Connack"}),
}
BY_NAME = {name: (identifier, wire) for identifier, (name, wire, _) in PROPERTIES.items()}
USER_PROPERTIES_MAX = 128

# Level 5, section 2.4: which packet may carry which reason code.
REASON_CODES = {
    "Connack": "00 80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F",
    "Puback": "00 10 80 83 87 90 91 97 99",
    "Pubrec": "00 10 80 83 87 90 91 97 99",
    "Pubrel": "00 92",
    "Pubcomp": "00 92",
    "Suback": "00 01 02 80 83 87 8F 91 97 9E A1 A2",
    "Unsuback": "00 11 80 83 87 8F 91",
    "Disconnect": ("00 04 80 81 82 83 87 89 8B 8C 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2"),
    "Auth": "00 18 19",
}


class Refused(ValueError):
    """The standard forbids these bytes."""


def require(condition: object) -> None:
    if not condition:
        raise Refused


class Reader:
    """The bytes of a body, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, n: int) -> bytes:
        require(n <= len(self.data))
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    def rest(self) -> bytes:
        return self.take(len(self.data))

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self, level: int = 5) -> int:
        value = 0
        for i in range(4):
            byte = self.number(1)
            value += (byte & 127) * 128**i
            if byte < 128:
                require(level < 5 or i == 0 or byte != 0)  # [5: MQTT-1.5.5-1]
                return value
        raise Refused

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        data = self.binary()
        require(is_text(data))
        return data.decode()

    def topic(self, level: int) -> str:
        data = self.binary()
        require(is_topic_name(data, level))
        return data.decode()

    def packet_id(self) -> int:
        value = self.number(2)
        require(value)
        return value

    def reason_code(self, where: str) -> int:
        value = self.number(1)
        require(value in bytes.fromhex(REASON_CODES[where]))
        return value

    def value(self, wire: str) -> Any:
        if wire == "pair":
            return (self.text(), self.text())
        if wire in ("text", "binary"):
            return getattr(self, wire)()
        if wire == "topic":
            return self.topic(5)
        value = self.varint() if wire.startswith("varint") else self.number({"f": 1, "u16": 2, "u32": 4}[short(wire)])
        require(value <= 1 or wire != "flag")
        require(value or not wire.endswith("!"))
        return value

    def properties(self, where: str, level: int) -> Packet:
        if level < 5:
            return {}
        block = Reader(self.take(self.varint()))
        found: Packet = {}
        while block.data:
            identifier = block.varint()
            require(identifier in PROPERTIES)
            name, wire, places = PROPERTIES[identifier]
            require(where in places)
            value = block.value(wire)
            if is_list(name, where):
                found.setdefault(name, []).append(value)
            else:
                require(name not in found)
                found[name] = value
        require(len(found.get("user_property", [])) <= USER_PROPERTIES_MAX)
        require("authentication_data" not in found or "authentication_method" in found)
        return found


def short(wire: str) -> str:
    return "f" if wire == "flag" else wire.rstrip("!")


def is_list(name: str, where: str) -> bool:
    return name == "user_property" or (name == "subscription_identifier" and where == "Publish")


def decode(data: bytes, level: int = 4) -> Packet:
    """The packet in one whole frame. Raises Refused."""
    frame = Reader(data)
    first = frame.number(1)
    header = Reader(frame.data)
    size = header.varint(3)
    require(size == len(header.data))
    kind, flags = TYPES[first >> 4], first & 15
    body = Reader(header.data)
    if kind == "Connect":
        level, bridge = connect_level(body)
    frame.varint(level)  # again, now with the level
    if level > 3 and kind != "Publish":
        require(flags == (2 if kind in FLAGS_OF_TWO else 0))
    packet = decode_fields(kind, flags, body, level)
    require(not body.data)
    return {"type": kind, **packet, **({"bridge": bridge} if kind == "Connect" else {})}


def connect_level(body: Reader) -> tuple[int, bool]:
    name, level = body.binary(), body.number(1)
    bridge = level in (0x83, 0x84)  # as Mosquitto's bridges send it
    level -= 0x80 * bridge
    require((name, level) in ((b"MQIsdp", 3), (b"MQTT", 4), (b"MQTT", 5)))
    return level, bridge


def decode_fields(kind: str, flags: int, body: Reader, level: int) -> Packet:
    if kind == "Connect":
        return decode_connect(body, level)
    if kind == "Connack":
        return decode_connack(body, level)
    if kind == "Publish":
        return decode_publish(flags, body, level)
    if kind in ACKS:
        return {"packet_id": body.packet_id(), **decode_outcome(kind, body, level)}
    if kind in ("Subscribe", "Unsubscribe", "Suback", "Unsuback"):
        packet_id, properties = body.packet_id(), body.properties(kind, level)
        found = []
        while body.data and (kind != "Unsuback" or level == 5):
            found.append(decode_entry(kind, body, level))
        require(found or (kind == "Unsuback" and level < 5))
        name = "reason_codes" if kind.endswith("ack") else "topic_filters"
        return {"packet_id": packet_id, name: found, "properties": properties}
    require(kind in ("Pingreq", "Pingresp", "Disconnect") or (kind == "Auth" and level == 5))
    return {} if kind.startswith("Ping") else decode_outcome(kind, body, level)


def decode_outcome(kind: str, body: Reader, level: int) -> Packet:
    code = body.reason_code(kind) if level == 5 and body.data else 0
    return {"reason_code": code, "properties": body.properties(kind, level) if level == 5 and body.data else {}}


def decode_connect(body: Reader, level: int) -> Packet:
    flags = body.number(1)
    user, password, retain, will_qos, will, clean = (
        flags >> 7,
        flags >> 6 & 1,
        flags >> 5 & 1,
        flags >> 3 & 3,
        flags >> 2 & 1,
        flags >> 1 & 1,
    )
    if level > 3:
        require(not flags & 1)  # [MQTT-3.1.2-3]
        require(will or not (will_qos or retain))  # [MQTT-3.1.2-13] [MQTT-3.1.2-15]
    if level == 4:
        require(user or not password)  # [MQTT-3.1.2-22]
    packet: Packet = {
        "protocol_level": level,
        "clean_start": bool(clean),
        "keep_alive": body.number(2),
        "properties": body.properties("Connect", level),
        "client_id": body.text(),
        "will_topic": None,
        "will_payload": b"",
        "will_qos": 0,
        "will_retain": False,
        "will_properties": {},
        "username": None,
        "password": None,
    }
    if will:
        require(will_qos < 3)  # [MQTT-3.1.2-14]
        packet |= {"will_qos": will_qos, "will_retain": bool(retain)}
        packet |= {"will_properties": body.properties("Will", level)}
        packet |= {"will_topic": body.topic(level), "will_payload": body.binary()}
    if user and (level > 3 or body.data):
        packet["username"] = body.text()
    if password and (level > 3 or body.data):
        require(user or level == 5)
        packet["password"] = body.binary()
    return packet


def decode_connack(body: Reader, level: int) -> Packet:
    flags = body.number(1) if level > 3 else body.number(1) * 0
    code = body.reason_code("Connack") if level == 5 else body.number(1)
    require(flags <= 1 and (level == 5 or code <= 5))
    require(not (flags and code))  # [MQTT-3.2.2-4]
    return {"session_present": bool(flags), "reason_code": code, "properties": body.properties("Connack", level)}


def decode_publish(flags: int, body: Reader, level: int) -> Packet:
    dup, qos, retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    require(qos < 3)  # [MQTT-3.3.1-4]
    require(qos or not dup or level == 3)  # [MQTT-3.3.1-2]
    topic_name = body.binary()
    packet_id = body.packet_id() if qos else 0
    properties = body.properties("Publish", level)
    require(is_topic_name(topic_name, level) or (not topic_name and "topic_alias" in properties))
    return {
        "topic_name": topic_name.decode(),
        "payload": body.rest(),
        "qos": qos,
        "retain": retain,
        "dup": dup and qos > 0,
        "packet_id": packet_id,
        "properties": properties,
    }


def decode_entry(kind: str, body: Reader, level: int) -> Any:
    if kind.endswith("ack"):
        if level == 5:
            return body.reason_code(kind)
        code = body.number(1) & (3 if level == 3 else 255)
        require(code in (0, 1, 2, 0x80))  # [MQTT-3.9.3-2]
        return code
    topic_filter = body.text()
    require(topic_filter)  # [MQTT-4.7.3-1]
    if kind == "Unsubscribe":
        return topic_filter
    options = body.number(1) & (3 if level == 3 else 255)
    require(options & 3 < 3 and options >> 4 & 3 < 3 and options >> 6 == 0)
    require(level == 5 or options < 3)  # [MQTT-3.8.3-4]
    require(not (options & 4 and topic_filter.startswith("$share/")))  # 5: [MQTT-3.8.3-4]
    return (topic_filter, options)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def binary(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def text(value: str) -> bytes:
    return binary(value.encode())


def encode_value(wire: str, value: Any) -> bytes:
    if wire == "pair":
        return text(value[0]) + text(value[1])
    if wire in ("text", "topic"):
        return text(value)
    if wire == "binary":
        return binary(value)
    if wire == "varint!":
        return varint(value)
    return value.to_bytes({"f": 1, "u16": 2, "u32": 4}[short(wire)], "big")


def encode_properties(where: str, properties: Packet) -> bytes:
    block = b""
    for name, value in properties.items():
        identifier, wire = BY_NAME[name]
        for one in value if is_list(name, where) else [value]:
            block += varint(identifier) + encode_value(wire, one)
    return varint(len(block)) + block


def encode(packet: Packet, level: int = 4) -> bytes:
    """The frame of a valid packet."""
    kind = packet["type"]
    level = packet.get("protocol_level", level)
    flags = 2 if kind in FLAGS_OF_TWO else 0
    if kind == "Publish":
        flags = packet["dup"] * 8 + packet["qos"] * 2 + packet["retain"]
    body = encode_body(packet, kind, level)
    return bytes([TYPES.index(kind) * 16 + flags]) + varint(len(body)) + body


def encode_body(packet: Packet, kind: str, level: int) -> bytes:
    properties = encode_properties(kind, packet["properties"]) if level == 5 and "properties" in packet else b""
    packet_id = packet["packet_id"].to_bytes(2, "big") if packet.get("packet_id") else b""
    if kind == "Connect":
        return encode_connect(packet, properties, level)
    if kind == "Connack":
        return bytes([packet["session_present"] and level > 3, packet["reason_code"]]) + properties
    if kind == "Publish":
        return text(packet["topic_name"]) + (packet_id if packet["qos"] else b"") + properties + packet["payload"]
    if kind == "Subscribe":
        return packet_id + properties + b"".join(text(f) + bytes([options]) for f, options in packet["topic_filters"])
    if kind == "Unsubscribe":
        return packet_id + properties + b"".join(map(text, packet["topic_filters"]))
    if kind in ("Suback", "Unsuback"):
        return packet_id + properties + bytes(packet["reason_codes"])
    if "reason_code" not in packet or level < 5:
        return packet_id
    if packet["properties"]:
        return packet_id + bytes([packet["reason_code"]]) + properties
    return packet_id + bytes([packet["reason_code"]] if packet["reason_code"] else [])


def encode_connect(packet: Packet, properties: bytes, level: int) -> bytes:
    will = packet["will_topic"] is not None
    flags = packet["clean_start"] * 2 + (packet["username"] is not None) * 128 + (packet["password"] is not None) * 64
    if will:
        flags += 4 + packet["will_qos"] * 8 + packet["will_retain"] * 32
    body = (
        text("MQIsdp" if level == 3 else "MQTT")
        + bytes([level | 0x80 * packet["bridge"], flags])
        + packet["keep_alive"].to_bytes(2, "big")
    )
    body += properties + text(packet["client_id"])
    if will:
        body += encode_properties("Will", packet["will_properties"]) if level == 5 else b""
        body += text(packet["will_topic"]) + binary(packet["will_payload"])
    body += b"" if packet["username"] is None else text(packet["username"])
    return body + (b"" if packet["password"] is None else binary(packet["password"]))
