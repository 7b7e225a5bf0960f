"""The kinds of value a configuration key can have: how one is read, checked and written.

Text <-> value only; the kind of each key is in schema.py. A value is text (flags, environment) or a value of TOML
(file); `read` takes both. A refusal is a `ValueError` that completes the sentence "expected ...".
"""

import json
import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_network

from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter
from ..errors import nearest
from .listen_url import EXPECTED as LISTEN_EXPECTED
from .listen_url import ListenUrl, hosts_and_port
from .listen_url import split_address as split_address
from .redis_url import EXPECTED as REDIS_EXPECTED
from .redis_url import RedisUrl, masked

NUMBER_AND_UNIT = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", re.ASCII)
WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
BOOLEAN_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}


def not_one(kind: str, name: str, known: Collection[str]) -> ValueError:
    """The error for a key that a table can't have; its text completes "expected ..."."""
    near = nearest(name, known)
    if near:
        return ValueError(f"{kind}, not {name!r}: did you mean {near}?")
    return ValueError(f"{kind} ({', '.join(known)}), not {name!r}")


class Kind:
    """One kind of value; subclasses describe it, read it and write it as TOML."""

    is_table = False  # whether people write it as tables, which TOML allows only if the key has no value in one line

    @property
    def expected(self) -> str:
        """Description of a valid value, to complete "expected ..."."""
        raise NotImplementedError

    def read(self, raw: object, *, is_text: bool) -> object:
        """The value of `raw`. Raises ValueError, with or without text: it is invalid."""
        raise NotImplementedError

    def write(self, value: object) -> str:
        """`value` as TOML; secrets in it are masked."""
        return json.dumps(value, ensure_ascii=False)

    def shown(self, raw: object) -> str:
        """A refused value as its error shows it."""
        return repr(raw)


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(json.dumps(word) for word in self.words)

    def read(self, raw: object, *, is_text: bool) -> object:
        if raw not in self.words:
            raise ValueError
        return raw


class Boolean(Kind):
    """true or false; as text also yes, no, on, off, 1, 0."""

    expected = "true or false"

    def read(self, raw: object, *, is_text: bool) -> object:
        if is_text and isinstance(raw, str):
            raw = BOOLEAN_WORDS.get(raw.strip().lower())
        if not isinstance(raw, bool):
            raise ValueError
        return raw


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, raw: object, *, is_text: bool) -> object:
        if is_text and isinstance(raw, str) and WHOLE_NUMBER.fullmatch(raw):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.low <= raw <= self.high:
            raise ValueError
        return raw


class Workers(Integer):
    """A number of processes; `auto` is one for each core that this process may use."""

    @property
    def expected(self) -> str:
        return f'{super().expected}, or "auto"'

    def read(self, raw: object, *, is_text: bool) -> object:
        return min(len(os.sched_getaffinity(0)), self.high) if raw == "auto" else super().read(raw, is_text=is_text)


