"""The results of the job, in plain Python over a list of messages: slow, and obviously so."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]


class Message(NamedTuple):
    """A message as the source gives it; the time is microseconds."""

    node: str
    at: int
    client_id: str
    topic: str
    qos: int
    payload: bytes


def by(messages: Iterable[Message], *keys: Any) -> dict[tuple[Any, ...], list[Message]]:
    """Messages in groups."""
    groups = defaultdict(list)
    for message in messages:
        groups[tuple(key(message) for key in keys)].append(message)
    return groups


def window_of(length: int) -> Any:
    return lambda message: message.at - message.at % length


def quantile(values: Sequence[float], q: float) -> float:
    """Between the two nearest values."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


def rates(messages: list[Message], length: int, depth: int) -> Rows:
    def prefix(message: Message) -> str:
        return "/".join(message.topic.split("/")[:depth])

    rows = []
    for (start, name, node), group in by(messages, window_of(length), prefix, lambda m: m.node).items():
        sizes = [len(message.payload) for message in group]
        row: dict[str, Any] = {"window_start": start, "prefix": name, "node": node, "messages": len(group)}
        row |= {"bytes": sum(sizes), "publishers": len({message.client_id for message in group})}
        row |= {f"size_p{p}": quantile(sizes, p / 100) for p in (50, 90, 99)} | {"size_max": max(sizes)}
        row |= {f"qos_{qos}": sum(message.qos == qos for message in group) / len(group) for qos in (0, 1, 2)}
        rows.append(row)
    return rows


def clients(messages: list[Message], length: int) -> Rows:
    rows = []
    for (start, client_id), group in by(messages, window_of(length), lambda m: m.client_id).items():
        times = sorted(message.at for message in group)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        rows.append(
            {
                "window_start": start,
                "client_id": client_id,
                "node": max(group, key=lambda m: m.at).node,
                "first": times[0],
                "last": times[-1],
                "messages": len(group),
                "bytes": sum(len(message.payload) for message in group),
                "topics": len({message.topic for message in group}),
                "rate": len(group) * 1e6 / length,
                "longest_gap": max(gaps, default=0) / 1e6,
            }
        )
    return rows


def top(messages: list[Message], length: int, what: str, most: int) -> Rows:
    rows = []
    for (start,), group in by(messages, window_of(length)).items():
        totals = [
            (len(of), sum(len(message.payload) for message in of), name)
            for (name,), of in by(group, lambda m: getattr(m, what)).items()
        ]
        totals.sort(key=lambda total: (-total[0], -total[1], total[2]))
        for rank, (count, size, name) in enumerate(totals[:most], 1):
            row = {"window_start": start, "rank": rank, what: name, "messages": count, "bytes": size}
            rows.append({**row, "share": count / len(group)})
    return rows


def values(numbers: list[tuple[Message, str, float]], length: int) -> Rows:
    groups = defaultdict(list)
    for message, field, value in numbers:
        groups[window_of(length)(message), message.topic, field].append(value)
    return [
        {
            "window_start": start,
            "topic": topic,
            "field": field,
            "count": len(group),
            "mean": statistics.fmean(group),
            "min": min(group),
            "max": max(group),
            "stddev": statistics.stdev(group) if len(group) > 1 else None,
        }
        for (start, topic, field), group in groups.items()
    ]


def silence(messages: list[Message], factor: float, least: int, clock: int) -> list[tuple[Any, ...]]:
    """(at, client id, event, since), in order; the logs have been read up to `clock`."""
    events = []
    for (client_id,), group in by(messages, lambda m: m.client_id).items():
        seconds = defaultdict(list)
        for message in group:
            seconds[message.at // 1_000_000].append(message.at)
        marks = [(min(times), max(times)) for _, times in sorted(seconds.items())]
        gaps: list[int] = []

        def patience(gaps: list[int]) -> float:
            known = sorted(gaps[-20:])
            if len(known) < 5:
                return math.inf
            return max(int(known[math.ceil(0.75 * len(known)) - 1] * factor), least)

        for (_, before), (after, _) in itertools.pairwise(marks):
            if after - before > (limit := patience(gaps)):
                events.append((before + int(limit), client_id, "silent", before))
                events.append((after, client_id, "back", before))
            gaps.append(after - before)
        last = marks[-1][1]
        if last + (limit := patience(gaps)) < clock:
            events.append((last + int(limit), client_id, "silent", last))
    return sorted(events)
