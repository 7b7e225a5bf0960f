"""Reads state from Redis: all of it when the node joins, the part that it missed when its link is back.

Every read is in pieces with bounded replies: Redis closes a subscriber's connection with too much pending output, and a
link is one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import chain
from typing import Any

from ..._speedups.base.msgpack import pack, unpack
from ..._speedups.cluster.redis_deliveries import arrive
from ..._speedups.session.session import Session
from ...broker.core.data_plane import DataPlane
from ..peers.members import Member
from ..peers.node_link import NodeLink
from ..redis.link import LinkError, LinkLost, Reply, ReplyError
from .changes import Changes, mark_of

AT_ONCE = 1000  # items per piece
CHANGES_AT_ONCE = SESSIONS_AT_ONCE = 200  # of larger items


class Behind(LinkError):
    """The stream of changes begins after the last change that this node has applied."""


class SnapshotReader:
    """Reads state and applies it to this node.

    Args:
        plane: of this node.
        changes: of this node.
        link: of this node.
    """

    _between: Callable[[], Awaitable[None]]

    def __init__(self, plane: DataPlane, changes: Changes, link: NodeLink) -> None:
        self._plane = plane
        self._changes = changes
        self._link = link

    def attach(self, between: Callable[[], Awaitable[None]]) -> None:
        """Connect the work that must not wait for the end of a read, such as heartbeats: awaited between the pieces."""
        self._between = between

    async def read_sessions(self) -> None:
        """The subscriptions of all persistent sessions."""
        async for sessions in self._pieces("sessions", SESSIONS_AT_ONCE):
            self._changes.apply_sessions(sessions)

    async def read_groups(self) -> None:
        """The declared groups."""
        async for items in self._pieces("declared_groups", AT_ONCE):
            for name, settings in pairs(items):
                self._changes.apply_group(name, settings)

    async def read_retained(self) -> None:
        """All retained messages."""
        async for values in self._pieces("retained", AT_ONCE):
            for topic, message in pairs(values):
                if message:
                    self._changes.apply_retained(topic, message)
                else:
                    self._changes.note_outdated(topic)

    async def read_routes(self, node: bytes) -> None:
        """The topic filters for which a node has clients."""
        key = self._link.keys.routes(node)
        async for values in self._scanned(lambda cursor: self._link.ask("HSCAN", key, cursor, "COUNT", AT_ONCE)):
            self._changes.apply_routes(node, values)

    def _pieces(self, name: str, count: int) -> AsyncIterator[list[Any]]:
        """The pieces that a function returns."""
        return self._scanned(lambda cursor: self._link.ask_function(name, cursor, count))

    async def _scanned(self, ask: Callable[[bytes], Awaitable[Any]]) -> AsyncIterator[list[Any]]:
        """The pieces of replies that have a cursor: the argument for the next one."""
        cursor = b"0"
        while True:
            cursor, items = await ask(cursor)
            yield items
            await self._between()
            if cursor == b"0":
                return

    async def ask_hash(self, *command: bytes | str | int) -> dict[bytes, bytes]:
        """Send a command whose reply is a hash."""
        reply = await self._link.ask(*command)
        return reply if isinstance(reply, dict) else dict(pairs(reply))

    async def is_same_history(self) -> bool:
        """Whether the last change that this node has applied is the change that Redis has with its number.

        A failover to a replica without that change loses it, and its number is used again.
        """
        number = f"{self._changes.last}-0"
        entries = await self._link.ask("XRANGE", self._link.keys.changes, number, number)
        return not entries or mark_of(unpack(entries[0][1][3])) == self._changes.mark

    async def catch_up(self) -> None:
        """Apply the changes after the last one that this node has applied.

        Raises:
            Behind: Redis has trimmed the first of them.
        """
        first = True
        while True:
            after = self._changes.last
            entries = await self._link.ask(
                "XRANGE", self._link.keys.changes, f"{after + 1}-0", "+", "COUNT", CHANGES_AT_ONCE
            )
            for entry, fields in entries:
                number = int(entry.partition(b"-")[0])
                if first and number != after + 1:
                    raise Behind
                first = False
                self._changes.apply(number, fields[1], unpack(fields[3]))
            if len(entries) < CHANGES_AT_ONCE:
                break
            await self._between()
        while missing := self._changes.missing(AT_ONCE):
            messages = await self._link.ask_function("values", pack(missing))
            for topic, message in zip(missing, messages, strict=False):
                self._changes.apply_retained(topic, message)
            await self._between()

    async def read_repair_logs(self, members: list[Member], confirm: Callable[[], Awaitable[None]]) -> None:
        """Deliver the batches in the logs of these nodes that this node has not seen, in the order of their commits.

        A publisher may have moved from one of the nodes to another, so one log after the other is not in its order.

        Args:
            members: the nodes.
            confirm: awaited before each delivery: the node may have stood still until the reply, or that took long.
        """
        more = bool(members)
        while more:
            positions = [field for member in members for field in (member.node, member.seen + 1)]
            more, following, batches = await self._link.ask_function("logs", pack(positions))
            await confirm()
            for batch in batches:
                self._plane.router.deliver(batch)
            for member, number in zip(members, following, strict=True):
                member.seen = number - 1
            self._plane.end_turn()

    async def read_queues(self, sessions: list[Session], confirm: Callable[[], Awaitable[None]]) -> None:
        """Read the messages that were added to the queues of these sessions; `confirm` as for `read_repair_logs`."""
        for start in range(0, len(sessions), AT_ONCE):
            some = sessions[start : start + AT_ONCE]
            ends = [field for session in some for field in (session.client_id, session.next_number)]
            for client_id in await self._link.ask_function("behind", pack(ends)):
                session = self._plane.sessions.get(client_id)
                if session is not None:
                    await self._read_queue(session, confirm)

    async def has_lost(self, numbers: list[tuple[bytes, int, int]]) -> bool:
        """Whether Redis lacks messages of queues that this node has received. Raises as `NodeLink.ask`.

        Args:
            numbers: client id, incarnation and next queue number of each session.
        """
        for start in range(0, len(numbers), AT_ONCE):
            ends = [field for number in numbers[start : start + AT_ONCE] for field in number]
            if await self._link.ask_function("lost", pack(ends)):
                return True
        return False

    async def lost_places(self, places: dict[bytes, int]) -> list[bytes] | None:
        """The groups of which Redis lacks messages that this node has received. Raises as `NodeLink.ask`.

        None: Redis has begun and ended since the node was there, so the node can't know its losses. To be called when
        nothing else is lost: if no place is lost either, the node has compared all.

        Args:
            places: the highest place of a message that this node has had, by group.
        """
        outcome, *found = await self._link.ask_function("lost_places", pack([*chain(*places.items())]))
        return None if outcome == b"missed" else found[0]

    async def _read_queue(self, session: Session, confirm: Callable[[], Awaitable[None]]) -> None:
        while True:
            _, _, first, entries, tail, *_ = await self._link.ask_function(
                "load", session.client_id, session.next_number, AT_ONCE
            )
            await confirm()
            if session.owner is None:
                return
            for number, message in enumerate(entries, first):
                arrive(session, number, message)
            self._plane.end_turn()  # later the node may be no member any more
            if first + len(entries) >= tail:
                return


def read_tail(link: NodeLink, session: Session) -> None:
    """Read the rest of a session's queue, without waiting: Redis has messages for it whose numbers are unknown."""

    def loaded(reply: Reply) -> None:
        if isinstance(reply, (LinkLost, ReplyError)) or session.owner is None:
            return
        for number, message in enumerate(reply[3], reply[2]):
            arrive(session, number, message)
        if reply[2] + len(reply[3]) < reply[4]:
            read_tail(link, session)

    link.function(loaded, "load", session.client_id, session.next_number, AT_ONCE)


def pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The items of a flat list, two at a time."""
    return zip(items[::2], items[1::2], strict=True)
