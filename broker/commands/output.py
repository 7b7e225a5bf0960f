"""Output of commands: tables, sizes and JSON."""

import json
from collections.abc import Sequence
from typing import Any

from .. import logs


def print_json(document: object) -> None:
    """Print a document; bytes that are not UTF-8 are escaped."""
    print(json.dumps(document, indent=2))


def text(value: Any) -> str:
    """A value from Redis in printable characters."""
    return logs.escaped(logs.as_text(value))


def table(rows: Sequence[Sequence[object]], indent: str = "") -> str:
    """Rows in aligned columns; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row, line in zip(rows, cells, strict=True):
        aligned = [
            cell.rjust(width) if isinstance(value, int) else cell.ljust(width)
            for value, cell, width in zip(row, line, widths, strict=True)
        ]
        lines.append(indent + "  ".join(aligned).rstrip())
    return "\n".join(lines)


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "-"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
