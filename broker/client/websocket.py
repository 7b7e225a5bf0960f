"""MQTT over WebSocket for a client: a transport in the sense of asyncio, over a connection of aiohttp."""

import asyncio
import contextlib
import ssl

import aiohttp

SUBPROTOCOL = "mqtt"  # [MQTT-6.0.0-3]
HIGH_WATER = 1 << 16  # bytes that wait to be sent, above which the protocol is to pause
CLOSE_SECONDS = 2.0


class WebSocketTransport(asyncio.Transport):
    """Carries bytes of a protocol in binary messages.

    Args:
        session: of aiohttp; it is closed with the connection.
        messages: the connection.
        protocol: gets the bytes.
    """

    def __init__(
        self, session: aiohttp.ClientSession, messages: aiohttp.ClientWebSocketResponse, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._session = session
        self._messages = messages
        self._protocol = protocol
        self._output = bytearray()
        self._wake = asyncio.Event()  # there is output, or the connection is to be closed
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        protocol.connection_made(self)

    async def _run(self) -> None:
        sending = asyncio.create_task(self._send())
        error: Exception | None = None
        try:
            async for message in self._messages:
                if message.type is not aiohttp.WSMsgType.BINARY:  # [MQTT-6.0.0-1]
                    break
                self._protocol.data_received(message.data)
                await self._may_read.wait()
        except (OSError, aiohttp.ClientError) as fault:
            error = fault
        finally:
            self._closing = True
            sending.cancel()
            with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._messages.close()
            await self._session.close()
            self._protocol.connection_lost(error)

    async def _send(self) -> None:
        try:
            while self._output or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while self._output:
                    data = bytes(self._output)
                    self._output.clear()
                    await self._messages.send_bytes(data)
                    self._protocol.resume_writing()
        except (OSError, aiohttp.ClientError):
            pass  # the reader finds the end
        await self._messages.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._output += data
        self._wake.set()
        if len(self._output) > HIGH_WATER:
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self._may_read.set()
        self._wake.set()

    def abort(self) -> None:
        self._closing = True
        self._task.cancel()


async def connect(url: str, context: ssl.SSLContext | None, protocol: asyncio.Protocol) -> None:
    """Connect a protocol to ws:// or wss://.

    Args:
        url: with the path.
        context: of wss://.
        protocol: gets the transport.

    Raises:
        OSError: no connection could be made, or the server does not speak MQTT over WebSocket.
    """
    session = aiohttp.ClientSession()
    try:
        messages = await session.ws_connect(
            url, protocols=(SUBPROTOCOL,), ssl=context if context is not None else True, max_msg_size=0, compress=0
        )
    except aiohttp.ClientConnectorError as error:
        await session.close()
        raise error.os_error from None
    except aiohttp.WSServerHandshakeError as error:
        await session.close()
        raise OSError(f"the reply to its WebSocket request has status {error.status}") from None
    except aiohttp.ClientError as error:
        await session.close()
        raise OSError(str(error)) from None
    except BaseException:
        await session.close()
        raise
    WebSocketTransport(session, messages, protocol)
