"""Calls of methods at all nodes: a call is published to the channel of all nodes, a reply to the caller's channel.

A node that has left, is silent for too long or replies too much counts as failed; the caller does not wait for it.
"""

import asyncio
import itertools
import json

from ...broker.core.calls import Arguments, RpcMethods, RpcReply, call, gather
from ...broker.core.data_plane import DataPlane
from . import wire
from .members import Members
from .node_link import NodeLink

MAX_REPLY = 1 << 20  # bytes of a reply: Redis closes a connection with too much pending output
LEFT = RpcReply(None, "the node has left")
CUT_OFF = RpcReply(None, "this node has no link to the others: Redis is away")
TOO_LARGE = RpcReply(None, "the node's reply is too large: request less")


class Rpc:
    """The calls of this node, and its replies to the calls of others.

    Args:
        plane: of this node.
        link: of this node.
        members: the other nodes.
        methods: of this node, by name.
    """

    def __init__(self, plane: DataPlane, link: NodeLink, members: Members, methods: RpcMethods) -> None:
        self._plane = plane
        self._link = link
        self._members = members
        self._methods = methods
        self._numbers = itertools.count(1)
        self._waiting: dict[int, dict[bytes, asyncio.Future[RpcReply]]] = {}  # by call, then node

    async def call_all(self, method: str, arguments: Arguments, seconds: float) -> dict[str, RpcReply]:
        """The replies by node id, this node's first; one for every node, within `seconds`."""
        link = self._link
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        others = {member.node: loop.create_future() for member in self._members}
        mine = loop.create_task(call(self._methods, method, arguments))
        self._waiting[number] = others
        try:
            if link.connected:
                link.publish(link.keys.all, wire.ask(link.node_id, number, method, json.dumps(arguments)))
            else:
                for future in others.values():
                    future.set_result(CUT_OFF)
            futures = {link.node_id.decode(): mine, **{node.decode(): future for node, future in others.items()}}
            return await gather(futures, seconds)
        finally:
            del self._waiting[number]

    def handle_ask(self, caller: bytes, number: int, method: bytes, arguments: bytes) -> None:
        """A node calls a method of all nodes."""
        if caller != self._link.node_id:
            self._plane.run(self._reply(caller, number, method.decode(), json.loads(arguments)))

    async def _reply(self, caller: bytes, number: int, method: str, arguments: Arguments) -> None:
        reply = json.dumps(await call(self._methods, method, arguments))
        if len(reply) > MAX_REPLY:
            reply = json.dumps(TOO_LARGE)
        if self._link.connected:
            self._link.publish(self._link.keys.to(caller), wire.answer(self._link.node_id, number, reply))

    def handle_answer(self, node: bytes, number: int, reply: bytes) -> None:
        """A node replies to a call of this node."""
        self._finish(node, number, RpcReply(*json.loads(reply)))

    def node_left(self, node: bytes) -> None:
        """A node has left: it will send no reply."""
        for number in list(self._waiting):
            self._finish(node, number, LEFT)

    def _finish(self, node: bytes, number: int, reply: RpcReply) -> None:
        future = self._waiting.get(number, {}).get(node)
        if future is not None and not future.done():  # else it is too late
            future.set_result(reply)
