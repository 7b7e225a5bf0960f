"""The flags of level 5: properties of packets (`-D`), session expiry (`-x`); names are as in mosquitto."""

from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from ..._speedups.codec.tables import Property

COMMANDS = ("connect", "publish", "subscribe", "unsubscribe", "will", "disconnect", "auth")
FLAGS = ("-D", "--property")
NEVER = 0xFFFFFFFF  # Session Expiry Interval of a session that does not expire [5: 3.1.2.11.2]
USER_PROPERTY = "user-property"


def add_property_options(group: "_ArgumentGroup") -> None:
    """The flags for properties of packets. `split_properties` takes the values of `-D` from the command line."""
    group.add_argument(
        *FLAGS,
        dest="properties",
        metavar="COMMAND NAME VALUE",
        default=SUPPRESS,
        help=f"a property of a packet, repeatable; COMMAND is {', '.join(COMMANDS)}; NAME as in `-D publish "
        "content-type text/plain`; `user-property` has a name and a value",
    )
    group.add_argument(
        "-x",
        "--session-expiry",
        type=session_expiry,
        metavar="SECONDS",
        help="how long the session lives after the connection; -1 = for ever [0; with -c for ever]",
    )


def session_expiry(text: str) -> int:
    """An argument type: a Session Expiry Interval in seconds; -1 and ∞ are the interval without end."""
    if text in ("-1", "∞"):
        return NEVER
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= NEVER):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds up to {NEVER}, or -1")
    return int(text)


def split_properties(arguments: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take the groups of `-D` out of a command line: argparse has no flags with three or four values.

    Returns:
        The rest of the arguments, and the properties by command and by their name in the codec.

    Raises:
        UsageError: a command, property or value is wrong.
    """
    rest: list[str] = []
    properties: dict[str, dict[str, Any]] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument not in FLAGS:
            rest.append(argument)
            continue
        count = 4 if waiting[1:2] == [USER_PROPERTY] else 3
        if len(waiting) < count:
            raise UsageError(
                f"{argument} {' '.join(waiting)}: expected COMMAND NAME VALUE, or COMMAND {USER_PROPERTY} NAME VALUE"
            )
        command, name, *values = waiting[:count]
        del waiting[:count]
        add_property(properties, command, name, values)
    return rest, properties


def add_property(properties: dict[str, dict[str, Any]], command: str, name: str, values: list[str]) -> None:
    """Add the property of one `-D`. Raises UsageError."""
    from ..._speedups.codec.tables import PACKET_TYPES, PROPERTIES

    flag = f"-D {command} {name}"
    if command not in COMMANDS:
        raise UsageError(f"{flag}: unknown command {command!r}", f"there are {', '.join(COMMANDS)}")
    owner = next((row.packet_type for row in PACKET_TYPES if row.name == command.upper()), 0)  # 0: the will
    allowed = {
        row.name.replace("_", "-"): row
        for row in PROPERTIES
        # The identifier of a subscription is in a PUBLISH only when the broker sends it [5: MQTT-3.3.4-6].
        if row.packets >> owner & 1 and not (command == "publish" and row.name == "subscription_identifier")
    }
    row = allowed.get(name)
    if row is None:
        raise UsageError(f"{flag}: {command} has no such property", f"it has {', '.join(sorted(allowed))}")
    found = properties.setdefault(command, {})
    value = property_value(row, values, flag)
    if name == USER_PROPERTY:
        found.setdefault(row.name, []).append(value)
    elif row.name in found:
        raise UsageError(f"{flag}: given twice")
    else:
        found[row.name] = value


def property_value(row: "Property", values: list[str], flag: str) -> Any:
    """The value of a property, by its wire type. Raises UsageError."""
    from ..._speedups.codec.tables import WireType

    value = values[0]
    if row.wire == WireType.PAIR:
        return value, values[1]
    if row.wire == WireType.BINARY:
        return value.encode("utf-8", "surrogateescape")
    if row.wire in (WireType.STRING, WireType.TOPIC):
        return value
    most = {WireType.BYTE: 1, WireType.TWO_BYTES: 65535, WireType.VARINT: 268_435_455}.get(WireType(row.wire), NEVER)
    least = 0 if row.zero_code is None else 1
    if not (value.isascii() and value.isdigit() and len(value) < 11 and least <= int(value) <= most):
        raise UsageError(f"{flag}: expected a number from {least} to {most}, got {value!r}")
    return int(value)


def check_level(args: Namespace, level: int | None, needs_5: Sequence[str]) -> int:
    """The protocol level: as `-V` has it, else 5 if there is a flag that needs it, else 4. Raises UsageError.

    Args:
        args: with `properties` and `session_expiry`.
        level: of `-V`, None without it.
        needs_5: other flags in use that need level 5.
    """
    needs = [*needs_5, *(["-D"] if args.properties else []), *(["-x"] if args.session_expiry is not None else [])]
    if level is not None and level < 5 and needs:
        raise UsageError(f"{needs[0]} needs -V 5", "earlier versions of MQTT have no properties")
    return level or (5 if needs else 4)


def auth_properties(args: Namespace) -> dict[str, Any]:
    """The properties of AUTH, with which the client answers an AUTH of the broker. Raises UsageError."""
    properties: dict[str, Any] = args.properties.get("auth", {})
    if properties and "authentication_method" not in args.properties.get("connect", {}):
        raise UsageError("-D auth needs a method", "-D connect authentication-method NAME")
    return properties


def connect_properties(args: Namespace, level: int) -> dict[str, Any]:
    """The properties of CONNECT. Raises UsageError."""
    properties = dict(args.properties.get("connect", {}))
    if args.session_expiry is not None:
        if "session_expiry_interval" in properties:
            raise UsageError("-x and -D connect session-expiry-interval exclude each other")
        properties["session_expiry_interval"] = args.session_expiry
    elif level == 5 and args.persistent:
        properties.setdefault("session_expiry_interval", NEVER)
    return properties
