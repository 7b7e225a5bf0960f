"""A small asyncio MQTT client, levels 3 and 4, for `flockmq pub`, `flockmq sub`, `flockmq replay` and the tests.

Owns the client's side of one session: packet identifiers, the window of outgoing messages, the QoS 2 states of both
directions, keep alive. Rules:
- `Client` outlives its connections: `connect` may be called again after a loss. Unacknowledged packets are sent again
  if the session goes on (clean_start false); their callers get `ConnectionLostError` meanwhile.
- An incoming message counts as received when it is acknowledged; `receive` acknowledges it unless the caller does.
- Bounded: above QUEUE_HIGH messages in the queue, the connection is not read.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from _speedups.codec import packets
from broker.client.connection import ClientConnection, OnPacket, refusal
from broker.client.options import Options
from broker.errors import ClientError, ConnectError, ConnectionLostError

if TYPE_CHECKING:
    from _speedups.codec.packets import Packet

QUEUE_HIGH = 1000  # messages waiting for `receive` above which the connection is not read
QUEUE_LOW = 500  # and at which it is read again


class Message(NamedTuple):
    """An application message as received."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int  # 0 for QoS 0


class Client:
    """One MQTT client; `async with Client(options) as client:` connects and disconnects."""

    def __init__(self, options: Options, *, on_packet: OnPacket | None = None) -> None:
        self.options = options
        self.on_packet = on_packet  # called with "sending" or "received" and each packet
        self._connection: ClientConnection | None = None
        self._messages: asyncio.Queue[Message | ConnectionLostError] = asyncio.Queue()
        self._window = asyncio.Semaphore(options.max_inflight)
        self._last_packet_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # packet id -> its acknowledgement
        # Packet id -> the PUBLISH or PUBREL to send again, in order.
        self._outgoing: dict[int, packets.Publish | packets.Pubrel] = {}
        self._offered: set[int] = set()  # QoS 2 packet ids queued or handed out, not yet acknowledged
        self._received: set[int] = set()  # QoS 2 packet ids acknowledged, not yet released
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
        connection: ClientConnection | None = None
        accepted = False
        try:
            async with asyncio.timeout(options.timeout):
                connection = await ClientConnection(options, self.on_packet, self._handle, self._lost).dial()
                connection.send(self._connect_packet())
                connack = await connection.acknowledged
            accepted = connack.reason_code == 0
        except TimeoutError:
            raise ConnectError(f"{options.address} did not answer within {options.timeout:g} s") from None
        finally:
            if connection is not None and not accepted:
                connection.transport.abort()
        if not accepted:
            raise refusal(options.address, connack.reason_code)
        return connack

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

    def _start(self, connection: ClientConnection, connack: packets.Connack) -> None:
        """Take the accepted connection into use: forget an ended session, send again what is unacknowledged.

        Runs before the next packet is handled, which may be in the same read as CONNACK.
        """
        self._connection = connection
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
            connection.send(redelivery(packet) if isinstance(packet, packets.Publish) else packet)
        connection.keep_alive()

    async def disconnect(self) -> None:
        """Send DISCONNECT and close; does nothing without a connection."""
        connection = self._connection
        if connection is None:
            return
        connection.reason = "disconnected"
        connection.send(packets.Disconnect())
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
            await self._connected().writable.wait()
            connection = self._connected()
            packet_id = self._next_packet_id() if qos else 0
            packet = packets.Publish(topic_name, payload, qos, retain, False, packet_id)
            frame = connection.encode(packet)
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
        connection.write(packet, frame)
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

    def acknowledge(self, message: Message) -> None:
        """Take over the responsibility for a message that `receive` handed out unacknowledged."""
        if message.qos == 2:
            self._offered.discard(message.packet_id)
            self._received.add(message.packet_id)
        if message.qos and self._connection is not None:
            kind = packets.Puback if message.qos == 1 else packets.Pubrec
            self._connection.send(kind(packet_id=message.packet_id))

    async def _request(self, packet_id: int, packet: "Packet") -> Any:
        connection = self._connected()
        frame = connection.encode(packet)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[packet_id] = done
        connection.write(packet, frame)
        return await done

    def _connected(self) -> ClientConnection:
        if self._connection is None:
            raise ConnectionLostError(f"not connected to {self.options.address}")
        return self._connection

    def _next_packet_id(self) -> int:
        for _ in range(65535):
            self._last_packet_id = self._last_packet_id % 65535 + 1
            if self._last_packet_id not in self._waiting and self._last_packet_id not in self._outgoing:
                return self._last_packet_id
        raise ClientError("65535 packets wait for their acknowledgement")

    def _handle(self, connection: ClientConnection, packet: "Packet") -> None:
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
                self._reply(packets.Pubrec(packet_id=packet.packet_id))
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
        if self._messages.qsize() >= QUEUE_HIGH and self._connection is not None:
            self._connection.pause_reading()

    def _handle_pubrec(self, packet: packets.Pubrec) -> None:
        release = packets.Pubrel(packet_id=packet.packet_id)
        if packet.packet_id in self._outgoing:
            self._outgoing[packet.packet_id] = release
        self._reply(release)

    def _handle_pubrel(self, packet: packets.Pubrel) -> None:
        self._received.discard(packet.packet_id)
        self._reply(packets.Pubcomp(packet_id=packet.packet_id))

    def _handle_done(self, packet: Any) -> None:
        self._outgoing.pop(packet.packet_id, None)
        done = self._waiting.pop(packet.packet_id, None)
        if done is not None and not done.done():
            done.set_result(packet)

    def _handle_pingresp(self, packet: packets.Pingresp) -> None:
        if self._connection is not None:
            self._connection.on_pingresp()

    def _reply(self, packet: Any) -> None:
        if self._connection is not None:
            self._connection.send(packet)

    def _lost(self, connection: ClientConnection, error: ConnectionLostError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            if not done.done():
                done.set_exception(error)
                done.exception()  # retrieved: its caller may not wait for it
        self._messages.put_nowait(error)


def redelivery(packet: packets.Publish) -> packets.Publish:
    """`packet` with the DUP flag [MQTT-3.3.1-1]."""
    return packets.Publish(packet.topic_name, packet.payload, packet.qos, packet.retain, True, packet.packet_id)
