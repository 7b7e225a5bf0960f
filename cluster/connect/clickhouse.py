"""ClickHouse, over HTTP: an INSERT a batch. A table that remembers its inserts drops a batch that is sent again."""

import re
from urllib.parse import urlencode

import pyarrow as pa

from ..follow.settings import Section
from .connector import JournaledConnector, Outlet
from .http_target import HttpTarget
from .query import json_lines

WITH_TOKENS = (22, 2)  # the first version that knows a batch by a token
CODE = re.compile(r"Code: (\d+)")
# Errors of values: texts, dates, numbers, UUIDs, addresses that can't be parsed; types, ranges, constraints.
OF_VALUES = frozenset((6, 26, 27, 38, 41, 53, 69, 70, 72, 117, 349, 376, 467, 469, 675, 676, 691))


class ClickHouse(JournaledConnector):
    """Rows of a table.

    Args:
        outlet: of the pipe.
        options: `url`; `database`; `table`; `user`; `password`.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        headers = {"X-ClickHouse-User": options.text("user", "default")}
        if password := options.text("password", ""):
            headers["X-ClickHouse-Key"] = password
        self._http = HttpTarget(options.text("url").rstrip("/") + "/?", headers, refuses=_refuses)
        self._database = options.text("database", "default")
        self._table = options.text("table")
        options.end()
        self._has_tokens: bool | None = None

    def send(self, rows: pa.Table, number: int) -> None:
        if self._has_tokens is None:
            version = self._http.post(b"select version()").decode().split(".")
            self._has_tokens = (int(version[0]), int(version[1])) >= WITH_TOKENS
        token = f"{self.outlet.pipe}-{self.outlet.journal.id}-{number}"
        part = 0

        def insert(some: pa.Table) -> None:
            nonlocal part
            part += 1
            self._insert(some, f"{token}-{part}")

        self.split(rows, insert)

    def close(self) -> None:
        super().close()
        self._http.close()

    def _insert(self, rows: pa.Table, token: str) -> None:
        columns = ", ".join(f"`{name}`" for name in rows.column_names)
        query = {
            "query": f"insert into {self._table} ({columns}) format JSONEachRow",
            "database": self._database,
            "date_time_input_format": "best_effort",
        }
        if self._has_tokens:
            query |= {"insert_deduplication_token": token, "insert_deduplicate": "1"}
        self._http.post("\n".join(json_lines(rows)).encode(), query=urlencode(query))


def _refuses(_: int, text: str) -> bool:
    found = CODE.search(text)
    return found is not None and int(found[1]) in OF_VALUES
