"""The part of `flockmq cluster status` about logs of messages, and the jobs that read them."""

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ...broker.commands.output import size, table, text
from ...broker.coordination.coordinator import LogReader
from ..redis.keys import Keys
from ..redis.log_readers import log_reader

if TYPE_CHECKING:
    import redis


@dataclass(frozen=True)
class LogStatus:
    """The log of a node; if the node has left, the log exists until it is trimmed."""

    name: str
    id: str
    entries: int
    bytes: int  # of its blocks
    written: int  # bytes ever
    seconds: float | None  # since the last entry, by the clock of this machine


def read_logs(client: "redis.Redis", keys: Keys) -> list[LogStatus]:
    """The logs with entries, by the names of their nodes."""
    found = []
    for node, record in cast(dict[bytes, bytes], client.hgetall(keys.analytics_logs)).items():
        log = _parsed(record)
        if "last" in log:
            continue
        with client.pipeline(transaction=False) as pipe:
            pipe.xlen(keys.message_log(node))
            pipe.xrange(keys.message_log(node), count=1)
            pipe.xrevrange(keys.message_log(node), count=1)
            entries, first, last = pipe.execute()
        if not last:
            continue
        (oldest, fields), (newest, _) = first[0], last[0]
        held = _total(newest) - _total(oldest) + len(fields.get(b"b", b""))
        age = time.time() - int(newest.partition(b"-")[0]) / 1000
        found.append(LogStatus(str(log.get("name", "-")), text(node), entries, held, _total(newest), max(0.0, age)))
    return sorted(found, key=lambda log: (log.name, log.id))


def read_jobs(client: "redis.Redis", keys: Keys, logs: list[LogStatus]) -> list[LogReader]:
    """The jobs, by name."""
    known = [(log.id, log.written, log.bytes) for log in logs]
    records = cast(dict[bytes, bytes], client.hgetall(keys.analytics_jobs))
    return sorted(log_reader(text(name), record, known) for name, record in records.items())


def render(logs: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> list[str]:
    """Two tables as text; without rows, none."""
    lines = []
    if logs:
        rows = [(log["name"], log["id"], log["entries"], size(log["bytes"]), _ago(log["seconds"])) for log in logs]
        lines += ["", table([("log of messages", "id", "entries", "size", "written"), *rows])]
    if jobs:
        job_rows = [(job["name"], size(job["behind"]), size(job["lost"]), _ago(job["seconds"])) for job in jobs]
        lines += ["", table([("job", "behind", "lost", "heard of"), *job_rows])]
    return lines


def _total(entry_id: bytes | str) -> int:
    """The bytes of a log up to this entry."""
    return int(text(entry_id).rpartition("-")[2])


def _parsed(record: bytes) -> dict[str, Any]:
    try:
        found = json.loads(record)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago"
