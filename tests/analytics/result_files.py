"""Result files as the job writes them, of a fleet that is made up: the same schema, the same directories.

`Fleet` is the rows of every table, so that a test can compute what a page or a query must show.
"""

import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flockmq.cluster.analytics.tables import TABLES, time_of

SECOND = 1_000_000
MINUTE = 60 * SECOND
T0 = 1_769_817_600 * SECOND  # 2026-01-31T00:00:00Z
TYPES = {
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}
Row = dict[str, Any]
Tables = dict[str, list[Row]]


def schema(name: str) -> pa.Schema:
    """A table's, from the DDL that the job uses."""
    fields = [re.split(r"\s+", part.strip()) for part in TABLES[name].split(",")]
    return pa.schema([(column, TYPES[kind]) for column, kind in fields])


def write(directory: Path, tables: Tables) -> Path:
    """Write rows to a directory as the job does; returns it."""
    for name, rows in tables.items():
        parts = defaultdict(list)
        for row in rows:
            at = datetime.fromtimestamp(row[time_of(name)] / SECOND, UTC)
            parts[f"date={at:%Y-%m-%d}/hour={at:%H}"].append(row)
        for part, some in parts.items():
            place = directory / name / part
            place.mkdir(parents=True, exist_ok=True)
            number = len(list(place.iterdir()))
            pq.write_table(pa.Table.from_pylist(some, schema(name)), place / f"{number:010}-test-0.parquet")
    return directory


