"""The methods that every node runs for the others and for its own API, whether it serves HTTP or not."""

from functools import partial

from ..core.calls import RpcMethods
from . import clients, doctor, groups, limits, node, tenants
from .node_view import NodeView


def methods(view: NodeView) -> RpcMethods:
    """The methods of a node, for the broker that it has now."""
    data_plane, coordinator = view.broker.data_plane, view.broker.coordinator
    return {
        "node": partial(node.describe, view),
        "figures": partial(node.figures, view),
        "own_references": partial(node.own_references, view),
        "drain": partial(node.drain, view),
        "listeners": partial(node.listeners, view),
        "record": partial(node.record, view),
        "reach": lambda arguments: None,  # the reply says that the node has all that was sent before
        "log_level": partial(node.log_level, view),
        "tenants": partial(tenants.find, data_plane),
        "clients": partial(clients.find, data_plane, coordinator.sessions),
        "client": partial(clients.one, data_plane, coordinator.sessions),
        "subscriptions": partial(clients.subscriptions, data_plane),
        "groups": partial(groups.find, data_plane, coordinator.groups),
        "group": partial(groups.one, data_plane, coordinator.groups),
        "limits": partial(limits.find, view),
        "doctor": partial(doctor.find, view),
        "links": lambda arguments: view.links.described(),
        "kick": partial(clients.kick, data_plane),
        "wills": partial(clients.wills, coordinator.wills),
        "cancel_will": partial(clients.cancel_will, coordinator.wills),
    }
