"""Kinds of values on the wire between nodes and Redis: they describe arguments and replies, and check real ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..._speedups.base.msgpack import unpack


class Kind(Protocol):
    """A kind of value."""

    def problem(self, value: Any) -> str:
        """Why this is no such value; empty: it is one. An argument of a call is bytes, also if it is a number."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Number:
    """An integer. `most`: the greatest; `or_nothing`: an empty text stands for no number."""

    most: int | None = None
    or_nothing: bool = False

    def problem(self, value: Any) -> str:
        if self.or_nothing and value == b"":
            return ""
        try:
            number = int(value)
        except (TypeError, ValueError):
            return f"{value!r} is no integer"
        return "" if number >= 0 and (self.most is None or number <= self.most) else f"{number} is out of range"

    def __str__(self) -> str:
        return "0 or 1" if self.most == 1 else "number or nothing" if self.or_nothing else "number"


@dataclass(frozen=True)
class SignedNumber:
    """An integer that may be negative: a time from now on."""

    def problem(self, value: Any) -> str:
        return "" if isinstance(value, int) else f"{value!r} is no integer"

    def __str__(self) -> str:
        return "signed number"


@dataclass(frozen=True)
class Text:
    """Bytes."""

    def problem(self, value: Any) -> str:
        return "" if isinstance(value, bytes) else f"{value!r} is no text"

    def __str__(self) -> str:
        return "text"


@dataclass(frozen=True)
class TextApart:
    """Bytes; or `false`, and the bytes were sent by themselves just before."""

    def problem(self, value: Any) -> str:
        return "" if value is False else TEXT.problem(value)

    def __str__(self) -> str:
        return "text or false"


@dataclass(frozen=True)
class OneOf:
    """One of these texts."""

    texts: tuple[str, ...]

    def problem(self, value: Any) -> str:
        return "" if isinstance(value, bytes) and value.decode() in self.texts else f"{value!r} is none of {self}"

    def __str__(self) -> str:
        return " or ".join(f"`{text}`" for text in self.texts)


@dataclass(frozen=True)
class ListOf:
    """Any number of values of a kind."""

    kind: Kind

    def problem(self, value: Any) -> str:
        if not isinstance(value, list):
            return f"{value!r} is no list"
        return _first(self.kind.problem(each) for each in value)

    def __str__(self) -> str:
        return f"[{self.kind}, ...]"


@dataclass(frozen=True)
class Fields:
    """An array with these fields. The last one may be `Rest`."""

    fields: Mapping[str, Kind]

    def problem(self, value: Any) -> str:
        if not isinstance(value, list):
            return f"{value!r} is no array"
        kinds = list(self.fields.items())
        rest = kinds.pop() if kinds and isinstance(kinds[-1][1], Rest) else None
        if len(value) != len(kinds) and (rest is None or len(value) < len(kinds)):
            return f"{len(value)} fields instead of {len(kinds)}: {value!r}"
        pairs = zip(kinds, value, strict=False)
        return _first(_within(name, kind.problem(each)) for (name, kind), each in pairs) or (
            _within(rest[0], rest[1].problem(value[len(kinds) :])) if rest is not None else ""
        )

    def __str__(self) -> str:
        return f"[{_names(self.fields)}]"


@dataclass(frozen=True)
class Turns:
    """A flat list: these fields in turn, any number of times."""

    fields: Mapping[str, Kind]

    def problem(self, value: Any) -> str:
        width = len(self.fields)
        if not isinstance(value, list) or len(value) % width:
            return f"{value!r} is no list of {width} in turn"
        row = Fields(self.fields)
        return _first(row.problem(value[i : i + width]) for i in range(0, len(value), width))

    def __str__(self) -> str:
        return f"[{_names(self.fields)}, ...]"


@dataclass(frozen=True)
class Rest:
    """The last field of an array: all values that follow."""

    kind: Kind

    def problem(self, value: Any) -> str:
        return ListOf(self.kind).problem(value)

    def __str__(self) -> str:
        return f"{self.kind} ..."


@dataclass(frozen=True)
class Packed:
    """A text of MessagePack. `or_nothing`: it may be empty."""

    kind: Kind
    or_nothing: bool = False

    def problem(self, value: Any) -> str:
        if value == b"" and self.or_nothing:
            return ""
        if not isinstance(value, bytes):
            return f"{value!r} is no text"
        try:
            return self.kind.problem(unpack(value))
        except ValueError as error:
            return f"no MessagePack: {error}"

    def __str__(self) -> str:
        return f"packed {self.kind}"


@dataclass(frozen=True)
class Outcomes:
    """An array whose first element names the outcome. Each outcome has its own fields."""

    of: Mapping[str, Mapping[str, Kind]]

    def problem(self, value: Any) -> str:
        if not isinstance(value, list) or not value or not isinstance(value[0], bytes):
            return f"{value!r} names no outcome"
        fields = self.of.get(value[0].decode())
        if fields is None:
            return f"{value[0]!r} is no outcome"
        return Fields(fields).problem(value[1:])

    def __str__(self) -> str:
        return "; ".join(f"[`{name}`{''.join(f', {part}' for part in _named(of))}]" for name, of in self.of.items())


NUMBER = Number()
SIGNED = SignedNumber()
FLAG = Number(most=1)
OPTIONAL = Number(or_nothing=True)
TEXT = Text()
TEXT_APART = TextApart()


def _first(problems: Iterator[str]) -> str:
    return next((problem for problem in problems if problem), "")


def _within(name: str, problem: str) -> str:
    return f"{name}: {problem}" if problem else ""


def _named(fields: Mapping[str, Kind]) -> Iterator[str]:
    for name, kind in fields.items():
        is_plain = isinstance(kind, (Number, SignedNumber, Text, TextApart, OneOf))
        yield name if is_plain else f"{name} {kind}"


def _names(fields: Mapping[str, Kind]) -> str:
    return ", ".join(_named(fields))
