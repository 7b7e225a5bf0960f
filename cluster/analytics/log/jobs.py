"""The positions of jobs, in `mq:analytics:jobs`: no job trims entries that another needs; losses are reported.

A job's entry is JSON: `positions` by node id, `at` (ms, its last registration), `nodes` if it reads only some, and
`lost` (bytes), `gaps` (node, from, to; the newest), `lacking` (messages of QoS 0 that the logs lack), by node.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RedisAway
from ..position import START, Position
from .log import Gap, KnownLog, Logs

STALE_SECONDS = 7 * 86_400  # after this time without registration a job prevents no trimming
GAPS_KEPT = 200


class Job:
    """A job's entry.

    Args:
        logs: of the cluster.
        name: of the job; no other query's. Empty: nothing is written.
        nodes: names or ids of the nodes that it reads; empty: all.
    """

    def __init__(self, logs: Logs, name: str, nodes: tuple[str, ...] = ()) -> None:
        self.name = name
        self._logs = logs
        self._nodes = nodes

    def register(self, positions: Mapping[str, Position], lacking: Mapping[str, int]) -> None:
        """Register the positions up to which the job will not read again."""
        said: dict[str, Any] = {"positions": {node: str(place) for node, place in positions.items()}}
        if self._nodes:
            said["nodes"] = self._nodes

        def edit(entry: dict[str, Any]) -> None:
            entry |= said
            entry["lacking"] = {**entry.get("lacking", {}), **lacking}

        self._edit(edit)

    def lose(self, gap: Gap) -> None:
        """Count the missing bytes; the same gap is counted once."""

        def edit(entry: dict[str, Any]) -> None:
            gaps = entry.setdefault("gaps", [])
            this = [gap.node, str(gap.start), str(gap.end)]
            if this not in gaps:
                entry["gaps"] = [*gaps, this][-GAPS_KEPT:]
                lost = entry.setdefault("lost", {})
                lost[gap.node] = lost.get(gap.node, 0) + gap.bytes

        self._edit(edit)

    def trim(self, positions: Mapping[str, Position], known: Mapping[str, KnownLog]) -> None:
        """Trim the logs up to these positions, except entries that other jobs have yet to read."""
        others = [job for name, job in _jobs(self._logs).items() if name != self.name and not _is_stale(job)]
        places: dict[str, tuple[Position]] = {}
        for node, own in positions.items():
            # A job without a position in this log will read it from its beginning.
            theirs = [_place(job, node) for job in others if _reads(job, node, known)]
            place = min([own, *theirs])
            if place > START:
                places[node] = (place,)
        self._logs.ask(_trim_command, places)

    def _edit(self, edit: Any) -> None:
        if not self.name:
            return

        def change(text: bytes | None) -> bytes:
            entry = _parsed(text) or {}
            entry.setdefault("positions", {})
            edit(entry)
            entry["at"] = int(time.time() * 1000)
            return json.dumps(entry).encode()

        self._logs.connection.change(self._logs.keys.analytics_jobs, self.name.encode(), change)


def reads(nodes: Iterable[str], log: KnownLog) -> bool:
    """Whether a selection of nodes, by name or id, includes this log; an empty selection includes all."""
    return not nodes or log.node in nodes or log.name in nodes


def _jobs(logs: Logs) -> dict[str, dict[str, Any]]:
    """The records of all jobs. Raises RedisAway for an unreadable one: its job may need any entry."""
    found = {}
    for name, text in logs.connection.ask("HGETALL", logs.keys.analytics_jobs).items():
        entry = _parsed(text)
        if entry is None or not isinstance(entry.get("positions"), dict):
            raise RedisAway(f"the record of the job {name.decode(errors='replace')} is no JSON: nothing is trimmed")
        found[name.decode(errors="replace")] = entry
    return found


def _parsed(text: bytes | None) -> dict[str, Any] | None:
    try:
        entry = json.loads(text or b"null")
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _is_stale(job: Mapping[str, Any]) -> bool:
    return bool(time.time() * 1000 - job.get("at", 0) > STALE_SECONDS * 1000)


def _reads(job: Mapping[str, Any], node: str, known: Mapping[str, KnownLog]) -> bool:
    return node not in known or reads(job.get("nodes", ()), known[node])


def _place(job: Mapping[str, Any], node: str) -> Position:
    text = job["positions"].get(node)
    return Position.parse(text) if text else START


def _trim_command(key: bytes, place: Position) -> tuple[Any, ...]:
    return ("XTRIM", key, "MINID", f"{place.ms}-{place.total + 1}")
