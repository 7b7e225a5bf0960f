"""The output format of `flockmq sub -F`: mosquitto_sub's `%` fields, `@` times and backslash escapes.

A format is compiled once into functions from a message to bytes; a wrong one raises UsageError before anything is sent.
"""

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..._speedups.codec.packets import Publish

    Piece = Callable[[Publish, int], bytes]

# One item: %[-0][width][.precision]letter, @letter, \letter, or a run of anything else.
ITEM = re.compile(
    r"%(?P<flags>[-0]*)(?P<width>\d{0,4})(?:\.(?P<precision>\d{1,4}))?(?P<field>[^-.0-9])|@(?P<time>.)|\\(?P<escape>.)|[^%@\\]+",
    re.S,
)
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "e": b"\x1b", "v": b"\v", "0": b"\0", "\\": b"\\"}
TIMES = "aAbBcCdDeFgGhHIjklmMpPrRsStTuUVwWxXyYzZ"


def iso_time(now: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now // 1_000_000_000))


def as_json(message: "Publish", now: int, payload: object) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
    document: dict[str, object] = {
        "tst": f"{stamp}.{now // 1000 % 1_000_000:06}Z",
        "topic": message.topic_name,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        document["mid"] = message.packet_id
    if message.properties:
        document["properties"] = json_properties(message.properties)
    document["payload"] = payload
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def json_properties(properties: dict[str, Any]) -> dict[str, object]:
    """The properties of a message, named as mosquitto does; where a name has several values they are a list."""
    found: dict[str, object] = {}
    for name, value in properties.items():
        if name == "user_property":
            pairs: dict[str, list[str]] = {}
            for key, text in value:
                pairs.setdefault(key, []).append(text)
            found["user-properties"] = {key: one_or_all(texts) for key, texts in pairs.items()}
        elif name == "subscription_identifier":
            found["subscription-identifier"] = one_or_all(value)
        else:
            found[name.replace("_", "-")] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return found


def one_or_all(values: list[Any]) -> object:
    return values[0] if len(values) == 1 else values


def of_property(name: str) -> "Piece":
    """A field that is a property of level 5; it is empty where the message has none."""

    def piece(message: "Publish", now: int) -> bytes:
        value = message.properties.get(name, "")
        return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")

    return piece


def user_properties(message: "Publish", now: int) -> bytes:
    pairs = message.properties.get("user_property", ())
    return " ".join(f"{name}:{value}" for name, value in pairs).encode("utf-8", "replace")


def identifiers(message: "Publish", now: int) -> bytes:
    return " ".join(map(str, message.properties.get("subscription_identifier", ()))).encode()


def json_payload(payload: bytes) -> object:
    """The payload as JSON, as text if it is none."""
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode("utf-8", "replace")


FIELDS: "dict[str, Piece]" = {
    "%": lambda message, now: b"%",
    "t": lambda message, now: message.topic_name.encode("utf-8", "replace"),
    "p": lambda message, now: message.payload,
    "q": lambda message, now: b"%d" % message.qos,
    "r": lambda message, now: b"%d" % message.retain,
    "m": lambda message, now: b"%d" % message.packet_id,
    "l": lambda message, now: b"%d" % len(message.payload),
    "x": lambda message, now: message.payload.hex().encode(),
    "X": lambda message, now: message.payload.hex().upper().encode(),
    "I": lambda message, now: iso_time(now).encode(),
    "U": lambda message, now: b"%d.%09d" % divmod(now, 1_000_000_000),
    "j": lambda message, now: as_json(message, now, message.payload.decode("utf-8", "replace")),
    "J": lambda message, now: as_json(message, now, json_payload(message.payload)),
    # Level 5.
    "A": of_property("topic_alias"),
    "C": of_property("content_type"),
    "D": of_property("correlation_data"),
    "E": of_property("message_expiry_interval"),
    "F": of_property("payload_format_indicator"),
    "P": user_properties,
    "R": of_property("response_topic"),
    "S": identifiers,
}


def compile_format(text: str) -> "Piece":
    """A function from a message and a time in nanoseconds to the line's bytes. Raises UsageError."""
    pieces: list[Piece] = []
    position = 0
    while position < len(text):
        match = ITEM.match(text, position)
        if match is None:
            raise UsageError(f"-F {text!r}: incomplete {text[position:]!r} at the end")
        pieces.append(compile_item(text, match))
        position = match.end()
    return lambda message, now: b"".join([piece(message, now) for piece in pieces])


def compile_item(text: str, match: "re.Match[str]") -> "Piece":
    item = match[0]
    if match["field"] is not None:
        if match["field"] not in FIELDS:
            raise UsageError(f"-F {text!r}: unknown field {item!r}", f"there are %{' %'.join(sorted(FIELDS))}")
        return padded(FIELDS[match["field"]], match["flags"], match["width"], match["precision"])
    if match["time"] is not None:
        return compile_time(text, match["time"])
    if match["escape"] is not None:
        if match["escape"] not in ESCAPES:
            raise UsageError(f"-F {text!r}: unknown escape {item!r}")
        constant = ESCAPES[match["escape"]]
    else:
        constant = item.encode("utf-8", "surrogateescape")
    return lambda message, now: constant


def compile_time(text: str, letter: str) -> "Piece":
    if letter == "@":
        return lambda message, now: b"@"
    if letter == "N":
        return lambda message, now: b"%09d" % (now % 1_000_000_000)
    if letter not in TIMES:
        raise UsageError(f"-F {text!r}: unknown time '@{letter}'")
    return lambda message, now: time.strftime(f"%{letter}", time.localtime(now // 1_000_000_000)).encode()


def padded(field: "Piece", flags: str, width: str, precision: str | None) -> "Piece":
    if not width and precision is None:
        return field
    size = int(width or 0)
    most = None if precision is None else int(precision)

    def piece(message: "Publish", now: int) -> bytes:
        value = field(message, now)[:most]
        if "-" in flags:
            return value.ljust(size)
        return value.rjust(size, b"0" if "0" in flags else b" ")

    return piece
