"""The records of shared subscriptions in a block for Redis: assignments that end, keys, and room for more.

The journal has the messages of the block. This part has all about groups that is no message: groups record here, and
the journal packs it.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .commit_block cimport ended_assignments
from .message_codec cimport pack_failures
from ..session.group_subscriber cimport MAXIMUM_QOS
from ..session.journal cimport QUEUED, Journal
from ..session.session cimport Session

from ..base.msgpack import pack

import struct


@cython.final
cdef class GroupRecords:
    """Records of groups.

    Args:
        journal: whose block they are in.
    """

    def __init__(self, Journal journal not None):
        self.journal = journal
        self.limits = (1 << 30, 1 << 40, 0)
        self.to_tick = set()
        self.under_way = {}
        self.unsure = []
        self.begin()

    cdef object begin(self):
        """A new block begins."""
        self.moves = []
        self.done = []
        self.rooms = {}
        self.subscribers = {}
        self.idle = {}
        self.closed = {}
        self.checks = {}

    def follow_claims(self, epoch_of not None):
        """Subscribers of groups get messages directly. `epoch_of` returns the epoch of a connection's claim; 0 =
        none."""
        self.epoch_of = epoch_of

    def set_limits(self, int most, uint64_t most_bytes, bint drop_oldest):
        """Set the limits of the messages that wait in a group."""
        self.limits = (most, most_bytes, 1 if drop_oldest else 0)

    cdef int note(self) except -1:
        """Note a record: the `records` of the journal grow, because other modules test their size."""
        return self.journal.note(QUEUED)

    # ---- assigned messages ----

    cdef int move(self, bytes step, bytes group, uint64_t place, bytes text, uint64_t number, uint64_t code) except -1:
        self.moves += [step, group, place, text, number, code]
        return self.note()

    cdef int given(self, bytes group, uint64_t place, Session session) except -1:
        """Record that an assigned message goes into the queue of a persistent session."""
        return self.move(b"given", group, place, session.client_id, session.session_id, 0)

    cdef int put(self, bytes group, uint64_t place, bytes heads, uint64_t number) except -1:
        """Record that a message whose assignment has ended comes back. `number`: its place in the call."""
        return self.move(b"put", group, place, heads, number, 0)

    cdef int back(self, bytes group, uint64_t place) except -1:
        """Record that this node has no use for an assigned message."""
        return self.move(b"back", group, place, b"", 0, 0)

    def give_back(self, bytes group not None, uint64_t place):
        """Record that this node has no use for an assigned message."""
        self.back(group, place)

    cdef int failed(self, bytes group, uint64_t place, tuple failures) except -1:
        """Record that an assigned message was sent without success: the node keeps it."""
        return self.move(b"failed", group, place, pack_failures(failures), 0, 0)

    cdef int dead(self, bytes group, uint64_t place) except -1:
        """Record that an assigned message is done, in the block that has its dead letter."""
        return self.move(b"dead", group, place, b"", 0, 0)

    cdef int refused(self, bytes group, uint64_t place, bytes client_id, uint64_t n, uint8_t code) except -1:
        """Record that the entry `n` of a session's queue goes back to its group.

        `code`: of the client's refusal; 0: the client may not read it any more, which is no failure.
        """
        return self.move(b"refused", group, place, client_id, n, code)

    cdef int end(self, bytes group, uint64_t place) except -1:
        """Record that an assigned message is done."""
        self.done += [group, place]
        return self.note()

    @property
    def ended(self):
        """(group, place) of the assignments that end with the block being written, as a list."""
        return ended_assignments(self.moves, self.done)

    # ---- keys ----

    cdef int key_idle(self, bytes group, uint32_t key, uint64_t number) except -1:
        """Record that this node has no message with the key any more. `number`: of the last assignment of one."""
        self.idle[group, key] = number
        return self.note()

    cdef int key_closed(self, bytes group, uint32_t key, uint64_t number) except -1:
        """Record that this node gives a key up. `number`: of the last assignment of a message with it."""
        self.closed[group, key] = number
        return self.note()

    cdef int check_key(self, bytes group, uint32_t key, uint64_t hold) except -1:
        """Ask whether the key need not be held any more for a session that is elsewhere."""
        self.checks[group, key] = hold
        return self.note()

    cdef bint is_key_under_way(self, bytes group, uint32_t key) except -1:
        """Whether a message with the key goes to a queue of another shard, and it is not known whether it is there."""
        if self.under_way:
            for (name, _), hash in self.under_way.items():
                if name == group and hash == key:
                    return True
        return False

    # ---- room ----

    cdef int announce(self, bytes group, uint64_t room, uint64_t weight, uint64_t total,
                      uint64_t largest) except -1:
        """Record how many messages the subscribers of a group here have room for.

        Args:
            weight: the number of these subscribers.
            total: assignments to this node, as Redis has counted those that have arrived.
            largest: bytes of the largest packet of QoS 0 that one of them takes; 0 = any.
        """
        self.rooms[group] = (group, room, weight, total, largest)
        return self.note()

    cdef int announce_subscriber(self, bytes group, Session session, uint64_t limit, bint by_length, uint8_t options,
                             bytes identifiers) except -1:
        """Record how many messages Redis may put into the queue of a session by itself.

        Args:
            limit: of the number of messages that it has put there in all; 0 = no more, and this node asks for that
                number.
            by_length: the limit is of the length of the queue.
            options: of the subscription.
            identifiers: of the subscription, as properties.
        """
        epoch = self.epoch_of(session.owner)
        if epoch:
            self.subscribers[group, session.client_id] = (
                group, session.client_id, epoch, limit, <int>by_length, options & MAXIMUM_QOS, options >> 3 & 1,
                identifiers)
        return self.note()

    # ---- the block ----

    cdef bint changes(self) noexcept:
        """Whether the block has records for `commit`."""
        return self.moves or self.closed or self.checks

    cdef bytes pack_settled(self):
        """The records that must succeed when Redis has no memory left; empty = there are none."""
        if not self.done and not self.rooms and not self.idle and not self.subscribers:
            return b""
        settled = [self.done, [part for room in self.rooms.values() for part in room], flat_keys(self.idle)]
        settled.append([*self.subscribers.values()])
        return pack(settled)


cdef list flat_keys(dict numbers):
    """group, key, number, in turn, of a dict of numbers by group and key."""
    return [part for (group, key), number in numbers.items() for part in (group, struct.pack("<I", key), number)]
