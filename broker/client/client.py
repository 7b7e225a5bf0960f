"""A small asyncio MQTT client, levels 3 and 4: what `flockmq pub`, `flockmq sub` and the tests speak with.

Owns the client's side of one session: packet identifiers, the window of outgoing messages, the QoS 2 states of both
directions, keep alive. Rules:
- `Client` outlives its connections: `connect` may be called again after a loss. What was not acknowledged is sent again
  if the session goes on (clean_start false); who waited for it was told `ConnectionLostError` meanwhile.
- An incoming message counts as received when it is acknowledged; `receive` does that on handing it out unless told not
  to.
- Bounded: above QUEUE_HIGH messages that nobody takes, the connection is not read.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from _speedups.codec import packets
from broker.errors import ClientError, ConnectError, ConnectionLostError, ConnectRefusedError

if TYPE_CHECKING:
    import ssl

    from _speedups.codec.packets import Packet

QUEUE_HIGH = 1000  # messages waiting for `receive` above which the connection is not read
QUEUE_LOW = 500  # and at which it is read again
# CONNACK return codes: [MQTT-3.2.2-4..6], table 3.1; the words and what to do.
RETURN_CODES = {
    1: ("unacceptable protocol version", "try the other -V"),
    2: ("identifier rejected", "try another client identifier; MQTT 3.1 allows 1 to 23 characters"),
    3: ("server unavailable", "try again later"),
    4: ("bad user name or password", "check -u and -P"),
    5: ("not authorized", "check -u, -P and what the broker allows this client"),
}


class Message(NamedTuple):
    """An application message as received."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int  # 0 for QoS 0


