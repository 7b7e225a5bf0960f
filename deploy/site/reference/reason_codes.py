"""The page of reason codes: their meaning here, and the sentences of the log, read from the calls in the sources."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from flockmq import broker
from flockmq._speedups.codec.reason_codes import ReasonCode, return_code
from flockmq._speedups.codec.tables import PACKET_TYPES, REASON_CODES

from .text import escaped, row, table

HEAD = """\
# Reason codes

For developers of clients, and for readers of the log. The questions: which reason code does a client get, why, and what
does the log say? MQTT 5.0, section 2.4 defines the codes. Inside the broker every refusal is one of them; a client of
MQTT 3.1 or 3.1.1 gets the return code of CONNACK in the last column, a failure 0x80 in SUBACK, or the end of its
connection.
"""
LOG = """\
## In the log

The sentences by reason code, as the log has them; `...` stands for a value. A client of MQTT 5.0 gets the sentence as
the reason string, except in a CONNACK with 0x86, 0x87 or 0x8A, where it would help an attacker.
"""
# In the words of this broker: when a node sends the code, or what it makes of it.
MEANINGS = {
    ReasonCode.SUCCESS: "Done; in SUBACK: granted QoS 0.",
    ReasonCode.GRANTED_QOS_1: "The subscription has QoS 1.",
    ReasonCode.GRANTED_QOS_2: "The subscription has QoS 2.",
    ReasonCode.DISCONNECT_WITH_WILL_MESSAGE: "From a client: the connection ends, and its will is published.",
    ReasonCode.NO_MATCHING_SUBSCRIBERS: "Accepted, and no subscription matches.",
    ReasonCode.NO_SUBSCRIPTION_EXISTED: "UNSUBSCRIBE of a topic filter that the session has not.",
    ReasonCode.CONTINUE_AUTHENTICATION: "The next step of an authentication.",
    ReasonCode.RE_AUTHENTICATE: "From a client: it authenticates again.",
    ReasonCode.UNSPECIFIED_ERROR: "A fault of the broker, of its machine or of a hook. The log of the node has it.",
    ReasonCode.MALFORMED_PACKET: "Bytes that are no packet. The client, or a program between, is wrong.",
    ReasonCode.PROTOCOL_ERROR: "A packet that is not allowed at this point or with this content.",
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: "A stream is asked for, and the broker keeps no message log.",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "CONNECT with a protocol level other than 3, 4 and 5.",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "A client identifier that the standard or the configuration refuses.",
    ReasonCode.BAD_USERNAME_OR_PASSWORD: "Wrong user, password, token or proof.",
    ReasonCode.NOT_AUTHORIZED: "No credentials where some are needed, or a right that the user has not.",
    ReasonCode.SERVER_UNAVAILABLE: "The node can't serve: Redis or the source of users is away, or it is drained.",
    ReasonCode.SERVER_BUSY: "Too many clients wait to be authenticated, or the source of users is away. Try again.",
    ReasonCode.BANNED: "The client, its user or its address is banned.",
    ReasonCode.SERVER_SHUTTING_DOWN: "The node stops, or it can't keep the session. Connect again, to another node.",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "A method of authentication that this listener has not.",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "Nothing came for one and a half times the keep alive interval.",
    ReasonCode.SESSION_TAKEN_OVER: "Another connection has the same client identifier.",
    ReasonCode.TOPIC_FILTER_INVALID: "A topic filter that the standard or the configuration refuses.",
    ReasonCode.TOPIC_NAME_INVALID: "A topic name that the standard or the configuration refuses.",
    ReasonCode.PACKET_IDENTIFIER_IN_USE: "Not sent by FlockMQ.",
    ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: "PUBREL or PUBREC for a message that is not under way.",
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: "More unacknowledged messages than the broker has allowed in CONNACK.",
    ReasonCode.TOPIC_ALIAS_INVALID: "A topic alias of 0, or above the maximum of CONNACK.",
    ReasonCode.PACKET_TOO_LARGE: "A packet above `limits.max_packet_size`.",
    ReasonCode.MESSAGE_RATE_TOO_HIGH: "Not sent by FlockMQ: rates are limited by back-pressure.",
    ReasonCode.QUOTA_EXCEEDED: "A limit is reached; `flockmq limits` shows which one.",
    ReasonCode.ADMINISTRATIVE_ACTION: "An operator has ended the connection, or banned the client.",
    ReasonCode.PAYLOAD_FORMAT_INVALID: "A payload that is not UTF-8, as its format indicator says.",
    ReasonCode.RETAIN_NOT_SUPPORTED: "RETAIN, and `mqtt.retain_available` is false.",
    ReasonCode.QOS_NOT_SUPPORTED: "A QoS above `mqtt.maximum_qos`.",
    ReasonCode.USE_ANOTHER_SERVER: "The node is drained: connect to the server of the property.",
    ReasonCode.SERVER_MOVED: "The broker has moved for good: connect to the server of the property.",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "Not sent by FlockMQ.",
    ReasonCode.CONNECTION_RATE_EXCEEDED: "The address or the user connects too often, or with wrong credentials.",
    ReasonCode.MAXIMUM_CONNECT_TIME: "The credentials have expired: a token, for example, at its `exp`.",
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: "Not sent by FlockMQ.",
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "Not sent by FlockMQ.",
}
CALLS = ("CloseReason", "Verdict", "Refusal")
REFUSE = "refuse"  # connection, code, client id, sentence


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
    names = {each.packet_type: each.name for each in PACKET_TYPES}
    rows = []
    for each in REASON_CODES:
        packets = ", ".join(name for kind, name in names.items() if each.packets >> kind & 1)
        old = str(return_code(ReasonCode(each.code))) if "CONNACK" in packets.split(", ") else ""
        rows.append(row(f"`0x{each.code:02X}`", each.name, packets, escaped(MEANINGS[ReasonCode(each.code)]), old))
    yield from table(("code", "name", "packets", "meaning here", "3.1.1"), rows)
    yield LOG
    said = sentences()
    for each in REASON_CODES:
        if found := said.get(each.code):
            yield from (f"### 0x{each.code:02X} {each.name}", "", *(f"- {escaped(text)}" for text in sorted(found)), "")


def sentences() -> dict[int, set[str]]:
    """The sentences by reason code, of all calls in the sources that have both as constants."""
    found: dict[int, set[str]] = defaultdict(set)
    root = Path(broker.__file__).resolve().parents[1]
    for path in sorted(p for package in ("_speedups", "broker", "cluster") for p in (root / package).rglob("*.py")):
        text = path.read_text("utf-8")
        if "Code." in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and (said := _said(node)):
                    found[said[0]].add(said[1])
    return found


def _said(call: ast.Call) -> tuple[int, str] | None:
    """The reason code and the sentence of a call; None: it has none."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    arguments = call.args[1:] if name == REFUSE else call.args if name in CALLS else []
    code = next((_code(each) for each in arguments[:1]), None)
    texts = [*arguments[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "reason")]
    words = next((text for each in texts if (text := _text(each))), "")
    return (code, words) if code is not None and words else None


def _code(node: ast.expr) -> int | None:
    is_code = (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("Code", "ReasonCode")
    )
    return int(ReasonCode[node.attr]) if is_code else None


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
