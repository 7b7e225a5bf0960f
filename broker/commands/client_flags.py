"""The flags `pub` and `sub` share, with mosquitto's letters, and the client's options that they set."""

import os
import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..config.broker_url import PORTS, SECURE, WEB, WEB_PATH, port_of
from ..errors import UsageError
from .client_tls_flags import add_tls_options, tls_context
from .parser import Parser
from .property_flags import (
    add_property_options,
    auth_properties,
    check_level,
    connect_properties,
    split_properties,
)

if TYPE_CHECKING:
    from ..._speedups.protocol.client_session import Will
    from ..client.options import Options

LEVELS = {"mqttv31": 3, "31": 3, "3.1": 3, "mqttv311": 4, "311": 4, "3.1.1": 4, "mqttv5": 5, "5": 5, "5.0": 5}
UNSAID: tuple[Any, ...] = (None, False, {})  # values that `-d` leaves out


def add_client_options(parser: Parser) -> None:
    """The flags for connection, session and will."""
    group = parser.add_argument_group("connection")
    group.add_argument("-h", "--host", default="localhost", help="the broker's host [localhost]")
    group.add_argument(
        "-p", "--port", type=number(1, 65535), help="its port [1883; 8883 with TLS; with --ws 80, and 443 with TLS]"
    )
    group.add_argument("--unix", metavar="PATH", help="its Unix socket, instead of host and port")
    group.add_argument(
        "-L",
        "--url",
        metavar="URL",
        help="all in one: mqtt://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC; also mqtts:// for TLS, ws:// and wss://",
    )
    group.add_argument("--ws", action="store_true", help="over WebSocket")
    group.add_argument("--ws-path", metavar="PATH", help=f"its path; turns WebSocket on [{WEB_PATH}]")
    group.add_argument("-u", "--username", metavar="USER", help="user name")
    group.add_argument("-P", "--pw", dest="password", metavar="PASSWORD", help="password")
    group.add_argument(
        "-V",
        "--protocol-version",
        dest="level",
        metavar="VERSION",
        help="mqttv31, mqttv311 or mqttv5 [mqttv311; mqttv5 with a flag that needs it, such as -D and -x]",
    )
    group.add_argument(
        "-k", "--keepalive", type=number(0, 65535), default=60, metavar="SECONDS", help="keep alive, 0 = none [60]"
    )
    add_tls_options(parser)
    group = parser.add_argument_group("session")
    group.add_argument("-i", "--id", dest="client_id", metavar="ID", help="client identifier [a new one each time]")
    group.add_argument("-I", "--id-prefix", metavar="PREFIX", help="client identifier: PREFIX and the process id")
    group.add_argument(
        "-c", "--disable-clean-session", dest="persistent", action="store_true", help="keep the session; needs -i"
    )
    add_property_options(parser.add_argument_group("MQTT 5"))
    group = parser.add_argument_group("will, published by the broker when this client dies")
    group.add_argument("--will-topic", metavar="TOPIC", help="its topic name")
    group.add_argument("--will-payload", metavar="TEXT", help="its payload [empty]")
    group.add_argument("--will-qos", type=number(0, 2), metavar="QOS", help="0, 1 or 2 [0]")
    group.add_argument("--will-retain", action="store_true", help="retained")
    group = parser.add_argument_group("output")
    group.add_argument("-d", "--debug", action="store_true", help="each packet, on standard error")
    group.add_argument("--quiet", action="store_true", help="no errors, only the exit status")
    group.add_argument("--nodelay", action="store_true", help=SUPPRESS)  # always so
    parser.add_general_help(group)


def parse(parser: Parser, arguments: Sequence[str]) -> Namespace:
    """The command line; `properties` of the result are from `-D`. Raises UsageError."""
    rest, properties = split_properties(arguments)
    args = parser.parse(rest)
    args.properties = properties
    return args


def number(low: int, high: int) -> Callable[[str], int]:
    """An argument type: a whole number within bounds."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return convert


def seconds(text: str) -> float:
    """An argument type: a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def encoded(text: str) -> bytes:
    """The bytes of an argument."""
    return os.fsencode(text)


def apply_url(args: Namespace) -> str | None:
    """Set `args` from `-L`; returns its topic. Raises UsageError."""
    if args.url is None:
        return None
    try:
        parts = urlsplit(args.url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"-L {args.url!r}: {error}") from None
    topic = unquote(args.url.partition("://")[2].partition("/")[2])  # "#" and "?" belong to the topic
    if parts.scheme not in PORTS or not parts.hostname or not topic:
        raise UsageError(
            f"-L {args.url!r}: expected mqtt://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or mqtts://, ws://, wss://",
            "the path of WebSocket is --ws-path",
        )
    args.host, args.port = parts.hostname, port
    args.tls = args.tls or parts.scheme in SECURE
    args.ws = args.ws or parts.scheme in WEB
    if parts.username is not None:
        args.username = unquote(parts.username)
    if parts.password is not None:
        args.password = unquote(parts.password)
    return topic


