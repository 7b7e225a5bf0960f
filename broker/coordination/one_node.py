"""A node that is alone, as `Nodes`."""

import asyncio

from ..core.calls import SECONDS, Arguments, RpcMethods, RpcReply, call, gather
from .coordinator import Nodes


class OneNode(Nodes):
    """The only node.

    Args:
        methods: of the node, by name.
    """

    node_id = "node"
    count = 1
    is_alone = True
    connected = True

    def __init__(self, methods: RpcMethods) -> None:
        self._methods = methods

    def is_responsible(self, name: str) -> bool:
        return True

    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        mine = asyncio.ensure_future(call(self._methods, method, arguments))
        return await gather({self.node_id: mine}, seconds)

    async def redis_use(self) -> None:
        return None
