"""Calculation with topic filters: the intersection of two, and the filters among many that add nothing."""

from ..._speedups.session.rights import covers

Path = tuple[str, ...]  # identities of brokers: the next broker first, the subscriber's broker last; empty: this one
Rows = dict[str, Path]  # wanted topic filters, and for whom

COMPARISONS = 200_000  # most for one set of rows; with more it stays as it is


def intersection(one: str, other: str) -> str | None:
    """The filter of the topic names that both filters match; None: there are none."""
    first, second = one.split("/"), other.split("/")
    if (first[0][:1] == "$") != (second[0][:1] == "$"):  # [MQTT-4.7.2-1]
        return None
    found: list[str] = []
    for number in range(max(len(first), len(second)) + 1):
        left = first[number] if number < len(first) else None
        right = second[number] if number < len(second) else None
        if left == "#":
            return "/".join([*found, *second[number:]])
        if right == "#":
            return "/".join([*found, *first[number:]])
        if left is None or right is None:
            return "/".join(found) if left is right else None
        if left != right and "+" not in (left, right):
            return None
        found.append(right if left == "+" else left)
    return None


def reduced(rows: Rows) -> Rows:
    """The rows that no other row covers for the same brokers, or more."""
    wide = [(name, name.encode(), set(path)) for name, path in rows.items() if "#" in name or "+" in name]
    if len(wide) * len(rows) > COMPARISONS:
        return rows
    return {
        name: path
        for name, path in rows.items()
        if not any(
            other != name and brokers.issubset(path) and covers(raw, name.encode()) for other, raw, brokers in wide
        )
    }


def collapsed(rows: Rows, scopes: list[str]) -> Rows:
    """One row for each scope, in place of too many: for the brokers that are in the paths of all."""
    paths = list(rows.values())
    shortest = min(paths, key=len, default=())
    path = tuple(broker for broker in shortest if all(broker in other for other in paths))
    return dict.fromkeys(scopes, path)
