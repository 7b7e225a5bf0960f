"""A shared subscription: a group of sessions, of which each message goes to one [5: 4.8.2].

A group stands in the subscription tree under its topic filter, as one subscriber. A message of QoS 0 goes to the next
member at once. One of QoS 1 or 2 gets a place, a number that grows, and is given late: to a member that is connected
and has room, which is a window of unacknowledged messages. If no member has room it waits in the queue of the group.
So a slow or dead member never holds more than its window.

A message is at one place at a time: it waits in the group, or it is an entry of the queue of a member. It comes back
to its old place if the member's connection ends before the message was sent, or before a clean session has
acknowledged it, or if a persistent session stays away (`give_back_sent`). QoS 2 is different: a message that was sent
to a member goes to no other [5: MQTT-4.8.2-4, 5].

With `max_deliveries` a message that came back after it was sent, or was refused, has an entry in `failures` until it
is done. When the number is reached, it is a dead letter: the group publishes it to the topic of the settings, and ends
it in the same block.

A group that is declared has settings of its own. It exists without members, is kept, and subscribes with QoS 2, so that
a message waits with the QoS of its publisher.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0
from .counters cimport (
    DEAD_LETTERS, SHARED_ACCEPTED, SHARED_DISCARDED, SHARED_GIVEN, SHARED_RETURNED,
)
from .group_keys cimport Key, KeyTable, hash_of
from .group_members cimport MAXIMUM_QOS, GroupMembers, Member, entries_of, key_of
from .group_queue cimport Held, Waiting, held_of
from .group_settings cimport BY_TOPIC, ROTATION, GroupSettings
from .group_store cimport GroupStore
from .message cimport (
    Message, Publication, message_hold, message_payload, message_properties, message_release, message_size,
)
from .outgoing_queue cimport OF_GROUP, RETAIN_AS_PUBLISHED, WAITING, Entry, queue_entry
from .session cimport Session
from .session_queue cimport count_queued, make_room
from .subscriber cimport Plan, Receiver
from .turn cimport Turn

from .dead_letter import DeadLetter

cdef enum:
    KEEPS_RETAIN = 8           # Retain As Published, of the options of a subscription


@cython.no_gc_clear                       # as for Session: the end of the group subtracts from the totals of `turn`
cdef class Group(GroupStore):
    """A group without members.

    Args:
        turn: of the node.
        number: its id in the journal.
        name: the share name and the topic filter, with `$share/`.
        topic_filter: the topic filter.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None, bytes topic_filter not None):
        GroupMembers.__init__(self, turn, number, name)
        self.topic_filter = topic_filter
        self.next_place = 1

    def configure(self, GroupSettings settings):
        """Use these settings from now on; None: those of the node, as a group that is not declared."""
        cdef bint was_declared = self.settings.declared
        cdef Member member
        self.settings = settings if settings is not None else self.turn.shared
        self.newest = None
        self.set_strategy()
        if self.settings.declared and not self.kept and self.turn.journal.epoch:
            self.keep()
        elif self.settings.declared or was_declared:
            self.record_declaration()
        if self.kept and not self.has_persistent():
            self.stop_keeping(True)
        for member in self.connected:             # with another window they may have room
            member.has_sent()

    def set_peer(self, peer, int announced):
        """Another node has members, or none; for groups of a cluster. Returns whether it had some."""
        raise NotImplementedError

    cdef int take_lease(self, uint64_t place, Message* message, int64_t key, uint64_t number, bint elsewhere) except -1:
        """A message of the group is this node's to give; for groups of a cluster.

        Args:
            key: hash of the message's key; -1 = it has none.
            number: of the lease, if the message has a key.
            elsewhere: a session that is not here has messages of the key, which must be done before it.
        """
        raise NotImplementedError

    cdef bint is_empty(self) noexcept:
        """Whether it has no members, and is not declared."""
        return len(self.members) == 0 and not self.settings.declared

    def abandon(self):
        """The last member has left, or the declaration was removed: drop the messages that wait if the group ends."""
        return self.purge() if self.is_empty() else 0

    # ---- messages ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef uint64_t place = self.next_place
        if publication.forwarded:
            return 1                              # the node that accepted the message has given it to a member
        cdef Message* message
        self.next_place += 1
        self.turn.counters[SHARED_ACCEPTED] += 1
        if not self.settings.declared:
            self.accept_message(place, publication, publication.message)
            return 1
        message = self.lower_expiry(publication.message)
        try:
            if not self.settings.last_value or not self.supersede(place, message, True):
                self.accept_message(place, publication, message)
        finally:
            message_release(message)
        return 1

    cdef bint pass_on(self, Publication* publication) except -1:
        """Whether a message of QoS 0 is another node's to give, and has been sent there; for groups of a cluster."""
        return False

    cdef int come_back(self, uint64_t place, Message* message) except -1:
        """Take a message that a member had, to its old place; takes over the reference."""
        cdef Key key
        self.returned += 1
        self.turn.counters[SHARED_RETURNED] += 1
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("returned", self.client_id, message, message.qos, "")
        if self.has_failed(place):
            self.key_done(place)
            return self.take_dead(place, message)
        if self.settings.last_value and self.supersede(place, message, False):
            self.forget_failures(place)
            self.record_done(place)
            self.key_done(place)
            message_release(message)
            return 0
        key = None if self.keys is None else self.keys.of(place)
        if key is None:
            self.put_back(Waiting(place, message))
        else:
            self.park(key, Waiting(place, message))
            self.keys.release(place)
        self.count_waiting(1, message)
        if self.newest is not None:
            self.note(place, message)
        return self.turn.schedule_send(self)

    # ---- giving ----

    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to the next member with room that may take it; False: there is none."""
        cdef uint32_t left = self.ready_count
        cdef Member member
        cdef bytes last = self.last_of(place) if self.failures is not None else None
        while left:
            left -= 1
            if last is not None and left and (<Member>self.first_ready).session.client_id == last:
                last = None                       # another one first
                left += 1
                self.first_ready = (<Member>self.first_ready).after
                continue
            member = <Member>self.first_ready
            if not member.room():
                self.make_unready(member)
                continue
            self.first_ready = member.after
            if not member.may_take(message):
                continue
            self.hand(member, place, message, recorded)
            if not member.room():
                self.make_unready(member)
            return True
        return False

    cdef int hand(self, Member member, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to this member. `recorded`: it is in the journal as one that waits."""
        cdef Session session = member.session
        cdef uint8_t qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        cdef uint8_t flags = qos
        cdef Begun begun
        if message.retain and member.options & KEEPS_RETAIN:
            flags |= RETAIN_AS_PUBLISHED
        self.given += 1
        self.turn.counters[SHARED_GIVEN] += 1
        session.trace("given", message, qos, "by a shared subscription")
        if qos == 0:
            self.forget_key(place)
            if not session.may_not_read(message) and session.outlet is not None:     # a hook may end the connection
                session.put_publish(message, PUBLISH_QOS_0 | (
                    FLAG_RETAIN if flags & RETAIN_AS_PUBLISHED and session.outlet.keeps_retain else 0), 0,
                    member.properties)
            self.forget_failures(place)
            if recorded:
                self.record_done(place)
            return 0
        member.given += 1
        if self.keys is not None:
            self.keys.bind(place, member)
        if self.kept and not session.recorded():
            if qos == 1:
                if not recorded:
                    self.record_queued(place, message)
            else:                                 # once it is sent, no other member may get it, also after a crash
                if recorded:
                    self.record_done(place)
                    self.turn.journal.urgent = True
                begun = Begun()
                begun.message = message_hold(message)
                begun.place = place
                begun.member = member
                begun.group = self
                begun.flags = flags
                if self.keys is not None:
                    self.keys.begin(place)
                session.pending += 1
                self.turn.after_commit(begun)
                return 0
        return self.put(member, place, message, flags)

    cdef int put(self, Member member, uint64_t place, Message* message, uint8_t flags) except -1:
        """Put the message into the queue of the member's session."""
        return member.record_given(place, put_entry(member.session, member, place, message, flags))

    cdef int send_pending(self) except -1:
        """Give the messages that wait to members with room."""
        cdef Waiting taken
        if self.dead:
            self.publish_dead()
        if self.keys is not None:
            return self.send_all_keyed()
        while self.ready_count and self.waits():
            taken = self.take_first()             # a hook may change the queue meanwhile
            if taken.message.expires and taken.message.expires <= self.turn.clock:
                self.expire(taken)
            elif self.give(taken.place, taken.message, True):
                self.count_waiting(-1, taken.message)
                message_release(taken.message)
            elif self.ready_count:
                self.put_aside(taken)
            else:
                self.put_back(taken)
        return 0

    cdef int put_aside(self, Waiting taken) except -1:
        """No member with room may take the message: keep it for others, or drop it if there are none."""
        if self.has_others() or self.someone_takes(taken.message):
            self.aside.append(held_of(taken))
            return 0
        self.turn.counters[SHARED_DISCARDED] += 1
        return self.discard(taken, "no member may read it, or takes a packet of its size")

    cdef bint has_others(self) noexcept:
        """Whether members may be elsewhere, or are yet to join, that may take what no member here may take."""
        return self.settings.declared

    # ---- order by key ----

    cdef int set_strategy(self) except -1:
        """Apply the strategy. It holds for the messages that follow, and by topic for those that are here too."""
        cdef Held held
        cdef uint8_t before = ROTATION if self.keys is None else self.keys.strategy
        if self.settings.strategy_number == before:
            return 0
        if self.keys is not None:
            for held in self.keys.all_parked():
                self.put_back(Waiting(held.place, message_hold(held.message)))
        self.keys = KeyTable(self.settings.strategy_number) if self.settings.strategy_number != ROTATION else None
        self.find_keys()
        return self.turn.schedule_send(self)

    cdef int find_keys(self) except -1:
        """Note the keys of the messages that are here, as far as they are known."""
        cdef uint64_t n, place
        cdef Held held
        cdef Member member
        cdef Session session
        if self.keys is None:
            return 0
        for held in self.waiting_messages():
            self.note_key(held.place, held.message)
        for member in self.members:
            session = member.session
            for n in entries_of(member):
                if queue_entry(session.queue, n).message != NULL:
                    place = session.shares.places[n & session.shares.mask]
                    self.note_key(place, queue_entry(session.queue, n).message)
                    self.keys.bind(place, member)
        return 0

    cdef int note_key(self, uint64_t place, const Message* message) except -1:
        """Note the key of a message that is here already."""
        if self.keys.of(place) is None:
            if self.keys.strategy == BY_TOPIC:
                self.keys.note(place, hash_of(message.data, message.topic_length))
            elif self.restored_keys is not None and place in self.restored_keys:
                self.keys.note(place, self.restored_keys[place])
        return 0

    cdef int accept_message(self, uint64_t place, const Publication* publication, Message* message) except -1:
        """Give a new message to the next member with room, or to that of its key; else it waits."""
        cdef Key key
        cdef bint given
        if self.keys is None:
            given = not self.waits() and self.give(place, message, False)
        else:
            key = self.keys.note(place, key_of(self.settings, publication))
            given = not self.waits() and self.give_keyed(key, place, message, False) == GIVEN_TO_ONE
        return 0 if given else self.wait(place, message_hold(message), False)

    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to a member; returns GIVEN_TO_ONE, NO_ROOM, or NOT_TAKEN."""
        cdef Member member
        cdef uint8_t qos
        if key is not None and (key.held or key.has_before(place)):
            return NO_ROOM                        # behind these
        if key is None or key.member is None:
            if self.give(place, message, recorded):
                return GIVEN_TO_ONE
            return NOT_TAKEN if self.ready_count else NO_ROOM
        member = key.member
        if not member.ready:
            return NO_ROOM
        if not member.room():
            self.make_unready(member)
            return NO_ROOM
        qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        # It would pass those that are not in the member's queue yet, or not sent.
        if qos == 0 or key.begun and qos == 1 or not member.may_take(message):
            return NOT_TAKEN
        if key.member is not member or not member.ready:     # a hook has ended the connection
            return NO_ROOM
        self.hand(member, place, message, recorded)
        if not member.room():
            self.make_unready(member)
        return GIVEN_TO_ONE

    cdef bint send_keyed(self, Key key, Waiting taken) except -1:
        """Give a message that waits, or put it where it waits for its turn. Takes over the reference."""
        cdef int result
        if taken.message.expires and taken.message.expires <= self.turn.clock:
            self.expire(taken)
            return True
        if key is not None and key.has_before(taken.place):
            self.park(key, taken)
            return False
        result = self.give_keyed(key, taken.place, taken.message, True)
        if result == GIVEN_TO_ONE:
            self.count_waiting(-1, taken.message)
            message_release(taken.message)
            return True
        if key is None:
            if result == NOT_TAKEN:
                self.put_aside(taken)
            else:
                self.put_back(taken)
            return False
        if result == NOT_TAKEN and key.member is None and not (
                self.has_others() or self.someone_takes(taken.message)):
            self.put_aside(taken)                 # which drops it
            return True
        self.park(key, taken)
        if result == NOT_TAKEN:
            self.keys.block(key)
        return False

    cdef int send_all_keyed(self) except -1:
        """Give the messages that wait: first those parked for members with room, then those of free keys."""
        cdef Key key
        cdef Member member
        cdef Waiting taken
        while True:
            while self.keys.woken:
                member = self.keys.woken.pop()
                while member.ready:
                    key = self.keys.next_of(member)
                    if key is None:
                        break
                    if not member.room():
                        self.make_unready(member)
                        break
                    self.send_keyed(key, self.take_parked(key))
                    self.keys.offer(key)
            if not self.ready_count:
                return 0
            key = self.keys.next_free()
            if key is not None and not (self.waits() and self.first().place < key.parked[0][0]):
                self.send_keyed(key, self.take_parked(key))
                self.keys.offer(key)
            elif self.waits():
                taken = self.take_first()
                self.send_keyed(self.keys.of(taken.place), taken)
            else:
                return 0

    # ---- dead letters ----

    cdef int publish_dead(self) except -1:
        """Publish the dead letters, and end them in the same block."""
        cdef Held held
        cdef Message* m
        while self.dead:
            held = self.dead.popleft()
            m = held.message
            deliveries, code, _ = self.failures[held.place]
            self.forget_failures(held.place)
            self.turn.counters[DEAD_LETTERS] += 1
            if self.turn.tracer is not None:
                self.turn.tracer.note_message("dropped", self.client_id, m, m.qos, "it is a dead letter")
            self.end_dead(held.place)
            if self.turn.dead_letters is not None:
                self.turn.dead_letters(DeadLetter(
                    self.client_id, self.settings.dead_letter_topic, m.data[:m.topic_length],
                    message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos,
                    message_properties(m)[:<Py_ssize_t>m.properties_length], deliveries, code))
        return 0

    cdef int end_dead(self, uint64_t place) except -1:
        """The block being written has the dead letter: the message is done."""
        return self.record_done(place)

cdef class Begun(Held):
    """A message of QoS 2 for a clean session in a kept group: it is sent when the store has that it was given."""

    def __call__(self):
        cdef Member member = self.member
        cdef Group group = self.group
        cdef Session session = member.session
        cdef Key key = None if group.keys is None else group.keys.of(self.place)
        session.pending -= session.pending > 0
        member.given -= 1
        if group.keys is not None:
            group.keys.begin_ended(self.place)
            group.turn.schedule_send(group)
        if group.is_empty():                      # the group has ended
            group.turn.counters[SHARED_DISCARDED] += 1
        elif member.group is None or session.room() == 0 or key is not None and key.has_before(self.place):
            group.take_back(self.place, message_hold(self.message), True)
        else:
            member.given += 1
            put_entry(session, member, self.place, self.message, self.flags)


cdef uint64_t put_entry(Session session, Member member, uint64_t place, Message* message, uint8_t flags) except 0:
    """Put a message of the group into the queue of the session; returns its queue number."""
    cdef uint64_t n = session.tail
    make_room(session)
    session.shares.put(session.queue.head, n, place)
    queue_entry(session.queue, n)[0] = Entry(message_hold(message), 0, flags | OF_GROUP, WAITING, member.index, 0)
    if session.recorded():
        session.turn.journal.queued(session, session.session_id, n, message, flags, member.properties,
                                    len(member.properties))
        session.turn.await_commit(session)
    session.tail += 1
    count_queued(session, 1, message_size(message))
    session.turn.schedule_send(session)
    return n
