"""A shared subscription: a group of sessions, of which each message goes to one [5: 4.8.2].

A group stands in the subscription tree under its topic filter, as one subscriber. A message of QoS 0 goes to the next
subscriber at once. One of QoS 1 or 2 gets a place, a number that grows, and is given late: to a subscriber that is
connected and has room, which is a window of unacknowledged messages. If no subscriber has room it waits in the queue of
the group. So a slow or dead subscriber never holds more than its window.

A message is at one place at a time: it waits in the group, or it is an entry of the queue of a subscriber. It comes
back to its old place if the subscriber's connection ends before the message was sent, or before a clean session has
acknowledged it, or if a persistent session stays away (`give_back_sent`). QoS 2 is different: a message that was sent
to a subscriber goes to no other [5: MQTT-4.8.2-4, 5].

A declared group has its own settings. It exists without subscribers, is kept, and subscribes with QoS 2, so that
a message waits with the QoS of its publisher.

The parts of a group: the subscribers in turn (`group_rotation.pyx`); the messages that no subscriber has
(`group_backlog.pyx`: `group_queue.pyx`, `group_keys.pyx`, `group_failures.pyx`); the distributor, which gives them
(`group_distributor.pyx`); and their backing in a store (`group_backing.pyx`).
"""

from itertools import islice

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from . cimport journal as j
from .counters cimport SHARED_ACCEPTED, SHARED_DISCARDED
from .group_distributor cimport Distributor
from ..base.name_hash cimport shard_of
from .group_backing cimport GroupBacking
from .group_backlog cimport Backlog
from .group_subscriber cimport MAXIMUM_QOS, GroupSubscriber, take_entry
from .group_queue cimport Held
from .group_rotation cimport Rotation
from .group_settings cimport GroupSettings
from .subscription_identifiers cimport identifier_set
from .shared_subscription cimport SharedSubscription, SessionGroup
from .message cimport Message, Publication, message_payload, message_release
from .outgoing_queue cimport ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, WAITING, Entry, queue_entry
from .session cimport Session
from .subscriber cimport GROUP, SHARED, Plan, Receiver
from .turn cimport Turn

cdef GroupBacking ENDED = GroupBacking()