@dataclass(frozen=True)
class Will:
    """What the broker publishes if the connection dies."""

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Options:
    """How to connect."""

    host: str = "127.0.0.1"
    port: int = 1883
    client_id: str = ""
    level: int = 4  # 3 = MQTT 3.1, 4 = MQTT 3.1.1
    clean_start: bool = True
    keep_alive: int = 60  # seconds; 0 = none
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    timeout: float = 10.0  # seconds for connecting, and for an answer to PINGREQ
    max_inflight: int = 20  # QoS 1 and 2 messages sent and not yet acknowledged
    tls: "ssl.SSLContext | None" = None  # None: in plain text
    unix: str = ""  # path of a Unix socket, instead of host and port

    @property
    def address(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Connection(asyncio.Protocol):
    """One network connection: packets in and out, and word when it ends."""

    transport: asyncio.Transport

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._decoder = packets.Decoder(client.options.level)
        self.reason = ""  # why we end the connection, when it is us
        self.acknowledged: asyncio.Future[packets.Connack] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        fault = ""
        try:
            received: Sequence[Packet] = self._decoder.feed(data)
        except packets.MalformedPacket as error:
            received, fault = error.packets, f"the broker broke the protocol: {error.reason}"
        for packet in received:
            self._client._handle(self, packet)
        if fault:
            self.abort(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self.reason or (str(exc) if exc else "the broker closed the connection")
        error = ConnectionLostError(f"connection to {self._client.options.address} lost: {reason}")
        self.closed.set()
        self.writable.set()
        if not self.acknowledged.done():
            self.acknowledged.set_exception(error)
            self.acknowledged.exception()  # seen: nobody may be waiting any more
        self._client._lost(self, error)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def abort(self, reason: str) -> None:
        """End the connection at once, without DISCONNECT."""
        self.reason = self.reason or reason
        self.transport.abort()


class Client:
    """One MQTT client; `async with Client(options) as client:` connects and disconnects."""

    def __init__(self, options: Options, *, on_packet: "Callable[[str, Packet], None] | None" = None) -> None:
        self.options = options
        self.on_packet = on_packet  # called with "sending" or "received" and each packet
        self._connection: _Connection | None = None
        self._messages: asyncio.Queue[Message | ConnectionLostError] = asyncio.Queue()
        self._paused = False
        self._window = asyncio.Semaphore(options.max_inflight)
        self._last_packet_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # packet id -> who waits for its acknowledgement
        self._outgoing: dict[
            int, packets.Publish | packets.Pubrel
        ] = {}  # packet id -> the Publish or Pubrel to send again, in order
        self._offered: set[int] = set()  # QoS 2 packet ids queued or handed out, not yet acknowledged
        self._received: set[int] = set()  # QoS 2 packet ids acknowledged, not yet released
        self._keep_alive: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._ping_sent_at = 0.0  # 0 = no PINGREQ is unanswered
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            packets.Publish: self._handle_publish,
            packets.Puback: self._handle_done,
            packets.Pubrec: self._handle_pubrec,
            packets.Pubrel: self._handle_pubrel,
            packets.Pubcomp: self._handle_done,
            packets.Suback: self._handle_done,
            packets.Unsuback: self._handle_done,
            packets.Pingresp: self._handle_pingresp,
        }

    @property
    def connected(self) -> bool:
        """Whether there is a connection that CONNACK has accepted."""
        return self._connection is not None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> packets.Connack:
        """Connect, or connect again. Raises ConnectError, ConnectRefusedError, ConnectionLostError."""
        assert self._connection is None, "connected already"
        options = self.options
        connection: _Connection | None = None
        accepted = False
        try:
            async with asyncio.timeout(options.timeout):
                connection = await self._dial()
                self._send(connection, self._connect_packet())
                connack = await connection.acknowledged
            accepted = connack.reason_code == 0
        except TimeoutError:
            raise ConnectError(f"{options.address} did not answer within {options.timeout:g} s") from None
        except socket.gaierror as error:
            raise ConnectError(f"cannot find host {options.host!r}: {error.strerror}", "check -h") from None
        except (OSError, UnicodeError) as error:
            hint = "--cafile says whom to trust" if hasattr(error, "verify_code") else "is a broker there?"
            raise ConnectError(f"cannot connect to {options.address}: {reason_of(error)}", hint) from None
        finally:
            if connection is not None and not accepted:
                connection.transport.abort()
        if not accepted:
            raise refusal(options.address, connack.reason_code)
        return connack

    async def _dial(self) -> _Connection:
        options, loop = self.options, asyncio.get_running_loop()
        if options.unix:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self), options.unix)
        else:
            _, connection = await loop.create_connection(
                lambda: _Connection(self), options.host, options.port, ssl=options.tls
            )
        return connection

    def _connect_packet(self) -> packets.Connect:
        options, will = self.options, self.options.will
        return packets.Connect(
            client_id=options.client_id,
            clean_start=options.clean_start,
            keep_alive=options.keep_alive,
            username=options.username,
            password=options.password,
            will_topic=will.topic_name if will else None,
            will_payload=will.payload if will else b"",
            will_qos=will.qos if will else 0,
            will_retain=will.retain if will else False,
            protocol_level=options.level,
        )

    def _start(self, connection: _Connection, connack: packets.Connack) -> None:
        """Take the accepted connection into use: forget an ended session, send again what is unacknowledged.

        Runs before the next packet is looked at, which may have come in the same read as CONNACK.
        """
        self._connection = connection
        self._ping_sent_at = 0.0
        self._paused = False
        kept = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        for message in kept:
            if isinstance(message, Message):  # else it is the end of an earlier connection
                self._messages.put_nowait(message)
        # MQTT 3.1 has no session present flag: without clean start, the session is taken to go on.
        if self.options.clean_start or (self.options.level >= 4 and not connack.session_present):
            self._offered.clear()
            self._received.clear()
        if self.options.clean_start:
            self._outgoing.clear()
        for packet in self._outgoing.values():
            self._send(connection, redelivery(packet) if isinstance(packet, packets.Publish) else packet)
        self._watch_keep_alive(connection)

    async def disconnect(self) -> None:
        """Send DISCONNECT and close; does nothing without a connection."""
        connection = self._connection
        if connection is None:
            return
        connection.reason = "disconnected"
        self._send(connection, packets.Disconnect())
        connection.transport.close()
        try:
            async with asyncio.timeout(self.options.timeout):
                await connection.closed.wait()
        except TimeoutError:
            connection.transport.abort()

    def abort(self) -> None:
        """Drop the connection without DISCONNECT, as a crash would; the will is then due."""
        if self._connection is not None:
            self._connection.abort("aborted")

    async def wait_lost(self) -> None:
        """Wait until there is no connection."""
        if self._connection is not None:
            await self._connection.closed.wait()

    async def publish(self, topic_name: str, payload: bytes = b"", qos: int = 0, retain: bool = False) -> None:
        """Publish; with QoS 1 and 2 returns once acknowledged. Raises ConnectionLostError."""
        acknowledged = await self.start_publish(topic_name, payload, qos, retain)
        await acknowledged

    async def start_publish(
        self, topic_name: str, payload: bytes = b"", qos: int = 0, retain: bool = False
    ) -> asyncio.Future[None]:
        """Send once there is room; the future is done once acknowledged. Raises ConnectionLostError."""
        if qos:
            await self._window.acquire()
        try:
            await self._require().writable.wait()
            connection = self._require()
            packet_id = self._next_packet_id() if qos else 0
            packet = packets.Publish(topic_name, payload, qos, retain, False, packet_id)
            frame = self._encode(packet)
        except BaseException:
            if qos:
                self._window.release()
            raise
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if qos:
            done.add_done_callback(lambda _: self._window.release())
            self._outgoing[packet_id] = packet
            self._waiting[packet_id] = done
        else:
            done.set_result(None)
        self._write(connection, packet, frame)
        return done

    async def subscribe(self, topic_filters: Sequence[tuple[str, int]]) -> list[int]:
        """Subscribe to (topic filter, QoS) pairs; returns SUBACK's codes, the granted QoS or 0x80 (refused) each."""
        packet_id = self._next_packet_id()
        packet = packets.Subscribe(packet_id=packet_id, topic_filters=list(topic_filters))
        return list((await self._request(packet_id, packet)).reason_codes)

    async def unsubscribe(self, topic_filters: Sequence[str]) -> None:
        """Unsubscribe; returns with UNSUBACK."""
        packet_id = self._next_packet_id()
        await self._request(packet_id, packets.Unsubscribe(packet_id=packet_id, topic_filters=list(topic_filters)))

    async def receive(self, *, acknowledge: bool = True) -> Message:
        """The next message. Raises ConnectionLostError once, after the last message of a lost connection."""
        message = await self._messages.get()
        if self._paused and self._messages.qsize() <= QUEUE_LOW and self._connection is not None:
            self._paused = False
            self._connection.transport.resume_reading()
        if isinstance(message, ConnectionLostError):
            raise message
        if acknowledge:
            self.acknowledge(message)
        return message

    @property
    def waiting(self) -> int:
        """How many messages `receive` would return at once."""
        return self._messages.qsize()

    def acknowledge(self, message: Message) -> None:
        """Take over the responsibility for a message that `receive` handed out unacknowledged."""
        if message.qos == 2:
            self._offered.discard(message.packet_id)
            self._received.add(message.packet_id)
        if message.qos and self._connection is not None:
            kind = packets.Puback if message.qos == 1 else packets.Pubrec
            self._send(self._connection, kind(packet_id=message.packet_id))

    async def _request(self, packet_id: int, packet: "Packet") -> Any:
        connection = self._require()
        frame = self._encode(packet)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[packet_id] = done
        self._write(connection, packet, frame)
        return await done

    def _require(self) -> _Connection:
        if self._connection is None:
            raise ConnectionLostError(f"not connected to {self.options.address}")
        return self._connection

    def _next_packet_id(self) -> int:
        for _ in range(65535):
            self._last_packet_id = self._last_packet_id % 65535 + 1
            if self._last_packet_id not in self._waiting and self._last_packet_id not in self._outgoing:
                return self._last_packet_id
        raise ClientError("65535 packets wait for their acknowledgement")

    def _send(self, connection: _Connection, packet: "Packet") -> None:
        self._write(connection, packet, self._encode(packet))

    def _encode(self, packet: "Packet") -> bytes:
        try:
            return packets.encode(packet, self.options.level)
        except packets.InvalidPacket as error:
            raise ClientError(str(error)) from None

    def _write(self, connection: _Connection, packet: "Packet", frame: bytes) -> None:
        if self.on_packet is not None:
            self.on_packet("sending", packet)
        self._sent_at = asyncio.get_running_loop().time()
        connection.transport.write(frame)

    def _handle(self, connection: _Connection, packet: "Packet") -> None:
        if self.on_packet is not None:
            self.on_packet("received", packet)
        if connection.acknowledged.done():
            handler = self._handlers.get(type(packet))
            if handler is None:
                connection.abort(f"the broker sent {type(packet).__name__.upper()}")
            else:
                handler(packet)
        elif isinstance(packet, packets.Connack):
            connection.acknowledged.set_result(packet)
            if packet.reason_code == 0:
                self._start(connection, packet)
        else:
            connection.abort(f"the broker sent {type(packet).__name__.upper()} before CONNACK")

    def _handle_publish(self, packet: packets.Publish) -> None:
        if packet.qos == 2:
            if packet.packet_id in self._received:  # [MQTT-4.3.3-2]: a redelivery, already ours
                self._answer(packets.Pubrec(packet_id=packet.packet_id))
                return
            if packet.packet_id in self._offered:
                return
            self._offered.add(packet.packet_id)
        message = Message(
            packet.topic_name,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.packet_id if packet.qos else 0,
        )
        self._messages.put_nowait(message)
        if self._messages.qsize() >= QUEUE_HIGH and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.transport.pause_reading()

    def _handle_pubrec(self, packet: packets.Pubrec) -> None:
        release = packets.Pubrel(packet_id=packet.packet_id)
        if packet.packet_id in self._outgoing:
            self._outgoing[packet.packet_id] = release
        self._answer(release)

    def _handle_pubrel(self, packet: packets.Pubrel) -> None:
        self._received.discard(packet.packet_id)
        self._answer(packets.Pubcomp(packet_id=packet.packet_id))

    def _handle_done(self, packet: Any) -> None:
        self._outgoing.pop(packet.packet_id, None)
        done = self._waiting.pop(packet.packet_id, None)
        if done is not None and not done.done():
            done.set_result(packet)

    def _handle_pingresp(self, packet: packets.Pingresp) -> None:
        self._ping_sent_at = 0.0

    def _answer(self, packet: Any) -> None:
        if self._connection is not None:
            self._send(self._connection, packet)

    def _watch_keep_alive(self, connection: _Connection) -> None:
        """Send PINGREQ after half a keep alive of silence; end the connection when it stays unanswered."""
        if connection is not self._connection or not self.options.keep_alive:
            return
        loop = asyncio.get_running_loop()
        now, half = loop.time(), self.options.keep_alive / 2
        if self._ping_sent_at:
            # While we do not read, an answer may wait in the socket.
            if not self._paused and now - self._ping_sent_at >= self.options.timeout:
                connection.abort("no answer to PINGREQ")
                return
        elif now - self._sent_at >= half:
            self._ping_sent_at = now
            self._send(connection, packets.Pingreq())
        self._keep_alive = loop.call_later(min(half, self.options.timeout) / 2, self._watch_keep_alive, connection)

    def _lost(self, connection: _Connection, error: ConnectionLostError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            if not done.done():
                done.set_exception(error)
                done.exception()  # seen: who started it may not wait for it
        self._messages.put_nowait(error)


def redelivery(packet: packets.Publish) -> packets.Publish:
    """`packet` with the DUP flag [MQTT-3.3.1-1]."""
    return packets.Publish(packet.topic_name, packet.payload, packet.qos, packet.retain, True, packet.packet_id)


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
