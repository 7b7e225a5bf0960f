"""The messages that a replay would publish: their number, or a line for each."""

import json
from collections import defaultdict
from collections.abc import Iterator

from ...broker import logs
from ...broker.commands.output import print_json, size, table
from ..analytics.times import format_time, iso
from .player import envelope
from .recording import Logged, Recording
from .summary import tell_lacking


def count(recording: Recording, *, as_json: bool) -> int:
    """Print the number of messages; returns the exit status."""
    nodes: dict[str, list[int]] = defaultdict(lambda: [0, 0, 1 << 62, 0])
    for message in messages(recording, 0):
        found, at = nodes[message.node], message.row.accepted
        found[:] = [found[0] + 1, found[1] + len(message.row.payload), min(found[2], at), max(found[3], at)]
    total = [sum(found[index] for found in nodes.values()) for index in (0, 1)]
    if as_json:
        rows = [
            {
                "node": name,
                "messages": found[0],
                "payload_bytes": found[1],
                "first": iso(found[2]),
                "last": iso(found[3]),
            }
            for name, found in sorted(nodes.items())
        ]
        losses = recording.losses
        print_json(
            {
                "messages": total[0],
                "payload_bytes": total[1],
                "nodes": rows,
                "missing_bytes": losses.bytes,
                "never_logged": losses.lacking,
                "notices": losses.notices,
            }
        )
        return 0
    lines: list[tuple[object, ...]] = [("node", "messages", "payloads", "first", "last")]
    lines += [
        (logs.escaped(name), found[0], size(found[1]), format_time(found[2]), format_time(found[3]))
        for name, found in sorted(nodes.items())
    ]
    lines.append(("all", total[0], size(total[1]), "", ""))
    print(table(lines))
    tell_lacking(recording)
    return 0


def show(recording: Recording, limit: int, *, as_json: bool) -> int:
    """Print a line for each message; returns the exit status."""
    for message in messages(recording, limit):
        row = message.row
        if as_json:
            print(json.dumps(envelope(message)))
            continue
        flags = (" retain" if row.retain else "") + (" with properties" if row.properties else "")
        print(
            f"{format_time(row.accepted)} {logs.quoted(message.node)} {logs.quoted(row.client_id)} "
            f"{logs.quoted(row.topic)} QoS {row.qos}{flags}, {len(row.payload)} bytes"
        )
    tell_lacking(recording)
    return 0


def messages(recording: Recording, limit: int) -> Iterator[Logged]:
    """The messages one by one."""
    number = 0
    for chunk in recording.chunks():
        for message in chunk:
            yield message
            number += 1
            if number == limit:
                return
