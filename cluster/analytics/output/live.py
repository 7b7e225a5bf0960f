"""The latest results in Redis, which the nodes publish as retained messages below `$SYS/analytics/`.

    rates/PREFIX      the last window of a topic prefix
    top/clients       the last window's ranking; top/topics likewise
    lag               the last window's seconds from accepted to written
    silent/CLIENT     since when, and the usual interval; removed when the device is back or forgotten
    outliers/TOPIC    the last outlier of a topic name

Payloads are JSON. In client ids `%`, and characters that a topic level can't contain, are percent-encoded. There are at
most `live_topics` topics; a further one replaces the least recently set. Results that Redis refuses are sent later.
"""

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import redis
from pyspark.sql import Row

from ....broker import logs
from ...redis.clients import RedisAddress

LONGEST = 65_000  # bytes of a topic name
UNFIT = re.compile(r"[%+#/\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
log = logs.get("flockmq.analytics")


def escaped(client_id: str) -> str:
    """A client id as one level of a topic name."""
    return UNFIT.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), client_id
    )


def iso(time: datetime) -> str:
    """A time as text. Spark passes local times without a zone."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Live:
    """Publishes results; `set` and `flush` are called by one thread."""

    def __init__(self, url: str, prefix: str, most: int) -> None:
        address = RedisAddress.parse_first(url, prefix)
        self._client = address.client()
        self._keys = address.keys
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, str] = {}  # topic -> payload
        self._loaded = False
        self.dropped = 0  # topics removed because there were too many

    def set(self, topic: str, result: object) -> None:
        """Publish a result at the next flush; None removes it."""
        if len(topic.encode("utf-8", "replace")) > LONGEST:
            self.dropped += 1
            return
        self._waiting.pop(topic, None)  # keeps the order of the last `set` of each topic
        self._waiting[topic] = "" if result is None else json.dumps(result, ensure_ascii=False)

    def flush(self) -> bool:
        """Send the pending results; returns whether Redis has them."""
        if not self._waiting:
            return True
        try:
            self._send()
        except (redis.RedisError, OSError) as error:
            log.warning("results are not in Redis", waiting=len(self._waiting), reason=error)
            self._loaded = False  # read again which results and removals Redis has applied
            for topic in list(self._waiting)[: -self._most]:
                del self._waiting[topic]
            return False
        self._waiting.clear()
        return True

    def _send(self) -> None:
        if not self._loaded:
            keys: Iterable[Any] = self._client.hkeys(self._keys.analytics_results)
            self._known = OrderedDict.fromkeys(key.decode("utf-8", "replace") for key in keys)
            self._loaded = True
        with self._client.pipeline(transaction=False) as pipe:
            for topic, payload in self._bounded():
                pipe.execute_command(*self._keys.function("result"), topic, payload)  # type: ignore[no-untyped-call]
            pipe.execute()

    def _bounded(self) -> list[tuple[str, str]]:
        """The pending results, and the removals that enforce the maximum."""
        commands = []
        for topic, payload in self._waiting.items():
            self._known.pop(topic, None)
            commands.append((topic, payload))
            if not payload:
                continue
            self._known[topic] = None
            if len(self._known) > self._most:
                oldest, _ = self._known.popitem(last=False)
                commands.append((oldest, ""))
                self.dropped += 1
        return commands

    # ---- the results of each table ----

    def show(self, name: str, rows: list[Row]) -> None:
        """Set the results of the new rows of a table."""
        if not rows:
            return
        if name == "silence":
            self._silence(rows)
        elif name == "outliers":
            for row in sorted(rows, key=lambda row: row.accepted_at):
                self.set(f"outliers/{row.topic}", {**_plain(row), "topic": row.topic})
        else:
            last = max(row.window_start for row in rows)
            self._window(name, [row for row in rows if row.window_start == last])

    def _silence(self, rows: list[Row]) -> None:
        for row in sorted(rows, key=lambda row: row.at):
            result = None if row.event != "silent" else _plain(row, leave=("event", "silent_for"))
            self.set(f"silent/{escaped(row.client_id)}", result)

    def _window(self, name: str, rows: list[Row]) -> None:
        times = {"window_start": iso(rows[0].window_start), "window_end": iso(rows[0].window_end)}
        seconds = (rows[0].window_end - rows[0].window_start).total_seconds()
        leave = ("window_start", "window_end", "prefix")
        if name in ("top_clients", "top_topics"):
            ranking = [_plain(row, leave) for row in sorted(rows, key=lambda row: row.rank)]
            self.set(name.replace("_", "/"), {**times, "top": ranking})
        elif name == "lag":
            self.set("lag", {**times, "nodes": [_plain(row, leave) for row in sorted(rows, key=lambda row: row.node)]})
        elif name == "rates":
            for prefix in sorted({row.prefix for row in rows}):
                nodes = sorted((row for row in rows if row.prefix == prefix), key=lambda row: row.node)
                messages = sum(row.messages for row in nodes)
                total = {"messages": messages, "rate": messages / seconds, "bytes": sum(row.bytes for row in nodes)}
                self.set(f"rates/{prefix}", {**times, **total, "nodes": [_plain(row, leave) for row in nodes]})


def _plain(row: Row, leave: tuple[str, ...] = ()) -> dict[str, object]:
    """A row for JSON."""
    values = {name: value for name, value in row.asDict().items() if name not in leave}
    return {name: _fit(value) for name, value in values.items()}


def _fit(value: object) -> object:
    """A value for JSON, which has no infinity."""
    if isinstance(value, datetime):
        return iso(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
