"""The options of the job: one list for `flockmq analytics run` and for the same job under `spark-submit`."""

import json
import re
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace, _ArgumentGroup
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...broker.commands.parser import Parser
from ...broker.config.redis_url import RedisUrl, masked
from ...broker.errors import UsageError
from ..tables.place import FORMATS
from . import durations
from .log.properties import parse_columns
from .options import parse_size
from .tables import RESULTS
from .topic_filter import check_topic_filter

PREFIX = "mq:"
PARQUET = "parquet"
GROUPS = {"top": ("top_clients", "top_topics")}
PATH = re.compile(r"\$(\.[^.\[\]*'\"]+|\[\d+\])+")
EXAMPLES = """\
  flockmq analytics run --redis redis://10.0.0.5:6379 --output /srv/fleet --archive
  flockmq analytics run --redis redis://10.0.0.5 --output /srv/fleet --field 'site/+/temp=$.value' --depth 2
  flockmq analytics run --redis redis://10.0.0.5 --output /srv/fleet --archive --results none --once
  spark-submit --py-files flockmq-analytics.zip job.py --redis redis://10.0.0.5 --output hdfs:///fleet"""


@dataclass(frozen=True)
class Options:
    """The options of the job. Durations are microseconds."""

    output: str
    redis: str = ""
    prefix: str = PREFIX
    checkpoint: str = ""
    master: str = ""
    format: str = PARQUET  # or a format of tables
    table_options: dict[str, str] = field(default_factory=dict)
    archive: bool = False
    results: frozenset[str] = frozenset(RESULTS)
    depth: int = 1  # levels of a topic name that make its prefix
    top: int = 10
    window: int = 60_000_000
    watermark: int = 10_000_000
    silent_factor: float = 3.0
    silent_least: int = 10_000_000
    forget: int = 7 * 86_400_000_000
    outlier_score: float = 3.5
    fields: tuple[tuple[str, str], ...] = ()  # topic filter, JSON path
    live: bool = True
    live_topics: int = 1000
    trigger: int = 5_000_000
    compact: bool = True
    once: bool = False
    source: dict[str, str] = field(default_factory=dict)  # options of the data source
    verbose: bool = False

    def __post_init__(self) -> None:
        if not self.checkpoint:
            object.__setattr__(self, "checkpoint", f"{self.output}/_checkpoint")


