"""The part of a shared subscription that this node has: its members here, and the messages that are leased to it.

Redis has the messages of a group. It puts them into the queues of persistent sessions by itself (`is_direct`): for
those the node announces the room of each. It leases the others to nodes that have announced room: the sum over the
other members that are connected. The node gives a leased message to one of them, as a node alone does
(`_speedups/session/group.pyx`). A lease ends with the acknowledgement of a clean session, or when the message is put
into the queue of a persistent one; both in Redis. If the node dies, its leases go back to their places. So a message of
QoS 2 for a clean session is sent only when its lease has ended: no other member may get it then.

Order by key: Redis binds a key to the node that has messages of it, and leases all that follow to this node, which
keeps them in order as a node alone does (`group_keys.pyx`). A key is *held*, and none of its messages given, while a
persistent session that was a member here may still have some: Redis is asked until it has none. When the last message
is done, the node reports the key as idle; when it can't give those that it has, it gives the key up (`close`).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .journal cimport ClusterJournal
from .message_codec cimport pack_failures, pack_key
from .peer cimport Peer
from ..session.counters cimport SHARED_ACCEPTED, SHARED_GIVEN, SHARED_RETURNED
from ..session.group cimport GIVEN_TO_ONE, Group
from ..session.group_keys cimport Key, hash_of
from ..session.group_members cimport Member, key_of, take_entry
from ..session.group_queue cimport Held, Waiting
from ..session.group_settings cimport ROTATION
from ..session.message cimport Message, Publication, message_hold, message_release
from ..session.outgoing_queue cimport OF_GROUP, queue_entry
from ..session.session cimport Session
from ..session.subscriber cimport SHARED, Plan, Receiver, Subscriber
from ..session.turn cimport Outlet, Turn

cdef enum:
    MAXIMUM_QOS = 3            # of the announcement of a node ...
    QOS_BITS = 2               # ... the number of its members is above ...
    EXACT_MEMBERS = 8          # ... itself, up to this one
    ASIDE_TICKS = 4            # after which messages that no member here may take go to other nodes
    SLOW_CHECK = 16            # ticks between questions about keys that are held for long
    ANY_SIZE = 0xFFFFFFFF      # the largest packet of a client without a maximum
    ELSEWHERE = 1              # reasons to hold a key: a session that is not here may have messages of it ...
    CLOSING = 2                # ... this node gives the key up


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
        self.entrusted = {}
        self.held = {}
        self.kept = True
        self.total = <uint64_t>1 << 53            # more than Redis counts: it subtracts no lease under way

    cdef int set_strategy(self) except -1:
        if self.settings.strategy_number != (ROTATION if self.keys is None else self.keys.strategy):
            self.entrusted.clear()
            self.held.clear()
        return Group.set_strategy(self)

    cdef int find_keys(self) except -1:
        return 0                                  # messages have the keys with which they came to Redis

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
            self.journal.share(self.client_id, self.tenant, message, min(publication.qos, receiver.qos),
                               None if self.keys is None else pack_key(key_of(self.settings, publication), 0))
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
        if self.keys is not None:
            chosen = self.node_of(key_of(self.settings, publication))
            if chosen is not None:
                (<Peer>chosen.peer).accept_for(publication, self.client_id)
            return chosen is not None
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

    cdef PeerMembers node_of(self, uint32_t hash):
        """The node whose members get messages of QoS 0 with a key; None: this one. All nodes find the same."""
        cdef PeerMembers there, chosen = None
        cdef bytes name = self.journal.node
        cdef uint32_t score, highest = weight_of(hash, name) if self.connected else 0
        for there in self.peers:
            score = weight_of(hash, there.peer.client_id)
            if score > highest:
                highest, chosen = score, there
        return chosen

    cdef int take_lease(self, uint64_t place, Message* message, int64_t key, uint64_t number, bint elsewhere) except -1:
        """Redis has leased a message to this node."""
        cdef Key known = None
        self.leases.add(place)
        self.room_known -= self.room_known > 0
        if key >= 0 and self.keys is not None:
            known = self.keys.of(place)
            if known is not None:                 # it is here already
                known.number = max(known.number, number)
                return 0
            known = self.keys.note(place, <uint32_t>key)
            known.number = max(known.number, number)
            if elsewhere and known.member is None:
                self.hold(known)
        if self.has_failed(place):
            self.key_done(place)
            return self.take_dead(place, message_hold(message))
        if known is not None:
            return self.take_keyed(known, place, message)
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
                                 self.heads_of(place), member)
        if self.keys is not None and self.keys.of(place) is not None:
            self.entrusted[place] = member        # with its failures: it may come back here
            return 0
        return self.forget_failures(place)

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        if not record:
            return self.come_back(place, message)
        self.journal.put_back(self.client_id, place, message, self.heads_of(place))
        if self.is_mine(place):
            self.leases.add(place)                # Redis leases it to this node again
            return self.come_back(place, message)
        message_release(message)
        return self.forget_failures(place)

    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1:
        cdef Session session = member.session
        cdef uint64_t place
        cdef Message* message
        if session.kind != SHARED:
            return Group.take_refused(self, member, n, code)
        place = session.shares.places[n & session.shares.mask]
        message = take_entry(session, n, queue_entry(session.queue, n))
        member.given -= 1
        self.journal.refused(self.client_id, place, session.client_id, n, code)
        if self.is_mine(place):
            del self.entrusted[place]
            self.leases.add(place)                # Redis leases it to this node again
            if code:
                self.note_failure(place, code, session.client_id)
            self.come_back(place, message)
            return self.room_changed()
        message_release(message)
        self.returned += 1
        self.turn.counters[SHARED_RETURNED] += 1
        self.key_done(place)
        return self.room_changed()

    # ---- dead letters ----

    cdef tuple failures_of(self, uint64_t place):
        """Deliveries, reason code and client id of a message that came back; None: it has not."""
        return self.failures.get(place) if self.failures is not None else None

    cdef bytes heads_of(self, uint64_t place):
        """The key and the failures of a message, to stand before it."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        return (b"" if key is None else pack_key(key.hash, key.number)) + pack_failures(self.failures_of(place))

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
        if self.keys is None or not self.suspended:
            Group.send_pending(self)
        if self.waits() and not self.ready_count and (self.peers or not self.connected or self.settings.paused):
            self.give_to_others()                 # else the members here will have room before any other
        if not self.connected:
            self.close_all()
        if not self.aside and not (self.keys is not None and self.keys.blocked):
            self.aside_since = 0
        elif not self.aside_since:
            self.aside_since = self.turn.clock
            self.journal.to_tick.add(self)
        return self.announce()

    cdef int give_to_others(self) except -1:
        """No member here has room: give the messages that wait back to Redis."""
        cdef Waiting taken
        while self.waits():
            taken = self.take_first()
            self.end_lease(taken.place, taken.message)
            message_release(taken.message)
        return 0

    cdef bint is_direct(self, Member member) except -1:
        """Whether Redis puts messages into the queue of the member's session by itself.

        For that the session is persistent, its client may read all messages of the group, and takes packets of any
        size; and the group has no order by key.
        """
        cdef Session session = member.session
        if (session.kind != SHARED or self.journal.epoch_of is None or self.keys is not None
                or member.options & MAXIMUM_QOS == 0 or session.outlet is None
                or (session.outlet.level == 5 and session.outlet.largest != ANY_SIZE)):
            return False
        if session.rights is not None and session.rights.number != member.rights_number:
            member.rights_number = session.rights.number
            member.reads_all = session.rights.may_read_all(self.topic_filter)
        return session.rights is None or member.reads_all

    cdef int announce(self) except -1:
        """Send Redis how much room there is, if it knows much less, or more. It subtracts the leases under way."""
        cdef uint64_t room = 0, weight = 0, largest = 0, free
        cdef Member member
        for member in self.connected:
            if member.ready and not member.room():
                self.make_unready(member)         # else it is not noticed that it has room again
            if self.announce_member(member):
                free = member.room()
                room += free
                weight += 1
                if free:
                    largest = max(largest, self.largest_of(member))
        room -= min(room, self.tail - self.head + <uint64_t>self.back_count)
        largest = largest if largest < ANY_SIZE else 0
        if is_news(room, self.room_known) or (room and largest != self.largest_known):
            self.room_known = room
            self.largest_known = largest
            self.journal.announce(self.client_id, room, weight, self.total, largest)
        return 0

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
        if self.tenant is not None:
            largest += self.tenant.prefix_size
        return <uint64_t>max(<int64_t>1, largest)

    cdef int announce_member(self, Member member) except -1:
        """Send Redis the room of a member that gets messages directly. Returns whether it is no such member.

        If the session has no other subscription, Redis finds the room in the length of its queue: it is sent the whole
        room, once. Then acknowledgements make room there, so those of a quarter of it do not wait for a larger block.
        For other sessions Redis is sent the room when that has changed.
        """
        cdef bint direct = self.is_direct(member)
        cdef Session session = member.session
        cdef uint32_t room = member.whole_room() if direct and subscribes_to_one(session) else 0
        if room != member.steady:
            member.steady = room
            member.room_known = member.room() if room else 0
            member.total = -1
            self.announce_limit(member, room, room > 0)
        room = member.room() if direct else 0
        if member.steady:
            if room > member.room_known and 4 * (room - member.room_known) >= member.steady:
                member.room_known = room
                self.journal.urgent = True
            return False
        if is_news(room, member.room_known):
            member.room_known = room
            self.announce_limit(member, member.total + room if member.total >= 0 else 0, False)
        return not direct

    cdef int announce_limit(self, Member member, uint64_t limit, bint by_length) except -1:
        return self.journal.announce_member(self.client_id, member.session, limit, by_length, member.options,
                                            member.properties)

    cdef int note_given(self, Member member, uint64_t total, uint32_t count) except -1:
        """Redis has put `count` messages into the queue of the member's session, and `total` in all."""
        if member.total < 0 and not member.steady:
            member.room_known = 0                 # that was the question: Redis has not been sent the room
        member.room_known -= min(count, member.room_known)
        member.total = total
        self.given += count
        self.turn.counters[SHARED_GIVEN] += count
        return self.room_changed()

    def tick(self):
        """A quarter of a second has passed.

        Messages that no member here may take go to other nodes. Redis is asked about keys that are held.

        Returns whether the group needs the next tick, too.
        """
        cdef Held held
        cdef Key key
        if self.aside_since and self.turn.clock - self.aside_since >= ASIDE_TICKS:
            self.aside_since = 0
            for held in self.aside:
                self.end_lease(held.place, held.message)
            self.aside.clear()
            if self.keys is not None and self.peers:
                for key in list(self.keys.blocked):
                    if key.member is None and key.number:
                        self.close(key)
        if self.held and self.turn.clock >= self.check_at:
            self.check_every = min(2 * self.check_every, <int64_t>SLOW_CHECK)
            self.check_at = self.turn.clock + self.check_every
            for key in self.held.values():
                self.journal.check_key(self.client_id, key.hash, key.hold)
        return self.aside_since != 0 or len(self.held) != 0

    def abandon(self):
        """The last member has left this node: give what waits back."""
        self.recall()
        self.give_to_others()
        self.close_all()
        if self.dead:
            self.publish_dead()
        return 0

    # ---- order by key ----

    cdef bint is_mine(self, uint64_t place) except -1:
        """Whether Redis has bound the key of the message to this node."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        return key is not None and key.number != 0

    cdef int take_keyed(self, Key key, uint64_t place, Message* message) except -1:
        """Give a leased message to a member, or keep it at its key."""
        if self.suspended or self.give_keyed(key, place, message, True) != GIVEN_TO_ONE:
            self.count_waiting(1, message)
            self.park(key, Waiting(place, message_hold(message)))
            if not self.connected or key.held & CLOSING:
                self.close(key)
        return self.turn.schedule_send(self)

    cdef int key_done(self, uint64_t place) except -1:
        cdef Key key = None if self.keys is None else self.keys.of(place)
        Group.key_done(self, place)
        return 0 if key is None else self.end_key(key, place)

    cdef int member_done(self, Member member, uint64_t place) except -1:
        if member.session.kind == SHARED and place not in self.entrusted:
            return 0                              # it went back before the session was here
        return self.key_done(place)

    cdef int forget_key(self, uint64_t place) except -1:
        cdef Key key = None if self.keys is None else self.keys.of(place)
        Group.forget_key(self, place)
        return 0 if key is None else self.end_key(key, place)

    cdef int end_key(self, Key key, uint64_t place) except -1:
        """A message of the key is done; report a key without messages."""
        self.entrusted.pop(place, None)
        if key.known == 0 and not key.held and key.number:
            self.journal.key_idle(self.client_id, key.hash, key.number)
        return 0

    cdef int note_key_of(self, Member member, uint64_t place, uint32_t hash, uint64_t failures) except -1:
        cdef Key key
        if self.keys is None or place in self.entrusted or place in self.leases:
            return 0                              # in the last case it went back, and the entry is done
        if self.keys.of(place) is None:
            self.keys.note(place, hash)
        self.entrusted[place] = member
        if failures:
            self.restore_failed(place, failures)
        self.keys.bind(place, member)
        key = self.keys.of(place)
        if key.held & ELSEWHERE:
            self.held.pop(hash, None)
            key.held &= ~ELSEWHERE
        return 0

    cdef int hold(self, Key key) except -1:
        """Give no message of the key until Redis reports that no session has others before."""
        self.holds += 1
        key.hold = self.holds
        key.held |= ELSEWHERE
        self.held[key.hash] = key
        self.check_every = 1
        self.check_at = self.turn.clock + 1
        self.journal.check_key(self.client_id, key.hash, key.hold)
        self.journal.to_tick.add(self)
        return 0

    cdef int hold_key(self, uint64_t place) except -1:
        """The message did not arrive in the queue of a persistent session."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None or self.entrusted.pop(place, None) is None:
            return 0
        self.forget_failures(place)
        if key.number and not key.held & ELSEWHERE:
            self.hold(key)
        self.keys.done(place)
        return self.turn.schedule_send(self)

    cdef int hold_keys(self, Member member) except -1:
        """The member has a persistent session, which leaves this node: it may return elsewhere."""
        for place in [place for place, other in self.entrusted.items() if other is member]:
            self.hold_key(place)
        return 0

    cdef int leave(self, Member member, bint session_ends) except -1:
        if member.session.kind == SHARED:
            self.hold_keys(member)                # it may still have messages that were sent
        return Group.leave(self, member, session_ends)

    def key_free(self, uint32_t key, uint64_t hold):
        """No session that is elsewhere has messages of a key that was held. `hold`: as in the question."""
        cdef Key known = self.held.get(key)
        if known is None or known.hold != hold:
            return
        del self.held[key]
        known.held &= ~ELSEWHERE
        if known.known:
            self.keys.offer(known)
        elif not known.held:
            self.keys.remove(known)
            self.journal.key_idle(self.client_id, key, known.number)
        self.turn.schedule_send(self)

    cdef int close(self, Key key) except -1:
        """Give the key up. Nothing of it is given until Redis has taken back what this node has."""
        key.held |= CLOSING
        self.journal.key_closed(self.client_id, key.hash, key.number)
        return 0

    cdef int close_all(self) except -1:
        """No member here has a connection: give all keys up."""
        cdef Key key
        for key in list(self.keys.keys.values()) if self.keys is not None else ():
            if key.number and not key.held & CLOSING:
                self.close(key)
        return 0

    def key_closed(self, uint32_t key, uint64_t number):
        """Redis has taken back the messages of a key. `number`: of the last lease that this node had of it."""
        cdef Key known = None if self.keys is None else self.keys.keys.get(key)
        cdef Held held
        if known is None or known.number != number or not known.held & CLOSING:
            return
        for held in self.keys.remove_parked(known):
            self.leases.discard(held.place)
            self.count_waiting(-1, held.message)
            self.forget_failures(held.place)
        self.held.pop(key, None)
        known.held = 0
        known.number = 0
        if known.known == 0:
            self.keys.remove(known)

    def suspend(self):
        """The link to Redis is lost, and leases with it: give no messages with keys until `resume`."""
        self.suspended = True

    def resume(self):
        """All leases have arrived."""
        cdef Key key
        self.suspended = False
        for key in self.keys.keys.values() if self.keys is not None else ():
            if key.held & CLOSING:
                self.close(key)                   # the answer may be lost
        self.turn.schedule_send(self)

    # ---- room ----

    def note_total(self, uint64_t total):
        """Redis has counted so many leases to this node, up to those that have arrived now."""
        self.total = total

    def forget_room(self):
        """The link to Redis was lost: announce the room again."""
        cdef Member member
        for member in self.connected:
            member.room_known = member.steady = 0
            member.total = -1
        self.room_known = 0
        self.turn.schedule_send(self)

    @property
    def places(self):
        """Places of the messages that Redis has leased to this node, and that it still has."""
        return self.leases


cdef inline bint is_news(uint64_t room, uint64_t known) noexcept:
    """Whether Redis has to be sent the room: it is less than Redis knows, or twice as much."""
    return room < known or (room > known and room >= 2 * known)


cdef inline bint subscribes_to_one(Session session) noexcept:
    """Whether the session's only subscription is that to a group."""
    return session.subscription_count == 0 and session.shares.count == 1


def given(Session session not None, bytes name not None, uint64_t total, uint32_t count):
    """Redis has put `count` messages of this group into the queue of the session, and `total` in all."""
    cdef Member member
    if session.shares is not None:
        for member in session.shares.items:
            if member is not None and member.group is not None and member.group.client_id == name:
                (<ClusterGroup>member.group).note_given(member, total, count)


cdef uint32_t weight_of(uint32_t hash, bytes name) noexcept:
    """The weight of a node for a key; the node with the highest gets its messages of QoS 0."""
    cdef uint32_t h = (hash ^ hash_of(name, len(name))) * 2654435761U
    return h ^ h >> 15