cdef class Group(SessionGroup):
    """A group without subscribers.

    Args:
        turn: of the node.
        number: its id in the journal.
        name: the share name and the topic filter, with `$share/`.
        topic_filter: the topic filter.
        backing_type: GroupJournal, or GroupAssignments in a cluster.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None, bytes topic_filter not None,
                 backing_type not None):
        self.turn = turn
        self.kind = GROUP
        self.session_id = number
        self.client_id = name
        self.topic_filter = topic_filter
        self.tenant = turn.tenants.of(topic_filter, len(topic_filter))
        self.shard = shard_of(name, len(name), turn.journal.shards)
        self.settings = turn.shared
        self.subscribers = []
        self.rotation = Rotation()
        self.backlog = Backlog(self, self.rotation)
        self.distributor = Distributor(self, self.subscribers, self.rotation, self.backlog)
        self.backing = self.backlog.backing = backing_type(self)

    @property
    def name(self):
        """Share name and topic filter, with `$share/`."""
        return self.client_id

    @property
    def waiting(self):
        """Messages that no subscriber has."""
        return self.backlog.queue.count

    @property
    def waiting_size(self):
        """Bytes of topic names, properties and payloads of these messages."""
        return self.backlog.queue.size

    @property
    def given(self):
        """Messages that were given to subscribers so far."""
        return self.distributor.given

    @property
    def returned(self):
        """Messages that came back from subscribers so far."""
        return self.backlog.returned

    def messages(self, Py_ssize_t most=1 << 30):
        """Up to `most` of the messages that wait, the oldest first: a list of (place, topic name, payload)."""
        cdef Held held
        cdef list found = []
        for held in islice(self.backlog.queue.messages(), most):
            found.append((held.place, held.message.data[:held.message.topic_length],
                          message_payload(held.message)[:<Py_ssize_t>held.message.payload_length]))
        return found

    def purge(self):
        """Drop all messages that wait; returns their number."""
        return self.backlog.purge()

    def configure(self, GroupSettings settings):
        """Use these settings from now on; None: the node's settings, as of a group that is not declared."""
        cdef bint was_declared = self.settings.declared
        cdef GroupSubscriber subscriber
        self.settings = settings if settings is not None else self.turn.shared
        self.backlog.queue.newest = None
        self.backlog.set_order()
        self.backing.configured(was_declared)
        for subscriber in self.rotation.connected:    # with another window they may have room
            self.has_sent(subscriber)

    cdef int end(self) except -1:
        """The group has ended; it lets go of its parts when it has sent the rest."""
        self.ended = True
        return self.turn.schedule_send(self)

    # ---- subscribers ----

    @property
    def is_attended(self):
        """Whether a subscriber has a connection, at this node or another."""
        return len(self.rotation.connected) > 0 or self.backing.qos_elsewhere() >= 0

    @property
    def qos(self):
        """The highest QoS granted to a subscriber, at this node or another."""
        cdef GroupSubscriber subscriber
        cdef int highest = 2 if self.settings.declared else max(0, self.backing.qos_elsewhere())
        for subscriber in self.subscribers:
            highest = max(highest, subscriber.options & MAXIMUM_QOS)
            if highest == 2:
                break
        return highest

    cdef bint is_empty(self) except -1:
        """Whether it has no subscribers, and is not declared."""
        return self.distributor.is_empty()

    cdef bint has_persistent(self) noexcept:
        """Whether the group is declared, or a subscriber has a persistent session."""
        cdef GroupSubscriber subscriber
        if self.settings.declared:
            return True
        for subscriber in self.subscribers:
            if subscriber.session.persistent:
                return True
        return False

    cdef int join(self, GroupSubscriber subscriber) except -1:
        """Add a subscriber; the caller adds it to its session."""
        self.subscribers.append(subscriber)
        self.backing.joined(subscriber.session)
        if subscriber.session.outlet is not None:
            self.attached(subscriber)
        return 0

    cdef int leave(self, GroupSubscriber subscriber, bint session_ends) except -1:
        """Remove a subscriber. Messages that it has not sent go to others [5: 4.8.2].

        Messages that it has sent are still its own, unless its session ends: then QoS 1 goes to others, and QoS 2 is
        discarded [5: MQTT-4.8.2-5].
        """
        cdef Session session = subscriber.session
        cdef uint64_t n
        cdef Entry* e
        self.backing.leaves(subscriber)
        self.rotation.disconnect(subscriber)
        self.subscribers.remove(subscriber)
        for n in subscriber.entries():
            e = queue_entry(session.queue, n)
            if session.restoring or session.kind == SHARED:
                self.release_entry(subscriber, n, e)
            elif e.state == WAITING and not e.flags & DUP:
                give_back(session, n, e)
            elif not session_ends:
                self.release_entry(subscriber, n, e)
            elif e.flags & QOS == 1:
                give_back(session, n, e)
            else:
                if e.state != GOT_PUBREC:         # else the client has it
                    self.turn.counters[SHARED_DISCARDED] += 1
                self.release_entry(subscriber, n, e)
        session.shares.remove(subscriber)
        subscriber.group = None
        if self.backlog.queue.aside or self.backlog.keys is not None:
            self.backlog.recall()                 # perhaps for this subscriber only
        return self.backing.left(not session.restoring)

    cdef int options_changed(self, GroupSubscriber subscriber) except -1:
        """The subscriber has the options of another subscription."""
        subscriber.known.steady = 0                   # the store has to be sent them, too
        return self.backing.room_changed()

    cdef int make_ready(self, GroupSubscriber subscriber) except -1:
        """Give messages to the subscriber from now on."""
        if not self.rotation.make_ready(subscriber):
            return 0
        if self.backlog.queue.aside:
            self.backlog.recall()
        if self.backlog.keys is not None and self.backlog.keys.count:
            self.backlog.keys.wake(subscriber)
            self.backlog.recall()
        if self.backlog.queue.waits():
            self.turn.schedule_send(self)
        return self.backing.room_changed()

    # ---- events of the sessions ----

    cdef int attached(self, SharedSubscription subscription) except -1:
        cdef GroupSubscriber subscriber = <GroupSubscriber>subscription
        subscriber.known.room = subscriber.known.steady = 0
        subscriber.known.total = -1
        self.rotation.connect(subscriber)
        if self.backlog.queue.aside or self.backlog.keys is not None:
            self.backlog.recall()
        return self.has_sent(subscriber)

    cdef int detached(self, SharedSubscription subscription) except -1:
        cdef GroupSubscriber subscriber = <GroupSubscriber>subscription
        self.rotation.disconnect(subscriber)
        self.backing.room_changed()
        if subscriber.session.kind == SHARED:         # Redis gives back what is in its queue
            subscriber.given = 0
            return self.backing.leaves(subscriber)
        return self.take_unsent(subscriber)

    cdef int rights_changed(self, SharedSubscription subscription) except -1:
        cdef GroupSubscriber subscriber = <GroupSubscriber>subscription
        if self.backlog.queue.aside or self.backlog.keys is not None:
            self.backlog.recall()
        if subscriber.session.kind == SHARED:         # unsent messages go back when it is their turn, see `withheld`
            return self.backing.room_changed()
        return self.take_unsent(subscriber)

    cdef int has_sent(self, SharedSubscription subscription) except -1:
        if not subscription.ready and (<GroupSubscriber>subscription).room():
            self.make_ready(<GroupSubscriber>subscription)
        return 0

    cdef int record_given(self, SharedSubscription subscription, uint64_t place, uint64_t n) except -1:
        return self.backing.record_given(<GroupSubscriber>subscription, place, n)

    cdef int finished(self, SharedSubscription subscription, uint64_t place, uint8_t qos) except -1:
        cdef GroupSubscriber subscriber = <GroupSubscriber>subscription
        subscriber.given -= 1
        if self.backlog.failures.by_place is not None:
            self.backlog.failures.forget(place)
        if self.backing.kept and qos == 1 and not subscriber.session.recorded() and not subscriber.session.restoring:
            self.backing.record_done(place)
        self.subscriber_done(subscriber, place)
        self.backing.room_changed()
        return self.has_sent(subscriber)

    cdef bint refused(self, SharedSubscription subscription, uint64_t n, uint8_t code) except -1:
        if self.settings.max_deliveries == 0:
            return False                          # it is discarded [5: MQTT-4.8.2-6]
        self.backing.take_refused(<GroupSubscriber>subscription, n, code)
        return True

    cdef int withheld(self, SharedSubscription subscription, uint64_t n) except -1:
        return self.backing.take_refused(<GroupSubscriber>subscription, n, 0)

    # ---- messages that arrive ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef Message* message
        cdef uint64_t place
        if publication.forwarded:
            return 1                              # the node that accepted the message has passed it on
        self.turn.counters[SHARED_ACCEPTED] += 1
        message = self.backlog.lower_expiry(publication.message)
        try:
            place = self.backing.place_new(publication, receiver.qos, message)
            if place and not (self.settings.last_value and self.backlog.supersede(place, message, True)):
                self.distributor.give_new(place, publication, message)
        finally:
            message_release(message)
        return 1

    cdef bint pass_on(self, Publication* publication) except -1:
        """Whether a message of QoS 0 is another node's to give, and has been sent there."""
        return self.backing.pass_on(publication)

    cdef GroupSubscriber choose(self, const Publication* publication):
        """The subscriber that gets a message of QoS 0: the next that is connected, reads, and may have it; or None."""
        return self.rotation.choose(self.settings, publication)

    # ---- messages that subscribers have ----

    cdef int take_unsent(self, GroupSubscriber subscriber) except -1:
        """Take back the messages of the group that the subscriber's session has never sent."""
        cdef Session session = subscriber.session
        cdef uint64_t n
        cdef Entry* e
        if subscriber.given:
            for n in subscriber.entries():
                e = queue_entry(session.queue, n)
                if e.state == WAITING and not e.flags & DUP:
                    give_back(session, n, e)
        return 0

    cdef int release_entry(self, GroupSubscriber subscriber, uint64_t n, Entry* e) except -1:
        """The entry `n` of the subscriber's queue is the session's own from now on: it does not go back to the
        group."""
        cdef Session session = subscriber.session
        cdef uint64_t place = session.shares.place(n)
        cdef Py_ssize_t size = len(subscriber.properties)
        self.backlog.failures.forget(place)
        if self.backing.kept and e.flags & QOS == 1 and not session.recorded() and not session.restoring:
            self.backing.record_done(place)
        self.subscriber_done(subscriber, place)
        e.flags &= ~<uint8_t>OF_GROUP
        e.identifiers = 0                         # it was the number of the subscription
        if size and e.message != NULL:
            e.identifiers = identifier_set(session.queue, session.tail, subscriber.properties, size)
        return 0

    cdef int subscriber_done(self, GroupSubscriber subscriber, uint64_t place) except -1:
        """The subscriber is done with a message: others with its key may follow."""
        if self.backlog.keys is None or not self.backing.has_given(subscriber, place):
            return 0
        return self.backlog.key_done(place)

    cdef int send_pending(self) except -1:
        """Give the messages that wait to subscribers with room."""
        if self.backing is ENDED:
            return 0
        if self.backlog.keys is None or not self.backing.suspended:
            self.distributor.give_waiting()
        self.backing.has_sent()
        if self.ended:                            # parts that refer to the group would keep it
            self.backing = self.backlog.backing = ENDED
            self.backlog.group = self.distributor.group = None
        return 0


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=0) except -1:
    """Give an entry back to its group. `code`: of the client's refusal, 0 = it has not refused it."""
    cdef GroupSubscriber subscriber = <GroupSubscriber>session.shares.items[e.identifiers]
    cdef Group group = <Group>subscriber.group
    cdef uint64_t place = session.shares.place(n)
    cdef uint8_t qos = e.flags & QOS
    cdef bint was_sent = e.state != WAITING or e.flags & DUP
    cdef uint32_t size = e.size
    cdef Message* message = take_entry(session, n, e)
    if session.recorded():
        session.turn.journal.entry(j.DONE, session, session.session_id, n, size)
    if was_sent and group.settings.max_deliveries:
        group.backlog.failures.note(place, code, session.client_id)
    subscriber.given -= 1
    group.backing.take_back(place, message, session.recorded() or qos == 2)
    return group.backing.record_failure(place) if was_sent and group.backlog.failures.count(place) else 0


def give_back_sent(Session session not None):
    """Give back the messages of QoS 1 that the session got from groups: it stays away. Returns their number."""
    cdef GroupSubscriber subscriber
    cdef uint64_t n
    cdef Entry* e
    cdef int count = 0
    if session.shares is None or session.outlet is not None:
        return 0
    for subscriber in session.shares.items:
        for n in subscriber.entries() if subscriber is not None else ():
            e = queue_entry(session.queue, n)
            if e.flags & QOS == 1:
                give_back(session, n, e)
                count += 1
    return count
