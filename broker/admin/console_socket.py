"""/mqtt: MQTT over WebSocket for the page's console, from the page's own origin only.

The library handles frames. Bytes pass through a socket pair whose other end is an ordinary client connection:
authenticated, limited and counted like any other. The request needs the role operator, by a login or by a token among
the subprotocols, if the node uses them.
"""

import asyncio
import contextlib
import socket
from http import HTTPStatus

from aiohttp import WSMsgType, web

from ..._speedups.net.listener import Endpoint
from ..rpc.node_view import NodeView
from .http.authorization import SUBPROTOCOL, AdminAuthorization
from .http.clients import address_of
from .http.problems import Problem
from .http.tokens import OPERATOR

PROTOCOL = "mqtt"  # [MQTT-6.0.0-3]
CHUNK = 65_536
MAX_CONSOLES = 32
CLOSE_SECONDS = 2.0


class ConsoleSocket:
    """Carries bytes between consoles and the node.

    Args:
        node: of the consoles.
        authorization: of requests.
    """

    def __init__(self, node: NodeView, authorization: AdminAuthorization) -> None:
        self._node = node
        self._authorization = authorization
        self._open = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """A console connects."""
        self._authorization.judge(request, OPERATOR, is_socket=True)
        if self._open >= MAX_CONSOLES or not self._node.serving:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many consoles are open, or the node is starting")
        messages = web.WebSocketResponse(
            protocols=(PROTOCOL,),
            max_msg_size=self._node.config.limits.max_packet_size,
            timeout=CLOSE_SECONDS,
            heartbeat=30.0,
            compress=False,
        )
        if not messages.can_prepare(request) or PROTOCOL not in _subprotocols(request):
            raise Problem(HTTPStatus.BAD_REQUEST, "this is MQTT over WebSocket, of subprotocol mqtt")
        self._open += 1
        try:
            await messages.prepare(request)
            await self._carry(messages, *await self._connect(request.remote or ""))
        finally:
            self._open -= 1
        return messages

    async def _connect(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The other end is a connection of the node's default listener."""
        ours, theirs = socket.socketpair()
        endpoint = Endpoint(self._node.listeners.of("default"))
        self._node.broker.data_plane.reactor.adopt(theirs, endpoint, address_of(host))
        return await asyncio.open_connection(sock=ours)

    async def _carry(
        self, messages: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sending = asyncio.create_task(_send(reader, messages))
        try:
            async for message in messages:
                if message.type is not WSMsgType.BINARY:  # [MQTT-6.0.0-1]
                    break
                writer.write(message.data)
                await writer.drain()
        except ConnectionError:
            pass  # the node has closed the connection
        finally:
            writer.close()
            await sending


async def _send(reader: asyncio.StreamReader, messages: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            await messages.send_bytes(data)
    await messages.close()


def _subprotocols(request: web.Request) -> list[str]:
    names = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    return [name.strip() for name in names if not name.strip().startswith(SUBPROTOCOL)]
