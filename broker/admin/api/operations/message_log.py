"""The log of messages, for programs that read it over HTTP: an Arrow IPC stream, from any position on.

A reply goes up to the end that the logs have when it begins. It ends before that at a bound of bytes, after
`REPLY_SECONDS`, and where entries are missing: the next request, from its last position, reports that. Threads select
and encode; a reply has a piece of each log in memory, and goes on when the reader has taken it.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from http import HTTPStatus
from importlib import import_module
from types import ModuleType
from typing import Any

from aiohttp import web

from ....._speedups.codec.topics import matches, validate_topic_filter
from ....._speedups.session.rights import Rights
from ....auth.authenticator import Identity
from ....auth.work_pool import WorkPool
from ....core import tenants
from ....core.topic_filters import max_levels, parts_of
from ....errors import FlockError
from ....hooks.chain import Refused
from ....streams.log_reader import LogReader, Missing, Piece, Position, Reached, parse_position, shown
from ....streams.message_log import LogAway, MessageLog
from ...http.clients import address_of, client_of
from ...http.problems import Problem, unfit
from ...http.server import Connection
from ..operation import ARROW, TOPIC_FILTER, Operation, Request
from ..schema import array, integer, text

ENCODER = "flockmq.cluster.analytics.log.ipc"  # by name: it needs pyarrow, and is of a package above this one
MAX_REPLIES = 32  # at a time
MAX_OF_READER = 8  # of these, of one token or user
THREADS = 2  # that select and encode
MAX_POSITION = 1 << 16  # characters: each log has about 45, also logs of nodes that left within 30 days
MAX_WAIT = 60  # seconds
REPLY_SECONDS = 300.0  # after which a reply ends: rights, bans and tokens are looked at again
SEND_SECONDS = 60.0  # that a reader may take for a part
LOOK_SECONDS = 1.0  # between looks whether a reader that waits is still there
MARK_SECONDS = 5.0  # between positions, if no message is selected
CACHED_TOPICS = 100_000
EARLIEST = "earliest"


class LogReplies:
    """The replies that are under way, and the threads that encode them."""

    def __init__(self) -> None:
        self.readers: dict[object, str] = {}  # by connection: who reads
        self.pool = WorkPool("log", THREADS, 2 * MAX_REPLIES)

    async def close(self, _: web.Application) -> None:
        """Encode nothing more."""
        self.pool.close()


REPLIES = web.AppKey("log", LogReplies)


class ReadableTopics:
    """Selects topic names: some filter matches, and the reader may read the topic.

    Args:
        filters: topic filters within the broker.
        rights: of the reader; None: all.
    """

    def __init__(self, filters: list[str], rights: Rights | None) -> None:
        self._filters = [name.encode() for name in filters]
        self._rights = rights
        self._known: dict[str, bool] = {}

    def matches(self, topic_name: str) -> bool:
        """Whether messages of this topic are selected."""
        known = self._known.get(topic_name)
        if known is None:
            if len(self._known) >= CACHED_TOPICS:
                self._known.clear()
            topic = topic_name.encode()
            known = any(matches(name, topic) for name in self._filters)
            known = self._known[topic_name] = known and (self._rights is None or self._rights.may_read(topic))
        return known


class Reply:
    """One reply.

    Args:
        encode: runs a function in a thread.
        message_log: to read.
        encoder: of the stream.
        name: of this node.
        since, until: microseconds since 1970.
        most: bytes of the log, about; None: no bound.
        to: where to end; None: at the ends of the logs.
    """

    def __init__(
        self,
        encode: Callable[..., Awaitable[Any]],
        message_log: MessageLog,
        encoder: Any,
        name: str,
        since: int,
        until: int | None,
        most: int | None,
        to: Position | None,
    ) -> None:
        self._encode = encode
        self._log = message_log
        self._encoder = encoder
        self._name = name
        self._since = since
        self._until = until
        self._most = most
        self._to = to

    async def parts(
        self, position: Position | None, wait: float, is_read: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[Any]:
        """The stream, in parts. Raises LogAway, Missing; after the first part only LogAway.

        Args:
            position: where to begin; None: at `since`.
            wait: seconds to wait for the first message, if there is none.
            is_read: whether the reader is still there.
        """
        began = sent_at = time.monotonic()
        size, rows, reached, is_begun = 0, 0, False, False
        try:
            while True:
                version = self._log.version
                reader = LogReader(self._log, position, self._since, self._until, self._to)
                await reader.start()
                while (piece := await reader.next()) is not None:
                    async for encoded in self._encoded(piece):
                        if not is_begun:
                            yield self._encoder.schema
                        is_begun, sent_at = True, time.monotonic()
                        rows += encoded.rows
                        yield encoded.data
                    position = piece.position
                    size += sum(len(entry.block) for entry in piece.entries)
                    now = time.monotonic()
                    if (self._most is not None and size >= self._most) or now > began + REPLY_SECONDS or not is_read():
                        break
                    if now > sent_at + MARK_SECONDS:
                        if not is_begun:
                            yield self._encoder.schema
                        is_begun, sent_at = True, now
                        yield self._encoder.mark(_json(position))
                else:
                    position, reached = reader.position, True
                seconds = began + wait - time.monotonic()
                if rows or not reached or seconds <= 0 or not is_read():
                    break
                await self._news(version, min(seconds, LOOK_SECONDS))
        except Missing as missing:
            if not is_begun:
                raise
            position, reached = missing.before, False
        if not is_begun:
            yield self._encoder.schema
        yield self._encoder.end(_json(position or {}), reached=reached)

    async def _news(self, version: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._log.wait(version)
        except TimeoutError:
            pass

    async def _encoded(self, piece: Piece) -> AsyncGenerator[Any]:
        """The parts of the stream that a piece of a log makes. Raises Missing: a block is damaged."""
        entries, done = piece.entries, 0

        def position(count: int) -> str:
            return _json(piece.behind(entries[count - 1]))

        try:
            parts = self._encoder.encode([entry.block for entry in entries], piece.name or self._name, position)
            while (part := await self._encode(_next, parts)) is not None:
                done = part.done or done
                yield part
        except FlockError as error:
            if len(entries) > 1:
                for entry in entries[done:]:
                    async for part in self._encoded(piece.of(entry)):
                        yield part
                return
            entry = entries[0]
            place = f"{entry.ms}-{entry.total} of the log of node {entry.node}"
            before = {**piece.position, entry.node: Reached(entry.ms, entry.before)}
            behind = Reached(entry.ms, entry.total)
            raise Missing(f"the entry {place} can't be read: {error}", entry.node, before, behind) from None


def _json(position: Position) -> str:
    return json.dumps(shown(position))


def _next(parts: Iterator[Any]) -> Any:
    return next(parts, None)


async def read_log(request: Request) -> web.StreamResponse:
    """Send the messages of the log that the reader asks for, and may read."""
    message_log = request.node.broker.coordinator.life.message_log
    if message_log is None:
        raise Problem(HTTPStatus.CONFLICT, "this node keeps no log of messages: analytics.topics sets which it keeps")
    replies = request.raw.app[REPLIES]
    library = await replies.pool.run(_library)  # in a thread: the first import takes a while
    given = request.arguments
    since, until = _time(library, "since", given["since"]), _time(library, "until", given.get("until"))
    position = _position("position", given["position"]) if "position" in given else None
    to = _position("to", given["to"]) if "to" in given else None
    filters = given.get("filter") or [f"{request.prefix}#"]
    rights = await _rights(request, filters)
    reply = Reply(
        replies.pool.run,
        message_log,
        library.Encoder(ReadableTopics(filters, rights), since or None, until, request.prefix),
        request.node.name,
        since or 0,
        until,
        given.get("bytes"),
        to,
    )
    raw = request.raw
    who = f"{request.holder.tenant}/{request.holder.name}/{request.holder.identity is not None}"
    if len(replies.readers) >= MAX_REPLIES or list(replies.readers.values()).count(who) >= MAX_OF_READER:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many programs read the log", Retry_After="10")
    replies.readers[raw.protocol] = who
    try:
        async with aclosing(reply.parts(position, given["wait"], lambda: raw.transport is not None)) as parts:
            return await _send(raw, parts)
    except LogAway as error:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"the log can't be read now: {error}", Retry_After="1") from error
    except Missing as missing:
        raise _gone(missing) from None
    finally:
        replies.readers.pop(raw.protocol, None)


async def _send(raw: web.Request, parts: AsyncGenerator[Any]) -> web.StreamResponse:
    """Send a stream. What fails before its first part has a status; a stream that is cut has no end."""
    part = await anext(parts)
    response = web.StreamResponse(headers={"Content-Type": ARROW, "Cache-Control": "no-store"})
    try:
        await response.prepare(raw)
        while part is not None:
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(memoryview(part))
            part = await anext(parts, None)
    except (OSError, TimeoutError, LogAway):  # the reader has to see that this is not the end
        assert isinstance(raw.protocol, Connection)
        raw.protocol.drop()
    return response


def _gone(missing: Missing) -> Problem:
    problem = Problem(HTTPStatus.GONE, str(missing))
    problem.members = {"node": missing.node, "bytes": missing.bytes, "position": shown(missing.position)}
    return problem


def _library() -> ModuleType:
    try:
        return import_module(ENCODER)
    except ImportError as error:
        detail = f"the node lacks {error.name}, which the log needs: pip install 'flockmq[log]'"
        raise Problem(HTTPStatus.NOT_IMPLEMENTED, detail) from None


def _time(library: ModuleType, name: str, given: str | None) -> int | None:
    if given is None or (given == EARLIEST and name == "since"):
        return None
    try:
        found: int = library.parse_time(given)
    except ValueError as error:
        raise unfit(f"{name}: expected {error}, not {given[:40]!r}") from None
    return found


def _position(name: str, given: str) -> Position:
    try:
        return parse_position(given)
    except ValueError as error:
        raise unfit(f"{name}: expected {error}") from None


async def _rights(request: Request, filters: list[str]) -> Rights | None:
    """The rights that bound what is sent; None: all.

    Raises:
        Problem: the reader may not subscribe to one of the filters.
    """
    levels = request.node.config.limits.max_topic_levels
    for name in filters:
        try:
            validate_topic_filter(name, 5, max_levels(name.encode(), levels))
            if parts_of(name).messages != name:
                raise ValueError("it is of a shared subscription, or of a stream")
        except ValueError as fault:
            raise unfit(f"filter: {fault}") from None
    identity = request.holder.identity
    if identity is None:
        return None
    for name in filters:
        await _judge(request, identity, name)
    return identity.rights


async def _judge(request: Request, identity: Identity, name: str) -> None:
    """Decide over a filter as SUBSCRIBE does."""
    hooks = request.node.broker.hooks
    own = name.removeprefix(request.prefix)
    if own.startswith(tenants.ROOT) or (
        identity.rights is not None and not identity.rights.may_subscribe(name.encode())
    ):
        raise Problem(HTTPStatus.FORBIDDEN, f"nothing of the filter {own} may be read")
    if hooks.has("deliver"):
        detail = "hooks of this node decide over each delivery to a client, so the log is for holders of tokens only"
        raise Problem(HTTPStatus.FORBIDDEN, detail)
    client = client_of(address_of(request.raw.remote or ""), identity)
    found: Any = hooks.filter(
        0,
        ("authorize", lambda _: (client, "subscribe", name)),
        ("subscribe", lambda qos: (client, name, qos)),
    )
    if isinstance(await found if isinstance(found, Awaitable) else found, Refused):
        raise Problem(HTTPStatus.FORBIDDEN, f"a hook refuses the filter {own}")


OPERATIONS = (
    Operation(
        "GET",
        "/log",
        "log",
        "The messages of the log of all nodes; MQTT clients get those that they may read.",
        read_log,
        arguments={
            "filter": array(TOPIC_FILTER, "topic filters; all topics unless given", maxItems=100),
            "since": text(f"messages accepted then or later: {EARLIEST}, or a time", maxLength=100, default=EARLIEST),
            "until": text("messages accepted before: a time", maxLength=100),
            "position": text("where to begin: `flockmq.position` of an earlier reply", maxLength=MAX_POSITION),
            "to": text("where to end: a position of an earlier reply", maxLength=MAX_POSITION),
            "bytes": integer("of the log, in this reply, about", minimum=1, maximum=1 << 40),
            "wait": integer("seconds to wait for the first message", minimum=0, maximum=MAX_WAIT, default=0),
        },
        stream=ARROW,
        clients=True,
        problems=(
            HTTPStatus.CONFLICT,
            HTTPStatus.GONE,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.NOT_IMPLEMENTED,
        ),
    ),
)
