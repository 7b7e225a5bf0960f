"""Connections of a node to Redis over the simulated network: sockets for links, asyncio's transports for redis-py."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.loop import NodeLoop
from tests.simulation.network import Connection, Network
from tests.simulation.redis_server import RedisServer


class Transport(asyncio.Transport):
    """One connection of a node.

    Args:
        loop: of the node.
        connection: which the node has opened.
        before_write: called before each write; False: the node was killed, and nothing leaves it any more.
    """

    def __init__(self, loop: NodeLoop, connection: Connection, before_write: Callable[[], bool]) -> None:
        super().__init__()
        self._loop = loop
        self._connection = connection
        self._before_write = before_write
        self._output: list[bytes] = []
        self._closing = False
        self._protocol: Any = None
        connection.to_a.end = self

    def attach(self, protocol: Any) -> None:
        """Pass events to this protocol."""
        self._protocol = protocol

    # ---- of the network ----

    def receive(self, data: bytes) -> None:
        if not self._closing:
            self._loop.call_soon(self._received, data)

    def _received(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def ended(self, *, reset: bool) -> None:
        if not self._closing:
            self._loop.call_soon(self._lost, ConnectionResetError("reset") if reset else None)

    def _lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._protocol.connection_lost(error)

    def flush(self) -> None:
        """Written bytes leave the node."""
        if self._output:
            data = b"".join(self._output)
            self._output.clear()
            self._connection.to_b.send(data)

    def kill(self) -> None:
        """The process has ended."""
        self.flush()
        self._closing = True
        self._connection.to_a.discard()
        self._connection.to_b.lose_some()
        self._connection.to_b.send(True)

    # ---- of asyncio ----

    def write(self, data: Any) -> None:
        if not self._closing and self._before_write():
            self._output.append(bytes(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end(reset=False)

    def abort(self) -> None:
        self._end(reset=True)

    def _end(self, *, reset: bool) -> None:
        if not self._closing:
            self._closing = True
            self.flush()
            self._connection.to_a.discard()
            if self._before_write():
                self._connection.to_b.send(reset)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class RedisSocket:
    """The other end of a socket of a node: bytes that the node has written are taken after each iteration of its loop.

    Args:
        loop: of the node.
        connection: which the node has opened.
        other: the end of the socket that the node does not have.
        before_write: as of `Transport`, called for all that was written in an iteration.
    """

    def __init__(
        self, loop: NodeLoop, connection: Connection, other: socket.socket, before_write: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._socket = other
        self._before_write = before_write
        self._input = bytearray()
        self._closing = False
        other.setblocking(False)
        connection.to_a.end = self

    def receive(self, data: bytes) -> None:
        self._input += data
        self._push()

    def _push(self) -> None:
        """Give the node what its socket takes."""
        if self._input and not self._closing:
            try:
                del self._input[: self._socket.send(self._input)]
            except BlockingIOError:
                return
            except OSError:
                self._input.clear()
            self._loop.wake()

    def ended(self, *, reset: bool) -> None:
        if not self._closing:
            self._push()
            self._close()
            self._loop.wake()

    def flush(self) -> None:
        """Written bytes leave the node."""
        if self._closing:
            return
        self._push()
        data, ended = bytearray(), False
        try:
            while some := self._socket.recv(1 << 18):
                data += some
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        if data and self._before_write():
            self._connection.to_b.send(bytes(data))
        if ended:
            self._close()
            self._connection.to_a.discard()
            if self._before_write():
                self._connection.to_b.send(True)

    def kill(self) -> None:
        """The process has ended."""
        self.flush()
        if not self._closing:
            self._close()
            self._connection.to_a.discard()
            self._connection.to_b.lose_some()
            self._connection.to_b.send(True)

    def is_closing(self) -> bool:
        return self._closing

    def _close(self) -> None:
        self._closing = True
        self._socket.close()


class RedisDialer:
    """Opens the connections of a node to Redis.

    Args:
        network: of the run.
        servers: of the run, by host.
        host: of the node.
        before_write: as of `Transport`.
    """

    def __init__(
        self, network: Network, servers: Mapping[str, RedisServer], host: str, before_write: Callable[[], bool]
    ) -> None:
        self._network = network
        self._servers = servers
        self._host = host
        self._before_write = before_write
        self._ends: list[Transport | RedisSocket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # a free abstract name
        self._listener.listen()

    async def connect(self, loop: NodeLoop, make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """A transport and its protocol. Raises OSError."""
        protocol = make()
        transport = Transport(loop, await self._open(loop, host), self._before_write)
        transport.attach(protocol)
        self._add(transport)
        protocol.connection_made(transport)
        return transport, protocol

    async def connect_socket(self, loop: NodeLoop, which: socket.socket, host: str) -> None:
        """Connect a socket of the node to the Redis of a host. Raises OSError."""
        connection = await self._open(loop, host)
        which.connect(self._listener.getsockname())
        self._add(RedisSocket(loop, connection, self._listener.accept()[0], self._before_write))

    async def _open(self, loop: NodeLoop, host: str) -> Connection:
        server, arrived = self._servers[host], loop.create_future()

        def arrive(connection: Connection) -> None:
            if not loop.dead:
                self._arrive(loop, server, arrived, connection)

        self._network.open(self._host, host, arrive)
        found: Connection = await arrived
        return found

    def _add(self, end: Transport | RedisSocket) -> None:
        self._ends = [each for each in self._ends if not each.is_closing()]
        self._ends.append(end)

    def _arrive(
        self, loop: NodeLoop, server: RedisServer, arrived: "asyncio.Future[Connection]", connection: Connection
    ) -> None:
        if server.running:
            server.accept(connection)
            loop.call_soon(_set, arrived, connection, None)
        else:
            loop.call_soon(_set, arrived, None, ConnectionRefusedError("refused"))

    def flush(self) -> None:
        """After an iteration of the loop: written bytes leave the node."""
        for end in self._ends:
            end.flush()

    def kill(self) -> None:
        """The process has ended."""
        for end in self._ends:
            if not end.is_closing():
                end.kill()
        self._listener.close()


def _set(future: "asyncio.Future[Connection]", connection: Any, error: Exception | None) -> None:
    if future.done():  # the node has given up
        if connection is not None:
            connection.to_b.send(True)
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(connection)
