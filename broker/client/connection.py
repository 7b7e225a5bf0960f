"""One network connection of a client: packets in and out, keep alive, and the reason of its end."""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from _speedups.codec.decode import Decoder
from _speedups.codec.encode import encode
from _speedups.codec.errors import InvalidPacket, MalformedPacket
from _speedups.codec.packets import Connack, Pingreq
from broker.client.options import Options
from broker.errors import ClientError, ConnectError, ConnectionLostError, ConnectRefusedError

if TYPE_CHECKING:
    from _speedups.codec.packets import Packet

# CONNACK return codes: [MQTT-3.2.2-4..6], table 3.1; words and remedies.
RETURN_CODES = {
    1: ("unacceptable protocol version", "try the other -V"),
    2: ("identifier rejected", "try another client identifier; MQTT 3.1 allows 1 to 23 characters"),
    3: ("server unavailable", "try again later"),
    4: ("bad user name or password", "check -u and -P"),
    5: ("not authorized", "check -u, -P and what the broker allows this client"),
}


OnPacket = Callable[[str, "Packet"], None]  # "sending" or "received", and the packet


class ClientConnection(asyncio.Protocol):
    """A connection to a broker.

    Args:
        options: how to connect.
        on_packet: called with each packet, in both directions.
        handle: called with each packet received.
        lost: called when the connection has ended.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        options: Options,
        on_packet: OnPacket | None,
        handle: "Callable[[ClientConnection, Packet], None]",
        lost: "Callable[[ClientConnection, ConnectionLostError], None]",
    ) -> None:
        self._options = options
        self._on_packet = on_packet
        self._handle = handle
        self._lost = lost
        self._decoder = Decoder(options.level)
        self._sent_at = 0.0
        self._ping_sent_at = 0.0  # 0 = no PINGREQ is unanswered
        self._keep_alive: asyncio.TimerHandle | None = None
        self.reading_paused = False
        self.reason = ""  # why the client ends the connection, if it does
        self.acknowledged: asyncio.Future[Connack] = asyncio.get_running_loop().create_future()
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
            if options.unix:
                await loop.create_unix_connection(lambda: self, options.unix)
            else:
                await loop.create_connection(lambda: self, options.host, options.port, ssl=options.tls)
        except TimeoutError:
            raise
        except socket.gaierror as error:
            raise ConnectError(f"cannot find host {options.host!r}: {error.strerror}", "check -h") from None
        except (OSError, UnicodeError) as error:
            hint = "--cafile names the authorities to trust" if hasattr(error, "verify_code") else "is a broker there?"
            raise ConnectError(f"cannot connect to {options.address}: {reason_of(error)}", hint) from None
        return self

    # ---- called by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        fault = ""
        try:
            received: Sequence[Packet] = self._decoder.feed(data)
        except MalformedPacket as error:
            received, fault = error.packets, f"the broker broke the protocol: {error.reason}"
        for packet in received:
            if self._on_packet is not None:
                self._on_packet("received", packet)
            self._handle(self, packet)
        if fault:
            self.abort(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        reason = self.reason or (str(exc) if exc else "the broker closed the connection")
        error = ConnectionLostError(f"connection to {self._options.address} lost: {reason}")
        self.closed.set()
        self.writable.set()
        if not self.acknowledged.done():
            self.acknowledged.set_exception(error)
            self.acknowledged.exception()  # retrieved: the caller may not wait any more
        self._lost(self, error)

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

    def encode(self, packet: "Packet") -> bytes:
        """The bytes of a packet. Raises ClientError: it can't be encoded."""
        try:
            return encode(packet, self._options.level)
        except InvalidPacket as error:
            raise ClientError(str(error)) from None

    def write(self, packet: "Packet", frame: bytes) -> None:
        """Send a packet that is encoded already."""
        if self._on_packet is not None:
            self._on_packet("sending", packet)
        self._sent_at = asyncio.get_running_loop().time()
        self.transport.write(frame)

    def send(self, packet: "Packet") -> None:
        """Send a packet. Raises ClientError: it can't be encoded."""
        self.write(packet, self.encode(packet))

    def abort(self, reason: str) -> None:
        """End the connection at once, without DISCONNECT."""
        self.reason = self.reason or reason
        self.transport.abort()

    # ---- keep alive ----

    def keep_alive(self) -> None:
        """Send PINGREQ after half a keep alive of silence; end the connection when it stays unanswered."""
        if self.closed.is_set() or not self._options.keep_alive:
            return
        loop = asyncio.get_running_loop()
        now, half = loop.time(), self._options.keep_alive / 2
        if self._ping_sent_at:
            # While the socket is not read, PINGRESP may wait in it.
            if not self.reading_paused and now - self._ping_sent_at >= self._options.timeout:
                self.abort("no answer to PINGREQ")
                return
        elif now - self._sent_at >= half:
            self._ping_sent_at = now
            self.send(Pingreq())
        self._keep_alive = loop.call_later(min(half, self._options.timeout) / 2, self.keep_alive)

    def on_pingresp(self) -> None:
        """PINGREQ was answered."""
        self._ping_sent_at = 0.0


def refusal(address: str, return_code: int) -> ConnectRefusedError:
    """The error for a CONNACK that refuses."""
    words, hint = RETURN_CODES.get(return_code, (f"return code {return_code}", ""))
    return ConnectRefusedError(f"{address} refused the connection: {words}", hint, return_code=return_code)


def reason_of(error: Exception) -> str:
    """The system's words for a failed connect; asyncio joins those of several addresses into one text."""
    if message := getattr(error, "verify_message", ""):
        return f"its certificate can't be trusted: {message}"
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return os.strerror(int(numbers[-1])).lower() if numbers else str(error)
