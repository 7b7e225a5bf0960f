"""One result out of the replies of all nodes."""

import heapq
from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any

from ...core.calls import RpcReply
from ...rpc.node_view import NodeView

Item = dict[str, Any]


async def call(node: NodeView, method: str, **arguments: Any) -> dict[str, RpcReply]:
    """The replies of all nodes."""
    return await node.broker.coordinator.nodes.call_all(method, arguments)


def failures(answers: dict[str, RpcReply]) -> dict[str, str]:
    """The nodes without a value, and the reasons."""
    return {name: answer.failure for name, answer in answers.items() if answer.failure}


def values(answers: dict[str, RpcReply]) -> dict[str, Any]:
    """The values of the other nodes."""
    return {name: answer.value for name, answer in answers.items() if not answer.failure}


def best(items: Iterable[Item], key: Callable[[Item], Any]) -> list[Item]:
    """Of items with the same key, one: a connected client's, since other nodes show its session as offline."""
    found: dict[Any, Item] = {}
    for item in items:
        if item.get("connected") or key(item) not in found:
            found[key(item)] = item
    return [found[name] for name in sorted(found)]


def page(answers: dict[str, RpcReply], limit: int, *names: str) -> Item:
    """A page of a list out of the nodes' pages: in the order of these properties, each item with its node."""
    key = itemgetter(*names)
    found = values(answers)
    items = best(chain.from_iterable(({**item, "node": n} for item in a["items"]) for n, a in found.items()), key)
    more = len(items) > limit or any(len(answer["items"]) == limit for answer in found.values())
    items = heapq.nsmallest(limit, items, key)
    return {"items": items, "next": items[-1] if more and items else None, "failures": failures(answers)}
