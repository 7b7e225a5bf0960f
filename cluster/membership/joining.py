"""Joining: the node reads the state of the cluster, catches up, and becomes a member."""

import shlex
from collections.abc import Awaitable, Callable

from ..elsewhere import Elsewhere
from ..message_log import LoggedMessages
from ..peers.liveness import is_gone
from ..peers.node_link import NodeLink
from ..redis.connector import Refused
from ..redis.keys import ARRIVING, LAYOUT, MOVED
from ..redis.link import LinkError, LinkLost
from ..redis.shard_addresses import Place, in_words
from ..redis.store import RedisStore
from ..replication.replica import Replica
from ..replication.snapshot import pairs
from ..sessions.wills import Wills
from ..state import Membership
from .clock import ClusterClock
from .heartbeat import Heartbeat


class Joining:
    """Makes the node a member.

    Args:
        link: of the node.
        membership: of the node.
        replica: the replicated state of the node.
        store: of the node.
        heartbeat: of the node.
        wills: of the node.
        logged: the log of messages of the node.
        clock: of the cluster, as this node has it.
        others_too: waits until this node has come as far in all shards; it gets the function that keeps it alive.
        place: the prefix of the first shard, and the shards at the server of this one: see `Place`.
    """

    def __init__(
        self,
        link: NodeLink,
        membership: Membership,
        *,
        place: Place,
        others_too: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        replica: Replica,
        store: RedisStore,
        heartbeat: Heartbeat,
        wills: Wills,
        logged: LoggedMessages | Elsewhere,
        clock: ClusterClock,
    ) -> None:
        self._link = link
        self._membership = membership
        self._replica = replica
        self._store = store
        self._heartbeat = heartbeat
        self._wills = wills
        self._logged = logged
        self._clock = clock
        self._place = place
        self._others_too = others_too

    async def join(self, former_id: bytes) -> None:
        """Join the cluster.

        Args:
            former_id: of the node before it was fenced: it has closed all clients, so nobody need wait for that lease.

        Raises:
            Refused: the cluster has another layout, or Redis refuses for a lasting reason.
            LinkError: the node was declared dead, or Redis refuses for now.
            OSError, LinkLost, TimeoutError: Redis is unreachable, or the connection ended.
        """
        link, replica = self._link, self._replica
        await link.open()
        reply = await link.ask_function("join", LAYOUT, self._heartbeat.description(), *self._place)
        if reply[0] == b"layout":
            raise Refused(await self._why_not(reply[1]))
        if reply[0] == b"shards":
            there, wanted = (in_words(each) for each in (reply[1], self._place[1].encode()))
            raise Refused(f"SHARDS it has {there}, and the configuration says {wanted}")
        _, replica.changes.last, clock, off = reply
        wills = await self._bury(former_id)
        self._clock.begin(clock, off, await link.ask_function("clock", 0))
        await replica.access.load()  # wills need the roles
        await replica.reader.read_groups()
        await replica.reader.read_sessions()
        await replica.reader.read_retained()
        await self._read_members()
        await replica.reader.catch_up()
        await self._others_too(
            self._heartbeat.send_if_due
        )  # without one of the shards this node must not be waited for
        outcome, *ready = await link.ask_function("ready")
        if outcome == b"gone":
            raise LinkError("another node declared this one dead while it was joining")
        number, nodes = ready
        for node, seq, state in zip(nodes[::3], nodes[1::3], nodes[2::3], strict=True):
            if node != link.node_id and state != b"joining":  # one that leaves still has clients, and reports
                replica.members.add(node, seq)
                replica.barrier.node_joined(node, number)
        await replica.reader.catch_up()  # after that: a node in the reply may have left since, and stays left
        replica.results.replace(await replica.reader.ask_hash("HGETALL", link.keys.analytics_results))
        await self._others_too(self._heartbeat.send_if_due)  # nothing is published before all shards are known
        for epoch, stored in wills:
            self._wills.publish(epoch, stored)
        self._membership.become_ready()
        self._logged.configure()
        self._heartbeat.begin()
        self._store.flow(link.connection, self._store.confirmed_seq)
        # One message confirms all changes that the node has read since it is ready.
        replica.applied.announce()
        link.release()
        replica.members.forget_departed()
        await self._heartbeat.send()
        if link.closed:
            raise LinkError("another node declared this one dead while it was joining")
        if not link.connection.open:  # it ended after the last reply; only the loss of a member's link is reported
            raise LinkLost
        self._membership.become_member()
        link.note_process()
        self._wills.publish_missed()  # messages whose authors could not be looked up until now

    async def _why_not(self, written: bytes) -> str:
        """Why this node can't join a cluster with this layout in Redis."""
        layout = int(written) if written.isdigit() else 0
        if layout not in (ARRIVING, MOVED):
            return f"LAYOUT the cluster has layout {written.decode(errors='replace')}, and this version layout {LAYOUT}"
        place, options = await self._link.ask("HMGET", self._link.keys.migration, "place", "options")
        elsewhere = shlex.quote((place or b"").decode())  # several URLs are one argument
        what = "MOVED its state was moved to" if layout == MOVED else "ARRIVING a move of state has not ended, from"
        return f"{what} {elsewhere}{(options or b'').decode()}"

    async def _bury(self, former_id: bytes) -> list[tuple[int, bytes]]:
        """Declare nodes dead that have died on this machine, and this node before it was fenced, without their leases.

        It comes before deadlines are read: it may bring the clock forward. Returns the wills to publish.
        """
        link = self._link
        wills: list[tuple[int, bytes]] = []
        for node, count, process in await self._others():
            if node == former_id or is_gone(process):
                outcome, *found = await link.ask_function("bury", node, count, int(bool(self._place.shards)))
                wills += pairs(found[0]) if outcome == b"ok" else ()
        return wills

    async def _read_members(self) -> None:
        for node, _, process in await self._others():
            self._replica.members.add(node).process = process
            await self._replica.reader.read_routes(node)

    async def _others(self) -> list[tuple[bytes, bytes, bytes]]:
        """The other nodes: id, heartbeats, process."""
        link = self._link
        counts = await self._replica.reader.ask_hash("HGETALL", link.keys.nodes)
        counts.pop(link.node_id, None)  # missing: another node has declared this one dead, and `ready` will say so
        return [
            (node, count, await link.ask("HGET", link.keys.node(node), "process") or b"")
            for node, count in counts.items()
        ]
