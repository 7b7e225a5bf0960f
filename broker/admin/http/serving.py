"""The check that a node has started, before anything is read of its state."""

from http import HTTPStatus

from ...rpc.node_view import NodeView
from .problems import Problem


def judge_serving(node: NodeView) -> None:
    """Raises Problem: the node has not started."""
    if not node.serving:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the node is starting", Retry_After="1")
