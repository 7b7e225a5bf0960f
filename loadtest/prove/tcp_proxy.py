"""A TCP proxy that can be made a bad network: it cuts, refuses, delays, and lets nothing through.

It runs in its own thread and listens on a free port. Settings hold for open connections and new ones. With `stall`
bytes wait and both ends see nothing; with `cut` both ends get RST.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

CONNECT_SECONDS = 2.0
LIMIT = 900.0  # seconds for a call into the proxy's thread, however busy the machine is
AT_ONCE = 1 << 16  # bytes
MAX_WAITING = 1 << 20  # bytes under way in one direction before no more is read


class TcpProxy:
    """Passes connections on.

    Args:
        target: a port of this machine, a function that returns it for each connection, or host and port.
    """

    def __init__(self, target: int | tuple[str, int] | Callable[[], int]) -> None:
        self.target = target
        self.port = 0
        self.accepted = 0  # connections so far
        self.delay = 0.0  # seconds, each way
        self.refusing = False
        self._fatal = b""
        self._pairs: set[_Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- faults ----

    def cut(self) -> int:
        """End all connections with RST; returns how many there were."""
        return int(self._call(self._cut))

    def refuse(self) -> None:
        """New connections are closed at once; open connections stay."""
        self.refusing = True

    def cut_at(self, text: bytes) -> None:
        """End the next connection in which a client sends this text, instead of passing it on."""
        self._fatal = text

    @property
    def waits_to_cut(self) -> bool:
        """Whether the text of `cut_at` is still to come."""
        return bool(self._fatal)

    def slow(self, seconds: float) -> None:
        """Each byte takes so long in each direction."""
        self.delay = seconds

    def stall(self) -> None:
        """Accept, and let nothing through in either direction."""
        self._call(self._flowing.clear)

    def partition(self) -> None:
        """End what there is, and let nothing new be made."""
        self.refuse()
        self.cut()

    def resume(self) -> None:
        """Be a good network again."""
        self.refusing = False
        self.delay = 0.0
        self._call(self._flowing.set)

    @property
    def connections(self) -> int:
        """How many are open."""
        return int(self._call(lambda: len(self._pairs)))

    def close(self) -> None:
        """End all connections and stop."""
        if self._thread.is_alive():
            self._call(self._cut)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LIMIT)

    # ---- its thread ----

    def _call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(LIMIT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        waiting = asyncio.all_tasks(self._loop)
        for task in waiting:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        self._listener.close()
        self._loop.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self.accepted += 1
            if self.refusing:
                abort(client)
                continue
            pair = _Pair(self, client)
            self._pairs.add(pair)
            pair.task = self._loop.create_task(pair.run())

    def _cut(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.abort()
        return len(pairs)


class _Pair:
    """One connection and the connection that it is passed on to."""

    def __init__(self, proxy: TcpProxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.loop = proxy._loop
        self.sockets = [client]
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        client = self.sockets[0]
        server = socket.socket()
        server.setblocking(False)
        self.sockets.append(server)
        try:
            target = self.proxy.target
            if not isinstance(target, tuple):
                target = ("127.0.0.1", target if isinstance(target, int) else target())
            await asyncio.wait_for(self.loop.sock_connect(server, target), CONNECT_SECONDS)
            for end in self.sockets:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as both:
                both.create_task(self.pass_on(client, server))
                both.create_task(self.pass_on(server, client))
        except* (OSError, asyncio.CancelledError, TimeoutError):
            self.abort()
        finally:
            for end in self.sockets:
                end.close()
            self.proxy._pairs.discard(self)

    async def pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        """All that `source` says reaches `sink`, later if so wished, then its end."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_WAITING // AT_ONCE)

        async def write() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due + self.proxy.delay - self.loop.time()))
                await self.proxy._flowing.wait()
                if not data:
                    with contextlib.suppress(OSError):
                        sink.shutdown(socket.SHUT_WR)
                    return
                await self.loop.sock_sendall(sink, data)

        async def read() -> None:
            while True:
                data = await self.loop.sock_recv(source, AT_ONCE)
                if source is self.sockets[0] and self.proxy._fatal and self.proxy._fatal in data:
                    self.proxy._fatal = b""
                    raise ConnectionAbortedError
                await waiting.put((self.loop.time(), data))
                if not data:
                    return

        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            both.create_task(write())

    def abort(self) -> None:
        """Both ends get an RST."""
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.task is not None and self.task is not asyncio.current_task(self.loop):
            self.task.cancel()


def abort(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
