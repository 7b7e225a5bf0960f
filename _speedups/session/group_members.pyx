"""The members of a shared subscription: their part of the queues of sessions, and the rotation among them.

A message that is given to a member is an entry of the queue of its session (`membership.pyx`). It comes back to its
old place if the member's connection ends before the message was sent, or before a clean session has acknowledged it, or
if a persistent session stays away (`give_back_sent`). QoS 2 is different: a message that was sent to a member goes to
no other [5: MQTT-4.8.2-4, 5].

A message of QoS 0 goes to the next member that is connected (`choose`). For others there is a ring of the members that
have room, so that a group with many members that are busy finds one that is not at once.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..base.buffers cimport buffer_size
from ..codec.publish cimport properties_size, publish_remaining, publish_size
from ..codec.tenants cimport tenant_size
from . cimport journal as j
from .counters cimport SHARED_DISCARDED
from .group_keys cimport hash_of
from .group_queue cimport GroupQueue
from .group_settings cimport BY_TOPIC, ROTATION, GroupSettings
from .membership cimport Membership
from .message cimport Message, Publication, message_size
from .outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, SENT, WAITING, Entry, queue_entry, queue_skip_acked,
)
from .rights cimport MAY_READ
from .session cimport Session
from .session_queue cimport count_inflight, count_queued
from .subscriber cimport FLUSH_EARLY, SHARED, Subscriber
from .turn cimport Outlet, Turn

cdef inline bint fits(Outlet outlet, Py_ssize_t identifiers_size, Py_ssize_t topic_length, Py_ssize_t payload_length,
                      uint8_t qos, int64_t expires, Py_ssize_t properties_length) noexcept:
    """Whether the packet is not too large for the client [5: MQTT-3.1.2-24]."""
    return outlet.level < 5 or publish_size(
        publish_remaining(topic_length, payload_length, 2 if qos else 0)
        + <uint32_t>properties_size(expires != 0, 0, identifiers_size, properties_length)) <= <Py_ssize_t>outlet.largest


@cython.final
cdef class Member(Membership):
    """The membership of a session in a group."""

    def __init__(self, GroupMembers group not None, Session session not None):
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

    cdef uint32_t room(self) noexcept:
        """Messages that it takes now: fewer than its window, and no more than its session would send at once.

        One that waited in the session would be lost with a clean session although no client had seen it.
        """
        if self.group is None or self.group.settings.paused or self.given >= self.group.settings.window:
            return 0
        return min(self.group.settings.window - self.given, self.session.room())

    cdef uint32_t whole_room(self) noexcept:
        """Messages that it takes when it has none."""
        if self.group is None or self.group.settings.paused or self.session.outlet is None:
            return 0
        return min(self.group.settings.window, self.session.turn.limits.max_inflight,
                   <uint32_t>self.session.outlet.receive_maximum)

    cdef int set_options(self, uint8_t options, uint32_t identifier) except -1:
        Membership.set_options(self, options, identifier)
        self.steady = 0                           # Redis has to be sent them, too
        return self.group.room_changed()

    cdef bint may_take(self, const Message* message) except -1:
        """Whether its client may read the message, and takes a packet of its size."""
        cdef Session session = self.session
        cdef uint8_t qos
        if session.rights is not None and not session.rights.may(message.data, message.topic_length, MAY_READ):
            return False
        if session.outlet is None:
            return True
        qos = min(message.qos, <uint8_t>(self.options & MAXIMUM_QOS))
        return fits(session.outlet, len(self.properties),
                    message.topic_length - tenant_size(message.data, message.topic_length),
                    message.payload_length, qos, message.expires, message.properties_length)

    cdef int attached(self) except -1:
        cdef GroupMembers group = self.group
        self.room_known = self.steady = 0
        self.total = -1
        if not self.listed:
            self.listed = True
            group.connected.append(self)
        if group.aside or group.keys is not None:
            group.recall()
        return self.has_sent()

    cdef int detached(self) except -1:
        cdef GroupMembers group = self.group
        group.unlist(self)
        group.make_unready(self)
        group.room_changed()
        if self.session.kind == SHARED:           # Redis gives back what is in its queue
            self.given = 0
            return group.hold_keys(self)
        return give_back_unsent(self)

    cdef int has_sent(self) except -1:
        if not self.ready and self.room():
            self.group.make_ready(self)
        return 0

    cdef int rights_changed(self) except -1:
        if self.group.aside or self.group.keys is not None:
            self.group.recall()
        if self.session.kind == SHARED:           # unsent messages go back when it is their turn, see `withheld`
            return self.group.room_changed()
        return give_back_unsent(self)

    cdef int finished(self, uint64_t place, uint8_t qos) except -1:
        cdef GroupMembers group = self.group
        self.given -= 1
        if group.failures is not None:
            group.forget_failures(place)
        if group.kept and qos == 1 and not self.session.recorded() and not self.session.restoring:
            group.record_done(place)
        group.member_done(self, place)
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

    cdef int withheld(self, uint64_t n) except -1:
        return self.group.take_refused(self, n, 0)

    cdef int returned(self, uint64_t place, Message* message, uint8_t qos) except -1:
        """The session gives the message back, with its reference; it was to be sent with this QoS."""
        self.given -= 1
        return self.group.take_back(place, message, self.session.recorded() or qos == 2)


@cython.no_gc_clear                       # as for Session: the end of the group subtracts from the totals of `turn`
cdef class GroupMembers(GroupQueue):
    """A queue with members, of which there are none.

    Args:
        turn: of the node.
        number: the group's id in the journal.
        name: the share name and the topic filter, with `$share/`.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes name not None):
        GroupQueue.__init__(self, turn, name)
        self.session_id = number
        self.members = []
        self.connected = []

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
        cdef uint64_t n
        cdef Entry* e
        self.unlist(member)
        self.make_unready(member)
        self.members.remove(member)
        for n in entries_of(member):
            e = queue_entry(session.queue, n)
            if session.restoring or session.kind == SHARED:
                release_entry(session, member, n, e)
            elif e.state == WAITING and not e.flags & DUP:
                give_back(session, n, e)
            elif not session_ends:
                release_entry(session, member, n, e)
            elif e.flags & QOS == 1:
                give_back(session, n, e)
            else:
                if e.state != GOT_PUBREC:         # else the client has it
                    self.turn.counters[SHARED_DISCARDED] += 1
                release_entry(session, member, n, e)
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

    # ---- rotation ----

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
            if not fits(outlet, len(member.properties), publication.topic_length - publication.hidden,
                        publication.payload_length, 0, publication.expires, publication.properties_length):
                continue
            return member
        return None

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

    cdef int room_changed(self) except -1:
        """The room of a member has changed; for groups of a cluster."""
        return 0

    cdef int member_done(self, Member member, uint64_t place) except -1:
        """The member is done with a message: others with its key may follow."""
        return self.key_done(place)

    cdef int hold_keys(self, Member member) except -1:
        """The member has a persistent session, which leaves this node; for groups of a cluster."""
        return 0

    cdef int hold_key(self, uint64_t place) except -1:
        """The message did not arrive in the queue of a persistent session; for groups of a cluster."""
        return 0

    cdef int note_key_of(self, Member member, uint64_t place, uint32_t hash, uint64_t failures) except -1:
        """The member's session has this message in its queue; for groups of a cluster."""
        return 0

    cdef bint someone_takes(self, const Message* message) except -1:
        """Whether a member, with room or without, may take the message."""
        cdef Member member
        for member in self.members:
            if member.may_take(message):
                return True
        return False

    # ---- messages that come back ----

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        """A message comes back from a member, with its reference. `record`: the journal does not have it here."""
        if record and self.kept:
            self.record_queued(place, message)
        return self.come_back(place, message)

    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1:
        """The client refuses the entry `n` of its queue, or may not read it, with code 0: it comes back."""
        return give_back(member.session, n, queue_entry(member.session.queue, n), code)

    # ---- the messages, see group.pyx ----

    cdef int come_back(self, uint64_t place, Message* message) except -1:
        """Take a message that a member had, to its old place; takes over the reference."""
        raise NotImplementedError

    cdef int record_key(self, uint64_t place) except -1:
        """Write the key of a message to the journal, unless it follows from its topic name."""
        raise NotImplementedError

    cdef int keep(self) except -1:
        """Write the group and its messages to the journal from now on."""
        raise NotImplementedError

    cdef int stop_keeping(self, bint records) except -1:
        """The last member with a persistent session has left."""
        raise NotImplementedError


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

cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL:
    """Take an entry out of the session's queue, as if it were done; its reference passes to the caller."""
    cdef Message* message = e.message
    if e.state == SENT:
        count_inflight(session, -<int64_t>session.in_flight(n, e))
    count_queued(session, -1, -message_size(message))
    e[0] = Entry(NULL, 0, e.flags & QOS, ACKED, 0, 0)
    queue_skip_acked(session.queue, session.tail)
    return message


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=0) except -1:
    """Give an entry back to its group. `code`: of the client's refusal, 0 = it has not refused it."""
    cdef Member member = <Member>session.shares.items[e.identifiers]
    cdef GroupMembers group = member.group
    cdef uint64_t place = session.shares.places[n & session.shares.mask]
    cdef uint8_t qos = e.flags & QOS
    cdef bint was_sent = e.state != WAITING or e.flags & DUP
    cdef uint32_t size = e.size
    cdef Message* message = take_entry(session, n, e)
    if session.recorded():
        session.turn.journal.entry(j.DONE, session, session.session_id, n, size)
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
    member.group.member_done(member, session.shares.places[n & session.shares.mask])
    e.flags &= ~<uint8_t>OF_GROUP
    e.identifiers = 0                             # it was the number of the membership
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


cdef list entries_of(Member member):
    """The queue numbers of the group's messages that the member has and has not acknowledged."""
    cdef Session session = member.session
    cdef uint64_t n
    cdef Entry* e
    cdef list found = []
    for n in range(session.queue.head, session.tail):
        e = queue_entry(session.queue, n)
        if e.flags & OF_GROUP and e.identifiers == member.index and e.state != ACKED:
            found.append(n)
    return found


