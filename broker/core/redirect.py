"""Other servers for clients of level 5: where a node that stops, is drained or has moved sends them [5: 4.11].

Only servers that the operator has named: a client that gets 0x9C may never come back.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.protocol.close_reasons import NODE_STOPS, CloseReason
from .. import logs
from .data_plane import DataPlane

References = tuple[str, ...]  # HOST:PORT each

log = logs.get("flockmq.broker")


class Redirect:
    """Decides whether new clients are sent to another server.

    Args:
        data_plane: has the configuration.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._draining = False
        self._closed = False
        self._given: References = ()
        self._is_own: Callable[[str], bool] = lambda reference: False

    @property
    def draining(self) -> bool:
        """Whether the node is about to stop, or to lose its clients."""
        return self._draining

    @property
    def closed(self) -> bool:
        """Whether the node takes no clients any more."""
        return self._closed

    @property
    def references(self) -> References:
        """The servers for clients of a node that is draining: the given ones, else from the configuration."""
        configured = self._data_plane.config.mqtt.server_reference
        return self._given or tuple(reference for reference in configured if not self._is_own(reference))

    def drain(self, is_own: Callable[[str], bool], references: References = ()) -> None:
        """The node is about to stop, or to lose its clients.

        Args:
            is_own: whether a reference of the configuration names this node, and is left out.
            references: servers in place of the configured servers.
        """
        self._draining = True
        self._is_own = is_own
        self._given = references or self._given

    def close(self) -> None:
        """Take no clients any more."""
        self._closed = True

    def follow(self, before: "Redirect") -> None:
        """Continue what another one has begun, in the place of which this one stands: no client is left there."""
        self._draining = self._closed = before._draining
        self._given, self._is_own = before._given, before._is_own

    def reason(self) -> CloseReason | None:
        """The reason for which CONNECT of level 5 is refused, with the other servers; None: it is not."""
        moved_to = self._data_plane.config.mqtt.moved_to
        if moved_to:
            return CloseReason(ReasonCode.SERVER_MOVED, "the server has moved", moved_to)
        return NODE_STOPS.leading_to(self.references) if self._draining and self.references else None


class Drain:
    """Moves the clients of a node that goes on running to other nodes.

    Args:
        redirect: of the node.
        close_clients: closes all connections, and sends clients of level 5 to these servers.
        patience: returns the seconds until load balancers have noticed that the node is not ready.
    """

    def __init__(
        self,
        redirect: Redirect,
        close_clients: Callable[[References], Awaitable[None]],
        patience: Callable[[], float],
    ) -> None:
        self._redirect = redirect
        self._close_clients = close_clients
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    def begin(self, is_own: Callable[[str], bool], references: References = ()) -> References:
        """Begin; returns the servers that clients of level 5 are sent to. See `Redirect.drain`."""
        self._redirect.drain(is_own, references)
        log.info("draining: clients are sent to other nodes", references=" ".join(self._redirect.references))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._redirect.references

    def cancel(self) -> None:
        """The node stops: it closes the clients itself."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        if not self._redirect.closed:
            await asyncio.sleep(self._patience())
        self._redirect.close()  # else clients that are closed come back
        await self._close_clients(self._redirect.references)
        log.info("drained: the node takes no clients until it is restarted")
