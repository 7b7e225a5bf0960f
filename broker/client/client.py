"""A small asyncio MQTT client for `flockmq pub`, `flockmq sub`, `flockmq replay` and the tests.

Owns one `ClientSession`, its connection and timer, and the queue of received messages. Rules:
- `Client` outlives its connections: `connect` may be called again after a loss. Unacknowledged packets are sent again
  if the session goes on (clean_start false); until then their callers get `ConnectionLostError`.
- An incoming message counts as received when it is acknowledged; `receive` acknowledges it unless the caller does.
- Bounded: above QUEUE_HIGH messages in the queue, the connection is not read.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf
from types import TracebackType
from typing import Any, Self, cast

from ..._speedups.codec.errors import InvalidPacket
from ..._speedups.codec.packets import Packet, Publish
from ..._speedups.protocol.client_events import (
    FIRST_ERROR,
    Accepted,
    Acknowledged,
    Disconnected,
    PacketIdsExhausted,
    ProtocolViolation,
    Refused,
    Subscribed,
    Unsubscribed,
    reason_text,
)
from ..._speedups.protocol.client_session import ClientSession
from ..errors import ClientError, ConnectError, ConnectionLostError, ConnectRefusedError
from .connection import ClientConnection
from .options import Options

QUEUE_HIGH = 1000  # messages waiting for `receive` above which the connection is not read
QUEUE_LOW = 500  # and at which it is read again
# Remedies by the return code of CONNACK, or by its reason code at level 5.
VERSION = "try another -V"
CLIENT_ID = "try another client identifier; MQTT 3.1 allows 1 to 23 characters"
LATER = "try again later"
PASSWORD = "check -u and -P"
RIGHTS = "check -u, -P and what the broker allows this client"
HINTS = {
    1: VERSION,
    2: CLIENT_ID,
    3: LATER,
    4: PASSWORD,
    5: RIGHTS,
    0x84: VERSION,
    0x85: CLIENT_ID,
    0x86: PASSWORD,
    0x87: RIGHTS,
    0x88: LATER,
    0x89: LATER,
    0x97: LATER,
    0x9F: LATER,
}


class Client:
    """One MQTT client; `async with Client(options) as client:` connects and disconnects.

    Args:
        options: how to connect.
        on_packet: called with "sending" or "received" and each packet.
    """

    def __init__(self, options: Options, *, on_packet: Callable[[str, Packet], None] | None = None) -> None:
        self.options = options
        self._session = ClientSession(
            options,
            acknowledge_at_once=False,
            ping_after=options.keep_alive / 2,
            ping_timeout=options.timeout,
            on_packet=on_packet,
        )
        self._connection: ClientConnection | None = None
        self._connack: asyncio.Future[Accepted]  # of the latest connection
        self._timer: asyncio.TimerHandle | None = None
        self._messages: asyncio.Queue[Publish | ConnectionLostError] = asyncio.Queue()
        self._window = asyncio.Semaphore(options.max_inflight)

    @property
    def client_id(self) -> str:
        """The client identifier: of the options, or assigned by the broker."""
        return self._session.client_id

    @property
    def connected(self) -> bool:
        """Whether there is a connection that CONNACK has accepted."""
        return self._session.accepted

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> Accepted:
        """Connect, or connect again. Raises ConnectError, ConnectRefusedError, ConnectionLostError, ClientError."""
        assert self._connection is None, "connected already"
        options = self.options
        if options.clean_start:
            self._session.forget_outgoing()
        try:
            async with asyncio.timeout(options.timeout):
                return await self._connect()
        except TimeoutError:
            raise ConnectError(f"{options.address} did not answer within {options.timeout:g} s") from None

    async def _connect(self) -> Accepted:
        connection = await ClientConnection(self.options, self._received, self._lost).dial()
        self._connection = connection
        self._connack = asyncio.get_running_loop().create_future()
        try:
            self._send(self._session.connect)
            return await self._connack
        except BaseException:
            connection.abort("not accepted")
            self._forget_connection()
            raise

    async def disconnect(self, reason_code: int = 0, properties: dict[str, Any] | None = None) -> None:
        """Send DISCONNECT and close; does nothing without a connection. Code and properties are for level 5."""
        if self._connection is not None:
            self._send(self._session.disconnect, reason_code, properties)
            await self._connection.close()

    def abort(self) -> None:
        """Drop the connection without DISCONNECT, as a crash would; the will is then due."""
        if self._connection is not None:
            self._connection.abort("aborted")

    async def wait_lost(self) -> None:
        """Wait until there is no connection."""
        if self._connection is not None:
            await self._connection.closed.wait()

    async def publish(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Publish; with QoS 1 and 2 returns once acknowledged. Raises ClientError, ConnectionLostError."""
        acknowledged = await self.start_publish(topic_name, payload, qos, retain, properties)
        await acknowledged

    async def start_publish(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> asyncio.Future[Any]:
        """Send once there is room; the future is done once acknowledged. Raises ClientError, ConnectionLostError."""
        if qos:
            await self._window.acquire()
        try:
            await self._connected().writable.wait()
            self._connected()
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._send(self._session.publish, topic_name, payload, qos, retain, done, properties)
        except BaseException:
            if qos:
                self._window.release()
            raise
        if qos:
            done.add_done_callback(lambda _: self._window.release())
        else:
            done.set_result(None)
        return done

    async def subscribe(
        self, topic_filters: Sequence[tuple[str, int]], properties: dict[str, Any] | None = None
    ) -> Subscribed:
        """Subscribe; returns SUBACK. Raises ClientError, ConnectionLostError.

        Args:
            topic_filters: pairs of a topic filter and its QoS, at level 5 its options byte.
            properties: of SUBSCRIBE, level 5.
        """
        return cast(Subscribed, await self._request(self._session.subscribe, topic_filters, properties))

    async def unsubscribe(self, topic_filters: Sequence[str], properties: dict[str, Any] | None = None) -> Unsubscribed:
        """Unsubscribe; returns UNSUBACK. Raises ClientError, ConnectionLostError."""
        return cast(Unsubscribed, await self._request(self._session.unsubscribe, topic_filters, properties))

    async def receive(self, *, acknowledge: bool = True) -> Publish:
        """The next message. Raises ConnectionLostError once, after the last message of a lost connection."""
        message = await self._messages.get()
        if self._messages.qsize() <= QUEUE_LOW and self._connection is not None:
            self._connection.resume_reading()
        if isinstance(message, ConnectionLostError):
            raise message
        if acknowledge:
            self.acknowledge(message)
        return message

    @property
    def waiting(self) -> int:
        """How many messages `receive` would return at once."""
        return self._messages.qsize()

    def acknowledge(self, message: Publish) -> None:
        """Take over the responsibility for a message that `receive` handed out unacknowledged."""
        if message.qos:
            self._session.acknowledge(message)
            self._flush()

    # ---- sending ----

    async def _request(
        self, send: Callable[..., None], topic_filters: Sequence[Any], properties: dict[str, Any] | None
    ) -> Subscribed | Unsubscribed:
        self._connected()
        done: asyncio.Future[Subscribed | Unsubscribed] = asyncio.get_running_loop().create_future()
        self._send(send, topic_filters, done, properties)
        return await done

    def _connected(self) -> ClientConnection:
        if self._connection is None or not self._session.accepted:
            raise ConnectionLostError(f"not connected to {self.options.address}")
        return self._connection

    def _send(self, send: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the session and write its bytes. Raises ClientError: the packet can't be sent."""
        try:
            send(*arguments)
        except (InvalidPacket, PacketIdsExhausted) as error:
            raise ClientError(str(error)) from None
        self._flush()

    def _flush(self) -> None:
        data = self._session.take_output(asyncio.get_running_loop().time())
        if data and self._connection is not None:
            self._connection.transport.write(data)

    # ---- called by the loop ----

    def _received(self, connection: ClientConnection, data: bytes) -> None:
        fault, code = "", 0
        try:
            events = self._session.feed(data)
        except ProtocolViolation as violation:
            events, fault = violation.events, str(violation)
            if data.startswith(b"HTTP/"):
                fault = "HTTP is spoken there, not MQTT; --ws is MQTT over WebSocket"
        self._flush()
        for event in events:
            match event:
                case Publish():
                    self._messages.put_nowait(event)
                case Acknowledged(done, reason_code, properties) if reason_code >= FIRST_ERROR:
                    fail([done], ClientError(f"the message was refused: {reason_text(reason_code, properties)}"))
                case Acknowledged(done) | Subscribed(_, done) | Unsubscribed(_, done):
                    if done is not None and not done.done():
                        done.set_result(event)
                case Accepted():
                    self._begin(event)
                case Refused(reason_code, reason):
                    fail([self._connack], self._refusal(reason_code, reason))
                case Disconnected(code, reason):
                    fault = f"the broker sent DISCONNECT: {reason}"
        if self._messages.qsize() >= QUEUE_HIGH:
            connection.pause_reading()
        if fault:
            connection.abort(fault, code)

    def _begin(self, event: Accepted) -> None:
        """Take the accepted connection into use: drop the ends of earlier ones from the queue."""
        for _ in range(self._messages.qsize()):
            message = self._messages.get_nowait()
            if isinstance(message, Publish):
                self._messages.put_nowait(message)
        if not self._connack.done():
            self._connack.set_result(event)
        self._on_time()

    def _refusal(self, return_code: int, reason: str) -> ConnectRefusedError:
        words = f"{self.options.address} refused the connection: {reason}"
        return ConnectRefusedError(words, HINTS.get(return_code, ""), return_code=return_code)

    def _on_time(self) -> None:
        """Send PINGREQ when it is due; end the connection when it stays unanswered."""
        loop, connection = asyncio.get_running_loop(), self._connection
        assert connection is not None
        if self._session.on_time(loop.time()):
            self._flush()
            due = self._session.next_due
        elif connection.reading_paused:  # PINGRESP may wait in the socket
            due = loop.time() + self.options.timeout
        else:
            connection.abort("no answer to PINGREQ")
            return
        self._timer = loop.call_at(due, self._on_time) if due < inf else None

    def _lost(self, connection: ClientConnection, error: ConnectionLostError) -> None:
        if connection is not self._connection:
            return
        if self._connack.done():
            self._messages.put_nowait(error)
        publications = [done for _, done in self._session.unacknowledged.values()]
        fail([self._connack, *publications, *self._forget_connection()], error)

    def _forget_connection(self) -> list[Any]:
        """Returns the futures of requests without a reply."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
        return self._session.connection_lost()


def fail(futures: Iterable["asyncio.Future[Any]"], error: ClientError) -> None:
    """End the futures that are not done."""
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # retrieved: its caller may not wait for it