cdef int give_back_unsent(Member member) except -1:
    """Give back the messages of the group that the session has never sent."""
    cdef Session session = member.session
    cdef uint64_t n
    cdef Entry* e
    if member.given:
        for n in entries_of(member):
            e = queue_entry(session.queue, n)
            if e.state == WAITING and not e.flags & DUP:
                give_back(session, n, e)
    return 0


def give_back_sent(Session session not None):
    """Give back the messages of QoS 1 that the session got from groups: it stays away. Returns their number."""
    cdef Member member
    cdef uint64_t n
    cdef Entry* e
    cdef int count = 0
    if session.shares is None or session.outlet is not None:
        return 0
    for member in session.shares.items:
        for n in entries_of(member) if member is not None else ():
            e = queue_entry(session.queue, n)
            if e.flags & QOS == 1:
                give_back(session, n, e)
                count += 1
    return count


cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, object counted_by, int64_t key=-1,
                    uint64_t failures=0) except -1:
    """Entry `n` of the queue is from this group, with this place.

    `counted_by`: the member that counts it already, which may have left since; None: there is none.
    `key`: the hash of its key; -1: it has none, or the group knows it.
    `failures`: as for `restore_failed`.
    """
    cdef Member member
    cdef Entry* e
    if session.shares is None or not session.queue.head <= n < session.tail:
        return 0
    e = queue_entry(session.queue, n)
    if e.message == NULL or e.state == ACKED or e.flags & OF_GROUP:
        return 0
    for member in session.shares.items:
        if member is not None and member.group.client_id == name:
            e.flags |= OF_GROUP
            e.identifiers = member.index
            session.shares.put(session.queue.head, n, place)
            member.given += member is not counted_by
            if key >= 0:
                member.group.note_key_of(member, place, <uint32_t>key, failures)
    return 0


cdef int forget_given(Member member, uint64_t place) except -1:
    """A message that was given to the member did not arrive in the queue of its session."""
    member.given -= member.given > 0
    return 0 if member.group is None else member.group.hold_key(place)
