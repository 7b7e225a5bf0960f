"""The rights of the connected clients of a node."""

from typing import Any

from ..auth.right_check import Action, Decision
from ..core import tenants
from ..core.calls import Arguments
from .node_view import NodeView


def check(node: NodeView, arguments: Arguments) -> dict[str, Any] | None:
    """Whether a connected client may do something, and by which rule; None: it is not connected to this node."""
    session = node.broker.data_plane.sessions.get(arguments["client_id"].encode())
    connection = None if session is None else session.owner
    if connection is None or connection.identity is None:
        return None
    identity = connection.identity
    client_id = tenants.split(arguments["client_id"].encode())[1]
    topic = arguments["topic"].removeprefix(tenants.prefix_of(identity.tenant))
    decision = node.access.decide(identity, client_id, Action(arguments["action"]), topic)
    return {**shown(decision), "username": identity.username, "listener": identity.listener}


def shown(decision: Decision) -> dict[str, Any]:
    """A decision as the API has it."""
    place = decision.place
    return {
        "allowed": decision.allowed,
        "reason": decision.reason,
        "rule": decision.rule,
        "source": None if place is None else {"kind": place.kind, "name": place.name, "line": place.line},
    }
