"""The TOML file of a program that follows the log: where the log is, and typed values with clear errors."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...broker.client.log_client import LogClient
from ...broker.config.redis_url import masked
from ...broker.errors import ConfigError, FlockError, nearest
from ...broker.schemas.open import SPARKPLUG
from ..analytics.columns import Columns
from ..analytics.durations import microseconds
from ..analytics.read_columns import read_columns
from ..analytics.topic_filter import check_topic_filter
from ..redis.clients import PREFIX, RedisAddress

MIB = 1 << 20
VARIABLE = re.compile(r"\$\{(\w+)\}")
Value = TypeVar("Value")
OF_REDIS, OF_NODE = ("prefix",), ("user", "password", "token")
REQUIRED: Any = object()  # in place of a default


class Section:
    """A table of the file. Each key is read once; `end` refuses the others.

    Args:
        path: of the file.
        where: of the table in the file, for errors; empty: the file itself.
        given: the values.
    """

    def __init__(self, path: Path, where: str, given: Any) -> None:
        self.path = path
        self.where = where
        if not isinstance(given, dict):
            raise self.error("expected a table")
        self.given: Mapping[str, Any] = given
        self._known: list[str] = []

    def error(self, text: str, hint: str = "") -> ConfigError:
        """An error about this table."""
        return ConfigError(f"{self.path}: {self.where + ': ' if self.where else ''}{text}", hint)

    def value(self, name: str, default: Any, parse: Callable[[Any], Value]) -> Value:
        """A value. `parse` raises ValueError; the default is not parsed.

        Raises:
            ConfigError: it is missing, or wrong.
        """
        self._known.append(name)
        if name not in self.given:
            if default is REQUIRED:
                raise self.error(f"{name} is missing")
            return default  # type: ignore[no-any-return]
        try:
            return parse(self.given[name])
        except ValueError as error:
            raise self.error(f"{name}: {error}") from None

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A text that is not empty, with environment variables, ${NAME}, replaced."""
        return self.value(name, default, replaced)

    def texts(self, name: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """A text, or a list of texts."""
        return self.value(name, default, _texts)

    def choice(self, name: str, choices: tuple[str, ...], default: Any = REQUIRED) -> str:
        """One of some words."""

        def parse(given: Any) -> str:
            if given not in choices:
                raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}, not {given!r}")
            return str(given)

        return self.value(name, default, parse)

    def boolean(self, name: str, default: Any = REQUIRED) -> bool:
        """true or false."""

        def parse(given: Any) -> bool:
            if not isinstance(given, bool):
                raise ValueError(f"expected true or false, not {given!r}")
            return given

        return self.value(name, default, parse)

    def number(self, name: str, low: int, high: int, default: Any = REQUIRED, unit: str = "") -> int:
        """A whole number."""

        def parse(given: Any) -> int:
            if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
                raise ValueError(f"expected a whole number{unit}, from {low} to {high}")
            return given

        return self.value(name, default, parse)

    def seconds(self, name: str, default: Any = REQUIRED) -> float:
        """A duration."""
        return self.value(name, default, lambda given: microseconds(str(given)) / 1e6)

    def mapping(self, name: str) -> dict[str, str]:
        """A table of texts; empty if it is not there. A name with dots need not be quoted."""

        def parse(given: Any) -> dict[str, str]:
            if not isinstance(given, dict):
                raise ValueError("expected a table of texts")
            found: dict[str, str] = {}
            for key, value in given.items():
                within = (
                    {f"{key}.{name}": text for name, text in parse(value).items()} if isinstance(value, dict) else {}
                )
                found |= within or {key: replaced(value)}
            return found

        return self.value(name, {}, parse)

    def filters(self) -> tuple[str, ...]:
        """The topic filters of the key `filter`; all topics without it."""
        return self.value("filter", ("#",), lambda given: tuple(_filter(each) for each in _texts(given)))

    def file(self, name: str) -> Path | None:
        """A file, relative to the file of this table; None if it is not there."""
        return self.value(name, None, lambda given: self.path.parent / replaced(given))

    def columns(self) -> Columns | None:
        """The columns of payloads by the schema of the key `schema`; None without it."""
        name = self.text("schema", "")
        try:
            return read_columns(name if name == SPARKPLUG else str(self.path.parent / name)) if name else None
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def section(self, name: str) -> "Section | None":
        """A table within; None if it is not there."""
        self._known.append(name)
        where = f"{self.where}, {name}" if self.where else name
        return Section(self.path, where, self.given[name]) if name in self.given else None

    def sections(self, name: str) -> "list[Section]":
        """The tables [[name]]: at least one."""
        self._known.append(name)
        found = self.given.get(name)
        if not isinstance(found, list) or not found:
            raise self.error(f"there is no [[{name}]]")
        return [Section(self.path, f"{name}, number {number}", each) for number, each in enumerate(found, 1)]

    @property
    def known(self) -> set[str]:
        """The keys that were read."""
        return set(self._known)

    def end(self) -> None:
        """Refuse keys that were not read."""
        for name in self.given:
            if name not in self._known:
                near = nearest(name, self._known)
                hint = f"did you mean {near}?" if near else f"known are {', '.join(self._known)}"
                raise self.error(f"unknown key {name}", hint)


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
class LogSettings:
    """The log, and how it is followed.

    Attributes:
        redis: of the cluster; None: the log is read from a node.
        server: the node; None: the log is read from Redis.
        every: seconds between two batches, if there are messages.
        batch_bytes: of the log, in one batch at most.
        skips_missing: go on behind messages that are gone from the log; else they are an error.
    """

    redis: RedisAddress | None
    server: LogServer | None
    every: float
    batch_bytes: int
    skips_missing: bool = False


