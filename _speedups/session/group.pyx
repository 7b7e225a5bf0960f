"""A shared subscription: a group of sessions, of which each message goes to one [5: 4.8.2].

A group stands in the subscription tree under its topic filter, as one subscriber. A message of QoS 0 goes to the next
member at once. One of QoS 1 or 2 gets a place, a number that grows, and is given late: to a member that is connected
and has room, which is a window of unacknowledged messages. If no member has room it waits in the queue of the group.
So a slow or dead member never holds more than its window.

A message is at one place at a time: it waits in the group, or it is an entry of the queue of a member. It comes back
to its old place if the member's connection ends before the message was sent, or before a clean session has
acknowledged it, or if a persistent session stays away (`give_back_sent`). QoS 2 is different: a message that was sent
to a member goes to no other [5: MQTT-4.8.2-4, 5].

With `max_deliveries` a message that failed so often is a dead letter: the group publishes it to the topic of the
settings, and ends it in the same block.

A group that is declared has settings of its own. It exists without members, is kept, and subscribes with QoS 2, so that
a message waits with the QoS of its publisher.

The parts of a group: the messages that wait (`group_queue.pyx`), those that have a key (`group_keys.pyx`) or have
failed (`group_failures.pyx`), the members in turn (`group_rotation.pyx`), and the store (`group_backing.pyx`).
"""

from itertools import islice

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0
from . cimport journal as j
from .counters cimport (
    DEAD_LETTERS, EXPIRED, SHARED_ACCEPTED, SHARED_DISCARDED, SHARED_GIVEN, SHARED_RETURNED,
)
from .group_backing cimport GroupBacking
from .group_failures cimport Failures
from .group_keys cimport Key, KeyTable, key_of
from .group_members cimport MAXIMUM_QOS, Member, put_entry, take_entry
from .group_queue cimport Held, Waiting, WaitingQueue, held_of
from .group_rotation cimport Rotation
from .group_settings cimport ROTATION, GroupSettings
from .membership cimport Membership, SessionGroup
from .message cimport (
    Message, Publication, expiry_after, message_hold, message_new, message_payload, message_properties,
    message_release, publication_of_message,
)
from .outgoing_queue cimport ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, RETAIN_AS_PUBLISHED, WAITING, Entry, queue_entry
from .session cimport Session
from .subscriber cimport GROUP, SHARED, Plan, Receiver
from .turn cimport Turn

from .dead_letter import DeadLetter

cdef enum:
    KEEPS_RETAIN = 8           # Retain As Published, of the options of a subscription

cdef str FULL = "the queue is full"
cdef GroupBacking ENDED = GroupBacking()


