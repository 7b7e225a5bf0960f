"""How many messages a shared subscription has room for at this node, as Redis has it.

Redis assigns messages to a node that has announced room: the sum over its subscribers that are connected. Into the
queues of some persistent sessions Redis puts messages by itself (`is_direct`): for those the node announces the room of
each.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .journal cimport ClusterJournal
from ..session.counters cimport SHARED_GIVEN
from ..session.group cimport Group
from ..session.group_subscriber cimport MAXIMUM_QOS, GroupSubscriber
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
        self.records = (<ClusterJournal?>group.turn.journal.at(group.shard)).group_records
        self.total = <uint64_t>1 << 53            # more than Redis counts: it subtracts no assignment under way

    cdef int announce(self) except -1:
        """Send Redis how much room there is, if it knows much less, or more. It subtracts the assignments under way."""
        cdef uint64_t room = 0, weight = 0, largest = 0, free
        cdef GroupSubscriber subscriber
        for subscriber in self.group.rotation.connected:
            if subscriber.ready and not subscriber.room():
                self.group.rotation.make_unready(subscriber)     # else it is not noticed that it has room again
            if self.announce_subscriber(subscriber):
                free = subscriber.room()
                room += free
                weight += 1
                if free:
                    largest = max(largest, self.largest_of(subscriber))
        room -= min(room, self.group.backlog.queue.in_order())
        largest = largest if largest < ANY_SIZE else 0
        if is_news(room, self.known) or (room and largest != self.largest_known):
            self.known = room
            self.largest_known = largest
            self.records.announce(self.group.client_id, room, weight, self.total, largest)
        return 0

    cdef int announce_subscriber(self, GroupSubscriber subscriber) except -1:
        """Send Redis the room of a subscriber that gets messages directly. Returns whether it is no such subscriber.

        If the session has no other subscription, Redis finds the room in the length of its queue: it is sent the whole
        room, once. Then acknowledgements make room there. When they make a quarter of it, they do not wait for a larger
        block. For other sessions Redis is sent the room when that has changed.
        """
        cdef bint direct = self.is_direct(subscriber)
        cdef Session session = subscriber.session
        self.group.rotation.set_direct(subscriber, direct)
        cdef uint32_t room = subscriber.whole_room() if direct and subscribes_to_one(session) else 0
        if room != subscriber.known.steady:
            subscriber.known.steady = room
            subscriber.known.room = subscriber.room() if room else 0
            subscriber.known.total = -1
            self.announce_limit(subscriber, room, room > 0)
        room = subscriber.room() if direct else 0
        if subscriber.known.steady:
            if room > subscriber.known.room and 4 * (room - subscriber.known.room) >= subscriber.known.steady:
                subscriber.known.room = room
                self.group.turn.journal.urgent = True
            return False
        if is_news(room, subscriber.known.room):
            subscriber.known.room = room
            self.announce_limit(subscriber, subscriber.known.total + room if subscriber.known.total >= 0 else 0, False)
        return not direct

    cdef int announce_limit(self, GroupSubscriber subscriber, uint64_t limit, bint by_length) except -1:
        return self.records.announce_subscriber(
            self.group.client_id, subscriber.session, limit, by_length, subscriber.options,
            subscriber.properties)

    cdef bint is_direct(self, GroupSubscriber subscriber) except -1:
        """Whether Redis puts messages into the queue of the subscriber's session by itself.

        For that the session is persistent, its client may read all messages of the group, and takes packets of any
        size; and the group has no order by key.
        """
        cdef Session session = subscriber.session
        if (session.kind != SHARED or session.shard != self.group.shard or self.records.epoch_of is None
                or self.group.backlog.keys is not None
                or subscriber.options & MAXIMUM_QOS == 0 or session.outlet is None
                or (session.outlet.level == 5 and session.outlet.largest != ANY_SIZE)):
            return False
        if session.rights is not None and session.rights.number != subscriber.known.rights_number:
            subscriber.known.rights_number = session.rights.number
            subscriber.known.reads_all = session.rights.may_read_all(self.group.topic_filter)
        return session.rights is None or subscriber.known.reads_all

    cdef uint64_t largest_of(self, GroupSubscriber subscriber) noexcept:
        """The bytes of the largest packet of QoS 0 that the subscriber takes, as Redis counts them; ANY_SIZE or more:
        any.

        A packet to it has a packet identifier and subscription identifiers more. A topic name has the prefix of the
        tenant less.
        """
        cdef Outlet outlet = subscriber.session.outlet
        cdef int64_t largest
        if outlet is None or outlet.level < 5 or outlet.largest == ANY_SIZE:
            return ANY_SIZE
        largest = <int64_t>outlet.largest - len(subscriber.properties) - (2 if subscriber.options & MAXIMUM_QOS else 0)
        if self.group.tenant is not None:
            largest += self.group.tenant.prefix_size
        return <uint64_t>max(<int64_t>1, largest)

    cdef int note_given(self, GroupSubscriber subscriber, uint64_t total, uint32_t count) except -1:
        """Redis has put `count` messages into the queue of the subscriber's session, and `total` in all."""
        if subscriber.known.total < 0 and not subscriber.known.steady:
            subscriber.known.room = 0                 # that was the question: Redis has not been sent the room
        subscriber.known.room -= min(count, subscriber.known.room)
        subscriber.known.total = total
        self.group.distributor.given += count
        self.group.turn.counters[SHARED_GIVEN] += count
        return 0

    cdef int forget(self) except -1:
        """The link to Redis was lost: announce all room again."""
        cdef GroupSubscriber subscriber
        for subscriber in self.group.rotation.connected:
            subscriber.known.room = subscriber.known.steady = 0
            subscriber.known.total = -1
        self.known = 0
        return 0


cdef inline bint is_news(uint64_t room, uint64_t known) noexcept:
    """Whether Redis has to be sent the room: it is less than Redis knows, or twice as much."""
    return room < known or (room > known and room >= 2 * known)


cdef inline bint subscribes_to_one(Session session) noexcept:
    """Whether the session's only subscription is that to a group."""
    return session.subscription_count == 0 and session.shares.count == 1