def open_file(path: Path) -> Section:
    """Read a file. Raises ConfigError."""
    try:
        return Section(path, "", tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def log_settings(file: Section, every: float, batch_mib: int) -> LogSettings:
    """The keys of the file about the log.

    Args:
        file: as a whole.
        every, batch_mib: the defaults.

    Raises:
        ConfigError: a value is missing or wrong.
    """
    if ("redis" in file.given) == ("log" in file.given):
        raise file.error(
            "expected either redis or log",
            'redis = "redis://HOST:PORT" is the Redis of a cluster, log = "http://HOST:PORT" a node that serves HTTP',
        )
    other, words = (OF_NODE, "log") if "redis" in file.given else (OF_REDIS, "redis")
    for name in other:
        if name in file.given:
            raise file.error(f"{name} belongs to {words}, which is not there")
    redis, server = (_redis(file), None) if "redis" in file.given else (None, _server(file))
    return LogSettings(
        redis,
        server,
        file.seconds("every", every),
        file.number("batch_mib", 1, 4096, batch_mib, " of MiB") * MIB,
    )


def _redis(file: Section) -> RedisAddress:
    prefix = file.text("prefix", PREFIX)

    def address(given: Any) -> RedisAddress:
        try:
            return RedisAddress.parse_first(replaced(given), prefix)
        except ValueError as error:
            raise ValueError(f"expected {error}, not {masked(str(given))!r}") from None

    return file.value("redis", REQUIRED, address)


def _server(file: Section) -> LogServer:
    server = LogServer(*(file.text(name, None) for name in ("log", *OF_NODE)))
    try:
        server.client(())
    except FlockError as error:
        raise file.error(f"log: {error.message}", error.hint) from None
    return server


def unique_names(file: Section, kind: str, names: list[str]) -> None:
    """Refuse names that are there twice."""
    for name in names:
        if names.count(name) > 1:
            raise file.error(f"two {kind} have the name {name}; name = ... gives one another name")


def replaced(given: Any) -> str:
    """A text that is not empty, with environment variables, ${NAME}, replaced. Raises ValueError: it is none."""
    if not isinstance(given, str) or not given:
        raise ValueError(f"expected a text, not {given!r}")

    def variable(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ValueError(f"the environment variable {found[1]} is not set")
        return os.environ[found[1]]

    return VARIABLE.sub(variable, given)


def _filter(given: str) -> str:
    try:
        return check_topic_filter(given)
    except ValueError as error:
        raise ValueError(f"expected {error}, not {given!r}") from None


def _texts(given: Any) -> tuple[str, ...]:
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(isinstance(each, str) for each in listed):
        raise ValueError("expected a text, or a list of texts")
    return tuple(replaced(each) for each in listed)
