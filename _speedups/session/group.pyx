"""A shared subscription: a group of sessions, of which each message goes to one [5: 4.8.2].

A group stands in the subscription tree under its topic filter, as one subscriber. A message of QoS 0 goes to the next
member at once. One of QoS 1 or 2 gets a place, a number that grows, and is given late: to a member that is connected
and has room, which is a window of unacknowledged messages. If no member has room it waits in the queue of the group.
So a slow or dead member never holds more than its window.

A message is at one place at a time: it waits in the group, or it is an entry of the queue of a member. It comes back
to its old place if the member's connection ends before the message was sent, or before a clean session has
acknowledged it, or if a persistent session stays away (`give_back_sent`). QoS 2 is different: a message that was sent
to a member goes to no other [5: MQTT-4.8.2-4, 5].

While a persistent session is a member, the group is `kept`: its messages are in the journal (GROUP_QUEUED), until they
are in the queue of a persistent session (GIVEN), or done (GROUP_DONE). Else all members end with the node.

With `max_deliveries` a message that came back after it was sent, or was refused, has an entry in `failures` until it
is done. When the number is reached, it is a dead letter: the group publishes it to the topic of the settings, and ends
it in the same block.

A group that is declared has settings of its own. It exists without members, is kept, and subscribes with QoS 2, so that
a message waits with the QoS of its publisher.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from _speedups.base.buffers cimport buffer_size
from _speedups.codec.publish cimport (
    FLAG_RETAIN, PUBLISH_QOS_0, properties_size, publish_remaining, publish_size,
)
from _speedups.session cimport journal as j
from _speedups.session.counters cimport (
    DEAD_LETTERS, SHARED_ACCEPTED, SHARED_DISCARDED, SHARED_GIVEN, SHARED_RETURNED,
)
from _speedups.session.group_keys cimport Key, KeyTable, hash_of
from _speedups.session.group_queue cimport GroupQueue, Held, Waiting, held_of
from _speedups.session.group_settings cimport BY_PUBLISHER, BY_TOPIC, ROTATION, GroupSettings
from _speedups.session.membership cimport Membership
from _speedups.session.message cimport (
    Message, Publication, message_hold, message_payload, message_properties, message_release, message_size,
)
from _speedups.session.outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, RETAIN_AS_PUBLISHED, SENT, WAITING, Entry, queue_entry, queue_grow,
    queue_skip_acked,
)
from _speedups.session.rights cimport MAY_READ
from _speedups.session.session cimport Restored, Session, count_inflight, count_queued
from _speedups.session.subscriber cimport FLUSH_EARLY, SHARED, Plan, Receiver, Subscriber
from _speedups.session.turn cimport Outlet, Turn

from _speedups.session.dead_letter import DeadLetter

cdef enum:
    MAXIMUM_QOS = 3            # of the options of a subscription
    KEEPS_RETAIN = 8           # Retain As Published
    GIVEN_TO_ONE = 1           # results of `give_keyed`: a member has it ...
    NO_ROOM = 2                # ... it waits until its member, or any, has room ...
    NOT_TAKEN = 3              # ... no member with room may take it now
    SEND_BYTES = 131072        # bytes of output up to which a member gets messages with QoS 0


cdef class Member(Membership):
    """The membership of a session in a group."""

    def __init__(self, Group group not None, Session session not None):
        self.group = group
        self.session = session

    @property
    def given_now(self):
        """Messages that it has got and not acknowledged."""
        return self.given

    @property
    def is_connected(self):
        """Whether its session has a connection."""
        return self.session.outlet is not None

    cdef bint has_room(self) noexcept:
        """Whether it takes another message now."""
        cdef Outlet outlet = self.session.outlet
        cdef uint32_t window
        if self.group is None or outlet is None or outlet.closed or self.group.settings.paused:
            return False
        if self.options & MAXIMUM_QOS == 0 and buffer_size(&outlet.out) > SEND_BYTES:
            outlet.wants_room = True              # it acknowledges nothing: only its output shows how fast it reads
            return False
        window = min(self.group.settings.window, <uint32_t>outlet.receive_maximum)
        return self.given < window and self.session.tail - self.session.queue.next < window

    cdef bint may_take(self, const Message* message) except -1:
        """Whether its client may read the message, and takes a packet of its size."""
        cdef Session session = self.session
        if session.rights is not None and not session.rights.may(message.data, message.topic_length, MAY_READ):
            return False
        return self.fits(message)

    cdef bint fits(self, const Message* message) noexcept:
        """Whether the packet is not too large for the client [5: MQTT-3.1.2-24]."""
        cdef Outlet outlet = self.session.outlet
        cdef uint32_t remaining
        if outlet is None or outlet.level < 5:
            return True
        remaining = publish_remaining(message.topic_length, message.payload_length, 2)
        remaining += <uint32_t>properties_size(message.expires != 0, 0, len(self.properties), message.properties_length)
        return publish_size(remaining) <= <Py_ssize_t>outlet.largest

    cdef int attached(self) except -1:
        cdef Group group = self.group
        if not self.listed:
            self.listed = True
            group.connected.append(self)
        if group.aside or group.keys is not None:
            group.recall()
        return self.has_sent()

    cdef int detached(self) except -1:
        cdef Group group = self.group
        group.unlist(self)
        group.make_unready(self)
        group.room_changed()
        if self.session.kind == SHARED:           # Redis gives back what is in its queue
            self.given = 0
            return 0
        return give_back_unsent(self)

    cdef int has_sent(self) except -1:
        if not self.ready and self.has_room():
            self.group.make_ready(self)
        return 0

    cdef int rights_changed(self) except -1:
        if self.group.aside or self.group.keys is not None:
            self.group.recall()
        return 0 if self.session.kind == SHARED else give_back_unsent(self)

    cdef int finished(self, uint64_t place, uint8_t qos) except -1:
        cdef Group group = self.group
        self.given -= 1
        if group.failures is not None:
            group.forget_failures(place)
        if group.kept and qos == 1 and not self.session.recorded() and not self.session.restoring:
            group.record_done(place)
        group.key_done(place)
        group.room_changed()
        return self.has_sent()

    cdef int record_given(self, uint64_t place, uint64_t n) except -1:
        if self.session.recorded():
            self.group.record_key(place)
            self.session.turn.journal.given(self.group.session_id, place, self.session.session_id, n)
        return 0

    cdef bint refused(self, uint64_t n, uint8_t code) except -1:
        if self.group is None or self.group.settings.max_deliveries == 0:
            return False                          # it is discarded [5: MQTT-4.8.2-6]
        self.group.take_refused(self, n, code)
        return True

    cdef int returned(self, uint64_t place, Message* message, uint8_t qos) except -1:
        """The session gives the message back, with its reference; it was to be sent with this QoS."""
        self.given -= 1
        return self.group.take_back(place, message, self.session.recorded() or qos == 2)


@cython.no_gc_clear                       # as for Session: the end of the group subtracts from the totals of `turn`
cdef class Group(GroupQueue):
    """A group without members.

    Args:
        turn: of the node.
        number: its id in the journal.
        name: the share name and the topic filter, with `$share/`.
        topic_filter: the topic filter.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None, bytes topic_filter not None):
        GroupQueue.__init__(self, turn, name)
        self.session_id = number
        self.topic_filter = topic_filter
        self.members = []
        self.connected = []
        self.next_place = 1

    @property
    def is_attended(self):
        """Whether a member has a connection, at this node or another."""
        return len(self.connected) > 0

    @property
    def qos(self):
        """The highest QoS granted to a member."""
        return self.highest_qos()

    cdef int highest_qos(self) except -1:
        """The highest QoS granted to a member, at this node or another."""
        cdef Member member
        cdef int highest = 2 if self.settings.declared else 0
        for member in self.members:
            highest = max(highest, member.options & MAXIMUM_QOS)
            if highest == 2:
                break
        return highest

    cdef bint has_persistent(self) noexcept:
        """Whether the group is declared, or a member has a persistent session."""
        cdef Member member
        if self.settings.declared:
            return True
        for member in self.members:
            if member.session.persistent:
                return True
        return False

    cdef bint recorded(self) noexcept:
        return self.kept and self.turn.journal.epoch != 0

    # ---- members ----

    cdef int join(self, Member member) except -1:
        """Add a member; the caller adds it to its session."""
        cdef Session session = member.session
        self.members.append(member)
        if session.recorded() and not self.kept:
            self.keep()
        elif session.persistent and session.restoring:
            self.kept = True
        if session.outlet is not None:
            member.attached()
        return 0

    cdef int leave(self, Member member, bint session_ends) except -1:
        """Remove a member. Messages that it has not sent go to others [5: 4.8.2].

        Those that it has sent are still its own, unless its session ends: then QoS 1 goes to others, and QoS 2 is
        discarded [5: MQTT-4.8.2-5].
        """
        cdef Session session = member.session
        cdef uint64_t n = session.queue.head
        cdef Entry* e
        self.unlist(member)
        self.make_unready(member)
        self.members.remove(member)
        while n < session.tail:
            e = queue_entry(&session.queue, n)
            if e.flags & OF_GROUP and e.identifiers == member.index and e.state != ACKED:
                if session.restoring or session.kind == SHARED:
                    release_entry(session, member, n, e)
                elif e.state == WAITING and not e.flags & DUP:
                    give_back(session, n, e)
                elif not session_ends:
                    release_entry(session, member, n, e)
                elif e.flags & QOS == 1:
                    give_back(session, n, e)
                else:
                    if e.state != GOT_PUBREC:     # else the client has it
                        self.turn.counters[SHARED_DISCARDED] += 1
                    release_entry(session, member, n, e)
            n = max(n + 1, session.queue.head)
        session.shares.remove(member)
        member.group = None
        if self.aside or self.keys is not None:
            self.recall()                         # perhaps for this member only
        if self.kept and not self.has_persistent():
            self.stop_keeping(not session.restoring)
        return 0

    cdef int unlist(self, Member member) except -1:
        """The member has no connection any more; the turn of the others stays."""
        cdef Py_ssize_t at
        if member.listed:
            member.listed = False
            at = self.connected.index(member)
            del self.connected[at]
            self.turn_of -= at < self.turn_of
        return 0

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

    cdef int keep(self) except -1:
        """Write the group and its messages to the journal from now on."""
        self.kept = True
        self.record()
        self.record_messages()
        return 0

    cdef int stop_keeping(self, bint records) except -1:
        """The last member with a persistent session has left."""
        if self.turn.journal.epoch and records:
            self.turn.journal.number(j.GROUP_GONE, self.session_id)
        self.kept = False
        return 0

    def set_peer(self, peer, int announced):
        """Another node has members, or none; for groups of a cluster. Returns whether it had some."""
        raise NotImplementedError

    cdef int take_lease(self, uint64_t place, Message* message) except -1:
        """A message of the group is this node's to give; for groups of a cluster."""
        raise NotImplementedError

    cdef bint is_empty(self) noexcept:
        """Whether it has no members, and is not declared."""
        return len(self.members) == 0 and not self.settings.declared

    cdef int room_changed(self) except -1:
        """The room of a member has changed; for groups of a cluster."""
        return 0

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        """A message comes back from a member, with its reference; `record`: the journal has it elsewhere, or nowhere."""
        if record and self.kept:
            self.record_queued(place, message)
        return self.come_back(place, message)

    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1:
        """The client refuses the entry `n` of its queue: it comes back."""
        return give_back(member.session, n, queue_entry(&member.session.queue, n), code)

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

    cdef Member choose(self, const Publication* publication):
        """The member that gets a message of QoS 0: the next that is connected, reads, and may have it; or None."""
        cdef Py_ssize_t count = 0 if self.settings.paused else len(self.connected), i
        cdef Member member
        cdef Outlet outlet
        cdef Session session
        if self.settings.strategy_number != ROTATION and count:
            self.turn_of = <Py_ssize_t>(key_of(self.settings, publication) % <uint64_t>count)
        for i in range(count):
            if self.turn_of >= count:
                self.turn_of = 0
            member = <Member>self.connected[self.turn_of]
            self.turn_of += 1
            session = member.session
            outlet = session.outlet
            if outlet is None or outlet.closed:
                continue
            if buffer_size(&outlet.out) + publication.payload_length > FLUSH_EARLY:
                if not outlet.blocked:
                    outlet.flush()
                if (outlet.closed or buffer_size(&outlet.out) and buffer_size(&outlet.out) + publication.payload_length
                        > self.turn.limits.max_outgoing_bytes):
                    continue
            if session.rights is not None and not session.rights.may(
                    publication.topic, publication.topic_length, MAY_READ):
                continue
            if outlet.level == 5 and publish_size(
                    publish_remaining(publication.topic_length, publication.payload_length, 0)
                    + <uint32_t>properties_size(publication.expires != 0, 0, len(member.properties),
                                                publication.properties_length)) > <Py_ssize_t>outlet.largest:
                continue
            return member
        return None

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
            if not member.has_room():
                self.make_unready(member)
                continue
            self.first_ready = member.after
            if not member.may_take(message):
                continue
            self.hand(member, place, message, recorded)
            if not member.has_room():
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
                    FLAG_RETAIN if flags & RETAIN_AS_PUBLISHED and session.level == 5 else 0), 0, member.properties)
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
                self.drop(taken, True)
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

    cdef int make_ready(self, Member member) except -1:
        """Give messages to the member from now on."""
        cdef Member first, last
        if member.ready:
            return 0
        member.ready = True
        self.ready_count += 1
        if self.first_ready == NULL:
            self.first_ready = member.before = member.after = <void*>member
        else:
            first = <Member>self.first_ready
            last = <Member>first.before
            member.before, member.after = <void*>last, <void*>first
            last.after = first.before = <void*>member
        if self.aside:
            self.recall()
        if self.keys is not None and self.keys.count:
            self.keys.wake(member)
            self.recall()
        if self.waits():
            self.turn.schedule_send(self)
        return self.room_changed()

    cdef int make_unready(self, Member member) except -1:
        """Give the member no more messages."""
        if not member.ready:
            return 0
        member.ready = False
        self.ready_count -= 1
        if member.after == <void*>member:
            self.first_ready = NULL
        else:
            (<Member>member.before).after = member.after
            (<Member>member.after).before = member.before
            if self.first_ready == <void*>member:
                self.first_ready = member.after
        member.before = member.after = NULL
        return 0

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
        cdef uint64_t i, n, place
        cdef Py_ssize_t k
        cdef Held held
        cdef Member member
        cdef Session session
        cdef Entry* e
        if self.keys is None:
            return 0
        for i in range(self.head, self.tail):
            self.note_key(self.queue[i & (self.capacity - 1)].place, self.queue[i & (self.capacity - 1)].message)
        for k in range(self.back_count):
            self.note_key(self.back[k].place, self.back[k].message)
        for held in self.aside:
            self.note_key(held.place, held.message)
        for member in self.members:
            session = member.session
            n = session.queue.head
            while n < session.tail:
                e = queue_entry(&session.queue, n)
                if e.flags & OF_GROUP and e.identifiers == member.index and e.message != NULL and e.state != ACKED:
                    place = session.shares.places[n & session.shares.mask]
                    self.note_key(place, e.message)
                    self.keys.bind(place, member)
                n += 1
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
        if self.keys is None or self.settings.strategy_number == ROTATION:
            given = not self.waits() and self.give(place, message, False)
        else:
            key = self.keys.note(place, key_of(self.settings, publication))
            given = not self.waits() and self.give_keyed(key, place, message, False) == GIVEN_TO_ONE
        return 0 if given else self.wait(place, message_hold(message), False)

    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to a member; returns GIVEN_TO_ONE, NO_ROOM, or NOT_TAKEN."""
        cdef Member member
        cdef uint8_t qos
        if key is not None and key.parked and key.parked[0][0] < place:
            return NO_ROOM                        # behind these
        if key is None or key.member is None:
            if self.give(place, message, recorded):
                return GIVEN_TO_ONE
            return NOT_TAKEN if self.ready_count else NO_ROOM
        member = key.member
        if not member.ready:
            return NO_ROOM
        if not member.has_room():
            self.make_unready(member)
            return NO_ROOM
        qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        # It would pass those that are not in the member's queue yet, or not sent.
        if qos == 0 or key.begun and qos == 1 or not member.may_take(message):
            return NOT_TAKEN
        if key.member is not member or not member.ready:     # a hook has ended the connection
            return NO_ROOM
        self.hand(member, place, message, recorded)
        if not member.has_room():
            self.make_unready(member)
        return GIVEN_TO_ONE

    cdef bint send_keyed(self, Key key, Waiting taken) except -1:
        """Give a message that waits, or put it where it waits for its turn. Takes over the reference."""
        cdef int result
        if taken.message.expires and taken.message.expires <= self.turn.clock:
            self.drop(taken, True)
            return True
        if key is not None and key.parked and key.parked[0][0] < taken.place:
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
                    if not member.has_room():
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

    cdef bint someone_takes(self, const Message* message) except -1:
        """Whether a member, with room or without, may take the message."""
        cdef Member member
        for member in self.members:
            if member.may_take(message):
                return True
        return False

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

    def restore_failed(self, uint64_t place, uint64_t failures):
        """Restore a GROUP_FAILED record."""
        if self.failures is None:
            self.failures = {}
        self.failures[place] = (failures >> 8, failures & 255, None)

    cdef int prune_failures(self) except -1:
        """Forget what a compaction has written of messages that were done meanwhile."""
        cdef Member member
        cdef Session session
        cdef uint64_t n
        cdef Entry* e
        cdef set live = set(self.restored_places or ())
        for member in self.members:
            session = member.session
            n = session.queue.head
            while n < session.tail:
                e = queue_entry(&session.queue, n)
                if e.flags & OF_GROUP and e.identifiers == member.index and e.state != ACKED:
                    live.add(session.shares.places[n & session.shares.mask])
                n += 1
        for place in [place for place in self.failures if place not in live]:
            self.forget_failures(place)
        return 0

    # ---- store ----

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        if self.recorded():
            self.record_key(place)
            self.turn.journal.group_queued(self.session_id, place, message)
        return 0

    cdef int record_key(self, uint64_t place) except -1:
        """Write the key of a message, unless it follows from its topic name."""
        cdef Key key
        if self.keys is not None and self.keys.strategy == BY_PUBLISHER:
            key = self.keys.of(place)
            if key is not None:
                self.turn.journal.group_key(self.session_id, place, key.hash)
        elif self.restored_keys is not None and place in self.restored_keys:
            self.turn.journal.group_key(self.session_id, place, self.restored_keys[place])
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        if self.recorded():
            self.turn.journal.numbers(j.GROUP_DONE, self.session_id, place)
        return 0

    def record(self):
        """Write the group to the journal, before records that refer to it."""
        if self.recorded():
            self.turn.journal.note_level_5()
            self.turn.journal.text(j.GROUP, self.session_id, 0, self.client_id, len(self.client_id))
            if self.settings.declared:
                self.record_declaration()

    def record_declaration(self):
        """Write to the journal how the group is declared, or that it is not."""
        cdef const uint8_t* text = self.settings.declaration
        if self.recorded():
            self.turn.journal.note_level_5()
            self.turn.journal.text(j.GROUP_DECLARED, self.session_id, 0, text, len(self.settings.declaration))

    def record_messages(self):
        """Write the messages that wait to the journal again, and those that clean sessions have not acknowledged."""
        cdef uint64_t i, n
        cdef Py_ssize_t k
        cdef Held held
        cdef Member member
        cdef Session session
        cdef Entry* e
        if not self.recorded():
            return
        for i in range(self.head, self.tail):
            self.record_queued(self.queue[i & (self.capacity - 1)].place, self.queue[i & (self.capacity - 1)].message)
        for k in range(self.back_count):
            self.record_queued(self.back[k].place, self.back[k].message)
        for held in (*self.aside, *self.dead):
            self.record_queued(held.place, held.message)
        if self.keys is not None:
            for held in self.keys.all_parked():
                self.record_queued(held.place, held.message)
        for place in self.failures or ():
            self.record_failure(place)
        for member in self.members:
            session = member.session
            if session.recorded():
                continue
            n = session.queue.head
            while n < session.tail:
                e = queue_entry(&session.queue, n)
                if (e.flags & OF_GROUP and e.identifiers == member.index and e.message != NULL and e.state != ACKED
                        and e.flags & QOS == 1):
                    self.record_queued(session.shares.places[n & session.shares.mask], e.message)
                n += 1

    def restore_queued(self, uint64_t place, Restored message not None):
        """Restore a GROUP_QUEUED record."""
        if self.restored_places is None:
            self.restored_places = {}
        self.restored_places[place] = message
        self.next_place = max(self.next_place, place + 1)

    def restore_done(self, uint64_t place):
        """Restore a GROUP_DONE record."""
        self.forget_failures(place)
        if self.restored_places is not None:
            self.restored_places.pop(place, None)

    def restore_key(self, uint64_t place, uint32_t key):
        """Restore a GROUP_KEY record."""
        if self.restored_keys is None:
            self.restored_keys = {}
        self.restored_keys[place] = key

    def restore_gone(self):
        """Restore a GROUP_GONE record: no message of the group is kept. GROUP may follow again."""
        self.restored_places = None
        self.failures = None

    def restore_given(self, uint64_t place, Session session not None, uint64_t n):
        """Restore a GIVEN record: the entry `n` of the session's queue is the message of this place."""
        cdef Member member
        cdef Entry* e
        if self.restored_places is not None:
            self.restored_places.pop(place, None)
        self.next_place = max(self.next_place, place + 1)
        for member in self.members:
            if member.session is session and session.queue.head <= n < session.tail:
                e = queue_entry(&session.queue, n)
                if e.state != ACKED and not e.flags & OF_GROUP:
                    e.flags |= OF_GROUP
                    e.identifiers = member.index
                    session.shares.put(session.queue.head, n, place)
                    member.given += 1

    def restored(self):
        """End the restore: the messages that wait are in the order of their places."""
        cdef Restored message
        self.kept = self.kept or self.settings.declared
        if self.failures is not None:
            self.prune_failures()
        places, self.restored_places = self.restored_places or {}, None
        for place in sorted(places):
            message = places[place]
            if self.has_failed(place):
                self.take_dead(place, message_hold(message.message))
                continue
            self.wait(place, message_hold(message.message), True)
        self.find_keys()
        if self.keys is not None:
            self.restored_keys = None


