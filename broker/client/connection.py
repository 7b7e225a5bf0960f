"""The network connection of a client: bytes in and out, back-pressure both ways, and the reason of its end."""

import asyncio
import os
import re
import socket
from collections.abc import Callable
from typing import Self, cast

from ..errors import ConnectError, ConnectionLostError
from .options import Options


class ClientConnection(asyncio.Protocol):
    """A connection to a broker.

    Args:
        options: how to connect.
        received: called with the bytes received.
        lost: called when the connection has ended.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        options: Options,
        received: "Callable[[ClientConnection, bytes], None]",
        lost: "Callable[[ClientConnection, ConnectionLostError], None]",
    ) -> None:
        self._options = options
        self._received = received
        self._lost = lost
        self._reason = ""  # why the client ends the connection, if it does
        self._reason_code = 0  # of the broker's DISCONNECT
        self._heard = False  # whether the broker has sent anything
        self.reading_paused = False
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    async def dial(self) -> Self:
        """Connect to the network address.

        Raises:
            ConnectError: no connection could be made.
        """
        options, loop = self._options, asyncio.get_running_loop()
        try:
            if options.websocket:
                from . import websocket  # late: its library takes a while to load

                await websocket.connect(options.address, options.tls, self)
            elif options.unix:
                await loop.create_unix_connection(lambda: self, options.unix)
            else:
                await loop.create_connection(lambda: self, options.host, options.port, ssl=options.tls)
        except TimeoutError:
            raise
        except socket.gaierror as error:
            raise ConnectError(f"cannot find host {options.host!r}: {error.strerror}", "check -h") from None
        except (OSError, UnicodeError) as error:
            raise ConnectError(f"cannot connect to {options.address}: {reason_of(error)}", hint_of(error)) from None
        return self

    # ---- called by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._heard = True
        self._received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or (reason_of(exc) if exc else "the broker closed the connection")
        hint = "" if self._heard or self._reason else "does that port speak TLS, or has it a limit of connections?"
        self.closed.set()
        self.writable.set()
        text = f"connection to {self._options.address} lost: {reason}"
        self._lost(self, ConnectionLostError(text, hint, reason_code=self._reason_code))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # ---- called by the client ----

    def pause_reading(self) -> None:
        """Read no more for now."""
        if not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.reading_paused:
            self.reading_paused = False
            self.transport.resume_reading()

    def abort(self, reason: str, reason_code: int = 0) -> None:
        """End the connection at once; `reason_code` is from the broker's DISCONNECT, if it sent one."""
        self._reason = self._reason or reason
        self._reason_code = self._reason_code or reason_code
        self.transport.abort()

    async def close(self) -> None:
        """Close the connection when all bytes are sent; after the timeout, at once."""
        self._reason = "disconnected"
        self.transport.close()
        try:
            async with asyncio.timeout(self._options.timeout):
                await self.closed.wait()
        except TimeoutError:
            self.transport.abort()


def hint_of(error: Exception) -> str:
    """The remedy for a failed connect."""
    if hasattr(error, "verify_code"):
        return "--cafile names the authorities to trust"
    if isinstance(error, ConnectionResetError) or getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
        return "does that port speak TLS?"
    return "is a broker there?"


def reason_of(error: Exception) -> str:
    """The system's words for a failed connect; asyncio joins the words of several addresses into one text."""
    if message := getattr(error, "verify_message", ""):
        return f"its certificate can't be trusted: {message}"
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return os.strerror(int(numbers[-1])).lower() if numbers else str(error) or "the connection ended before TLS began"
