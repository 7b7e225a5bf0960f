"""The flags that set configuration, shared by `serve` and `check-config`; derived from `flockmq.broker.config.keys`."""

from argparse import Namespace

from ..config.declared_group import DeadLetterTopic
from ..config.keys import KEYS
from ..config.kinds import (
    Addresses,
    Choice,
    Duration,
    FilePath,
    Integer,
    Kind,
    ListenUrls,
    Name,
    PythonObjects,
    RedisUrlKind,
    Size,
    StoreUrl,
    TopicFilters,
    Workers,
)
from ..errors import UsageError
from .parser import Parser


def add_settings(parser: Parser) -> None:
    """One flag for each key that has one, then `--set` for all keys, and `--config`."""
    group = parser.add_argument_group(
        "configuration (flags win over FLOCKMQ_SECTION_KEY variables, those over the file)"
    )
    group.add_argument("--config", metavar="FILE", help="read this TOML file; `flockmq sample-config` prints one")
    for key in KEYS.values():
        if key.flag:
            group.add_argument(
                key.flag,
                dest=key.name,
                action="append" if isinstance(key.kind, (Addresses, PythonObjects, TopicFilters)) else "store",
                metavar=metavar(key.kind),
                help=f"{key.help}{shown(key.field.default)}",
            )
    group.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key, such as limits.max_inflight=20",
    )
    parser.add_general_help(group)


def metavar(kind: Kind) -> str:
    """The placeholder of a value in the help."""
    if isinstance(kind, Choice):
        return "|".join(kind.words)
    words: dict[type[Kind], str] = {
        Addresses: "HOST:PORT",
        DeadLetterTopic: "TOPIC",
        Duration: "DURATION",
        FilePath: "FILE",
        Integer: "N",
        ListenUrls: "HOST:PORT|URL",
        Name: "NAME",
        PythonObjects: "MODULE:OBJECT",
        RedisUrlKind: "URL",
        Size: "SIZE",
        StoreUrl: "memory|sqlite:PATH",
        TopicFilters: "FILTER",
        Workers: "N|auto",
    }
    return words[type(kind)]


def shown(default: object) -> str:
    """A default in the help."""
    text = ", ".join(default) if isinstance(default, tuple) else str(default)
    return f" [{text}]" if text else ""


def overrides(args: Namespace) -> dict[str, object]:
    """The settings of the flags: key name -> text. Raises UsageError."""
    found = {name: value for name, value in vars(args).items() if name in KEYS and value is not None}
    for setting in args.settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r}: expected KEY=VALUE", "such as --set limits.max_inflight=20")
        found[name.strip()] = value.strip()
    return found
