"""The options of the source, as fields; an error about a wrong one is one sentence, without passwords."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..redis.clients import PREFIX, RedisAddress
from .errors import OptionError
from .log.properties import PropertyColumn, parse_columns
from .option_parser import Option, boolean, parse_fields, seconds
from .position import Position
from .times import parse_time
from .topic_filter import check_topic_filter

if TYPE_CHECKING:
    from .columns import Columns

MIB = 1 << 20
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"(\d{1,15})\s*(?:([bkmg])|([kmg])i?b)?", re.I)
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class SourceOptions:
    """The options of `spark.read.format("flockmq")`."""

    redis: RedisAddress
    prefix: str = PREFIX
    # The start of a new query: EARLIEST, LATEST, microseconds since 1970, or positions by node id.
    starting_offsets: str | int | dict[str, Position] = EARLIEST
    max_bytes_per_trigger: int = 256 * MIB
    bytes_per_partition: int = 32 * MIB  # smaller ones are faster only with more cores
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    trim_committed: bool = False
    job: str = ""  # the name under which positions are registered
    since: int | None = None  # us
    until: int | None = None  # us
    nodes: tuple[str, ...] = ()  # names or ids; empty: all
    topic_filters: tuple[str, ...] = ()  # empty: all topics
    properties: tuple[PropertyColumn, ...] = ()  # decoded columns
    columns: "Columns | None" = None  # of the payload; None: the payload is one
    archive: str = ""  # a table with the messages before the log; empty: none
    redis_patience: float = field(default=60.0)  # seconds of retries while Redis is away


def parse_options(options: Mapping[str, str], now: float | None = None) -> SourceOptions:
    """The options as Spark passes them; the case of their names is ignored.

    Raises:
        OptionError: an option is unknown, missing or wrong.
    """
    now = time.time() if now is None else now
    fields = parse_fields("source", options, OPTIONS, now, shown=names())
    if "redis" not in fields:
        raise OptionError("the option redis is missing", '.option("redis", "redis://HOST:PORT") names the cluster\'s')
    fields["redis"] = replace(fields["redis"], prefix=fields.get("prefix", PREFIX))
    made = SourceOptions(**fields)
    if made.trim_committed and not made.job:
        raise OptionError(
            "the option trimCommitted needs a name under which this query's positions are known",
            '.option("job", NAME) gives one; it must be no other query\'s',
        )
    if made.archive and (made.nodes or made.starting_offsets != EARLIEST):
        raise OptionError(
            "the option archive can't be combined with node or startingOffsets", "filter the column node, or the time"
        )
    if made.since is not None and made.until is not None and made.since >= made.until:
        raise OptionError("the option since is not before until")
    return made


def parse_size(text: str) -> int:
    """Bytes: "64m", "64 MiB" and "67108864" are the same. Raises ValueError."""
    found = SIZE.fullmatch(text.strip())
    size = int(found[1]) * UNITS[(found[2] or found[3] or "").lower()] if found else 0
    if size < 1:
        raise ValueError("a size such as 64m or 64 MiB")
    return size


def names() -> list[str]:
    """The options' names in their usual case."""
    return sorted({option.name for option in OPTIONS.values()})


def _redis(text: str, _: float) -> RedisAddress:
    return RedisAddress.parse_first(text)


def _text(text: str, _: float) -> str:
    return text


def _size(text: str, _: float) -> int:
    return parse_size(text)


def _count(text: str, _: float) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 100_000 and len(text) < 9):
        raise ValueError("a number from 1 to 100000")
    return int(text)


def _words(text: str, _: float) -> tuple[str, ...]:
    words = tuple(word for part in text.split(",") if (word := part.strip()))
    if not words:
        raise ValueError("names or ids of nodes with commas between them")
    return words


def _topic_filters(text: str, _: float) -> tuple[str, ...]:
    filters = [text]
    if text.startswith("["):
        try:
            filters = json.loads(text)
        except ValueError:
            filters = []
        if not filters or not all(isinstance(one, str) for one in filters):
            raise ValueError('a topic filter, or several as JSON: ["site/#", "+/alarm"]')
    return tuple(check_topic_filter(one) for one in filters)


def _properties(text: str, _: float) -> tuple[PropertyColumn, ...]:
    return parse_columns(text)


def _starting_offsets(text: str, now: float) -> str | int | dict[str, Position]:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    if not text.lstrip().startswith("{"):
        try:
            return parse_time(text, now)
        except ValueError as error:
            raise ValueError(f'earliest, latest, {error}, or JSON: {{"node id": "ms-bytes"}}') from None
    try:
        return {str(node): Position.parse(entry_id) for node, entry_id in json.loads(text).items()}
    except (ValueError, TypeError):
        raise ValueError('positions by node id as JSON: {"node id": "ms-bytes"}') from None


def _columns(text: str, _: float) -> "Columns":
    from .read_columns import read_columns  # needs Arrow, which only sources need

    try:
        return read_columns(text)
    except ValueError as error:
        raise OptionError(f"option schema: {error}") from None


OPTIONS = {
    option.name.lower(): option
    for option in (
        Option("redis", "redis", _redis, is_url=True),
        Option("redisUrl", "redis", _redis, is_url=True),  # Spark never shows an option with url in its name
        Option("redisPatience", "redis_patience", seconds),
        Option("prefix", "prefix", _text),
        Option("startingOffsets", "starting_offsets", _starting_offsets),
        Option("maxBytesPerTrigger", "max_bytes_per_trigger", _size),
        Option("bytesPerPartition", "bytes_per_partition", _size),
        Option("minPartitions", "min_partitions", _count),
        Option("failOnDataLoss", "fail_on_data_loss", boolean),
        Option("trimCommitted", "trim_committed", boolean),
        Option("job", "job", _text),
        Option("since", "since", parse_time),
        Option("until", "until", parse_time),
        Option("node", "nodes", _words),
        Option("topicFilter", "topic_filters", _topic_filters),
        Option("properties", "properties", _properties),
        Option("schema", "columns", _columns),
        Option("archive", "archive", _text),
    )
}
