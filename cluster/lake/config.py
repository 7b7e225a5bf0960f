"""The file of `flockmq lake`: from TOML to tables."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...broker.client.log_client import LogClient
from ...broker.config.redis_url import masked
from ...broker.errors import ConfigError, FlockError, nearest
from ..analytics.durations import microseconds
from ..analytics.topic_filter import check_topic_filter
from ..redis.clients import PREFIX, RedisAddress

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)
PARTITIONS = ("day", "hour", "none")
MIB = 1 << 20
OF_REDIS, OF_NODE, OF_ALL = ("redis", "prefix"), ("log", "user", "password", "token"), ("every", "batch_mib", "tables")


@dataclass(frozen=True)
class TableConfig:
    """A table, and the messages that are its rows.

    Attributes:
        name: under which the position is registered in Redis; unique.
        table: of Delta: directory or URL; of Iceberg: NAMESPACE.TABLE of the catalog.
        format: DELTA or ICEBERG.
        filters: topic filters.
        partition: of PARTITIONS, of the time at which the broker accepted a message.
        schema: JSON Schema of the payloads; None: the payload is a binary column.
        options: of Delta: storage options, as for S3; of Iceberg: properties of the catalog.
    """

    name: str
    table: str
    format: str = DELTA
    filters: tuple[str, ...] = ("#",)
    partition: str = "day"
    schema: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LogServer:
    """A node, whose log is read over HTTP.

    Attributes:
        url: of its HTTP server.
        user, password: of an MQTT user; None: none.
        token: None: none.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def client(self, filters: Sequence[str]) -> LogClient:
        """A reader of messages. Raises FlockError: the URL is wrong, or there are a user and a token."""
        return LogClient(self.url, filters, username=self.user, password=self.password, token=self.token)


@dataclass(frozen=True)
class LakeConfig:
    """The settings of `flockmq lake`.

    Attributes:
        redis: of the cluster; None: the log is read from a node.
        log: the node; None: the log is read from Redis.
        tables: at least one.
        every: seconds between two commits of a table, if there are messages.
        batch_bytes: of the log, in one commit at most.
    """

    redis: RedisAddress | None
    log: LogServer | None
    tables: tuple[TableConfig, ...]
    every: float = 10.0
    batch_bytes: int = 64 * MIB


def load(path: Path) -> LakeConfig:
    """Read the file.

    Raises:
        ConfigError: it can't be read, or a key is unknown, missing or wrong.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    _known(path, "", found, (*OF_REDIS, *OF_NODE, *OF_ALL))
    if ("redis" in found) == ("log" in found):
        raise ConfigError(
            f"{path}: expected either redis or log",
            'redis = "redis://HOST:PORT" is the Redis of a cluster, log = "http://HOST:PORT" a node that serves HTTP',
        )
    redis, log = (_redis(path, found), None) if "redis" in found else (None, _log(path, found))
    tables = found.get("tables")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{path}: there is no [[tables]]")
    made = tuple(_table(path, number, each) for number, each in enumerate(tables, 1))
    names = [table.name for table in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two tables have the name {name}; name = ... gives one another name")
    return LakeConfig(
        redis,
        log,
        made,
        _value(path, "every", found.get("every", "10 s"), lambda text: microseconds(str(text)) / 1e6),
        _value(path, "batch_mib", found.get("batch_mib", 64), _mebibytes),
    )


def _redis(path: Path, found: Mapping[str, Any]) -> RedisAddress:
    _known(path, "with redis", found, (*OF_REDIS, *OF_ALL))
    try:
        return RedisAddress.parse(found["redis"], str(found.get("prefix", PREFIX)))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: redis: {error}, not {masked(str(found['redis']))!r}") from None


def _log(path: Path, found: Mapping[str, Any]) -> LogServer:
    _known(path, "with log", found, (*OF_NODE, *OF_ALL))
    for name in OF_NODE:
        if not isinstance(found.get(name, ""), str):
            raise ConfigError(f"{path}: {name}: expected a text")
    server = LogServer(found["log"], found.get("user"), found.get("password"), found.get("token"))
    try:
        server.client(())
    except FlockError as error:
        raise ConfigError(f"{path}: log: {error.message}", error.hint) from None
    return server


def _table(path: Path, number: int, given: Any) -> TableConfig:
    where = f"tables, number {number}"
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: {where}: expected a table [[tables]]")
    _known(path, where, given, ("name", "table", "format", "filter", "partition", "schema", "options"))
    if not isinstance(given.get("table"), str) or not given["table"]:
        raise ConfigError(f'{path}: {where}: table is missing: a directory, "s3://BUCKET/PATH", or "NAMESPACE.TABLE"')
    kind = given.get("format", DELTA)
    if kind not in FORMATS:
        raise ConfigError(f"{path}: {where}: format: expected {' or '.join(FORMATS)}, not {kind!r}")
    if kind == ICEBERG and given["table"].count(".") < 1:
        raise ConfigError(f"{path}: {where}: table: an Iceberg table is NAMESPACE.TABLE, not {given['table']!r}")
    partition = given.get("partition", "day")
    if partition not in PARTITIONS:
        raise ConfigError(f"{path}: {where}: partition: expected {', '.join(PARTITIONS)}, not {partition!r}")
    filters = given.get("filter", "#")
    listed = [filters] if isinstance(filters, str) else filters
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) for each in listed):
        raise ConfigError(f"{path}: {where}: filter: expected a topic filter, or a list of topic filters")
    options = given.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise ConfigError(f"{path}: {where}: options: expected texts")
    schema = given.get("schema")
    return TableConfig(
        name=str(given.get("name", given["table"].rstrip("/").rpartition("/")[2])),
        table=given["table"],
        format=kind,
        filters=tuple(_value(path, f"{where}: filter", each, check_topic_filter) for each in listed),
        partition=partition,
        schema=None if schema is None else path.parent / str(schema),
        options=options,
    )


def _known(path: Path, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{path}: {where + ': ' if where else ''}unknown key {name}", hint)


def _value(path: Path, name: str, value: Any, parse: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{path}: {name}: {error}") from None


def _mebibytes(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= 4096:
        raise ValueError("expected a whole number of MiB, from 1 to 4096")
    return value * MIB
