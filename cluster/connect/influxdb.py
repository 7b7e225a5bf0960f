"""InfluxDB 1, 2 and 3: line protocol over HTTP. A point that is sent again replaces itself."""

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from ..follow.settings import Section
from .connector import JournaledConnector, Outlet, need
from .http_target import HttpTarget
from .query import json_column
from .refusals import Refused

ACCEPTED = "accepted_at"
LINES = 5000  # in a request
VERSIONS = ("1", "2", "3")
NAME = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ ", "\n": r"\n"})  # of a tag or a field; also a tag's value
MEASUREMENT = str.maketrans({",": r"\,", " ": r"\ ", "\n": r"\n"})
STRING = str.maketrans({'"': r"\"", "\\": r"\\"})


class InfluxDb(JournaledConnector):
    """Points of a measurement.

    Args:
        outlet: of the pipe.
        options: `url`; `version`; `database` of 1 and 3, `org` and `bucket` of 2; `token`, or `user` and `password` of
            1; `measurement`; `tags`: columns; `time`: the column with the time.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        version = options.choice("version", VERSIONS, "2")
        if version == "2":
            path, query = (
                "/api/v2/write",
                {"org": options.text("org"), "bucket": options.text("bucket"), "precision": "us"},
            )
        elif version == "3":
            path, query = "/api/v3/write_lp", {"db": options.text("database"), "precision": "microsecond"}
        else:
            path, query = "/write", {"db": options.text("database"), "precision": "u"}
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if token := options.text("token", ""):
            headers["Authorization"] = f"{'Bearer' if version == '3' else 'Token'} {token}"
        if user := options.text("user", ""):
            headers["Authorization"] = basic(user, options.text("password"))
        url = options.text("url").rstrip("/") + path + "?" + urlencode(query)
        self._http = HttpTarget(url, headers)
        self._measurement = options.text("measurement", outlet.pipe).translate(MEASUREMENT)
        self._tags = options.texts("tags", ("topic",))
        self._time = options.text("time", ACCEPTED)
        options.end()
        need(options, outlet.schema, (*self._tags, self._time))
        if not pa.types.is_timestamp(outlet.schema.field(self._time).type):
            raise options.error(f"the column {self._time} is no timestamp")

    def send(self, rows: pa.Table, number: int) -> None:
        if self._time == ACCEPTED:
            times = apart(rows[ACCEPTED], [rows[name] for name in self._tags])
            rows = rows.set_column(rows.column_names.index(ACCEPTED), ACCEPTED, times)
        for start in range(0, rows.num_rows, LINES):
            self.split(rows.slice(start, LINES), self._post)

    def close(self) -> None:
        super().close()
        self._http.close()

    def _post(self, rows: pa.Table) -> None:
        if body := "\n".join(self._lines(rows)):
            self._http.post(body.encode())

    def _lines(self, rows: pa.Table) -> Iterator[str]:
        """A line for each row that has a field. Raises Refused: line protocol has no form for a tag."""
        times = rows[self._time].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        tags = [(name.translate(NAME), rows[name].to_pylist()) for name in self._tags]
        if any(str(value).endswith("\\") for _, values in tags for value in values):
            raise Refused("a tag ends with a backslash, which line protocol can't have")
        fields = [
            (column.name.translate(NAME), *_field(rows[column.name]))
            for column in rows.schema
            if column.name not in self._tags and column.name != self._time
        ]
        for row, at in enumerate(times):
            tagged = "".join(
                f",{name}={str(value).translate(NAME)}"
                for name, values in tags
                if (value := values[row]) not in (None, "")
            )
            found = ",".join(
                f"{name}={encoded(values[row])}" for name, values, encoded in fields if values[row] is not None
            )
            if found:
                yield f"{self._measurement}{tagged} {found}" + ("" if at is None else f" {at}")


def apart(times: pa.ChunkedArray, tags: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Times at which each point has other tags or another microsecond: a node accepts many messages at once, and a
    point replaces the point before it. The same rows have the same times."""
    taken: set[tuple[Any, ...]] = set()
    free: dict[tuple[Any, ...], int] = {}  # by tags and time: the time to try next
    found: list[int | None] = []
    exact = times.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    for at, *values in zip(exact, *(map(str, tag.to_pylist()) for tag in tags), strict=True):
        if at is None:
            found.append(None)
            continue
        key = (at, *values)
        at = free.get(key, at)
        while (at, *values) in taken:
            at += 1
        free[key] = at + 1
        taken.add((at, *values))
        found.append(at)
    return pa.array(found, pa.timestamp("us", "UTC"))


def basic(user: str, password: str) -> str:
    """The value of the header of HTTP's Basic authentication."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _field(values: pa.ChunkedArray) -> tuple[list[Any], Callable[[Any], str]]:
    """The values of a column, and the function that encodes each."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.to_pylist(), lambda value: "t" if value else "f"
    if pa.types.is_integer(kind):
        return values.to_pylist(), lambda value: f"{value}i"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return [None if value is None or value != value else float(value) for value in values.to_pylist()], repr
    if pa.types.is_nested(kind):
        values = json_column(values)
    return values.to_pylist(), _string


def _string(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return f'"{text.translate(STRING)}"'
