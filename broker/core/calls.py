"""Calls between nodes: a method has a name and arguments, and returns a value of JSON.

`RpcMethods` maps the name of each method to the function that this node runs for it. `Nodes.call_all` carries the call
to all nodes and collects the replies. A node that fails, is silent or returns too much has a
failure in place of a value; the replies of the other nodes stand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple

from .. import logs
from ..errors import FlockError

SECONDS = 2.0  # timeout of a call, unless the caller gives another

Arguments = dict[str, Any]
RpcMethods = dict[str, Callable[[Arguments], Any | Awaitable[Any]]]

log = logs.get("flockmq.calls")


class RpcReply(NamedTuple):
    """The reply of one node."""

    value: Any
    failure: str = ""  # why there is no value


CallAll = Callable[[str, Arguments], Coroutine[Any, Any, dict[str, RpcReply]]]  # method, arguments -> reply by node

SILENT = RpcReply(None, "the node did not answer in time")


async def gather(nodes: Mapping[str, asyncio.Future[RpcReply]], seconds: float) -> dict[str, RpcReply]:
    """The replies of these nodes within the time; `SILENT` for the others."""
    try:
        await asyncio.wait(nodes.values(), timeout=seconds)
        return {node: future.result() if future.done() else SILENT for node, future in nodes.items()}
    finally:
        for future in nodes.values():
            future.cancel()  # the caller has returned


async def call(methods: RpcMethods, name: str, arguments: Arguments) -> RpcReply:
    """Run a method of this node."""
    method = methods.get(name)
    if method is None:
        return RpcReply(None, "unknown call: the node may run an older version")
    try:
        value = method(arguments)
        return RpcReply(await value if isawaitable(value) else value)
    except FlockError as error:  # such as a Redis that is away
        return RpcReply(None, str(error))
    except Exception:
        log.exception("internal error: a call from a node failed", method=name)
        return RpcReply(None, "the node failed to answer; see its log")
