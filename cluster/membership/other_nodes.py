"""Nodes that join the cluster, and nodes that leave it, as this node sees them."""

from collections.abc import Callable

from ...broker import logs
from ..peers.node_link import NodeLink
from ..peers.rpc import Rpc
from ..redis.link import DECLARED_DEAD, Reply
from ..replication.replica import Replica
from ..sessions.takeover import TakeOver
from ..state import Membership, State

log = logs.get("flockmq.cluster")


class OtherNodes:
    """Passes the changes `ready` and `left` to the parts of this node; see `NodesListener`.

    Args:
        link: of this node.
        membership: of this node.
        replica: of this node.
        takeover: of this node.
        rpc: of this node.
        died: called with a node that has left or is dead, before anything else that follows from it.
    """

    def __init__(
        self,
        link: NodeLink,
        membership: Membership,
        replica: Replica,
        takeover: TakeOver,
        rpc: Rpc,
        died: Callable[[bytes], object],
    ) -> None:
        self._link = link
        self._membership = membership
        self._members = replica.members
        self._barrier = replica.barrier
        self._takeover = takeover
        self._rpc = rpc
        self._died = died

    def joined(self, node: bytes, change: int) -> None:
        log.info("node joined", node=node.decode())
        member = self._members.add(node)
        self._barrier.node_joined(node, change)

        def read(reply: Reply) -> None:
            member.process = reply if isinstance(reply, bytes) else b""

        self._link.call(read, "HGET", self._link.keys.node(node), "process")

    def left(self, node: bytes) -> None:
        if node == self._link.node_id:
            if self._membership.state is not State.LEAVING:
                self._membership.become_fenced(DECLARED_DEAD)
            return
        if self._members.get(node) is not None:
            log.info("node left", node=node.decode())
            self._died(node)
        self._members.remove(node)
        self._barrier.node_left(node)
        self._takeover.node_left(node)
        self._rpc.node_left(node)
