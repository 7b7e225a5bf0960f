"""Publishes recorded messages at their pace, or faster: one connection, a bounded window, counts.

At level 5 each message has its properties. The expiry interval is left out unless it is asked for: it was meant for
the time of the first publication.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..._speedups.codec.errors import InvalidPacket
from ..._speedups.codec.properties import decode_block
from ...broker.client.client import Client
from ...broker.commands.output_format import json_properties
from ...broker.errors import ConnectionLostError
from ..analytics.errors import BlockError
from ..analytics.times import SECOND, iso
from .recording import Logged

GRACE = 5.0  # seconds for acknowledgements after Ctrl-C
TOPIC_MAX = 65_535  # bytes of a topic name
DESCRIBE_PAYLOAD = {"payload_format_indicator", "content_type"}  # left out where JSON replaces the payload
LATENESS = 0.002  # seconds that are not worth a sleep


@dataclass(frozen=True)
class Manner:
    """How messages are published."""

    speed: float = 1.0  # 0: as fast as possible
    max_pause: float = 0.0  # seconds; 0: the original pauses
    topic_prefix: str = ""
    qos: int | None = None  # None: the original
    retain: bool = True  # whether RETAIN is kept
    with_times: bool = False
    keep_expiry: bool = False  # whether the Message Expiry Interval is kept
    limit: int = 0  # messages; 0: all


@dataclass
class Progress:
    """The counts so far."""

    published: int = 0
    acknowledged: int = 0  # of QoS 1 and 2
    refused: int = 0  # of QoS 1 and 2
    refusal: str = ""  # why the first of them was refused
    expected: int = 0  # acknowledgements
    bytes: int = 0  # of payloads
    too_long: int = 0  # messages skipped: their topic name or response topic is too long with the prefix
    bare: int = 0  # messages published without their properties, because the broker speaks no MQTT 5.0
    at: int = 0  # accepted_at of the latest
    behind: float = 0.0  # seconds by which the pace is missed
    interrupted: bool = False
    unacknowledged: dict[asyncio.Future[None], int] = field(default_factory=dict)  # -> accepted_at

    @property
    def resume_at(self) -> int:
        """Accepted_at of the first message that may not have arrived."""
        return min(self.unacknowledged.values(), default=self.at)


def envelope(message: Logged) -> dict[str, Any]:
    """A message with its origin, as JSON has it."""
    row = message.row
    document: dict[str, Any] = {
        "accepted_at": iso(row.accepted),
        "node": message.node,
        "client_id": row.client_id,
        "topic": row.topic,
        "qos": row.qos,
        "retain": row.retain,
    }
    try:
        document["payload"] = row.payload.decode()
    except UnicodeDecodeError:
        document["payload_base64"] = base64.b64encode(row.payload).decode()
    if row.properties:
        properties = properties_of(message)
        correlation = properties.get("correlation_data", b"")
        document["properties"] = shown = json_properties(properties)
        try:
            correlation.decode()
        except UnicodeDecodeError:
            del shown["correlation-data"]
            shown["correlation-data-base64"] = base64.b64encode(correlation).decode()
    return document


def properties_of(message: Logged) -> dict[str, Any]:
    """The properties of a message, as `Publish.properties` has them.

    Raises:
        BlockError: they are damaged.
    """
    try:
        return decode_block(message.row.properties or b"")
    except InvalidPacket as error:
        raise BlockError(f"a message of the log of node {message.node} has damaged properties: {error}") from None


class Player:
    """Publishes.

    Args:
        client: connected.
        manner: how.
        progress: is kept up to date.
    """

    def __init__(self, client: Client, manner: Manner, progress: Progress) -> None:
        self._client = client
        self._manner = manner
        self.progress = progress
        self.stop = asyncio.Event()  # set by the caller to end the replay
        self._began = 0.0  # due time of the first message, shifted by the shortened pauses
        self._first: int | None = None
        self._before = 0

    async def play(self, chunks: Iterator[list[Logged]]) -> None:
        """Publish all messages, and wait for the acknowledgements. Raises ClientError, FlockError."""
        following = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
        try:
            while (chunk := await self._unless_stopped(following)) is not None:
                following = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
                for message in chunk:
                    if not await self._publish(message):
                        await self._settle()
                        return
            await self._settle()
        finally:
            await asyncio.wait([following])  # a thread can't be cancelled; it reads one piece at most
            if not following.cancelled():
                following.exception()  # marks the exception as retrieved

    async def _unless_stopped(self, following: "asyncio.Future[list[Logged] | None]") -> list[Logged] | None:
        stopped = asyncio.ensure_future(self.stop.wait())
        both: list[asyncio.Future[Any]] = [following, stopped]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return None if self.stop.is_set() else following.result()

    async def _publish(self, message: Logged) -> bool:
        """Publish a message when it is due; returns whether to continue."""
        manner, progress, row = self._manner, self.progress, message.row
        if manner.speed and not await self._wait_for(message.order):
            return False
        if self.stop.is_set():
            return False
        topic = manner.topic_prefix + row.topic
        qos = row.qos if manner.qos is None else manner.qos
        payload, properties = row.payload, self._properties(message)
        if manner.topic_prefix and any(
            len(name.encode()) > TOPIC_MAX for name in (topic, properties.get("response_topic", ""))
        ):
            progress.too_long += 1
            return True
        if manner.with_times and (payload or not row.retain):  # an empty one with RETAIN clears the retained message
            payload = json.dumps(envelope(message), ensure_ascii=False, separators=(",", ":")).encode()
            for name in DESCRIBE_PAYLOAD & properties.keys():
                del properties[name]
        done = await self._client.start_publish(topic, payload, qos, row.retain and manner.retain, properties)
        progress.published += 1
        progress.bytes += len(payload)
        progress.at = row.accepted
        if qos:
            progress.expected += 1
            progress.unacknowledged[done] = row.accepted
            done.add_done_callback(self._acknowledged)
        return progress.published != manner.limit

    def _properties(self, message: Logged) -> dict[str, Any]:
        """The properties to publish a message with."""
        if not message.row.properties:
            return {}
        if self._client.options.level < 5:
            self.progress.bare += 1
            return {}
        properties = properties_of(message)
        if not self._manner.keep_expiry:
            properties.pop("message_expiry_interval", None)
        if "response_topic" in properties:  # the answer to a replayed request must not reach the live client
            properties["response_topic"] = self._manner.topic_prefix + properties["response_topic"]
        return properties

    def _acknowledged(self, done: "asyncio.Future[None]") -> None:
        if done.cancelled() or isinstance(error := done.exception(), ConnectionLostError):
            return
        del self.progress.unacknowledged[done]
        if error is None:
            self.progress.acknowledged += 1
        else:
            self.progress.refused += 1
            self.progress.refusal = self.progress.refusal or str(error)

    async def _wait_for(self, order: int) -> bool:
        """Sleep until a message is due; False if the replay is stopped."""
        loop, manner = asyncio.get_running_loop(), self._manner
        if self._first is None:
            self._first, self._before, self._began = order, order, loop.time()
        pause = (order - self._before) / SECOND / manner.speed
        if manner.max_pause and pause > manner.max_pause:
            self._began -= pause - manner.max_pause
        self._before = order
        late = loop.time() - (self._began + (order - self._first) / SECOND / manner.speed)
        self.progress.behind = max(0.0, late)
        if late < -LATENESS:
            try:
                async with asyncio.timeout(-late):
                    await self._ended()
                return False
            except TimeoutError:
                return True
        return True

    async def _ended(self) -> None:
        """Wait until the replay is stopped. Raises ConnectionLostError when the connection is lost."""
        tasks = [asyncio.ensure_future(work) for work in (self.stop.wait(), self._client.wait_lost())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if not self._client.connected:
            await self._client.receive()  # raises the reason

    async def _settle(self) -> None:
        """Wait for the acknowledgements, at most GRACE seconds after an interruption."""
        self.progress.interrupted = self.stop.is_set()
        waiting = list(self.progress.unacknowledged)
        if not waiting:
            return
        stopped = asyncio.ensure_future(self.stop.wait())
        everything = asyncio.ensure_future(asyncio.wait(waiting))
        await asyncio.wait([everything, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            self.progress.interrupted = True
            await asyncio.wait([everything], timeout=GRACE)
        stopped.cancel()
        everything.cancel()
        for done in waiting:
            if done.done() and isinstance(error := done.exception(), ConnectionLostError):
                raise error
