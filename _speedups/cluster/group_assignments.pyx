"""A shared subscription in a cluster, as one node has it: its subscribers here, and the messages that are assigned to
it.

Redis has the messages of a group. It puts them into the queues of some persistent sessions by itself, and assigns
the others to nodes that have announced room (`group_room.pyx`). The node gives an assigned message to one of its
subscribers, as a node alone does (`_speedups/session/group.pyx`). An assignment ends with the acknowledgement of a
clean session, or when the message is put into the queue of a persistent one; both in Redis. If the node dies, its
assignments go back to their places. So a message of QoS 2 for a clean session is sent only when its assignment has
ended: no other subscriber may get it then.

Messages with keys are assigned by key (`assigned_keys.pyx`). Messages of QoS 0 are spread over the nodes that have
subscribers (`group_peers.pyx`).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .group_peers cimport GroupPeers
from .group_room cimport AnnouncedRoom
from .hand_over cimport HandOver
from .journal cimport ClusterJournal
from .assigned_keys cimport CLOSING, AssignedKeys
from .message_codec cimport pack_failures, pack_key
from .peer cimport Peer
from ..session.counters cimport SHARED_RETURNED
from ..session.group cimport Group, give_back
from ..session.group_distributor cimport GIVEN_TO_ONE
from ..session.group_backing cimport GroupBacking
from ..session.group_backlog cimport Backlog
from ..session.group_keys cimport Key, key_of
from ..session.group_subscriber cimport GroupSubscriber, put_entry, take_entry
from ..session.group_queue cimport Held, Waiting
from ..session.message cimport Message, Publication, message_hold, message_release, message_size
from ..session.outgoing_queue cimport queue_entry
from ..session.journal cimport DONE
from ..session.session cimport Session
from ..session.subscriber cimport SHARED, Subscriber

cdef enum:
    ASIDE_TICKS = 4            # after which messages that no subscriber here may take go to other nodes


cdef class GroupAssignments(GroupBacking):
    """The assignments of a group without subscribers.

    Args:
        group: that has this as its backing.
    """

    def __init__(self, Group group not None):
        self.group = group
        self.journal = group.turn.journal.at(group.shard)
        self.records = self.journal.group_records
        self.places = set()
        self.peers = GroupPeers(self.journal.node)
        self.room = AnnouncedRoom(group)
        self.keys = AssignedKeys(group, self.places)
        self.kept = True

    # ---- messages ----

    cdef uint64_t place_new(self, const Publication* publication, uint8_t qos, Message* message) except? 0:
        cdef Group group = self.group
        self.journal.receiving().share(group.client_id, group.tenant, message, min(publication.qos, qos),
                           None if group.backlog.keys is None else pack_key(key_of(group.settings, publication), 0))
        if group.turn.tracer is not None:
            group.turn.tracer.note_message("queued", group.client_id, publication.message, publication.qos, "in Redis")
        return 0

    cdef bint pass_on(self, Publication* publication) except -1:
        cdef Py_ssize_t here = len(self.group.rotation.connected)
        cdef Peer chosen
        if publication.forwarded or not self.peers.items:
            return False
        if self.group.backlog.keys is not None:
            chosen = self.peers.node_of(key_of(self.group.settings, publication), here > 0)
        else:
            chosen = self.peers.next_node(here)
        if chosen is not None:
            chosen.accept_for(publication, self.group.client_id)
        return chosen is not None

    cdef int put(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1:
        cdef Session session = subscriber.session
        if session.kind != SHARED:
            put_entry(subscriber, place, message, flags)
            return 0
        session.pending += 1
        self.places.discard(place)
        if session.shard != self.journal.shard:
            self.hand_over(subscriber, place, message, flags)
        else:
            self.journal.queue_given(session, message, flags, subscriber.properties, self.group.client_id, place,
                                     self.heads_of(place), subscriber)
        if self.keys.is_known(place):
            self.keys.entrusted[place] = subscriber   # with its failures: it may come back here
            return 0
        return self.group.backlog.failures.forget(place)

    cdef int hand_over(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1:
        """Record that a message goes into the queue of a session that another shard has.

        Its assignment ends when it is there.
        """
        cdef Session session = subscriber.session
        cdef ClusterJournal journal = self.group.turn.journal.at(session.shard)
        cdef HandOver hand_over = HandOver(self.journal, self.group.client_id, place, session.client_id, session.shard,
                                           self.keys.hash_of(place), message.data[:message_size(message)])
        self.records.under_way[self.group.client_id, place] = hand_over.key
        return journal.queue_handed_over(session, message, flags, subscriber.properties, self.heads_of(place),
                                         subscriber, hand_over)

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        if not record:
            return self.group.backlog.come_back(place, message)
        self.journal.put_back(self.group.client_id, place, message, self.heads_of(place))
        if self.keys.is_mine(place):
            self.places.add(place)                # Redis assigns it to this node again
            return self.group.backlog.come_back(place, message)
        message_release(message)
        return self.group.backlog.failures.forget(place)

    cdef int take_refused(self, GroupSubscriber subscriber, uint64_t n, uint8_t code) except -1:
        cdef Group group = self.group
        cdef Session session = subscriber.session
        cdef uint64_t place = session.shares.place(n)
        cdef Message* message
        if session.kind != SHARED:
            return give_back(session, n, queue_entry(session.queue, n), code)
        message = take_entry(session, n, queue_entry(session.queue, n))
        subscriber.given -= 1
        if session.shard == self.journal.shard:
            self.records.refused(group.client_id, place, session.client_id, n, code)
        else:                                     # first it is in the group, then it leaves the queue
            self.journal.put_back(group.client_id, place, message, self.heads_of(place))
            (<ClusterJournal>session.turn.journal.at(session.shard)).ending(<uint64_t>1 << self.journal.shard).entry(
                DONE, session, session.session_id, n, 0)
        if self.keys.is_mine(place):
            del self.keys.entrusted[place]
            self.places.add(place)                # Redis assigns it to this node again
            if code and group.settings.max_deliveries:
                group.backlog.failures.note(place, code, session.client_id)
            group.backlog.come_back(place, message)
            return self.room_changed()
        message_release(message)
        group.backlog.returned += 1
        group.turn.counters[SHARED_RETURNED] += 1
        group.backlog.key_done(place)
        return self.room_changed()

    cdef int record_failure(self, uint64_t place) except -1:
        cdef tuple failures = self.group.backlog.failures.of(place)
        if failures is not None and place in self.places:
            self.records.failed(self.group.client_id, place, failures)
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        if place in self.places:
            self.records.end(self.group.client_id, place)
            self.places.discard(place)
        return 0

    cdef int record_dead(self, uint64_t place) except -1:
        self.journal.ending(self.group.turn.journal.touched).group_records.dead(self.group.client_id, place)
        self.places.discard(place)
        return 0

    cdef bytes heads_of(self, uint64_t place):
        """The key and the failures of a message, to stand before it."""
        cdef Backlog backlog = self.group.backlog
        cdef Key key = None if backlog.keys is None else backlog.keys.of(place)
        return (b"" if key is None else pack_key(key.hash, key.number)) + pack_failures(backlog.failures.of(place))

    # ---- subscribers ----

    cdef int leaves(self, GroupSubscriber subscriber) except -1:
        return self.keys.leaves(subscriber) if subscriber.session.kind == SHARED else 0  # it may have sent messages

    cdef int qos_elsewhere(self) except -2:
        return self.peers.highest_qos()

    cdef int room_changed(self) except -1:
        return self.group.turn.schedule_send(self.group)

    def set_peer(self, Subscriber peer not None, int announced):
        had_some = self.peers.set(peer, announced)
        if announced >= 0 and not had_some:
            self.group.turn.schedule_send(self.group)
        return had_some

    # ---- assignments ----

    cdef int take(self, uint64_t place, Message* message, int64_t key, uint64_t number, bint elsewhere) except -1:
        """Redis has assigned a message to this node.

        Args:
            key: hash of the message's key; -1 = it has none.
            number: of the assignment, if the message has a key.
            elsewhere: a session that is not here has messages of the key, which must be done before it.
        """
        cdef Group group = self.group
        cdef Key known = None
        self.places.add(place)
        self.room.known -= self.room.known > 0
        if key >= 0 and group.backlog.keys is not None:
            known = group.backlog.keys.of(place)
            if known is not None:                 # it is here already
                known.number = max(known.number, number)
                return 0
            known = group.backlog.keys.note(place, <uint32_t>key)
            known.number = max(known.number, number)
            if elsewhere and known.subscriber is None:
                self.keys.hold(known)
        if group.backlog.failures.are_too_many(place, group.settings):
            group.backlog.key_done(place)
            return group.backlog.take_dead(place, message_hold(message))
        if known is not None:
            return self.take_keyed(known, place, message)
        if group.backlog.queue.waits() or not group.distributor.give(place, message, True):
            group.backlog.keep_waiting(place, message_hold(message))
        return group.turn.schedule_send(group)

    cdef int take_keyed(self, Key key, uint64_t place, Message* message) except -1:
        """Give an assigned message to a subscriber, or keep it at its key."""
        cdef Group group = self.group
        if self.suspended or group.distributor.give_keyed(key, place, message, True) != GIVEN_TO_ONE:
            group.backlog.queue.count_message(1, message)
            group.backlog.queue.park(key, Waiting(place, message_hold(message)))
            if not group.rotation.connected or key.held & CLOSING:
                self.keys.close(key)
        return group.turn.schedule_send(group)

    cdef int end_assignment(self, uint64_t place, Message* message) except -1:
        """Give a message back to Redis, which may assign it to this node again."""
        self.group.backlog.queue.count_message(-1, message)
        self.records.back(self.group.client_id, place)
        self.places.discard(place)
        return self.group.backlog.failures.forget(place)

    cdef int give_to_others(self) except -1:
        """No subscriber here has room: give the messages that wait back to Redis."""
        cdef Waiting taken
        while self.group.backlog.queue.waits():
            taken = self.group.backlog.queue.take_first()
            self.end_assignment(taken.place, taken.message)
            message_release(taken.message)
        return 0

    cdef int has_sent(self) except -1:
        cdef Group group = self.group
        if (group.backlog.queue.waits() and not group.rotation.has_ready()
                and (self.peers.items or not group.rotation.connected or group.settings.paused)):
            self.give_to_others()                 # else the subscribers here will have room before any other
        if not group.rotation.connected:
            self.keys.close_all()
        if not group.backlog.queue.aside and not (group.backlog.keys is not None and group.backlog.keys.blocked):
            self.aside_since = 0
        elif not self.aside_since:
            self.aside_since = group.turn.clock
            self.records.to_tick.add(self)
        return self.room.announce()

    def tick(self):
        """A quarter of a second has passed.

        Messages that no subscriber here may take go to other nodes. Redis is asked about keys that are held.

        Returns whether the group needs the next tick, too.
        """
        cdef Held held
        if self.aside_since and self.group.turn.clock - self.aside_since >= ASIDE_TICKS:
            self.aside_since = 0
            aside, self.group.backlog.queue.aside = self.group.backlog.queue.aside, None
            for held in aside or ():
                self.end_assignment(held.place, held.message)
            if self.peers.items:
                self.keys.close_blocked()
        self.keys.check()
        return self.aside_since != 0 or len(self.keys.held) != 0

    cdef int abandon(self) except -1:
        self.group.backlog.recall()
        self.give_to_others()
        self.keys.close_all()
        if self.group.backlog.failures.dead:
            self.group.backlog.publish_dead()
        return 0

    # ---- order by key ----

    cdef int order_changed(self) except -1:
        return self.keys.forget_all()             # messages have the keys with which they came to Redis

    cdef bint has_given(self, GroupSubscriber subscriber, uint64_t place) except -1:
        return subscriber.session.kind != SHARED or place in self.keys.entrusted    # else it went back before

    cdef int arrived(self, GroupSubscriber subscriber, uint64_t place, uint32_t hash, uint64_t failures) except -1:
        return self.keys.note(subscriber, place, hash, failures)

    cdef int not_arrived(self, uint64_t place) except -1:
        return self.keys.not_arrived(place)

    cdef int key_done(self, Key key, uint64_t place) except -1:
        return self.keys.end_key(key, place)

    def key_free(self, uint32_t key, uint64_t hold):
        """No session that is elsewhere has messages of a key that was held. `hold`: as in the question."""
        self.keys.free(key, hold)

    def key_closed(self, uint32_t key, uint64_t number):
        """Redis has taken back the messages of a key. `number`: of the last assignment that this node had of it."""
        self.keys.closed(key, number)

    # ---- the link to Redis ----

    def suspend(self):
        """The link is lost, and assigned messages with it: give no messages with keys until `resume`."""
        self.suspended = True

    def resume(self):
        """All assignments have arrived."""
        self.suspended = False
        self.keys.close_again()
        self.group.turn.schedule_send(self.group)

    def note_total(self, uint64_t total):
        """Redis has counted so many assignments to this node, up to those that have arrived now."""
        self.room.total = total

    def forget_room(self):
        """The link was lost: announce the room again."""
        self.room.forget()
        self.group.turn.schedule_send(self.group)


def given(Session session not None, bytes name not None, uint64_t total, uint32_t count):
    """Redis has put `count` messages of this group into the queue of the session, and `total` in all."""
    cdef GroupSubscriber subscriber = None if session.shares is None else session.shares.of(name)
    cdef GroupAssignments assignments
    if subscriber is not None:
        assignments = (<Group>subscriber.group).backing
        assignments.room.note_given(subscriber, total, count)
        assignments.room_changed()
