"""The state of one client id: subscriptions, queue, packets in flight.

Owns the windows and the QoS 1 and 2 states of messages to the client. It has no socket and no clock (the turn's tick is
its time). Its queue is `session_queue.pyx`, with `session_limits.pyx`; its records in the store are written and read by
`session_store.pyx`.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..base.buffers cimport buffer_size
from ..codec.publish cimport FLAG_DUP, FLAG_RETAIN, PUBLISH_QOS_0
from ..codec.tables cimport CODE_PACKET_IDENTIFIER_NOT_FOUND, CODE_UNSPECIFIED
from . cimport journal as j
from .counters cimport DELIVERY_DENIED, EXPIRED, REDELIVERED, REFUSED_BY_RECEIVER
from .subscription_identifiers cimport forget_identifier_sets, identifier_set
from .message cimport (
    Message, Publication, message_hold, message_payload, message_properties, message_release, message_size,
)
from .message_writer cimport write_message
from .outgoing_queue cimport (
    DUP, GOT_PUBREC, NEVER_EXPIRES, OF_GROUP, PACKET_IDS, QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE, SENT,
    STORED_FLAGS, WAITING, Entry, packet_id_of, queue_entry, queue_in_flight, queue_unsent,
)
from .rights cimport MAY_READ, Rights
from .session_limits cimport drop_expired, drop_one, is_over
from .session_queue cimport (
    NO_QUEUE, QueueLimits, SessionQueue, count_inflight, count_queued, get_limits, make_room,
)
from .subscriber cimport KEEP_RETAIN, SHARED, Plan, Receiver
from .turn cimport Outlet

cdef enum:
    PUBREL = 0x62              # first byte
    SEND_BYTES = 131072        # bytes of output up to which a session sends in one turn
    PULLS_MAX = 4096           # steps of a source in one turn


cdef class MessageSource:
    """A sequence of messages that a session pulls when its queue has room."""

    cdef int pull(self, Session session) except -1:
        """Enqueue or send one more message, if the queue has room for it; a value of Pulled."""
        return SOURCE_ENDED


@cython.no_gc_clear                       # as for SessionQueue
cdef class Session(SessionQueue):
    """A session, new and empty; the arguments are as of SessionQueue."""

    @property
    def connected(self):
        """Whether the session has a live connection."""
        return self.outlet is not None

    @property
    def subscriptions_held(self):
        """Number of subscriptions, the shared ones included."""
        return self.subscription_count + (self.shares.count if self.shares is not None else 0)

    @property
    def loading(self):
        """Whether the queue is being restored."""
        return self.restoring

    @property
    def next_number(self):
        """The queue number that the next message gets."""
        return self.tail

    @property
    def sources_waiting(self):
        """Number of message sources that are not exhausted."""
        return len(self.outlet.sources) if self.outlet is not None and self.outlet.sources is not None else 0

    def set_rights(self, Rights rights):
        """Set the topics that the client may publish and read; None = all. Returns True if the rights changed.

        If they changed and the session has subscriptions, the caller must call `SubscriptionTree.forget_plans`.
        """
        changed = rights != self.rights
        self.rights = rights
        if changed and self.shares is not None:
            self.shares.rights_changed()
        return changed

    # ---- messages to the client ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef uint8_t flags = publication.qos if publication.qos < receiver.qos else receiver.qos
        if publication.forwarded and self.kind == SHARED:
            return 1                              # the node that accepted the message has queued it in Redis
        if receiver.flags & KEEP_RETAIN and publication.retain:
            flags |= RETAIN_AS_PUBLISHED
        self.enqueue(publication.message, flags, plan.identifiers + receiver.identifiers_at, receiver.identifiers_size)
        return 1

    cdef int enqueue(self, Message* message, uint8_t flags, const uint8_t* identifiers, Py_ssize_t n) except -1:
        """Queue a message. At the limits the policy selects the message to drop.

        Args:
            message: the session takes a reference.
            flags: QoS to send it with, RETAINED_MESSAGE if it was pulled from a source, RETAIN_AS_PUBLISHED.
            identifiers: `n` bytes of properties, the identifiers of the subscriptions that it matched.
        """
        cdef Entry* e
        cdef QueueLimits limits
        cdef Py_ssize_t size = message_size(message)
        if self.kind == SHARED:
            self.pending += self.outlet is not None
            self.trace("queued", message, flags & QOS, "in Redis")
            return self.turn.journal.queued(self, self.session_id, 0, message, flags, identifiers, n)
        # A retained message is pulled only while there is room. Its exact size is not checked: it would be lost.
        get_limits(self, &limits)
        while not flags & RETAINED_MESSAGE and is_over(self, &limits, size):
            if drop_expired(self):
                continue
            self.turn.queue_is_full(self.client_id)
            if not limits.drop_oldest or not drop_one(self):
                self.trace("dropped", message, flags & QOS, "the queue is full")
                return 0
        make_room(self)
        e = queue_entry(self.queue, self.tail)
        e[0] = Entry(message_hold(message), 0, flags, WAITING,
                     identifier_set(self.queue, self.tail, identifiers, n) if n else 0, 0)
        self.trace("queued", message, flags & QOS, "" if self.outlet is not None else "until the client is back")
        if self.recorded():
            self.turn.journal.queued(self, self.session_id, self.tail, message, flags, identifiers, n)
            self.turn.await_commit(self)
        self.tail += 1
        count_queued(self, 1, size)
        self.note_expiry(message)
        if self.outlet is not None:
            self.turn.schedule_send(self)
        return 0

    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags, bytes identifiers, Py_ssize_t size,
                    bint of_group) except -1:
        """Add a message that has queue number `n`; `flags` are EntryFlags. A repeated number is ignored.

        `identifiers`: subscription identifiers of the matching filters, as properties. `size`: bytes of the entry in
        Redis. `of_group`: it is from a shared subscription, whose window is its limit here: dropped, no other
        subscriber would get it.
        """
        cdef Entry* e
        cdef QueueLimits limits
        # Accepted from the first restored part of the queue until the client leaves; CONNACK may still be pending.
        if self.queue.head == 0 or (self.owner is None and self.outlet is None and not self.restoring):
            return 0
        if n < self.tail and not (
                self.restoring and n >= self.queue.head and queue_entry(self.queue, n).message == NULL):
            return 0
        if self.queue.head == self.tail:
            forget_identifier_sets(self.queue)
        e = self.restored_entry(n)
        e[0] = Entry(message_hold(message), 0, flags & STORED_FLAGS, WAITING,
                     identifier_set(self.queue, self.tail, identifiers, len(identifiers)) if identifiers else 0,
                     <uint32_t>size)
        count_queued(self, 1, message_size(message))
        self.note_expiry(message)
        get_limits(self, &limits)
        if limits.drop_oldest and not self.restoring and not of_group:
            while (self.queue.queued > limits.messages
                   or (self.queue.queued > 1 and self.queue.queued_bytes > limits.size)):
                if drop_expired(self):
                    continue
                if not drop_one(self):
                    break
                self.turn.queue_is_full(self.client_id)
        return self.turn.schedule_send(self)

    # ---- connections ----

    def attach(self, Outlet outlet not None, int level):
        """Attach a connection: everything unacknowledged is sent again, in order.

        PUBLISH packets that were sent get DUP and keep their packet identifiers. An entry with PUBREC gets PUBREL
        again [MQTT-4.4.0-1].
        """
        self.outlet = outlet
        self.level = level
        self.resend()
        if self.shares is not None:
            self.shares.attached()

    def detach(self):
        """Detach the connection, which has ended."""
        if self.outlet is not None:
            self.outlet.sources = None
            self.outlet = None
        self.drop_empty_queue()
        if self.shares is not None:
            self.shares.detached()

    def resend(self):
        """Send everything again that was sent and is not acknowledged."""
        cdef uint64_t n = self.queue.head
        cdef Entry* e
        if self.queue == &NO_QUEUE:
            self.turn.schedule_send(self)
            return
        while n < self.queue.next:
            e = queue_entry(self.queue, n)
            if e.state == SENT:
                e.state = WAITING
                e.flags |= DUP
            n += 1
        self.queue.sent = max(self.queue.sent, self.queue.next)
        self.queue.next = self.queue.head
        count_inflight(self, -<int64_t>self.queue.inflight)
        if self.level == 5:
            # Only PUBLISH waits for the window of the client's Receive Maximum [5: MQTT-3.3.4-8].
            n = self.queue.head
            while n < self.queue.sent and n < self.tail:
                if queue_entry(self.queue, n).state == GOT_PUBREC:
                    count_inflight(self, 1)
                    self.outlet.acknowledge(PUBREL, packet_id_of(n), False, 0, 0)
                n += 1
        self.turn.schedule_send(self)

    def resend_if_older(self, uint32_t ticks):
        """Send again if the oldest packet in flight was sent at least `ticks` ago, as level 3 requires.

        Nothing is sent again while earlier output waits for the client to read it.
        """
        if (self.queue.inflight and self.turn.tick - queue_entry(self.queue, self.queue.head).sent_tick >= ticks
                and buffer_size(&self.outlet.out) == 0):
            self.resend()

    def pull_from(self, MessageSource source not None):
        """Also send the messages of `source` on the live connection, as room allows."""
        if self.outlet.sources is None:
            self.outlet.sources = []
        self.outlet.sources.append(source)
        self.turn.schedule_send(self)

    # ---- sending ----

    cdef uint64_t numbers_left(self) noexcept:
        """Queue numbers from `tail` on that may be sent before the oldest message is acknowledged."""
        return PACKET_IDS - 1 - min(<uint64_t>PACKET_IDS - 1, self.tail - min(self.queue.head, self.tail))

    cdef uint32_t room(self) noexcept:
        """Messages of QoS 1 and 2 that would be sent at once: the connection's window and its output have room."""
        cdef Outlet outlet = self.outlet
        cdef uint64_t taken, window, left
        if outlet is None or outlet.closed:
            return 0
        if buffer_size(&outlet.out) > SEND_BYTES:
            outlet.wants_room = True
            return 0
        taken = self.queue.inflight + queue_unsent(self.queue, self.tail) + self.pending
        window = min(self.turn.limits.max_inflight, <uint32_t>outlet.receive_maximum)
        left = self.numbers_left()
        return <uint32_t>min(window - min(window, taken), left - min(left, <uint64_t>self.pending))

    cdef int send_pending(self) except -1:
        """Send as many messages as the window, the store and the connection's output allow."""
        cdef Outlet outlet = self.outlet
        cdef Entry* e
        cdef uint64_t n
        cdef uint32_t window
        cdef int pulls = 0, pulled = SOURCE_GOES_ON
        if outlet is None or outlet.closed:
            return 0
        window = min(self.turn.limits.max_inflight, <uint32_t>outlet.receive_maximum)
        while True:
            if buffer_size(&outlet.out) > SEND_BYTES:
                outlet.wants_room = True
                return self.note_unsent()
            if (outlet.sources is not None and pulled != NO_ROOM
                    and queue_unsent(self.queue, self.tail) + self.pending < self.turn.limits.max_inflight
                    and self.queue.queued + self.pending < self.turn.limits.max_queued_messages
                    and self.queue.queued_bytes < self.turn.limits.max_queued_bytes):
                pulls += 1
                if pulls > PULLS_MAX:                # a long search must not delay other sessions
                    return self.turn.schedule_send(self)
                pulled = (<MessageSource>outlet.sources[0]).pull(self)
                if pulled == SOURCE_ENDED:
                    outlet.sources.pop(0)
                    if not outlet.sources:
                        outlet.sources = None
                continue
            n = self.queue.next
            if (n >= self.tail or n >= self.committed or self.queue.inflight >= window
                    or n - self.queue.head >= PACKET_IDS - 1):
                if self.shares is not None:
                    self.shares.sent()
                return self.note_unsent()
            self.queue.next = n + 1
            e = queue_entry(self.queue, n)
            if e.state == WAITING:
                if e.message.expires and e.message.expires <= self.turn.clock and not e.flags & DUP:
                    self.turn.counters[EXPIRED] += 1      # not begun: it is deleted [5: MQTT-3.3.2-5]
                    self.trace("dropped", e.message, e.flags & QOS, "it has expired")
                    self.finish(n)
                elif self.withheld(n, e):
                    continue
                elif self.may_not_read(e.message):
                    self.finish(n)
                else:
                    self.send_publish(n, e)
            elif e.state == GOT_PUBREC and self.level < 5:
                count_inflight(self, 1)
                outlet.acknowledge(PUBREL, packet_id_of(n), False, 0, 0)

    cdef int note_unsent(self) except -1:
        """Let the turn drop what expires before it can be sent, if Redis counts it, and note what has to wait."""
        if (self.queue.inflight and (self.queue.queued > self.queue.inflight or not self.numbers_left())
                and self.held_up_in != self.turn.held_up_round):
            self.held_up_in = self.turn.held_up_round
            self.turn.held_up.append(self.client_id)      # not the session, which would outlive its end
        if (self.kind == SHARED and self.queue.earliest != NEVER_EXPIRES
                and queue_unsent(self.queue, self.tail)):
            if self.turn.expiring is None:
                self.turn.expiring = set()
            self.turn.expiring.add(self)
        return 0

    cdef int drop_unsent(self) except -1:
        if self.outlet is not None:
            drop_expired(self)
            self.note_unsent()
        return 0

    cdef bint withheld(self, uint64_t n, const Entry* e) except -1:
        """Whether an entry went back to its group: the client may not read it any more, and has not got it."""
        cdef Message* m = e.message
        if (e.flags & (OF_GROUP | DUP) != OF_GROUP or self.rights is None
                or self.rights.may(m.data, m.topic_length, MAY_READ)):
            return False
        self.shares.withheld(n, e.identifiers)
        return True

    cdef bint may_not_read(self, Message* m, bint sends=True) except -1:
        """Whether the client may not read the message; counts a denial. The hook is called only just before sending."""
        if self.rights is not None and not self.rights.may(m.data, m.topic_length, MAY_READ):
            self.trace("dropped", m, m.qos, "the client may not read it")
        elif sends and self.turn.deliver_hook is not None and not self.turn.deliver_hook(
                self, m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos, m.retain,
                message_properties(m)[:<Py_ssize_t>m.properties_length]):
            self.trace("dropped", m, m.qos, "a hook keeps it from the client")
        else:
            return False
        self.turn.counters[DELIVERY_DENIED] += 1
        return True

    cdef int send_publish(self, uint64_t n, Entry* e) except -1:
        cdef Message* m = e.message
        cdef uint8_t retain = e.flags & (
            RETAINED_MESSAGE | RETAIN_AS_PUBLISHED if self.outlet.keeps_retain else RETAINED_MESSAGE)
        if not self.put_publish(
                m, PUBLISH_QOS_0 | (FLAG_DUP if e.flags & DUP else 0) | (e.flags & QOS) << 1
                | (FLAG_RETAIN if retain else 0), packet_id_of(n), self.identifiers_of(e)):
            return self.finish(n)
        if e.flags & DUP:
            self.turn.counters[REDELIVERED] += 1
        self.trace("sent", m, e.flags & QOS, "again, with DUP" if e.flags & DUP else "")
        e.state = SENT
        e.sent_tick = self.turn.tick
        count_inflight(self, 1)
        return 0

    cdef bint put_publish(self, const Message* m, uint8_t first_byte, uint16_t packet_id, bytes identifiers) except -1:
        """Write a PUBLISH. False: the client takes no packet of its size; it counts as delivered [5: MQTT-3.1.2-25]."""
        if not write_message(self.outlet, m, first_byte, packet_id, identifiers):
            self.trace("dropped", m, first_byte >> 1 & 3, "the client takes no packet of its size")
            return False
        if self.tenant is not None:
            self.tenant.sent += 1
            self.tenant.sent_bytes += m.payload_length
        return True

    # ---- acknowledgements of the client ----

    cdef bint puback(self, uint16_t packet_id, uint8_t code) except -1:
        """Handle PUBACK. Returns False if it answers a QoS 2 message, which is a protocol error."""
        cdef uint64_t n
        cdef Entry* e = queue_in_flight(self.queue, self.tail, packet_id, &n)
        if e == NULL:
            return True                           # late or repeated: harmless
        if e.flags & QOS != 1:
            return False
        if code >= CODE_UNSPECIFIED:
            if self.gave_back(n, e, code):
                return True
            self.turn.counters[REFUSED_BY_RECEIVER] += 1
        self.trace("acknowledged", e.message, 1, "PUBACK" if code < CODE_UNSPECIFIED else "PUBACK with a failure")
        count_inflight(self, -<int64_t>self.in_flight(n, e))
        self.finish(n)
        self.turn.schedule_send(self)
        return True

    cdef bint pubrec(self, uint16_t packet_id, uint8_t code) except -1:
        """Handle PUBREC: PUBREL is sent once it is stored. Returns False if it answers a QoS 1 message.

        A failure ends the exchange, and no PUBREL follows [5: 4.3.3].
        """
        cdef uint64_t n
        cdef Entry* e = queue_in_flight(self.queue, self.tail, packet_id, &n)
        cdef bint fresh = e != NULL and e.state != GOT_PUBREC
        if fresh and e.flags & QOS != 2:
            return False
        if code >= CODE_UNSPECIFIED:
            if e != NULL:
                if fresh and self.gave_back(n, e, code):
                    return True
                self.turn.counters[REFUSED_BY_RECEIVER] += 1
                if fresh:
                    self.trace("acknowledged", e.message, 2, "PUBREC with a failure")
                count_inflight(self, -<int64_t>self.in_flight(n, e))
                self.finish(n)
                self.turn.schedule_send(self)
            return True
        if fresh:
            if self.level == 5 and n >= self.queue.next:
                count_inflight(self, 1)
            e.state = GOT_PUBREC
            self.trace("acknowledged", e.message, 2, "PUBREC")
            count_queued(self, 0, -message_size(e.message))
            message_release(e.message)
            e.message = NULL
            e.sent_tick = self.turn.tick
            if self.recorded():
                self.turn.journal.entry(j.RECEIVED, self, self.session_id, n, 0 if e.flags & OF_GROUP else e.size)
                e.size = e.size if e.flags & OF_GROUP else 0     # a group may need to know its message
        # An unknown identifier is answered too, so that the client can complete its half [MQTT-4.3.3-1].
        self.outlet.acknowledge(PUBREL, packet_id, fresh and self.recorded(),
                                CODE_PACKET_IDENTIFIER_NOT_FOUND if e == NULL else 0, 0)
        return True

    cdef bint gave_back(self, uint64_t n, Entry* e, uint8_t code) except -1:
        """The client has refused an entry. Whether it was a shared subscription's, which has taken it back."""
        if not e.flags & OF_GROUP or not self.shares.refused(n, e.identifiers, code):
            return False
        self.turn.schedule_send(self)
        return True

    cdef bint pubcomp(self, uint16_t packet_id) except -1:
        """Handle PUBCOMP. Returns False if no PUBREC preceded it."""
        cdef uint64_t n
        cdef Entry* e = queue_in_flight(self.queue, self.tail, packet_id, &n)
        if e == NULL or e.state == WAITING:
            return True
        if e.state != GOT_PUBREC:
            return False
        count_inflight(self, -<int64_t>self.in_flight(n, e))
        self.finish(n)
        self.turn.schedule_send(self)
        return True
