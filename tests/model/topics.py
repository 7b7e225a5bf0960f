"""Owns: topic names and topic filters, as plainly as section 4.7 puts them. Judges the compiled code.

They match as in `flockmq prove`. A name or filter is a list of levels here, nothing is cached. Slow on purpose.
"""

from collections.abc import Iterable

from flockmq.loadtest.prove.topics import matches as matches


def is_text(data: bytes) -> bool:
    """Well-formed UTF-8 without U+0000 [MQTT-1.5.3-1] [MQTT-1.5.3-2]."""
    try:
        return "\0" not in data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False


def is_common(data: bytes, level: int, max_levels: int) -> bool:
    """The rules that names and filters share: section 4.7.3, and the shorter limit of level 3."""
    return (
        0 < len(data) <= 65535
        and is_text(data)
        and (level != 3 or len(data.decode()) <= 32767)
        and len(data.split(b"/")) <= max_levels
    )


def tree_bytes(names: Iterable[str]) -> int:
    """Bytes that the nodes of a tree of these names count: one for each level, shared by the names below it."""
    paths = {tuple(levels[: n + 1]) for levels in (name.split("/") for name in names) for n in range(len(levels))}
    return sum(-(-(64 + len(path[-1].encode())) // 16) * 16 + 16 for path in paths)


def joined_tree_bytes(names: Iterable[str]) -> int:
    """Bytes that a tree of these names counts in which levels without a choice are joined.

    A branch is where names part, or where one ends and others go on. Branches and names stand at a branch above.
    """
    paths = {tuple(name.split("/")) for name in names}
    below: dict[tuple[str, ...], set[str | None]] = {}
    for path in paths:
        for n in range(len(path) + 1):
            below.setdefault(path[:n], set()).add(path[n] if n < len(path) else None)
    branches = {path for path, further in below.items() if path and len(further) > 1}
    size = 28 * sum(path not in branches for path in paths)
    for path in branches:
        above = max((n for n in range(1, len(path)) if path[:n] in branches), default=0)
        size += 28 + 112 + len("/".join(path[above:]).encode())
    return size


def is_topic_name(data: bytes, level: int = 4, max_levels: int = 200) -> bool:
    """Whether `data` is a topic name [MQTT-3.3.2-2]."""
    return is_common(data, level, max_levels) and b"+" not in data and b"#" not in data


def is_topic_filter(data: bytes, level: int = 4, max_levels: int = 200) -> bool:
    """Whether `data` is a topic filter [MQTT-4.7.1-2] [MQTT-4.7.1-3]."""
    if not is_common(data, level, max_levels):
        return False
    *parents, last = data.split(b"/")
    plus_alone = all(one == b"+" or b"+" not in one for one in [*parents, last])
    hash_last = all(b"#" not in one for one in parents) and (last == b"#" or b"#" not in last)
    return plus_alone and hash_last