cdef class Begun(Held):
    """A message of QoS 2 for a clean session in a kept group: it is sent when the store has that it was given."""

    def __call__(self):
        cdef Member member = self.member
        cdef Group group = self.group
        member.given -= 1
        if group.keys is not None:
            group.keys.begin_ended(self.place)
            group.turn.schedule_send(group)
        if group.is_empty():                      # the group has ended
            group.turn.counters[SHARED_DISCARDED] += 1
            return
        if member.group is None or member.session.outlet is None:
            group.take_back(self.place, message_hold(self.message), True)
            return
        member.given += 1
        put_entry(member.session, member, self.place, self.message, self.flags)


cdef uint32_t key_of(GroupSettings settings, const Publication* publication) except? 0:
    """The key of a message: a hash of its topic name, or of its publisher's client identifier."""
    cdef bytes name
    if settings.strategy_number == BY_TOPIC:
        return hash_of(publication.topic, publication.topic_length)
    if publication.publisher == NULL or publication.publisher == <void*>None:
        return 1                                  # the broker itself, a will, or an analytics job
    publisher = <object>publication.publisher
    name = (<Subscriber>publisher).client_id if isinstance(publisher, Subscriber) else publisher
    return hash_of(name, len(name))


# ---- the queue of a member's session ----

cdef uint64_t put_entry(Session session, Member member, uint64_t place, Message* message, uint8_t flags) except 0:
    """Put a message of the group into the queue of the session; returns its queue number."""
    cdef uint64_t n = session.tail
    if queue_grow(&session.queue, n) < 0:
        raise MemoryError
    session.shares.put(session.queue.head, n, place)
    queue_entry(&session.queue, n)[0] = Entry(message_hold(message), 0, flags | OF_GROUP, WAITING, member.index)
    if session.recorded():
        session.turn.journal.queued(session, session.session_id, n, message, flags, member.properties,
                                    len(member.properties))
        session.turn.await_commit(session)
    session.tail += 1
    count_queued(session, 1, message_size(message))
    session.turn.schedule_send(session)
    return n


cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL:
    """Take an entry out of the session's queue, as if it were done; its reference passes to the caller."""
    cdef Message* message = e.message
    if e.state == SENT:
        count_inflight(session, -<int64_t>session.in_flight(n, e))
    count_queued(session, -1, -message_size(message))
    e[0] = Entry(NULL, 0, e.flags & QOS, ACKED, 0)
    queue_skip_acked(&session.queue, session.tail)
    return message


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=0) except -1:
    """Give an entry back to its group. `code`: of the client's refusal, 0 = it has not refused it."""
    cdef Member member = <Member>session.shares.items[e.identifiers]
    cdef Group group = member.group
    cdef uint64_t place = session.shares.places[n & session.shares.mask]
    cdef uint8_t qos = e.flags & QOS
    cdef bint was_sent = e.state != WAITING or e.flags & DUP
    cdef Message* message = take_entry(session, n, e)
    if session.recorded():
        session.turn.journal.entry(j.DONE, session, session.session_id, n)
    if was_sent:
        group.note_failure(place, code, session.client_id)
    member.returned(place, message, qos)
    return group.record_failure(place) if was_sent else 0


cdef int release_entry(Session session, Member member, uint64_t n, Entry* e) except -1:
    """The entry is the session's own from now on: it does not go back to the group."""
    cdef Py_ssize_t size = len(member.properties)
    member.group.forget_failures(session.shares.places[n & session.shares.mask])
    if member.group.kept and e.flags & QOS == 1 and not session.recorded() and not session.restoring:
        member.group.record_done(session.shares.places[n & session.shares.mask])
    member.group.key_done(session.shares.places[n & session.shares.mask])
    e.flags &= ~<uint8_t>OF_GROUP
    e.identifiers = session.identifier_set(member.properties, size) if size and e.message != NULL else 0
    return 0


