"""Questions to all nodes: one goes over the channel of all, the answers come to the asker's own.

Who leaves, is silent for too long or says too much has a failure for an answer; nobody waits for who has gone.
"""

import asyncio
import itertools
import json
from typing import TYPE_CHECKING

from broker.core.calls import Arguments, RpcReply, call, gather
from cluster.peers import wire

if TYPE_CHECKING:
    from cluster.coordinator import Cluster

ANSWER_MOST = 1 << 20  # bytes of an answer: Redis closes a link for which too much waits
GONE = RpcReply(None, "the node has gone")
CUT_OFF = RpcReply(None, "this node has no link to the others: Redis is away")
TOO_LARGE = RpcReply(None, "the node's answer is too large: ask for less")


class Asking:
    """The questions of this node, and what it answers to others.

    Args:
        cluster: it belongs to.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._waiting: dict[int, dict[bytes, asyncio.Future[RpcReply]]] = {}  # by question, then node

    async def call_all(self, method: str, arguments: Arguments, seconds: float) -> dict[str, RpcReply]:
        """The answers by node, this one's first; there are as many as nodes, in time."""
        cluster = self._cluster
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        others = {member.node: loop.create_future() for member in cluster.members}
        mine = loop.create_task(call(cluster.methods, method, arguments))
        self._waiting[number] = others
        try:
            if cluster.connected:
                cluster.publish(cluster.keys.all, wire.ask(cluster.me, number, method, json.dumps(arguments)))
            else:
                for future in others.values():
                    future.set_result(CUT_OFF)
            return await gather({cluster.node_id: mine, **{n.decode(): f for n, f in others.items()}}, seconds)
        finally:
            del self._waiting[number]

    def asked(self, asker: bytes, number: int, question: bytes, arguments: bytes) -> None:
        """A node asks."""
        if asker != self._cluster.me:
            self._cluster.data_plane.run(self._reply(asker, number, question.decode(), json.loads(arguments)))

    async def _reply(self, asker: bytes, number: int, method: str, arguments: Arguments) -> None:
        cluster = self._cluster
        found = json.dumps(await call(cluster.methods, method, arguments))
        if len(found) > ANSWER_MOST:
            found = json.dumps(TOO_LARGE)
        if cluster.connected:
            cluster.publish(cluster.keys.to(asker), wire.answer(cluster.me, number, found))

    def answered(self, node: bytes, number: int, found: bytes) -> None:
        """A node answers."""
        self._settle(node, number, RpcReply(*json.loads(found)))

    def left(self, node: bytes) -> None:
        """A node has gone."""
        for number in list(self._waiting):
            self._settle(node, number, GONE)

    def _settle(self, node: bytes, number: int, found: RpcReply) -> None:
        future = self._waiting.get(number, {}).get(node)
        if future is not None and not future.done():  # else it comes too late
            future.set_result(found)
