"""How many messages a shared subscription has room for at this node, as Redis has it.

Redis leases messages to a node that has announced room: the sum over its members that are connected. Into the queues of
some persistent sessions Redis puts messages by itself (`is_direct`): for those the node announces the room of each.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .journal cimport ClusterJournal
from ..session.counters cimport SHARED_GIVEN
from ..session.group cimport Group
from ..session.group_members cimport MAXIMUM_QOS, Member
from ..session.session cimport Session
from ..session.subscriber cimport SHARED
from ..session.turn cimport Outlet

cdef enum:
    ANY_SIZE = 0xFFFFFFFF      # the largest packet of a client without a maximum


@cython.final
cdef class AnnouncedRoom:
    """The room of a group, of which Redis has not been sent any.

    Args:
        group: that has the room.
    """

    def __init__(self, Group group not None):
        self.group = group
        self.records = (<ClusterJournal?>group.turn.journal).leases
        self.total = <uint64_t>1 << 53            # more than Redis counts: it subtracts no lease under way

    cdef int announce(self) except -1:
        """Send Redis how much room there is, if it knows much less, or more. It subtracts the leases under way."""
        cdef uint64_t room = 0, weight = 0, largest = 0, free
        cdef Member member
        for member in self.group.rotation.connected:
            if member.ready and not member.room():
                self.group.rotation.make_unready(member)     # else it is not noticed that it has room again
            if self.announce_member(member):
                free = member.room()
                room += free
                weight += 1
                if free:
                    largest = max(largest, self.largest_of(member))
        room -= min(room, self.group.backlog.queue.in_order())
        largest = largest if largest < ANY_SIZE else 0
        if is_news(room, self.known) or (room and largest != self.largest_known):
            self.known = room
            self.largest_known = largest
            self.records.announce(self.group.client_id, room, weight, self.total, largest)
        return 0

    cdef int announce_member(self, Member member) except -1:
        """Send Redis the room of a member that gets messages directly. Returns whether it is no such member.

        If the session has no other subscription, Redis finds the room in the length of its queue: it is sent the whole
        room, once. Then acknowledgements make room there. When they make a quarter of it, they do not wait for a larger
        block. For other sessions Redis is sent the room when that has changed.
        """
        cdef bint direct = self.is_direct(member)
        cdef Session session = member.session
        cdef uint32_t room = member.whole_room() if direct and subscribes_to_one(session) else 0
        if room != member.known.steady:
            member.known.steady = room
            member.known.room = member.room() if room else 0
            member.known.total = -1
            self.announce_limit(member, room, room > 0)
        room = member.room() if direct else 0
        if member.known.steady:
            if room > member.known.room and 4 * (room - member.known.room) >= member.known.steady:
                member.known.room = room
                self.group.turn.journal.urgent = True
            return False
        if is_news(room, member.known.room):
            member.known.room = room
            self.announce_limit(member, member.known.total + room if member.known.total >= 0 else 0, False)
        return not direct

    cdef int announce_limit(self, Member member, uint64_t limit, bint by_length) except -1:
        return self.records.announce_member(self.group.client_id, member.session, limit, by_length, member.options,
                                            member.properties)

    cdef bint is_direct(self, Member member) except -1:
        """Whether Redis puts messages into the queue of the member's session by itself.

        For that the session is persistent, its client may read all messages of the group, and takes packets of any
        size; and the group has no order by key.
        """
        cdef Session session = member.session
        if (session.kind != SHARED or self.records.epoch_of is None or self.group.backlog.keys is not None
                or member.options & MAXIMUM_QOS == 0 or session.outlet is None
                or (session.outlet.level == 5 and session.outlet.largest != ANY_SIZE)):
            return False
        if session.rights is not None and session.rights.number != member.known.rights_number:
            member.known.rights_number = session.rights.number
            member.known.reads_all = session.rights.may_read_all(self.group.topic_filter)
        return session.rights is None or member.known.reads_all

    cdef uint64_t largest_of(self, Member member) noexcept:
        """The bytes of the largest packet of QoS 0 that the member takes, as Redis counts them; ANY_SIZE or more: any.

        A packet to it has a packet identifier and subscription identifiers more. A topic name has the prefix of the
        tenant less.
        """
        cdef Outlet outlet = member.session.outlet
        cdef int64_t largest
        if outlet is None or outlet.level < 5 or outlet.largest == ANY_SIZE:
            return ANY_SIZE
        largest = <int64_t>outlet.largest - len(member.properties) - (2 if member.options & MAXIMUM_QOS else 0)
        if self.group.tenant is not None:
            largest += self.group.tenant.prefix_size
        return <uint64_t>max(<int64_t>1, largest)

    cdef int note_given(self, Member member, uint64_t total, uint32_t count) except -1:
        """Redis has put `count` messages into the queue of the member's session, and `total` in all."""
        if member.known.total < 0 and not member.known.steady:
            member.known.room = 0                 # that was the question: Redis has not been sent the room
        member.known.room -= min(count, member.known.room)
        member.known.total = total
        self.group.assigner.given += count
        self.group.turn.counters[SHARED_GIVEN] += count
        return 0

    cdef int forget(self) except -1:
        """The link to Redis was lost: announce all room again."""
        cdef Member member
        for member in self.group.rotation.connected:
            member.known.room = member.known.steady = 0
            member.known.total = -1
        self.known = 0
        return 0


cdef inline bint is_news(uint64_t room, uint64_t known) noexcept:
    """Whether Redis has to be sent the room: it is less than Redis knows, or twice as much."""
    return room < known or (room > known and room >= 2 * known)


cdef inline bint subscribes_to_one(Session session) noexcept:
    """Whether the session's only subscription is that to a group."""
    return session.subscription_count == 0 and session.shares.count == 1
