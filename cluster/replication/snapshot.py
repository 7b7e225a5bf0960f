"""What a node reads from Redis beside what it is told: all of it when it joins, what it missed when it was away.

Everything is read in pieces, and each reply is bounded: what waits for a subscriber, and a link is one, may not become
too much for Redis.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from _speedups.base.msgpack import unpack
from _speedups.cluster.journal import arrive
from _speedups.session.session import Session
from broker.core.data_plane import DataPlane
from cluster.peers.members import Member
from cluster.redis.keys import Keys
from cluster.redis.link import Link, LinkError
from cluster.replication.changes import Changes

AT_ONCE = 1000  # of what is read in pieces
CHANGES_AT_ONCE = SESSIONS_AT_ONCE = 200  # these are larger


class Behind(LinkError):
    """The stream of changes begins after what is known here."""


class Ask(Protocol):
    """Calls a function in Redis."""

    def __call__(self, name: str, *arguments: Any, as_node: bool = True) -> Awaitable[Any]: ...


class Reader:
    """Reads, and applies what it reads.

    Args:
        data_plane: of this node.
        changes: of this node.
        keys: of the cluster.
        link: gives the link.
        ask: calls a function over it.
        between: awaited between the pieces, for what must not wait until all is read.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        changes: Changes,
        keys: Keys,
        link: Callable[[], Link],
        ask: Ask,
        between: Callable[[], Awaitable[None]],
    ) -> None:
        self._data_plane = data_plane
        self._changes = changes
        self._keys = keys
        self._link = link
        self._ask = ask
        self._between = between

    async def read_sessions(self) -> None:
        """The subscriptions of all persistent sessions."""
        async for sessions in self._pieces("sessions", SESSIONS_AT_ONCE):
            for client_id, incarnation, subscriptions in sessions:
                for name, options in pairs(subscriptions):
                    self._changes.subscribed(client_id, incarnation, name, int(options))

    async def read_retained(self) -> None:
        """All retained messages."""
        async for values in self._pieces("retained", AT_ONCE):
            for topic, message in pairs(values):
                self._changes.retained(topic, message or None)

    async def _pieces(self, name: str, count: int) -> Any:
        cursor = b"0"
        while True:
            cursor, *items = await self._ask(name, cursor, count, as_node=False)
            yield items
            await self._between()
            if cursor == b"0":
                return

    async def read_routes(self, node: bytes) -> None:
        """The topic filters for which a node has clients."""
        for name, qos in (await self.ask_hash("HGETALL", self._keys.routes(node))).items():
            self._changes.route(node, name, int(qos))

    async def ask_hash(self, *command: bytes | str | int) -> dict[bytes, bytes]:
        """Send a command whose reply is a hash."""
        reply = await self._link().ask(*command)
        return reply if isinstance(reply, dict) else dict(pairs(reply))

    async def catch_up(self) -> None:
        """Apply the changes that were made since the last one that is known here.

        Raises:
            Behind: they are not kept any more.
        """
        first = True
        while True:
            after = self._changes.last
            entries = await self._link().ask(
                "XRANGE", self._keys.changes, f"{after + 1}-0", "+", "COUNT", CHANGES_AT_ONCE
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
        missing = self._changes.take_missing()
        while missing:
            messages = await self._ask("values", *missing[:AT_ONCE], as_node=False)
            for topic, message in zip(missing, messages, strict=False):
                self._changes.retained(topic, message)
            del missing[: len(messages)]
            await self._between()

    async def read_log(self, member: Member) -> None:
        """Deliver what a node has sent since it was last heard."""
        more = True
        while more:
            following, more, *batches = await self._ask("log", member.node, member.seen + 1)
            for batch in batches:
                self._data_plane.router.deliver(batch)
            member.seen = following - 1
            self._data_plane.end_turn()

    async def read_queues(self, sessions: list[Session]) -> None:
        """Take what has been put into the queues of these sessions and is not here."""
        for start in range(0, len(sessions), AT_ONCE):
            some = sessions[start : start + AT_ONCE]
            tails = [field for session in some for field in (session.client_id, session.next_number)]
            for client_id in await self._ask("behind", *tails):
                session = self._data_plane.sessions.get(client_id)
                if session is not None:
                    await self._read_queue(session)

    async def _read_queue(self, session: Session) -> None:
        while True:
            _, _, first, entries, tail, *_ = await self._ask(
                "load", session.client_id, session.next_number, AT_ONCE, as_node=False
            )
            if session.owner is None:
                return
            for number, message in enumerate(entries, first):
                arrive(session, number, message)
            if first + len(entries) >= tail:
                return


def pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The items of a flat list, two at a time."""
    return zip(items[::2], items[1::2], strict=True)
