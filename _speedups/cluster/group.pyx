"""The part of a shared subscription that this node has: its members here, and the messages that are leased to it.

Redis has the messages of a group, and leases each to a node that has announced room: the sum over its connected
members. The node gives it to one of them, as a node alone does (`_speedups/session/group.pyx`). A lease ends with the
acknowledgement of a clean session, or when the message is put into the queue of a persistent one; both in Redis. If
the node dies, its leases go back to their places. So a message of QoS 2 for a clean session is sent only when its lease
has ended: no other member may get it then.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from _speedups.cluster.journal cimport ClusterJournal
from _speedups.cluster.peer cimport Peer
from _speedups.session.counters cimport SHARED_ACCEPTED, SHARED_RETURNED
from _speedups.session.group cimport Group
from _speedups.session.group_members cimport Member, take_entry
from _speedups.session.group_queue cimport Held, Waiting
from _speedups.session.message cimport Message, Publication, message_hold, message_release
from _speedups.session.outgoing_queue cimport OF_GROUP, queue_entry
from _speedups.session.session cimport Session
from _speedups.session.subscriber cimport SHARED, Plan, Receiver, Subscriber
from _speedups.session.turn cimport Turn

cdef enum:
    MAXIMUM_QOS = 3            # of what a node announces ...
    QOS_BITS = 2               # ... the number of its members is above ...
    EXACT_MEMBERS = 8          # ... itself, up to this one
    ASIDE_TICKS = 4            # after which messages that no member here may take go to other nodes


cdef class PeerMembers:
    """The members of a group at another node."""


cdef class ClusterGroup(Group):
    """A group of a cluster, without members.

    Args:
        turn, number, name, topic_filter: as for Group.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None, bytes topic_filter not None):
        Group.__init__(self, turn, number, name, topic_filter)
        self.journal = turn.journal
        self.leases = set()
        self.peers = []
        self.kept = True

    cdef int set_strategy(self) except -1:
        return 0                                  # rotation: `check_cluster_settings` refuses others

    cdef int highest_qos(self) except -1:
        return max(Group.highest_qos(self), max([(<PeerMembers>there).qos for there in self.peers], default=0))

    # ---- members ----

    def set_peer(self, Subscriber peer not None, int announced):
        """Another node has members, with this QoS and number as `Routes` announces them; -1: it has none.

        Returns whether it had some.
        """
        cdef PeerMembers there
        for there in self.peers:
            if there.peer is peer:
                break
        else:
            if announced < 0:
                return False
            there = PeerMembers()
            there.peer = peer
            self.peers.append(there)
            self.set_members(there, announced)
            self.turn.schedule_send(self)
            return False
        if announced < 0:
            self.peers.remove(there)
        else:
            self.set_members(there, announced)
        return True

    cdef int set_members(self, PeerMembers there, int announced) except -1:
        there.qos = announced & MAXIMUM_QOS
        there.weight = announced >> QOS_BITS
        if there.weight > EXACT_MEMBERS:
            there.weight = <int64_t>1 << (there.weight - 5)      # powers of two follow, from 16
        there.weight = max(1, there.weight)                  # nodes of a version before announce none
        return 0

    @property
    def is_attended(self):
        """Whether a member has a connection, at this node or another."""
        return len(self.connected) > 0 or len(self.peers) > 0

    cdef bint is_empty(self) noexcept:
        return len(self.members) == 0 and len(self.peers) == 0 and not self.settings.declared

    cdef bint has_others(self) noexcept:
        return self.settings.declared or len(self.peers) > 0

    cdef bint recorded(self) noexcept:
        return False                              # Redis has it

    cdef int stop_keeping(self, bint records) except -1:
        return 0

    cdef int room_changed(self) except -1:
        return self.turn.schedule_send(self)

    # ---- messages ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef Message* message
        if publication.forwarded:
            return 1                              # the node that accepted the message has passed it to Redis
        self.turn.counters[SHARED_ACCEPTED] += 1
        message = self.lower_expiry(publication.message)
        try:
            self.journal.share(self.client_id, message,
                               publication.qos if publication.qos < receiver.qos else receiver.qos)
        finally:
            message_release(message)
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("queued", self.client_id, publication.message, publication.qos, "in Redis")
        return 1

    cdef bint pass_on(self, Publication* publication) except -1:
        """Smooth rotation by weight: each gets its weight as credit, and the one with most pays for the turn of all."""
        cdef int64_t here = len(self.connected), total
        cdef PeerMembers there, chosen = None
        if publication.forwarded or not self.peers:
            return False
        total = here
        self.credit += here
        for there in self.peers:
            there.credit += there.weight
            total += there.weight
            if chosen is None or there.credit > chosen.credit:
                chosen = there
        if here and self.credit >= chosen.credit:
            self.credit -= total
            return False
        chosen.credit -= total
        (<Peer>chosen.peer).accept_for(publication, self.client_id)
        return True

    cdef int take_lease(self, uint64_t place, Message* message) except -1:
        """Redis has leased a message to this node."""
        self.leases.add(place)
        self.room_known -= self.room_known > 0
        if self.has_failed(place):
            return self.take_dead(place, message_hold(message))
        if self.waits() or not self.give(place, message, True):
            self.wait(place, message_hold(message), True)
        return self.turn.schedule_send(self)

    cdef int put(self, Member member, uint64_t place, Message* message, uint8_t flags) except -1:
        cdef Session session = member.session
        if session.kind != SHARED:
            return Group.put(self, member, place, message, flags)
        session.pending += 1
        self.leases.discard(place)
        self.journal.queue_given(session, message, flags, member.properties, self.client_id, place,
                                 self.failures_of(place))
        return self.forget_failures(place)

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        if not record:
            return self.come_back(place, message)
        self.journal.put_back(self.client_id, place, message, self.failures_of(place))
        message_release(message)
        return self.forget_failures(place)

    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1:
        cdef Session session = member.session
        cdef uint64_t place
        if session.kind != SHARED:
            return Group.take_refused(self, member, n, code)
        place = session.shares.places[n & session.shares.mask]
        message_release(take_entry(session, n, queue_entry(&session.queue, n)))
        member.given -= 1
        self.returned += 1
        self.turn.counters[SHARED_RETURNED] += 1
        self.journal.refused(self.client_id, place, session.client_id, n, code)
        return self.room_changed()

    # ---- dead letters ----

    cdef tuple failures_of(self, uint64_t place):
        """Deliveries, reason code and client id of a message that came back; None: it has not."""
        return self.failures.get(place) if self.failures is not None else None

    cdef int record_failure(self, uint64_t place) except -1:
        if place in self.leases and self.failures_of(place) is not None:
            self.journal.lease_failed(self.client_id, place, self.failures_of(place))
        return 0

    cdef int end_dead(self, uint64_t place) except -1:
        self.journal.lease_dead(self.client_id, place)
        self.leases.discard(place)
        return 0

    # ---- leases ----

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        return 0                                  # it is leased

    cdef int record_done(self, uint64_t place) except -1:
        if place in self.leases:
            self.journal.lease_done(self.client_id, place)
            self.leases.discard(place)
        return 0

    cdef bint is_full(self, const Message* message) except -1:
        return False                              # Redis has applied the limits

    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1:
        return False                              # Redis replaces messages; those that are leased stay

    cdef int end_lease(self, uint64_t place, Message* message) except -1:
        """Give a message back to Redis, which may lease it to this node again."""
        self.count_waiting(-1, message)
        self.journal.lease_back(self.client_id, place)
        self.leases.discard(place)
        return self.forget_failures(place)

    cdef int send_pending(self) except -1:
        Group.send_pending(self)
        if self.waits() and not self.ready_count and (self.peers or not self.connected or self.settings.paused):
            self.give_to_others()                 # else the members here will have room before any other
        if not self.aside:
            self.aside_since = 0
        elif not self.aside_since:
            self.aside_since = self.turn.clock
            self.journal.with_aside.add(self)
        return self.announce()

    cdef int give_to_others(self) except -1:
        """No member here has room: give the messages that wait back to Redis."""
        cdef Waiting taken
        while self.waits():
            taken = self.take_first()
            self.end_lease(taken.place, taken.message)
            message_release(taken.message)
        return 0

    cdef uint64_t room(self) except? 0:
        """Messages that the members here have room for."""
        cdef uint64_t room = 0, window
        cdef Member member
        for member in self.connected:
            if member.has_room():
                window = min(self.settings.window, <uint32_t>member.session.outlet.receive_maximum)
                room += window - member.given
        return room - min(room, self.tail - self.head + <uint64_t>self.back_count)

    cdef int announce(self) except -1:
        """Send Redis how much room there is, if it knows much less, or more. It subtracts the leases under way."""
        cdef uint64_t room = self.room()
        if room < self.room_known or room >= 2 * self.room_known + (room > 0 and self.room_known == 0):
            if room != self.room_known:
                self.room_known = room
                self.journal.announce(self.client_id, room, len(self.connected), self.total)
        return 0

    def tick(self):
        """A quarter of a second has passed: messages that no member here may take go to other nodes.

        Returns whether the group still has such messages.
        """
        cdef Held held
        if self.aside_since and self.turn.clock - self.aside_since >= ASIDE_TICKS:
            self.aside_since = 0
            for held in self.aside:
                self.end_lease(held.place, held.message)
            self.aside.clear()
        return self.aside_since != 0

    def abandon(self):
        """The last member has left this node: give what waits back."""
        self.recall()
        self.give_to_others()
        if self.dead:
            self.publish_dead()
        return 0

    def note_total(self, uint64_t total):
        """Redis has counted so many leases to this node, up to those that have arrived now."""
        self.total = total

    def forget_room(self):
        """The link to Redis was lost: announce the room again."""
        self.room_known = 0
        self.turn.schedule_send(self)

    @property
    def places(self):
        """Places of the messages that Redis has leased to this node, and that it still has."""
        return self.leases