class Fleet:
    """Some sites with devices, over some minutes.

    Args:
        minutes: how long.
        prefixes: names of the sites.
        devices: of each site.
        nodes: names of the nodes.
        seed: of all that is random.
    """

    def __init__(
        self,
        minutes: int = 240,
        prefixes: Iterable[str] = ("berlin", "hamburg", "lyon", "porto", "graz", "oslo", "turku", "riga"),
        devices: int = 6,
        nodes: Iterable[str] = ("node-a", "node-b", "node-c"),
        seed: int = 7,
    ) -> None:
        self.rng = random.Random(seed)
        self.begin, self.end = T0, T0 + minutes * MINUTE
        self.tables: Tables = {name: [] for name in TABLES if name != "messages"}
        prefixes, nodes = list(prefixes), list(nodes)
        clients = [(f"{prefix}-pump-{number}", prefix) for prefix in prefixes for number in range(devices)]
        for minute in range(minutes):
            window = {"window_start": T0 + minute * MINUTE, "window_end": T0 + (minute + 1) * MINUTE}
            self._rates(window, minute, prefixes, nodes)
            self._clients(window, minute, clients, nodes)
            self._values(window, minute, prefixes)
            self.tables["lag"] += [
                window
                | {
                    "node": node,
                    "messages": 100,
                    "p50": 2.5 + self.rng.random(),
                    "p99": 6 + self.rng.random() * 3,
                    "max": 7 + 10 * self.rng.random() ** 6,
                }
                for node in nodes
            ]
        self._silence(clients)
        self._outliers(prefixes, minutes)

    def _rates(self, window: Row, minute: int, prefixes: list[str], nodes: list[str]) -> None:
        for index, prefix in enumerate(prefixes):
            for node in nodes:
                level = 4000 / (index + 1) * (1.2 + math.sin(minute / 37 + index)) * (0.9 + 0.2 * self.rng.random())
                messages = int(level) + 1
                median = 24 * (index + 1)
                shares = (0.6, 0.3, 0.1)
                self.tables["rates"].append(
                    window
                    | {
                        "prefix": prefix,
                        "node": node,
                        "messages": messages,
                        "bytes": messages * median,
                        "publishers": 6,
                        "size_p50": float(median),
                        "size_p90": 2.0 * median,
                        "size_p99": 5.0 * median,
                        "size_max": int(median * (6 + 20 * self.rng.random() ** 8)),
                        "qos_0": shares[index % 3],
                        "qos_1": shares[(index + 1) % 3],
                        "qos_2": shares[(index + 2) % 3],
                    }
                )

    def _clients(self, window: Row, minute: int, clients: list[tuple[str, str]], nodes: list[str]) -> None:
        found = []
        for number, (client, prefix) in enumerate(clients):
            messages = 1 + self.rng.randrange(600) // (1 + number % 7)
            found.append((messages, client, prefix))
            self.tables["clients"].append(
                window
                | {
                    "client_id": client,
                    "node": nodes[number % len(nodes)],
                    "first": window["window_start"] + SECOND,
                    "last": window["window_end"] - SECOND,
                    "messages": messages,
                    "bytes": messages * 24,
                    "topics": 3,
                    "rate": messages / 60,
                    "longest_gap": 2.0,
                }
            )
        total = sum(messages for messages, _, _ in found)
        for rank, (messages, client, prefix) in enumerate(sorted(found, reverse=True)[:10], 1):
            ranked = window | {"rank": rank, "messages": messages, "bytes": messages * 24, "share": messages / total}
            self.tables["top_clients"].append(ranked | {"client_id": client})
            self.tables["top_topics"].append(ranked | {"topic": f"{prefix}/{client}/state"})

    def _values(self, window: Row, minute: int, prefixes: list[str]) -> None:
        for index, prefix in enumerate(prefixes):
            drift = 0.02 * minute if index == 2 else 0.0
            mean = 20 + index + 2 * math.sin(minute / 40 + index) + drift
            for field, scale in (("", 1.0), ("$.humidity", 2.0)):
                self.tables["numbers"].append(
                    window
                    | {
                        "topic": f"{prefix}/hall/temp",
                        "field": field,
                        "count": 60 + index,
                        "mean": mean * scale,
                        "min": mean * scale - 1 - self.rng.random(),
                        "max": mean * scale + 1 + self.rng.random(),
                        "stddev": 0.5,
                    }
                )

    def _silence(self, clients: list[tuple[str, str]]) -> None:
        length = self.end - self.begin
        for number, (client, _) in enumerate(clients[:20]):
            since = self.begin + int(length * self.rng.random() * 0.8)
            row = {"client_id": client, "since": since, "usual_interval": 5.0, "node": "node-a"}
            fell = min(self.end - 2, since + 15 * SECOND)
            silent_for = (fell - since) / SECOND
            self.tables["silence"].append(row | {"at": fell, "event": "silent", "silent_for": silent_for})
            if number % 3:
                back = min(self.end - 1, fell + int(length * 0.2 * self.rng.random()))
                silent_for = (back - since) / SECOND
                self.tables["silence"].append(row | {"at": back, "event": "back", "silent_for": silent_for})

    def archive(self, minutes: int = 3) -> None:
        """Messages too, of the first minutes: numbers and JSON documents."""
        prefixes = sorted({row["prefix"] for row in self.tables["rates"]})
        rows = self.tables.setdefault("messages", [])
        for second in range(60 * minutes):
            for index, prefix in enumerate(prefixes):
                at = {"node": "node-a", "accepted_at": T0 + second * SECOND + index, "client_id": f"{prefix}-pump-0"}
                flags = {"qos": index % 3, "retain": False, "dup": False}
                number = f"{20 + index + second / 100:.2f}"
                rows.append(at | flags | {"topic": f"{prefix}/hall/temp", "payload": number.encode()})
                if second % 10 == 0:
                    document = f'{{"humidity": {number}, "ok": true}}'
                    rows.append(at | flags | {"topic": f"{prefix}/hall/state", "payload": document.encode()})

    def _outliers(self, prefixes: list[str], minutes: int) -> None:
        for number in range(40):
            score = self.rng.choice([-1, 1]) * (3.5 + self.rng.expovariate(0.2))
            self.tables["outliers"].append(
                {
                    "accepted_at": self.begin + self.rng.randrange(minutes * MINUTE),
                    "topic": f"{prefixes[number % len(prefixes)]}/hall/temp",
                    "field": "",
                    "client_id": f"pump-{number % 5}",
                    "node": "node-a",
                    "value": 20 + score,
                    "median": 20.0,
                    "spread": 1.0,
                    "score": score,
                }
            )