def has_given(Session session not None):
    """Whether the session has messages of groups."""
    cdef Member member
    if session.shares is not None:
        for member in session.shares.items:
            if member is not None and member.given:
                return True
    return False


cdef int give_back_unsent(Member member) except -1:
    """Give back the messages of the group that the session has never sent."""
    cdef Session session = member.session
    cdef uint64_t n = session.queue.head
    cdef Entry* e
    while member.given and n < session.tail:
        e = queue_entry(&session.queue, n)
        if e.flags & OF_GROUP and e.identifiers == member.index and e.state == WAITING and not e.flags & DUP:
            give_back(session, n, e)
        n = max(n + 1, session.queue.head)
    return 0


def give_back_sent(Session session not None):
    """Give back the messages of QoS 1 that the session got from groups: it stays away. Returns their number."""
    cdef uint64_t n = session.queue.head
    cdef Entry* e
    cdef int count = 0
    while session.shares is not None and session.outlet is None and n < session.tail:
        e = queue_entry(&session.queue, n)
        if e.flags & OF_GROUP and e.flags & QOS == 1 and e.state != ACKED:
            give_back(session, n, e)
            count += 1
        n = max(n + 1, session.queue.head)
    return count


cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, bint counts) except -1:
    """Entry `n` of the queue is from this group, with this place; `counts`: its member does not count it yet."""
    cdef Member member
    cdef Entry* e
    if session.shares is None or not session.queue.head <= n < session.tail:
        return 0
    e = queue_entry(&session.queue, n)
    if e.message == NULL or e.state == ACKED or e.flags & OF_GROUP:
        return 0
    for member in session.shares.items:
        if member is not None and member.group.client_id == name:
            e.flags |= OF_GROUP
            e.identifiers = member.index
            session.shares.put(session.queue.head, n, place)
            member.given += counts
    return 0


cdef int forget_given(Session session, bytes name) except -1:
    """A message that was given to the session did not arrive in its queue."""
    cdef Member member
    if session.shares is not None:
        for member in session.shares.items:
            if member is not None and member.group.client_id == name and member.given:
                member.given -= 1
    return 0
