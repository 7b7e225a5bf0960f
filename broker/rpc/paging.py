"""Pages of long lists, searched in slices so that packets are served in between."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

SLICE = 500  # items searched at a time: some tenths of a millisecond


class First(NamedTuple):
    """The first matches."""

    items: list[Any]
    total: int  # number of all matches


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