def client_options(args: Namespace, command: str, needs_5: Sequence[str] = (), **more: Any) -> "Options":
    """The options of the shared flags, and of `needs_5`, other flags in use that need level 5. Raises UsageError."""
    from ..client.options import Options

    if args.level is not None and args.level not in LEVELS:
        raise UsageError(f"-V {args.level}: expected mqttv31, mqttv311 or mqttv5")
    level = check_level(args, None if args.level is None else LEVELS[args.level], needs_5)
    if args.password is not None and args.username is None and level < 5:
        raise UsageError("-P needs -u", "before MQTT 5 there is no password without a user name")
    if args.persistent and not args.client_id:
        raise UsageError("-c needs -i", "a session is found again by its client identifier")
    if args.client_id is not None and args.id_prefix is not None:
        raise UsageError("-i and -I exclude each other")
    if args.client_id is not None:
        client_id = args.client_id
    elif args.id_prefix is not None:
        client_id = f"{args.id_prefix}{os.getpid()}"
    else:
        client_id = f"flockmq-{command}-{os.urandom(4).hex()}"  # 20 characters: MQTT 3.1 allows 23
    tls = tls_context(args)
    web_path = websocket_path(args)
    if args.unix and (tls or web_path):
        raise UsageError("--unix: TLS and WebSocket are for networks")
    return Options(
        host=args.host,
        port=args.port or port_of(is_web=bool(web_path), is_secure=tls is not None),
        tls=tls,
        unix=args.unix or "",
        websocket=web_path,
        client_id=client_id,
        level=level,
        properties=connect_properties(args, level),
        auth_properties=auth_properties(args),
        clean_start=not args.persistent,
        keep_alive=args.keepalive,
        username=args.username,
        password=None if args.password is None else encoded(args.password),
        will=will(args),
        **more,
    )


def websocket_path(args: Namespace) -> str:
    """The path of WebSocket; empty: MQTT without it. Raises UsageError."""
    if args.ws_path is not None and not args.ws_path.startswith("/"):
        raise UsageError(f"--ws-path {args.ws_path!r}: expected a path, such as {WEB_PATH}")
    return (args.ws_path or WEB_PATH) if args.ws or args.ws_path else ""


def will(args: Namespace) -> "Will | None":
    """The will the flags describe, if any. Raises UsageError."""
    from ..._speedups.protocol.client_session import Will

    if args.will_topic is None:
        if args.will_payload is not None or args.will_qos is not None or args.will_retain:
            raise UsageError("--will-payload, --will-qos and --will-retain need --will-topic")
        if args.properties.get("will"):
            raise UsageError("-D will needs --will-topic")
        return None
    check_topic_name(args.will_topic, "--will-topic")
    payload, properties = encoded(args.will_payload or ""), args.properties.get("will", {})
    return Will(args.will_topic, payload, args.will_qos or 0, args.will_retain, properties)


def check_topic_name(topic: str, flag: str) -> None:
    """Raises UsageError: a client can't publish to `topic`."""
    from ..._speedups.codec.topics import InvalidTopic, validate_topic_name

    try:
        validate_topic_name(topic)
    except (InvalidTopic, UnicodeError) as error:
        raise UsageError(f"{flag} {topic!r}: {error}") from None


def check_topic_filter(topic_filter: str, flag: str) -> None:
    """Raises UsageError: a client can't subscribe with `topic_filter`."""
    from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter

    try:
        validate_topic_filter(topic_filter)
    except (InvalidTopic, UnicodeError) as error:
        raise UsageError(f"{flag} {topic_filter!r}: {error}") from None


def warn(text: str) -> None:
    """Print one line on standard error."""
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    print(f"flockmq: {line}", file=sys.stderr, flush=True)


def print_packet(direction: str, packet: Any) -> None:
    """Print a packet, for `-d`."""
    names = (
        "packet_id",
        "topic_name",
        "topic_filters",
        "qos",
        "retain",
        "dup",
        "reason_code",
        "reason_codes",
        "client_id",
        "properties",
    )
    fields = [f"{name}={getattr(packet, name)!r}" for name in names if getattr(packet, name, None) not in UNSAID]
    payload = getattr(packet, "payload", None)
    if payload is not None:
        fields.append(f"({len(payload)} bytes)")
    warn(f"{direction} {type(packet).__name__.upper()} {' '.join(fields)}".rstrip())