@dataclass(frozen=True)
class Size(Kind):
    """A number of bytes: 65536, "64KiB", "2 MiB", "1.5 GB"."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        low, high = (self.write(number).strip('"') for number in (self.low, self.high))
        return f'a size from {low} to {high} such as 65536, "512KiB" or "2 MiB"'

    def read(self, raw: object, *, is_text: bool) -> object:
        size = scaled(raw, SIZE_UNITS)
        if size != int(size) or not self.low <= size <= self.high:
            raise ValueError
        return int(size)

    def write(self, value: object) -> str:
        assert isinstance(value, int)
        for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= unit and value % unit == 0:
                return f'"{value // unit} {name}"'
        return str(value)


class PacketSize(Size):
    """A number of bytes, or 0: the size that another key gives."""

    @property
    def expected(self) -> str:
        return f"{super().expected}, or 0"

    def read(self, raw: object, *, is_text: bool) -> object:
        return 0 if scaled(raw, SIZE_UNITS) == 0 else super().read(raw, is_text=is_text)


@dataclass(frozen=True)
class Duration(Kind):
    """A number of seconds: 10, "10s", "1.5m", "250 ms"."""

    low: float
    high: float

    @property
    def expected(self) -> str:
        low, high = (self.write(number).strip('"') for number in (self.low, self.high))
        return f'a duration from {low} to {high} such as 10, "10s" or "1.5m"'

    def read(self, raw: object, *, is_text: bool) -> object:
        seconds = float(scaled(raw, DURATION_UNITS))
        if not self.low <= seconds <= self.high:
            raise ValueError
        return seconds

    def write(self, value: object) -> str:
        assert isinstance(value, (int, float))
        return f'"{value:g} s"' if value < 1e6 else f'"{value:.0f} s"'


def scaled(raw: object, units: dict[str, float] | dict[str, int]) -> float:
    """The number `raw` stands for, its unit applied. Raises ValueError."""
    if isinstance(raw, str):
        match = NUMBER_AND_UNIT.fullmatch(raw)
        if match is None or match[2].lower() not in units:
            raise ValueError
        number, unit = match[1], units[match[2].lower()]
        return float(number) * unit if "." in number else int(number) * unit
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
        raise ValueError
    return raw


class StoreUrl(Kind):
    """`memory` or `sqlite:PATH`."""

    expected = '"memory" or "sqlite:PATH"'

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError
        scheme, _, path = raw.partition(":")
        if raw != "memory" and (scheme != "sqlite" or not path):
            raise ValueError
        return raw


class RedisUrlKind(Kind):
    """The URL of a Redis, URLs of several with spaces between them, or nothing; passwords are never shown."""

    expected = REDIS_EXPECTED

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str):
            raise ValueError
        for url in raw.split():
            RedisUrl.parse(url)
        return raw

    def write(self, value: object) -> str:
        return super().write(masked(str(value)))

    def shown(self, raw: object) -> str:
        return repr(masked(raw)) if isinstance(raw, str) else repr(raw)


class FilePath(Kind):
    """The path of a file, or nothing."""

    expected = "the path of a file"

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError
        return raw


class Text(Kind):
    """Any line of text."""

    expected = "a line of text"

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or not raw.isprintable():
            raise ValueError
        return raw


@dataclass(frozen=True)
class Name(Kind):
    """A short text of certain characters."""

    pattern: str
    expected: str = ""

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw, re.ASCII):
            raise ValueError
        return raw


class Rate(Kind):
    """So often in so long, or nothing."""

    expected = 'a number and a duration such as "15 in 60 s"'

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or (raw and min(rate(raw)) <= 0):
            raise ValueError
        return raw


def rate(text: str) -> tuple[int, float]:
    """Number and seconds of "15 in 60 s". Raises ValueError."""
    number, _, duration = text.partition(" in ")
    if not WHOLE_NUMBER.fullmatch(number):
        raise ValueError
    return int(number), float(scaled(duration, DURATION_UNITS))


class Share(Kind):
    """A part of all, from 0 to 1."""

    expected = "a number from 0 to 1 such as 0.01"

    def read(self, raw: object, *, is_text: bool) -> object:
        number = float(scaled(raw, {"": 1}))
        if not 0 <= number <= 1:
            raise ValueError
        return number


@dataclass(frozen=True)
class Addresses(Kind):
    """One or more HOST:PORT to listen on; as text separated by commas."""

    may_be_empty: bool = False
    schemes: tuple[str, ...] = ()  # that may stand before it, with ://
    expected: str = 'HOST:PORT such as "127.0.0.1:1883", "[::1]:1883" or ":1883"'

    def read(self, raw: object, *, is_text: bool) -> object:
        addresses = texts(raw, is_text=is_text)
        if not (addresses or self.may_be_empty):
            raise ValueError
        seen: set[tuple[str, int]] = set()
        for address in addresses:
            scheme, separator, place = address.rpartition("://")
            if separator and scheme not in self.schemes:
                raise ValueError
            hosts, port = hosts_and_port(place)
            places = {(host, port) for host in hosts if port}
            if places & seen:
                raise ValueError(f"each address once, {address} is there twice")
            seen |= places
        return addresses


@dataclass(frozen=True)
class ListenUrls(Addresses):
    """One or more addresses to accept MQTT on; as text separated by commas."""

    expected: str = LISTEN_EXPECTED

    def read(self, raw: object, *, is_text: bool) -> object:
        addresses = texts(raw, is_text=is_text)
        if not (addresses or self.may_be_empty):
            raise ValueError
        seen: set[object] = set()
        for address in addresses:
            places = ListenUrl.parse(address).places
            if not seen.isdisjoint(places):
                raise ValueError(f"each address once, {address} is there twice")
            seen.update(places)
        return addresses


@dataclass(frozen=True)
class Texts(Kind):
    """A list of short texts of certain characters; as text separated by commas."""

    pattern: str
    expected: str = ""

    def read(self, raw: object, *, is_text: bool) -> object:
        found = texts(raw, is_text=is_text)
        if not all(re.fullmatch(self.pattern, text) for text in found):
            raise ValueError
        return found


class Networks(Kind):
    """Networks of IP addresses; as text separated by commas."""

    expected = 'networks such as "10.0.0.0/8" or "::1/128"'

    def read(self, raw: object, *, is_text: bool) -> object:
        networks = texts(raw, is_text=is_text)
        for network in networks:
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(f"{self.expected}: {error}") from None
        return networks


class PythonObjects(Kind):
    """Objects that Python can import; as text separated by commas."""

    expected = 'MODULE:OBJECT such as "mypackage.hooks:Audit"'

    def read(self, raw: object, *, is_text: bool) -> object:
        names = texts(raw, is_text=is_text)
        if not all(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name) for name in names):
            raise ValueError
        return names


class TopicFilters(Kind):
    """Topic filters; as text separated by commas.

    Args:
        most: their number at most; 0: any.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most

    expected = 'topic filters such as "#" or "site/+/temp"'

    def read(self, raw: object, *, is_text: bool) -> object:
        filters = texts(raw, is_text=is_text)
        for topic_filter in filters:
            try:
                validate_topic_filter(topic_filter)
            except InvalidTopic as fault:
                raise ValueError(f"topic filters; {topic_filter!r} is none: {fault}") from fault
        found = tuple(dict.fromkeys(filters))
        if self._most and len(found) > self._most:
            raise ValueError(f"at most {self._most} topic filters, and these are {len(found)}")
        return found


def texts(raw: object, *, is_text: bool) -> tuple[str, ...]:
    """A list of texts: separated by commas, TOML's list, or one alone. Raises ValueError."""
    if is_text and isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",")] if raw.strip() else []
    elif isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, (list, tuple)) or not all(isinstance(text, str) for text in raw):
        raise ValueError
    return tuple(raw)
