"""Pages of long lists, searched in slices so that packets are served in between."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from ..core.calls import Arguments

SLICE = 500  # items searched at a time: some tenths of a millisecond


class First(NamedTuple):
    """The first matches."""

    items: list[Any]
    total: int  # number of all matches


def in_scope(arguments: Arguments) -> Callable[[bytes], bool]:
    """Whether a name is of the tenant that is asked for.

    Arguments: `prefix` (names that begin so) and `without` (no names that begin so), both optional.
    """
    prefix, without = (arguments.get(name, "").encode() for name in ("prefix", "without"))
    return lambda name: name.startswith(prefix) and not (without and name.startswith(without))


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