cdef class Group(SessionGroup):
    """A group without members.

    Args:
        turn: of the node.
        number: its id in the journal.
        name: the share name and the topic filter, with `$share/`.
        topic_filter: the topic filter.
        backing_type: GroupJournal, or GroupLeases in a cluster.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None, bytes topic_filter not None,
                 backing_type not None):
        self.turn = turn
        self.kind = GROUP
        self.session_id = number
        self.client_id = name
        self.topic_filter = topic_filter
        self.tenant = turn.tenants.of(topic_filter, len(topic_filter))
        self.settings = turn.shared
        self.members = []
        self.queue = WaitingQueue(turn, self.tenant)
        self.rotation = Rotation()
        self.failures = Failures()
        self.backing = backing_type(self)

    @property
    def name(self):
        """Share name and topic filter, with `$share/`."""
        return self.client_id

    @property
    def waiting(self):
        """Messages that no member has."""
        return self.queue.count

    @property
    def waiting_size(self):
        """Bytes of topic names, properties and payloads of these messages."""
        return self.queue.size

    def messages(self, Py_ssize_t most=1 << 30):
        """Up to `most` of the messages that wait, the oldest first: a list of (place, topic name, payload)."""
        cdef Held held
        cdef list found = []
        for held in islice(self.queue.messages(), most):
            found.append((held.place, held.message.data[:held.message.topic_length],
                          message_payload(held.message)[:<Py_ssize_t>held.message.payload_length]))
        return found

    def configure(self, GroupSettings settings):
        """Use these settings from now on; None: those of the node, as a group that is not declared."""
        cdef bint was_declared = self.settings.declared
        cdef Member member
        self.settings = settings if settings is not None else self.turn.shared
        self.queue.newest = None
        self.set_strategy()
        self.backing.configured(was_declared)
        for member in self.rotation.connected:    # with another window they may have room
            self.has_sent(member)

    cdef int end(self) except -1:
        """The group has ended; it lets go of its store when it has sent the rest."""
        self.ended = True
        return self.turn.schedule_send(self)

    # ---- members ----

    @property
    def is_attended(self):
        """Whether a member has a connection, at this node or another."""
        return len(self.rotation.connected) > 0 or self.backing.qos_elsewhere() >= 0

    @property
    def qos(self):
        """The highest QoS granted to a member, at this node or another."""
        cdef Member member
        cdef int highest = 2 if self.settings.declared else max(0, self.backing.qos_elsewhere())
        for member in self.members:
            highest = max(highest, member.options & MAXIMUM_QOS)
            if highest == 2:
                break
        return highest

    cdef bint is_empty(self) except -1:
        """Whether it has no members, and is not declared."""
        return len(self.members) == 0 and not self.has_others()

    cdef bint has_others(self) except -1:
        """Whether members may be elsewhere, or are yet to join, that may take what no member here may take."""
        return self.settings.declared or self.backing.qos_elsewhere() >= 0

    cdef bint has_persistent(self) noexcept:
        """Whether the group is declared, or a member has a persistent session."""
        cdef Member member
        if self.settings.declared:
            return True
        for member in self.members:
            if member.session.persistent:
                return True
        return False

    cdef int join(self, Member member) except -1:
        """Add a member; the caller adds it to its session."""
        self.members.append(member)
        self.backing.joined(member.session)
        if member.session.outlet is not None:
            self.attached(member)
        return 0

    cdef int leave(self, Member member, bint session_ends) except -1:
        """Remove a member. Messages that it has not sent go to others [5: 4.8.2].

        Those that it has sent are still its own, unless its session ends: then QoS 1 goes to others, and QoS 2 is
        discarded [5: MQTT-4.8.2-5].
        """
        cdef Session session = member.session
        cdef uint64_t n
        cdef Entry* e
        self.backing.leaves(member)
        self.rotation.disconnect(member)
        self.members.remove(member)
        for n in member.entries():
            e = queue_entry(session.queue, n)
            if session.restoring or session.kind == SHARED:
                self.release_entry(member, n, e)
            elif e.state == WAITING and not e.flags & DUP:
                give_back(session, n, e)
            elif not session_ends:
                self.release_entry(member, n, e)
            elif e.flags & QOS == 1:
                give_back(session, n, e)
            else:
                if e.state != GOT_PUBREC:         # else the client has it
                    self.turn.counters[SHARED_DISCARDED] += 1
                self.release_entry(member, n, e)
        session.shares.remove(member)
        member.group = None
        if self.queue.aside or self.keys is not None:
            self.recall()                         # perhaps for this member only
        return self.backing.left(not session.restoring)

    cdef int options_changed(self, Member member) except -1:
        """The member has the options of another subscription."""
        member.known.steady = 0                   # the store has to be sent them, too
        return self.backing.room_changed()

    cdef int make_ready(self, Member member) except -1:
        """Give messages to the member from now on."""
        if not self.rotation.make_ready(member):
            return 0
        if self.queue.aside:
            self.recall()
        if self.keys is not None and self.keys.count:
            self.keys.wake(member)
            self.recall()
        if self.queue.waits():
            self.turn.schedule_send(self)
        return self.backing.room_changed()

    # ---- events of the sessions ----

    cdef int attached(self, Membership membership) except -1:
        cdef Member member = <Member>membership
        member.known.room = member.known.steady = 0
        member.known.total = -1
        self.rotation.connect(member)
        if self.queue.aside or self.keys is not None:
            self.recall()
        return self.has_sent(member)

    cdef int detached(self, Membership membership) except -1:
        cdef Member member = <Member>membership
        self.rotation.disconnect(member)
        self.backing.room_changed()
        if member.session.kind == SHARED:         # Redis gives back what is in its queue
            member.given = 0
            return self.backing.leaves(member)
        return self.take_unsent(member)

    cdef int rights_changed(self, Membership membership) except -1:
        cdef Member member = <Member>membership
        if self.queue.aside or self.keys is not None:
            self.recall()
        if member.session.kind == SHARED:         # unsent messages go back when it is their turn, see `withheld`
            return self.backing.room_changed()
        return self.take_unsent(member)

    cdef int has_sent(self, Membership membership) except -1:
        if not membership.ready and (<Member>membership).room():
            self.make_ready(<Member>membership)
        return 0

    cdef int record_given(self, Membership membership, uint64_t place, uint64_t n) except -1:
        return self.backing.record_given(<Member>membership, place, n)

    cdef int finished(self, Membership membership, uint64_t place, uint8_t qos) except -1:
        cdef Member member = <Member>membership
        member.given -= 1
        if self.failures.by_place is not None:
            self.failures.forget(place)
        if self.backing.kept and qos == 1 and not member.session.recorded() and not member.session.restoring:
            self.backing.record_done(place)
        self.member_done(member, place)
        self.backing.room_changed()
        return self.has_sent(member)

    cdef bint refused(self, Membership membership, uint64_t n, uint8_t code) except -1:
        if self.settings.max_deliveries == 0:
            return False                          # it is discarded [5: MQTT-4.8.2-6]
        self.backing.take_refused(<Member>membership, n, code)
        return True

    cdef int withheld(self, Membership membership, uint64_t n) except -1:
        return self.backing.take_refused(<Member>membership, n, 0)

    # ---- messages that arrive ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef Message* message
        cdef uint64_t place
        if publication.forwarded:
            return 1                              # the node that accepted the message has passed it on
        self.turn.counters[SHARED_ACCEPTED] += 1
        message = self.lower_expiry(publication.message)
        try:
            place = self.backing.place_new(publication, receiver.qos, message)
            if place and not (self.settings.last_value and self.supersede(place, message, True)):
                self.place(place, publication, message)
        finally:
            message_release(message)
        return 1

    cdef bint pass_on(self, Publication* publication) except -1:
        """Whether a message of QoS 0 is another node's to give, and has been sent there."""
        return self.backing.pass_on(publication)

    cdef Member choose(self, const Publication* publication):
        """The member that gets a message of QoS 0: the next that is connected, reads, and may have it; or None."""
        return self.rotation.choose(self.settings, publication)

    cdef Message* lower_expiry(self, Message* message) except NULL:
        """The message, with an expiry that the group allows; the caller gets a reference."""
        cdef Publication publication
        cdef Message* lowered
        cdef int64_t latest
        if not self.settings.max_expiry:
            return message_hold(message)
        latest = expiry_after(self.settings.max_expiry, self.turn.clock)
        if message.expires and message.expires <= latest:
            return message_hold(message)
        publication = publication_of_message(message)
        publication.expires = latest
        lowered = message_new(&publication)
        if lowered == NULL:
            raise MemoryError
        return lowered

    cdef int place(self, uint64_t place, const Publication* publication, Message* message) except -1:
        """Give a new message to the next member with room, or to that of its key; else it waits."""
        cdef Key key
        cdef bint given
        if self.keys is None:
            given = not self.queue.waits() and self.give(place, message, False)
        else:
            key = self.keys.note(place, key_of(self.settings, publication))
            given = not self.queue.waits() and self.give_keyed(key, place, message, False) == GIVEN_TO_ONE
        return 0 if given else self.wait(place, message_hold(message), False)

    cdef int restore(self, uint64_t place, Message* message) except -1:
        """Let a message of the store wait, or take it as a dead letter; takes over the reference."""
        if self.failures.are_too_many(place, self.settings):
            return self.take_dead(place, message)
        return self.wait(place, message, True)

    # ---- messages that wait ----

    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1:
        """Put a message behind all others; takes over the reference. At the limits the policy selects one to drop."""
        while self.queue.is_full(self.settings, message):
            if self.drop_expired():
                continue
            self.turn.queue_is_full(self.client_id)
            if not self.settings.drop_oldest or not self.drop_oldest():
                if self.turn.tracer is not None:
                    self.turn.tracer.note_message("dropped", self.client_id, message, message.qos, FULL)
                if recorded:
                    self.backing.record_done(place)
                self.forget_key(place)
                message_release(message)
                return 0
        self.keep_waiting(place, message)
        return 0 if recorded else self.backing.record_queued(place, message)

    cdef int keep_waiting(self, uint64_t place, Message* message) except -1:
        """Put a message behind all others, whatever the limits are; takes over the reference."""
        self.queue.add(place, message)
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("queued", self.client_id, message, message.qos, "no member has room")
        if self.rotation.ready_count:             # they may not take this one: it must not hold up those behind it
            self.turn.schedule_send(self)
        return 0

    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1:
        """Keep only the newer of this message and the one to its topic that waits.

        Returns:
            Whether one waits. Then the caller's message must not wait; the other has its content if it is the newer.
        """
        cdef uint64_t other = 0, age = 0
        cdef Message** at = self.queue.newest_of(message, &other, &age)
        if at == NULL:
            return False
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("dropped", self.client_id, at[0] if is_new or age < place else message,
                                          message.qos, "a newer message to its topic waits")
        if not is_new and age > place:
            return True
        self.queue.replace(at, other, place, message)
        if self.failures.count(other):            # those of the older one
            self.failures.forget(other)
            self.backing.record_failure(other)
        self.backing.record_queued(other, message)
        if (self.queue.aside or self.keys is not None) and self.rotation.ready_count:    # they may take this one
            self.recall()
        return True

    cdef int recall(self) except -1:
        """Let the messages that were put aside wait again."""
        self.queue.recall()
        return self.turn.schedule_send(self)

    cpdef int purge(self) except -1:
        """Drop all messages that wait; returns their number."""
        cdef int dropped = 0
        while self.drop_oldest():
            dropped += 1
        self.turn.counters[SHARED_DISCARDED] += dropped
        return dropped

    cdef bint drop_oldest(self) except -1:
        """Drop the oldest message; whether there was one."""
        cdef Waiting oldest = self.queue.take_oldest()
        if oldest.message == NULL:
            return False
        self.discard(oldest, FULL)
        return True

    cdef bint drop_expired(self) except -1:
        """Drop all messages that have expired; whether there were any."""
        cdef list expired = self.queue.take_expired()
        cdef Held held
        for held in expired:
            self.expire(Waiting(held.place, message_hold(held.message)))
        return len(expired) > 0

    cdef int expire(self, Waiting expired) except -1:
        """Drop a message that has expired, and has been taken out; takes over the reference."""
        self.turn.counters[EXPIRED] += 1
        return self.discard(expired, "it has expired")

    cdef int discard(self, Waiting dropped, str reason) except -1:
        """Drop a message that waited and has been taken out; takes over the reference."""
        self.queue.count_message(-1, dropped.message)
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("dropped", self.client_id, dropped.message, dropped.message.qos, reason)
        self.failures.forget(dropped.place)
        self.backing.record_done(dropped.place)
        self.forget_key(dropped.place)
        message_release(dropped.message)
        return 0

    # ---- messages that members have ----

    cdef int take_unsent(self, Member member) except -1:
        """Take back the messages of the group that the member's session has never sent."""
        cdef Session session = member.session
        cdef uint64_t n
        cdef Entry* e
        if member.given:
            for n in member.entries():
                e = queue_entry(session.queue, n)
                if e.state == WAITING and not e.flags & DUP:
                    give_back(session, n, e)
        return 0

    cdef int release_entry(self, Member member, uint64_t n, Entry* e) except -1:
        """The entry `n` of the member's queue is the session's own from now on: it does not go back to the group."""
        cdef Session session = member.session
        cdef uint64_t place = session.shares.place(n)
        cdef Py_ssize_t size = len(member.properties)
        self.failures.forget(place)
        if self.backing.kept and e.flags & QOS == 1 and not session.recorded() and not session.restoring:
            self.backing.record_done(place)
        self.member_done(member, place)
        e.flags &= ~<uint8_t>OF_GROUP
        e.identifiers = 0                         # it was the number of the membership
        e.identifiers = session.identifier_set(member.properties, size) if size and e.message != NULL else 0
        return 0

    cdef int come_back(self, uint64_t place, Message* message) except -1:
        """Take a message that a member had, to its old place; takes over the reference."""
        self.returned += 1
        self.turn.counters[SHARED_RETURNED] += 1
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("returned", self.client_id, message, message.qos, "")
        if self.failures.are_too_many(place, self.settings):
            self.key_done(place)
            return self.take_dead(place, message)
        if self.settings.last_value and self.backing.limits_here and self.supersede(place, message, False):
            self.failures.forget(place)
            self.backing.record_done(place)
            self.key_done(place)
            message_release(message)
            return 0
        self.queue.come_back(place, message)
        return self.turn.schedule_send(self)

    cdef int member_done(self, Member member, uint64_t place) except -1:
        """The member is done with a message: others with its key may follow."""
        return self.key_done(place) if self.keys is not None and self.backing.has_given(member, place) else 0

    cdef int take_dead(self, uint64_t place, Message* message) except -1:
        """Publish the message as a dead letter at the end of the turn; takes over the reference."""
        self.failures.put_dead(held_of(Waiting(place, message)))
        return self.turn.schedule_send(self)

    cdef int publish_dead(self) except -1:
        """Publish the dead letters, and end them in the same block."""
        cdef Held held
        cdef Message* m
        while self.failures.dead:
            held = self.failures.dead.pop(0)
            m = held.message
            deliveries, code, _ = self.failures.of(held.place)
            self.failures.forget(held.place)
            self.turn.counters[DEAD_LETTERS] += 1
            if self.turn.tracer is not None:
                self.turn.tracer.note_message("dropped", self.client_id, m, m.qos, "it is a dead letter")
            self.backing.record_dead(held.place)
            if self.turn.dead_letters is not None:
                self.turn.dead_letters(DeadLetter(
                    self.client_id, self.settings.dead_letter_topic, m.data[:m.topic_length],
                    message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos,
                    message_properties(m)[:<Py_ssize_t>m.properties_length], deliveries, code))
        return 0

    # ---- giving ----

    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to the next member with room that may take it; False: there is none."""
        cdef Rotation rotation = self.rotation
        cdef uint32_t left = rotation.ready_count
        cdef Member member
        cdef bytes last = self.failures.last_client(place) if self.failures.by_place is not None else None
        while left:
            left -= 1
            member = <Member>rotation.first_ready
            if last is not None and left and member.session.client_id == last:
                last = None                       # another one first
                left += 1
                rotation.first_ready = member.after
                continue
            if not member.room():
                rotation.make_unready(member)
                continue
            rotation.first_ready = member.after
            if not member.may_take(message):
                continue
            self.hand(member, place, message, recorded)
            if not member.room():
                rotation.make_unready(member)
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
            self.failures.forget(place)
            if recorded:
                self.backing.record_done(place)
            return 0
        member.given += 1
        if self.keys is not None:
            self.keys.bind(place, member)
        if self.backing.kept and not session.recorded():
            if qos == 1:
                if not recorded:
                    self.backing.record_queued(place, message)
            else:                                 # once it is sent, no other member may get it, also after a crash
                if recorded:
                    self.backing.record_done(place)
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
        return self.backing.put(member, place, message, flags)

    cdef int send_pending(self) except -1:
        """Give the messages that wait to members with room."""
        if self.keys is None or not self.backing.suspended:
            self.give_waiting()
        self.backing.has_sent()
        if self.ended:
            self.backing = ENDED
        return 0

    cdef int give_waiting(self) except -1:
        """Publish the dead letters, and give the messages that wait."""
        cdef Waiting taken
        if self.failures.dead:
            self.publish_dead()
        if self.keys is not None:
            return self.send_all_keyed()
        while self.rotation.ready_count and self.queue.waits():
            taken = self.queue.take_first()       # a hook may change the queue before the message is counted
            if taken.message.expires and taken.message.expires <= self.turn.clock:
                self.expire(taken)
            elif self.give(taken.place, taken.message, True):
                self.queue.count_message(-1, taken.message)
                message_release(taken.message)
            elif self.rotation.ready_count:
                self.put_aside(taken)
            else:
                self.queue.put_back(taken)
        return 0

    cdef int put_aside(self, Waiting taken) except -1:
        """No member with room may take the message: keep it for others, or drop it if there are none."""
        if self.has_others() or self.someone_takes(taken.message):
            return self.queue.put_aside(taken)
        self.turn.counters[SHARED_DISCARDED] += 1
        return self.discard(taken, "no member may read it, or takes a packet of its size")

    cdef bint someone_takes(self, const Message* message) except -1:
        """Whether a member, with room or without, may take the message."""
        cdef Member member
        for member in self.members:
            if member.may_take(message):
                return True
        return False

    # ---- order by key ----

    cdef int set_strategy(self) except -1:
        """Apply the strategy. It holds for the messages that follow, and by topic for those that are here too."""
        cdef uint8_t before = ROTATION if self.keys is None else self.keys.strategy
        if self.settings.strategy_number == before:
            return 0
        self.keys = KeyTable(self.settings.strategy_number) if self.settings.strategy_number != ROTATION else None
        self.queue.set_keys(self.keys)
        self.backing.order_changed()
        return self.turn.schedule_send(self)

    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to a member; returns GIVEN_TO_ONE, NO_ROOM, or NOT_TAKEN."""
        cdef Member member
        cdef uint8_t qos
        if key is not None and (key.held or key.has_before(place)):
            return NO_ROOM                        # behind these
        if key is None or key.member is None:
            if self.give(place, message, recorded):
                return GIVEN_TO_ONE
            return NOT_TAKEN if self.rotation.ready_count else NO_ROOM
        member = key.member
        if not member.ready:
            return NO_ROOM
        if not member.room():
            self.rotation.make_unready(member)
            return NO_ROOM
        qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        # It would pass those that are not in the member's queue yet, or not sent.
        if qos == 0 or key.begun and qos == 1 or not member.may_take(message):
            return NOT_TAKEN
        if key.member is not member or not member.ready:     # a hook has ended the connection
            return NO_ROOM
        self.hand(member, place, message, recorded)
        if not member.room():
            self.rotation.make_unready(member)
        return GIVEN_TO_ONE

    cdef bint send_keyed(self, Key key, Waiting taken) except -1:
        """Give a message that waits, or put it where it waits for its turn. Takes over the reference."""
        cdef int result
        if taken.message.expires and taken.message.expires <= self.turn.clock:
            self.expire(taken)
            return True
        if key is not None and key.has_before(taken.place):
            self.queue.park(key, taken)
            return False
        result = self.give_keyed(key, taken.place, taken.message, True)
        if result == GIVEN_TO_ONE:
            self.queue.count_message(-1, taken.message)
            message_release(taken.message)
            return True
        if key is None:
            if result == NOT_TAKEN:
                self.put_aside(taken)
            else:
                self.queue.put_back(taken)
            return False
        if result == NOT_TAKEN and key.member is None and not (
                self.has_others() or self.someone_takes(taken.message)):
            self.put_aside(taken)                 # which drops it
            return True
        self.queue.park(key, taken)
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
                        self.rotation.make_unready(member)
                        break
                    self.send_keyed(key, self.queue.take_parked(key))
                    self.keys.offer(key)
            if not self.rotation.ready_count:
                return 0
            key = self.keys.next_free()
            if key is not None and not (self.queue.waits() and self.queue.first().place < key.parked[0][0]):
                self.send_keyed(key, self.queue.take_parked(key))
                self.keys.offer(key)
            elif self.queue.waits():
                taken = self.queue.take_first()
                self.send_keyed(self.keys.of(taken.place), taken)
            else:
                return 0

    cdef int key_done(self, uint64_t place) except -1:
        """A message of the group is done: others with its key may follow."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None:
            return 0
        if self.keys.done(place):
            self.turn.schedule_send(self)
        return self.backing.key_done(key, place)

    cdef int forget_key(self, uint64_t place) except -1:
        """A message that no member has is dropped, or given with QoS 0."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None:
            return 0
        self.keys.forget(place)
        return self.backing.key_done(key, place)


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
            group.backing.take_back(self.place, message_hold(self.message), True)
        else:
            member.given += 1
            put_entry(member, self.place, self.message, self.flags)


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=0) except -1:
    """Give an entry back to its group. `code`: of the client's refusal, 0 = it has not refused it."""
    cdef Member member = <Member>session.shares.items[e.identifiers]
    cdef Group group = <Group>member.group
    cdef uint64_t place = session.shares.place(n)
    cdef uint8_t qos = e.flags & QOS
    cdef bint was_sent = e.state != WAITING or e.flags & DUP
    cdef uint32_t size = e.size
    cdef Message* message = take_entry(session, n, e)
    if session.recorded():
        session.turn.journal.entry(j.DONE, session, session.session_id, n, size)
    if was_sent and group.settings.max_deliveries:
        group.failures.note(place, code, session.client_id)
    member.given -= 1
    group.backing.take_back(place, message, session.recorded() or qos == 2)
    return group.backing.record_failure(place) if was_sent and group.failures.count(place) else 0


def give_back_sent(Session session not None):
    """Give back the messages of QoS 1 that the session got from groups: it stays away. Returns their number."""
    cdef Member member
    cdef uint64_t n
    cdef Entry* e
    cdef int count = 0
    if session.shares is None or session.outlet is not None:
        return 0
    for member in session.shares.items:
        for n in member.entries() if member is not None else ():
            e = queue_entry(session.queue, n)
            if e.flags & QOS == 1:
                give_back(session, n, e)
                count += 1
    return count
