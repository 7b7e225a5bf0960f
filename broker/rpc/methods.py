"""The questions that every node answers, whether it serves HTTP or not."""

from functools import partial
from typing import TYPE_CHECKING

from broker.core.calls import Questions
from broker.rpc import clients, node

if TYPE_CHECKING:
    from broker.node import Node


def questions(of: "Node") -> Questions:
    """What this node can be asked by the others, and by its own API."""
    broker = of.broker
    return {
        "node": partial(node.describe, of),
        "figures": partial(node.figures, of),
        "listeners": partial(node.listeners, of),
        "log_level": partial(node.log_level, of),
        "clients": partial(clients.find, broker),
        "client": partial(clients.one, broker),
        "subscriptions": partial(clients.subscriptions, broker),
        "kick": partial(clients.kick, broker),
        "bans": broker.bans.asked,
    }
