"""A relay before a real node that makes a wrong broker of it: it loses, doubles and swaps what the node delivers."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Packet, Publish

AT_ONCE = 1 << 16
Fault = Callable[[list[Publish], Publish], list[Publish]]  # the messages before, this one -> what is delivered now


def lose(before: list[Publish], packet: Publish) -> list[Publish]:
    """Every fifth message does not come."""
    return [] if len(before) % 5 == 3 else [packet]


def double(before: list[Publish], packet: Publish) -> list[Publish]:
    """Every fifth message comes twice."""
    return [packet, packet] if len(before) % 5 == 3 else [packet]


def swap(before: list[Publish], packet: Publish) -> list[Publish]:
    """Every fifth message comes after the next."""
    if len(before) % 5 == 3:
        return []
    return [packet, before[-1]] if len(before) % 5 == 4 else [packet]


def lose_all(before: list[Publish], packet: Publish) -> list[Publish]:
    """Nothing comes."""
    return []


class WrongRelay:
    """Listens on a port and passes on to a node, with a fault in the messages that it delivers.

    Args:
        target: the node's port.
        fault: is done to the messages of each topic and connection.
        topic_end: only topics that end so are touched.
    """

    def __init__(self, target: int, fault: Fault, topic_end: str) -> None:
        self._target = target
        self._fault = fault
        self._topic_end = topic_end
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "WrongRelay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_node, to_node = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, to_node))
                both.create_task(self._deliver(from_node, writer))
        writer.close()
        to_node.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(AT_ONCE):
            writer.write(data)
        writer.write_eof()

    async def _deliver(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder, topics = Decoder(4), dict[str, list[Publish]]()
        while data := await reader.read(AT_ONCE):
            for packet in decoder.feed(data):
                for passed in self._spoil(packet, topics):
                    writer.write(encode(passed, 4))
        writer.write_eof()

    def _spoil(self, packet: Packet, topics: dict[str, list[Publish]]) -> list[Packet]:
        if not isinstance(packet, Publish) or not packet.topic_name.endswith(self._topic_end):
            return [packet]
        before = topics.setdefault(packet.topic_name, [])
        passed = self._fault(before, packet)
        before.append(packet)
        return list(passed)