def _checked(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse that keeps the text of the ValueError."""

    def parse(text: str) -> Any:
        try:
            return function(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return parse


def _expected(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """As above; the text of the ValueError completes "expected ..."."""

    def parse(text: str) -> Any:
        try:
            return function(text)
        except ValueError as error:
            raise ArgumentTypeError(f"expected {error}, not {text!r}") from None

    return parse


def _duration(text: str) -> int:
    if not (value := durations.microseconds(text)):
        raise ValueError("it must be more than 0")
    return value


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1_000_000):
        raise ValueError(f"{text!r} is no number from 1 to 999999")
    return int(text)


def _table_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return name, value


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value < 1e6:
        raise ValueError(f"{text!r} is no number from 1 up")
    return value


def _field(text: str) -> tuple[str, str]:
    """`FILTER=$.path`; a filter may contain `=`, so the last one before `$` separates."""
    topic_filter, found, path = text.rpartition("=$")
    if not found or not PATH.fullmatch(f"${path}"):
        raise ValueError(f"{text!r} is not FILTER=$.PATH such as 'site/+/temp=$.value'")
    try:
        return check_topic_filter(topic_filter), f"${path}"
    except ValueError as error:
        raise ValueError(f"expected {error}, not {topic_filter!r}") from None


def _results(text: str) -> frozenset[str]:
    names: set[str] = set()
    for name in text.split(","):
        if name.strip() not in (*RESULTS, *GROUPS, "all", "none"):
            raise ValueError(f"there is no result {name.strip()!r}, but {', '.join([*RESULTS, *GROUPS])}, all and none")
        names |= {"all": set(RESULTS), "none": set()}.get(name.strip(), set(GROUPS.get(name.strip(), [name.strip()])))
    return frozenset(names)


def _properties(text: str) -> str:
    parse_columns(text)
    return text


def _url(text: str) -> str:
    try:
        for url in text.split() or [text]:  # the first has the logs
            RedisUrl.parse(url)
    except ValueError as error:
        raise ValueError(f"{masked(text)!r}: expected {error}") from None
    return text


def add_options(parser: Parser) -> None:
    """All options of the job."""
    _add_places(parser.add_argument_group("input and output"))
    _add_results(parser.add_argument_group("results"))
    _add_course(parser.add_argument_group("how it runs"))


def _add_places(group: _ArgumentGroup) -> None:
    group.add_argument("--redis", metavar="URL", type=_checked(_url), required=True, help="the cluster's Redis")
    group.add_argument("--prefix", default=PREFIX, help=f"of its keys [{PREFIX}]")
    group.add_argument("--output", metavar="DIR", required=True, help="directory for the tables, any URI of Spark")
    group.add_argument(
        "--format",
        choices=(PARQUET, *FORMATS),
        default=PARQUET,
        help="of the tables: parquet, delta, iceberg [parquet]",
    )
    group.add_argument(
        "--table-option",
        type=_checked(_table_option),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Delta: storage option; Iceberg: property of the catalog, and namespace=NAME; may be repeated",
    )
    group.add_argument("--checkpoint", metavar="DIR", default="", help="the job's progress and state [DIR/_checkpoint]")
    group.add_argument("--archive", action="store_true", help="every message too, in DIR/messages")
    group.add_argument(
        "--starting-offsets",
        default="earliest",
        metavar="WHERE",
        help="of the first run: earliest, latest or a time such as 2026-01-31T12:00:00Z [earliest]",
    )
    group.add_argument(
        "--max-bytes-per-trigger",
        metavar="BYTES",
        type=_expected(parse_size),
        default=256 << 20,
        help="of the logs, in one batch: bounds the job's memory [256 MiB]",
    )
    group.add_argument(
        "--fail-on-data-loss",
        action=BooleanOptionalAction,
        default=True,
        help="end when messages were trimmed before they were read; else log it and continue",
    )
    group.add_argument(
        "--filter",
        type=_expected(check_topic_filter),
        action="append",
        default=[],
        metavar="FILTER",
        help="only messages whose topic names match; may be repeated",
    )
    group.add_argument(
        "--properties",
        type=_expected(_properties),
        metavar="NAME,...",
        help="columns of the archive with properties of messages: content-type, response-topic, user.NAME, ...",
    )
    group.add_argument("--trim", action="store_true", help="trim the entries that all jobs have read from the logs")


def _add_results(group: _ArgumentGroup) -> None:
    duration = _checked(_duration)
    group.add_argument(
        "--results",
        type=_checked(_results),
        default=frozenset(RESULTS),
        metavar="NAME,...",
        help=f"which: {', '.join(RESULTS)}; all or none [all]",
    )
    group.add_argument("--window", type=duration, default=60_000_000, metavar="TIME", help="a row for each [1 minute]")
    group.add_argument(
        "--watermark",
        type=duration,
        default=10_000_000,
        metavar="TIME",
        help="how long a window waits for messages of nodes that are late [10 seconds]",
    )
    group.add_argument(
        "--depth",
        type=_checked(_number),
        default=1,
        metavar="N",
        help="levels of a topic name that make its prefix [1]",
    )
    group.add_argument("--top", type=_checked(_number), default=10, metavar="N", help="of top clients and topics [10]")
    group.add_argument(
        "--field",
        type=_checked(_field),
        action="append",
        default=[],
        metavar="FILTER=$.PATH",
        help="a number in JSON payloads, such as 'site/+/temp=$.value'; may be repeated",
    )
    group.add_argument(
        "--silent-factor",
        type=_checked(_factor),
        default=3.0,
        metavar="N",
        help="a device is silent after N times its usual interval [3]",
    )
    group.add_argument(
        "--silent-least", type=duration, default=10_000_000, metavar="TIME", help="but not before [10 seconds]"
    )
    group.add_argument(
        "--forget",
        type=duration,
        default=7 * 86_400_000_000,
        metavar="TIME",
        help="devices that have been silent for so long [7 days]",
    )
    group.add_argument(
        "--outlier-score",
        type=_checked(_factor),
        default=3.5,
        metavar="Z",
        help="robust z-score from which a value is an outlier [3.5]",
    )
    group.add_argument(
        "--live",
        action=BooleanOptionalAction,
        default=True,
        help="the latest results as retained messages below $SYS/analytics/",
    )
    group.add_argument(
        "--live-topics",
        type=_checked(_number),
        default=1000,
        metavar="N",
        help="maximum of them; the least recently set is removed first [1000]",
    )


def _add_course(group: _ArgumentGroup) -> None:
    group.add_argument("--master", default="", help="of Spark [local[*], or that of spark-submit]")
    group.add_argument(
        "--trigger", type=_checked(_duration), default=5_000_000, metavar="TIME", help="a batch for each [5 seconds]"
    )
    group.add_argument(
        "--compact",
        action=BooleanOptionalAction,
        default=True,
        help="merge the small files of an hour, ten minutes after its end",
    )
    group.add_argument("--once", action="store_true", help="read all entries, then end")
    group.add_argument("--verbose", action="store_true", help="with the log of Spark itself")


def parse(parser: Parser, arguments: list[str]) -> Options:
    """The options of a command line.

    Raises:
        UsageError: it is invalid.
    """
    args = parser.parse(arguments)
    names = Options.__dataclass_fields__.keys() - {"fields", "source", "table_options"}
    given = {name: value for name, value in vars(args).items() if name in names}
    given["output"] = given["output"].rstrip("/") or "/"
    tables = dict(args.table_option)
    options = Options(**given, fields=tuple(args.field), source=_source(args), table_options=tables)
    if tables and options.format == PARQUET:
        raise UsageError("--table-option is for tables of Delta or Iceberg", "--format names the format")
    if not options.results and not options.archive:
        raise UsageError("there is nothing to do with --results none", "--archive writes the messages")
    if args.properties and not options.archive:
        raise UsageError("--properties has columns for the archive", "--archive writes the messages")
    return options


def _source(args: Namespace) -> dict[str, str]:
    filters = {"topicFilter": json.dumps(args.filter)} if args.filter else {}
    properties = {"properties": args.properties} if args.properties else {}
    return (
        filters
        | properties
        | {
            "redis": args.redis,
            "prefix": args.prefix,
            "startingOffsets": args.starting_offsets,
            "maxBytesPerTrigger": str(args.max_bytes_per_trigger),
            "failOnDataLoss": str(args.fail_on_data_loss).lower(),
            "trimCommitted": str(args.trim).lower(),
        }
    )
