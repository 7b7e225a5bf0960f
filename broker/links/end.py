"""The two ends of a link: its connection to the other broker, and its connection to this one.

Both are connections of a client. The local one is a socket pair, so sessions, quotas and figures are as for any
client; only its listener, which no address leads to, shows the node that it is a link.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Connect, Disconnect, Packet, Publish, Suback, Unsuback
from ..._speedups.net.listener import Endpoint, Listener
from ..._speedups.net.reactor import Reactor
from ..._speedups.protocol.client_events import reason_of
from ..._speedups.protocol.link_relay import LinkRelay, QuotaExceeded
from ..client.connection import ClientConnection
from ..client.options import Options
from ..config.broker_url import SECURE, WEB
from ..config.limits_config import LimitsConfig
from ..config.link import CLIENT_ID_PREFIX, LISTENER, LinkConfig, address_of, path_of
from ..errors import ConnectError, ConnectionLostError
from .pace import Pace

TIMEOUT = 10.0  # seconds for connecting, and for a reply of a broker
PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"
UNACCEPTABLE = 1  # return code: the broker does not know this protocol level
LOCAL_LEVEL = 5
NEVER = 0xFFFFFFFF  # Session Expiry Interval
PACKET_IDS = 65_535

_listener = Listener(LISTENER)


class LinkError(Exception):
    """An end of the link is not connected, or no more."""


class BridgeBitRefused(LinkError):
    """The other broker does not know links."""


class ThisNode(Options):
    """The options of a connection to this node, which needs no address."""

    @property
    def address(self) -> str:
        return "this node"


class End(ClientConnection):
    """A connection of the link, and the direction from it to the other one.

    Args:
        options: of the connection.
        relay: of its packets.
        lost: called when it has ended.
        pace: of its output; None: there is no limit.
    """

    def __init__(
        self, options: Options, relay: LinkRelay, lost: Callable[[], object], pace: Pace | None = None
    ) -> None:
        super().__init__(options, self._on_bytes, self._on_lost)
        self.address = options.address
        self.relay = relay
        self.target: End | None = None  # the end that its packets go to; None: they wait in the relay
        self.source: End | None = None  # the end whose packets come here
        self.reason = ""  # why it has ended
        self.heard = 0  # times that bytes have arrived
        self.on_notice: Callable[[bytes], object] = lambda payload: None  # a message for the link itself
        self._pace = pace
        self._counted = (0, 0)  # messages and bytes that the pace knows
        self._resting: asyncio.TimerHandle | None = None  # until it is within its pace
        self._on_end = lost
        self._reply: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()  # to the last `request`
        self._reply.cancel()

    def _on_bytes(self, connection: ClientConnection, data: bytes) -> None:
        self.heard += 1
        self.feed(data)

    def feed(self, data: bytes) -> None:
        """Take packets that have arrived here, or that the link has made itself."""
        self._handle(lambda: self.relay.feed(data))

    def _handle(self, read: Callable[[], list[Packet]]) -> None:
        try:
            packets = read()
        except QuotaExceeded:
            self.pass_on()  # the acknowledgements before it: else the next attempt gets no further
            self.abort("it has refused a message (Quota exceeded), which will be sent again")
            return
        except ValueError as fault:
            self.abort(f"it has sent {fault}")
            return
        for packet in packets:
            self._on_packet(packet)
        self.pass_on()

    def begin(self, *marks: tuple[bytes, bytes]) -> None:
        """CONNACK has come: read on; messages from here get these user properties."""
        self._handle(lambda: self.relay.begin(*marks))

    def _on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Disconnect):
            self.abort(reason_of(packet, 5), packet.reason_code)
        elif isinstance(packet, (Connack, Suback, Unsuback)) and not self._reply.done():
            self._reply.set_result(packet)
        elif isinstance(packet, Publish):
            self.on_notice(packet.payload)

    def pass_on(self) -> None:
        """Send on what the relay has for both ends."""
        if replies := self.relay.take_replies():
            self.send(replies)
        if self.target is not None and (output := self.relay.take_output()):
            self.target.send(output)
            if self._pace is not None:
                self._keep_pace(self._pace)
            if not self.target.writable.is_set():
                self.pause_reading()

    def _keep_pace(self, pace: Pace) -> None:
        """Rest after too many messages: they wait in the session, and acknowledgements with them."""
        counted = self.relay.relayed, self.relay.relayed_bytes
        seconds = pace.sent(counted[0] - self._counted[0], counted[1] - self._counted[1])
        self._counted = counted
        if seconds and self._resting is None:
            self.pause_reading()
            self._resting = asyncio.get_running_loop().call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = None
        if self.target is not None and self.target.writable.is_set() and not self.transport.is_closing():
            self.resume_reading()

    def resume_reading(self) -> None:
        if self._resting is None:
            super().resume_reading()

    def send(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended: its session sends again what matters."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def connect_to(self, target: "End") -> None:
        """Packets go on to this end from now on."""
        self.target = target
        target.source = self
        self.pass_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.source is not None:
            self.source.resume_reading()

    def _on_lost(self, connection: ClientConnection, error: ConnectionLostError) -> None:
        self.reason = str(error)
        if not self._reply.done():
            self._reply.set_exception(LinkError(self.reason))
        self._on_end()

    async def request(self, packet: bytes) -> Any:
        """Send CONNECT, SUBSCRIBE or UNSUBSCRIBE; returns its acknowledgement. Raises LinkError."""
        if self.closed.is_set():
            raise LinkError(self.reason)
        self.send(packet)
        self._reply = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(TIMEOUT):
                return await self._reply
        except TimeoutError:
            raise LinkError(f"{self.address} did not reply within {TIMEOUT:g} s") from None


@contextlib.asynccontextmanager
async def closing(end: End):  # type: ignore[no-untyped-def]
    """Close the connection at the end, with DISCONNECT if it is still open."""
    try:
        yield
    finally:
        end.send(DISCONNECT)
        end.transport.close()


def tls_of(config: LinkConfig) -> ssl.SSLContext:
    """The TLS context of a link. Raises LinkError."""
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        if config.certificate:
            context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # ssl's own errors too
        raise LinkError(f"a file of certificates can't be read: {error.strerror or error}") from None
    context.check_hostname = not config.insecure
    return context


def password_of(config: LinkConfig) -> bytes | None:
    """The password of a link. Raises LinkError."""
    if not config.password_file:
        return config.password.encode() if config.password else None
    try:
        return Path(config.password_file).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise LinkError(f"{config.password_file} can't be read: {error.strerror}") from None


async def dial(config: LinkConfig, url: str, relay: LinkRelay, lost: Callable[[], object]) -> End:
    """Open the connection to the other broker. Raises LinkError."""
    scheme, place, port = address_of(url)
    context = tls_of(config) if scheme in SECURE else None
    options = Options(
        host="" if scheme == "unix" else place,
        port=port,
        unix=place if scheme == "unix" else "",
        tls=context,
        websocket=path_of(url) if scheme in WEB else "",
        timeout=TIMEOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            return await End(options, relay, lost).dial()
    except TimeoutError:
        raise LinkError(f"{url} did not answer within {TIMEOUT:g} s") from None
    except ConnectError as error:
        raise LinkError(str(error)) from None


async def adopt(reactor: Reactor, relay: LinkRelay, lost: Callable[[], object], pace: Pace) -> End:
    """Open the connection to this broker. Raises LinkError."""
    ours, theirs = socket.socketpair()
    if reactor.adopt(theirs, Endpoint(_listener, transport="unix")) is None:
        ours.close()
        raise LinkError("this node has no room for one more connection (limits.max_connections)")
    end = End(ThisNode(), relay, lost, pace)
    await asyncio.get_running_loop().create_connection(lambda: end, sock=ours)
    return end


async def connect_remote(
    end: End,
    config: LinkConfig,
    client_id: str,
    limits: LimitsConfig,
    marks: list[tuple[str, str]],
    *,
    clean: bool,
    bit: bool,
) -> Connack:
    """Send CONNECT to the other broker; returns its CONNACK, which accepts. Raises LinkError."""
    properties: dict[str, Any] = {}
    if config.level == LOCAL_LEVEL:
        properties["session_expiry_interval"] = min(int(config.session_expiry), NEVER)
        properties["receive_maximum"] = min(limits.receive_maximum, config.max_inflight or PACKET_IDS)
        properties["maximum_packet_size"] = limits.max_packet_size
        properties["user_property"] = marks
    packet = encode(
        Connect(
            client_id=client_id,
            clean_start=clean,
            keep_alive=config.keep_alive,
            username=config.username or None,
            password=password_of(config),
            properties=properties,
            protocol_level=config.level,
            bridge=bit,
        ),
        config.level,
    )
    try:
        connack: Connack = await end.request(packet)
    except LinkError:
        if bit:  # a broker may close a connection of an unknown level without CONNACK
            raise BridgeBitRefused from None
        raise
    if bit and connack.reason_code == UNACCEPTABLE:
        raise BridgeBitRefused
    if connack.reason_code:
        raise LinkError(f"{end.address} refused the link: {reason_of(connack, config.level)}")
    return connack


async def connect_local(end: End, name: str, receive_maximum: int) -> Connack:
    """Send CONNECT to this broker; returns its CONNACK, which accepts. Raises LinkError."""
    packet = Connect(
        client_id=CLIENT_ID_PREFIX + name,
        clean_start=False,
        keep_alive=0,
        properties={"session_expiry_interval": NEVER, "receive_maximum": receive_maximum},
        protocol_level=LOCAL_LEVEL,
    )
    connack: Connack = await end.request(encode(packet, LOCAL_LEVEL))
    if connack.reason_code:
        raise LinkError(f"this node refused its own link: {reason_of(connack, LOCAL_LEVEL)}")
    return connack
