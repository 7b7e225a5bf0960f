"""Assignments: the messages of shared subscriptions that Redis gives to this node, or to sessions of its clients."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..._speedups.base.msgpack import pack
from ..._speedups.cluster.group_assignments import GroupAssignments, given
from ..._speedups.cluster.group_records import GroupRecords
from ..._speedups.cluster.hand_over import HandOver
from ..._speedups.cluster.redis_deliveries import arrive, assigned, renumber
from ..._speedups.session.group import Group
from ..._speedups.session.subscriber import SessionKind
from ...broker.config.schema import Config
from ...broker.core.data_plane import DataPlane
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply, ReplyError, ignore
from ..redis.store import RedisStore
from .claim import Claims

LATE_SECONDS = 5.0  # after which Redis has executed every call of an ended connection


class Assignments:
    """Passes assigned messages to the groups of this node.

    Args:
        plane: of this node.
        link: of this node.
        claims: of this node.
        records: the records of groups in the blocks of this node.
        store: of this node.
        link_of: returns the link of the shard of a client.
        shard: whose groups they are.
    """

    def __init__(
        self,
        plane: DataPlane,
        link: NodeLink,
        claims: Claims,
        records: GroupRecords,
        store: RedisStore,
        link_of: Callable[[bytes], NodeLink],
        shard: int,
    ) -> None:
        self._sessions = plane.sessions
        self._claims = claims
        self._link_of = link_of
        self._filters = plane.router.filters
        self._filters.set_group_backing(GroupAssignments)
        self._link = link
        self._records = records
        self._store = store
        self._shard = shard
        self._ask_again_at = 0.0  # monotonic; 0 = not

    def configure(self, config: Config) -> None:
        """Apply the limits of a configuration."""
        shared = config.shared
        drops_oldest = config.limits.queue_policy == "drop-old"
        self._records.set_limits(shared.max_queued_messages, shared.max_queued_bytes, drops_oldest)
        self._link.call(ignore, "HSET", self._link.keys.shared, "redispatch", round(shared.redispatch * 1000))

    def receive(self, assignments: list[Any], totals: list[Any]) -> None:
        """Redis has assigned messages to this node.

        Args:
            assignments: group, place, message, in turn.
            totals: group, number of assignments to this node that Redis has counted so far, in turn.
        """
        groups = self._filters.groups
        for name, place, message in zip(assignments[::3], assignments[1::3], assignments[2::3], strict=True):
            group = groups.get(name)
            if group is None:  # its last subscriber here has just left
                self._records.give_back(name, place)
            else:
                assigned(group, place, message)
        for name, total in zip(totals[::2], totals[1::2], strict=True):
            if (group := groups.get(name)) is not None:
                _assignments_of(group).note_total(total)

    def receive_given(self, items: list[list[Any]]) -> None:
        """Redis has put messages of groups into the queues of sessions whose clients are here.

        Args:
            items: client id, number of the first entry in its queue, group, epoch of the connection, number of messages
                that the subscriber has got in this way so far, entries.
        """
        for client_id, first, name, epoch, total, *entries in items:
            session = self._sessions.get(client_id)
            if session is None or session.kind != SessionKind.SHARED:
                continue
            for number, entry in enumerate(entries, first):
                arrive(session, number, entry, given=True)
            if self._claims.epoch_of(session.owner) == epoch:
                given(session, name, total, len(entries))

    def key_free(self, name: bytes, key: bytes, hold: int) -> None:
        """No session that is elsewhere has messages with this key any more."""
        if (group := self._filters.groups.get(name)) is not None:
            _assignments_of(group).key_free(int.from_bytes(key, "little"), hold)

    def key_closed(self, name: bytes, key: bytes, number: int) -> None:
        """Redis has taken back what this node had of a key."""
        if (group := self._filters.groups.get(name)) is not None:
            _assignments_of(group).key_closed(int.from_bytes(key, "little"), number)

    def key_elsewhere(self, name: bytes, key: bytes, hold: int, client_id: bytes) -> None:
        """A session of another shard has got a message with this key."""
        self._link_of(client_id).function(partial(self._key_sought, name, key, hold), "has_key", client_id, name, key)

    def _key_sought(self, name: bytes, key: bytes, hold: int, reply: Reply) -> None:
        # A message that has gone back is assigned to this node before the PING is answered.
        if reply == 0 and self._link.connected:
            self._link.call(partial(self._key_done, name, key, hold), "PING")

    def _key_done(self, name: bytes, key: bytes, hold: int, reply: Reply) -> None:
        if reply == b"PONG":
            self.key_free(name, key, hold)

    def _ask_unsure(self) -> None:
        """Ask whether sessions of other shards have messages, for which no reply came."""
        unsure, self._records.unsure[:] = [*self._records.unsure], ()
        for each in unsure:
            self._link_of(each.client_id).function(partial(self._offered, each), "offered", pack([each.number]))

    def _offered(self, each: HandOver, reply: Reply) -> None:
        if not isinstance(reply, list):
            each.ask()
        elif reply[0]:
            each.arrived()
        else:
            each.failed()

    def suspend(self) -> None:
        """The link is lost: messages that follow may lack others before them."""
        for assignments in self._of_groups():
            assignments.suspend()

    def recover(self) -> None:
        """The link is back: ask for assignments that were not received, and announce the room again.

        To be called when the pushes that were held are processed, and all blocks are sent again.
        """
        self._ask()
        # Redis may still read a call from the ended connection, and assign messages in a reply that nothing reads.
        self._ask_again_at = time.monotonic() + LATE_SECONDS
        for assignments in self._of_groups():
            assignments.forget_room()

    def last_places(self) -> dict[bytes, int]:
        """By group, the highest place of a message that is here, or whose assignment is about to end."""
        found = {each.group.name: max(each.places) for each in self._of_groups() if each.places}
        for name, place in (*self._records.ended, *self._records.under_way, *self._store.ended_assignments()):
            found[name] = max(place, found.get(name, 0))
        return found

    def _ask(self) -> None:
        self._link.function(self._recovered, "assigned")

    def _recovered(self, reply: Reply) -> None:
        if isinstance(reply, (LinkLost, ReplyError)):
            return
        items, totals = reply
        groups = self._filters.groups
        ended = {*self._records.ended, *self._store.ended_assignments(), *self._records.under_way}
        assignments = zip(items[::3], items[1::3], items[2::3], strict=True)
        for name, place, message in sorted(assignments, key=lambda assignment: assignment[:2]):
            if (name, place) in ended:
                continue
            if name in groups and place in _assignments_of(groups[name]).places:
                renumber(groups[name], place, message)
            else:
                self.receive([name, place, message], [])
        self.receive([], totals)
        for each in self._of_groups():
            each.resume()

    def tick(self) -> None:
        """A quarter of a second has passed."""
        if self._records.unsure:
            self._ask_unsure()
        if self._ask_again_at and time.monotonic() > self._ask_again_at:
            self._ask_again_at = 0.0
            self._ask()
        to_tick = self._records.to_tick  # few of many groups: a tick visits no other
        for each in [each for each in to_tick if not each.tick()]:
            to_tick.remove(each)

    def _of_groups(self) -> list[GroupAssignments]:
        return [_assignments_of(group) for group in self._filters.groups.values() if group.shard == self._shard]


def _assignments_of(group: Group) -> GroupAssignments:
    return group.backing  # type: ignore[return-value]
