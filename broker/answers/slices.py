"""Long lists in slices: the first few of many, while packets go on being served in between."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

SLICE = 500  # items looked at in one go: some tenths of a millisecond


class First(NamedTuple):
    """The first of what was looked for."""

    items: list[Any]
    total: int  # that there are, these included


async def first(items: Iterable[Any], key: Callable[[Any], Any], after: Any, limit: int) -> First:
    """The `limit` items with the lowest keys of those whose keys are above `after`."""
    found: list[Any] = []
    total = 0
    source = iter(items)
    while part := list(islice(source, SLICE)):
        total += len(part)
        found += [item for item in part if key(item) > after]
        found = heapq.nsmallest(limit, found, key)
        await asyncio.sleep(0)
    return First(found, total)
