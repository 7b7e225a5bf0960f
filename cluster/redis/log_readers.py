"""The programs that read the logs of messages, as their records in Redis have them."""

import json
import time
from collections.abc import Iterable

from ...broker.coordination.coordinator import LogReader

Log = tuple[str, int, int]  # id of its node, bytes ever written, bytes that it still has


def log_reader(name: str, record: bytes, logs: Iterable[Log]) -> LogReader:
    """A reader.

    Args:
        name: of the reader.
        record: in Redis; with an unreadable one the reader has read nothing.
        logs: with entries.
    """
    try:
        job = json.loads(record)
        places = {node: int(place.rpartition("-")[2]) for node, place in job["positions"].items()}
        lost = sum(job.get("lost", {}).values())
    except (ValueError, KeyError, AttributeError, TypeError):
        job, places, lost = {}, {}, 0
    behind = sum(written - max(places.get(node, 0), written - held) for node, written, held in logs)
    return LogReader(name, behind, lost, max(0.0, time.time() - job.get("at", 0) / 1000))
