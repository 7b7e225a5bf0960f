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


async def first(
    items: Iterable[Any], fits: Callable[[Any], bool], key: Callable[[Any], Any], after: Any, limit: int
) -> First:
    """Of the items that fit, the `limit` ones with the lowest keys above `after`; `total` counts all that fit."""
    found: list[Any] = []
    total = 0
    source = iter(items)
    while part := list(islice(source, SLICE)):
        fitting = [item for item in part if fits(item)]
        total += len(fitting)
        found += [item for item in fitting if key(item) > after]
        found = heapq.nsmallest(limit, found, key)
        await asyncio.sleep(0)
    return First(found, total)
