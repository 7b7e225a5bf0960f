"""The state of one client id: subscriptions, queue, packets in flight.

Owns queue numbers, packet identifiers, windows and the QoS 1 and 2 states of both directions. It has no socket and no
clock (the turn's tick is its time). Changes that must survive a restart are recorded in the turn's journal.

Queue numbers are packet identifiers: the n-th message of a session (from 1) is always sent with packet identifier
(n - 1) mod 65535 + 1. Identifiers, order and DUP thus survive a crash of the node without further state. An entry
leaves the queue when it is acknowledged; an entry acknowledged out of order waits as ACKED for the entries before it.
At most 65534 entries lie between the oldest unacknowledged and the newest sent entry, so identifiers are unique.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t

import struct

from _speedups.session cimport journal as j
from _speedups.session.rights cimport MAY_READ, Rights
from _speedups.base.buffers cimport buffer_size
from _speedups.codec.publish cimport (
    FLAG_DUP, FLAG_RETAIN, PUBLISH_QOS_0, properties_size, publish_remaining, publish_size, write_properties,
    write_publish,
)
from _speedups.codec.tables cimport CODE_PACKET_IDENTIFIER_NOT_FOUND, CODE_UNSPECIFIED
from _speedups.session.incoming_qos2 cimport (
    Awaiting, incoming_add, incoming_find, incoming_free, incoming_places, incoming_remove,
)
from _speedups.session.membership cimport Membership
from _speedups.session.message cimport (
    Message, Publication, message_hold, message_new, message_payload, message_properties, message_release,
    message_size, publication_of, seconds_left,
)
from _speedups.session.counters cimport (
    DELIVERY_DENIED, DROPPED_QUEUE_FULL, EXPIRED, PACKETS_SENT, PUBLISH_BYTES_SENT, PUBLISH_SENT, REDELIVERED,
    REFUSED_BY_RECEIVER, TOO_LARGE,
)
from _speedups.session.outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, OF_GROUP, PACKET_IDS, QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE, SENT, STORED_FLAGS, WAITING, Entry,
    packet_id_of, queue_entry, queue_free, queue_in_flight, queue_skip_acked, queue_unsent,
)
from _speedups.session.subscriber cimport KEEP_RETAIN, LOCAL, SHARED, Plan, Receiver, Subscriber
from _speedups.session.topic_aliases cimport ALIAS_ROOM, alias_of
from _speedups.session.turn cimport Outlet, Sender, Turn

from _speedups.session.journal import DamagedBlock

cdef enum:
    PUBREL = 0x62              # first byte
    SEND_BYTES = 131072        # bytes of output up to which a session sends in one turn
    GAP_MAX = 1 << 24          # queue numbers that a store may skip
    ACKED_MAX = PACKET_IDS     # entries that may wait as ACKED
    PULLS_MAX = 4096           # steps of a source in one turn
    IDENTIFIER_SETS_MAX = 4096 # sets of subscription identifiers in a queue; past it messages get none

NO_QUEUE.head = NO_QUEUE.next = NO_QUEUE.sent = <uint64_t>-1


cdef class MessageSource:
    """A sequence of messages that a session pulls when its queue has room."""

    cdef int pull(self, Session session) except -1:
        """Enqueue or send one more message, if the queue has room for it; a value of Pulled."""
        return SOURCE_ENDED


@cython.no_gc_clear                       # the collector must not clear `turn`: `clear` subtracts from its totals
cdef class Session(Subscriber):
    """A session, new and empty.

    Args:
        turn: the node's turn.
        number: the session's id in the journal; never used twice in one store.
        client_id: UTF-8 bytes.
        persistent: whether the session outlives its connection (clean session 0).
        shared: the queue is in Redis, which numbers the messages; `arrive` adds them here.
        restoring: the session's records are read from the store until `restored`.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes client_id not None, *, bint persistent, int level=4,
                 bint restoring=False, bint shared=False):
        self.turn = turn
        self.session_id = number
        self.client_id = client_id
        self.persistent = persistent
        self.kind = SHARED if shared else LOCAL
        self.level = level
        self.restoring = restoring
        self.tail = 1                             # message identifiers start at 1
        self.committed = 1 if self.kind == LOCAL and self.recorded() else <uint64_t>-1

    def __cinit__(self):
        self.queue = &NO_QUEUE

    def __dealloc__(self):
        self.clear()

    cdef void clear(self) noexcept:
        """Release the queue and the messages that wait for PUBREL."""
        if self.queue != &NO_QUEUE:
            count_queued(self, -<int64_t>self.queue.queued, -<int64_t>self.queue.queued_bytes)
            count_inflight(self, -<int64_t>self.queue.inflight)
            queue_free(self.queue, self.tail)
            self.queue = &NO_QUEUE
        incoming_free(self.incoming)
        self.incoming = NULL
        self.pending = 0

    cdef int drop_empty_queue(self) noexcept:
        """Return the memory of an empty queue."""
        if self.queue != &NO_QUEUE and self.queue.head == self.tail:
            queue_free(self.queue, self.tail)
            self.queue = &NO_QUEUE
        return 0

    cdef bint recorded(self) noexcept:
        """Whether changes are written to the journal."""
        return self.persistent and self.turn.journal.epoch != 0 and not self.restoring

    def set_rights(self, Rights rights):
        """Set the topics that the client may publish and read; None = all. Returns True if the rights changed.

        If they changed and the session has subscriptions, the caller must call `SubscriptionTree.forget_plans`.
        """
        changed = rights != self.rights
        self.rights = rights
        if changed and self.shares is not None:
            self.shares.rights_changed()
        return changed

    @property
    def connected(self):
        """Whether the session has a live connection."""
        return self.outlet is not None

    @property
    def subscriptions_held(self):
        """Number of subscriptions, the shared ones included."""
        return self.subscription_count + (self.shares.count if self.shares is not None else 0)

    @property
    def queue_length(self):
        """QoS 1 and 2 messages that the client has not acknowledged."""
        return self.queue.queued

    @property
    def queue_capacity(self):
        """Entries that the queue has memory for."""
        return self.queue.mask + 1 if self.queue.entries != NULL else 0

    @property
    def queue_bytes(self):
        """Bytes of the topic names and payloads in the queue."""
        return self.queue.queued_bytes

    @property
    def sources_waiting(self):
        """Number of message sources that are not exhausted."""
        return len(self.outlet.sources) if self.outlet is not None and self.outlet.sources is not None else 0

    def entries(self):
        """The messages that the client has not acknowledged, oldest first.

        A list of (queue number, state, QoS, DUP, RETAIN, topic name, payload). The state is "waiting", "sent", or
        "pubrec" after PUBREC. The message is then released, and topic name and payload are None.
        """
        cdef uint64_t n = self.queue.head
        cdef Entry* e
        cdef Message* m
        cdef list found = []
        while n < self.tail:
            e = queue_entry(self.queue, n)
            m = e.message
            if e.state != ACKED:
                found.append((
                    n, ("waiting", "sent", "pubrec")[e.state], e.flags & QOS, e.flags & DUP != 0,
                    e.flags & RETAINED_MESSAGE != 0,
                    None if m == NULL else m.data[:m.topic_length],
                    None if m == NULL else message_payload(m)[:<Py_ssize_t>m.payload_length]))
            n += 1
        return found

    def awaited(self):
        """QoS 2 messages from the client that wait for PUBREL: a list of (packet identifier, topic name, payload)."""
        cdef uint32_t i
        cdef Message* m
        cdef list found = []
        for i in range(incoming_places(self.incoming)):
            m = self.incoming.items[i].message
            if m == NULL:
                continue
            found.append((self.incoming.items[i].packet_id, m.data[:m.topic_length],
                          message_payload(m)[:<Py_ssize_t>m.payload_length]))
        return found

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

    # ---- messages to the client ----

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef uint8_t flags = publication.qos if publication.qos < receiver.qos else receiver.qos
        if publication.forwarded and self.kind == SHARED:
            return 1                              # the node that accepted the message has queued it in Redis
        if receiver.flags & KEEP_RETAIN and publication.retain:
            flags |= RETAIN_AS_PUBLISHED
        self.enqueue(publication.message, flags, plan.identifiers + receiver.identifiers_at, receiver.identifiers_size)
        if self.turn.journal.full and publication.repeatable:
            self.turn.seal()                      # the sessions so far get it even if this node dies before the rest
        return 1

    cdef int enqueue(self, Message* message, uint8_t flags, const uint8_t* identifiers, Py_ssize_t n) except -1:
        """Queue a message. At the limits the policy selects the message to drop.

        Args:
            message: the session takes a reference of its own.
            flags: QoS to send it with, RETAINED_MESSAGE if it was pulled from a source, RETAIN_AS_PUBLISHED.
            identifiers: `n` bytes of properties, the identifiers of the subscriptions that it matched.
        """
        cdef Entry* e
        cdef uint64_t size = <uint64_t>message_size(message)
        if self.kind == SHARED:
            self.pending += self.outlet is not None
            self.trace("queued", message, flags & QOS, "in Redis")
            return self.turn.journal.queued(self, self.session_id, 0, message, flags, identifiers, n)
        # A retained message is pulled only while there is room. Its exact size is not checked: it would be lost.
        while not flags & RETAINED_MESSAGE and (
                self.queue.queued >= self.turn.limits.max_queued_messages
                or (self.queue.queued and self.queue.queued_bytes + size > self.turn.limits.max_queued_bytes)):
            if self.drop_expired():
                continue
            self.turn.queue_is_full(self.client_id)
            if not self.turn.limits.drop_oldest or not self.drop_one():
                self.trace("dropped", message, flags & QOS, "the queue is full")
                return 0
        make_room(self)
        e = queue_entry(self.queue, self.tail)
        e[0] = Entry(message_hold(message), 0, flags, WAITING, self.identifier_set(identifiers, n) if n else 0)
        self.trace("queued", message, flags & QOS, "" if self.outlet is not None else "until the client is back")
        if self.recorded():
            self.turn.journal.queued(self, self.session_id, self.tail, message, flags, identifiers, n)
            self.turn.await_commit(self)
        self.tail += 1
        count_queued(self, 1, size)
        if self.outlet is not None:
            self.turn.schedule_send(self)
        return 0

    cdef uint16_t identifier_set(self, const uint8_t* identifiers, Py_ssize_t n) except? 0:
        """The number of a set of subscription identifiers, as encoded properties; 0: there are too many sets."""
        cdef bytes wanted = identifiers[:n]
        if self.identifier_sets is None or self.queue.head == self.tail:
            self.identifier_sets = [b""]
        if wanted in self.identifier_sets:
            return <uint16_t>self.identifier_sets.index(wanted)
        if len(self.identifier_sets) >= IDENTIFIER_SETS_MAX:
            return 0
        self.identifier_sets.append(wanted)
        return <uint16_t>(len(self.identifier_sets) - 1)

    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags, bytes identifiers) except -1:
        """Add a message that has queue number `n`; `flags` are EntryFlags. A repeated number is ignored.

        `identifiers` are those of the subscriptions that it matched, as properties.
        """
        cdef Entry* e
        # Accepted from the first restored part of the queue until the client leaves; CONNACK may still be pending.
        if self.queue.head == 0 or (self.owner is None and self.outlet is None and not self.restoring):
            return 0
        if n < self.tail and not (self.restoring and n >= self.queue.head and queue_entry(self.queue, n).message == NULL):
            return 0
        e = self.restored_entry(n)
        e[0] = Entry(message_hold(message), 0, flags & STORED_FLAGS, WAITING,
                     self.identifier_set(identifiers, len(identifiers)) if identifiers else 0)
        count_queued(self, 1, message_size(message))
        if self.turn.limits.drop_oldest and not self.restoring:
            while ((self.queue.queued > self.turn.limits.max_queued_messages
                    or (self.queue.queued > 1 and self.queue.queued_bytes > self.turn.limits.max_queued_bytes))
                   and self.drop_one()):
                self.turn.counters[DROPPED_QUEUE_FULL] += 1
        return self.turn.schedule_send(self)

    cdef bint drop_expired(self) except -1:
        """Drop the oldest message that has never been sent, if it has expired."""
        cdef uint64_t n = max(self.queue.next, self.queue.droppable)
        cdef Entry* e
        if n >= self.tail:
            return False
        e = queue_entry(self.queue, n)
        if e.state != WAITING or e.flags & DUP or e.message.expires == 0 or e.message.expires > self.turn.clock:
            return False
        self.turn.counters[EXPIRED] += 1
        self.trace("dropped", e.message, e.flags & QOS, "it has expired")
        self.finish(n)
        return True

    cdef bint in_flight(self, uint64_t n, const Entry* e) noexcept:
        """Whether the entry is counted as in flight on this connection."""
        return n < self.queue.next or (self.level == 5 and e.state == GOT_PUBREC)

    cdef bint drop_one(self) except -1:
        """Drop the oldest message that has never been sent; False when there is none.

        Dropped entries wait as ACKED for entries in flight, which stay. If those are not acknowledged, then nothing more
        can be dropped after a while.
        """
        cdef uint64_t n = max(self.queue.next, self.queue.droppable)
        if self.tail - self.queue.head > ACKED_MAX + <uint64_t>self.queue.queued:
            return False
        while n < self.tail and (queue_entry(self.queue, n).state != WAITING
                                 or queue_entry(self.queue, n).flags & (DUP | OF_GROUP)):
            n += 1
        self.queue.droppable = n                        # no entry before this one can become droppable again
        if n >= self.tail:
            return False
        self.trace("dropped", queue_entry(self.queue, n).message, queue_entry(self.queue, n).flags & QOS,
                   "the queue is full, and it was the oldest")
        self.finish(n)
        return True

    cdef int finish(self, uint64_t n) except -1:
        """Mark entry n as done and release its message."""
        cdef Entry* e = queue_entry(self.queue, n)
        if e.message != NULL:
            count_queued(self, 0, -message_size(e.message))
            message_release(e.message)
            e.message = NULL
        e.state = ACKED
        count_queued(self, -1, 0)
        if e.flags & OF_GROUP:
            self.shares.finished(n, e.identifiers, e.flags & QOS)
            e.flags &= ~<uint8_t>OF_GROUP
        if not self.restoring:                    # during restore, entries before this one may still be read
            queue_skip_acked(self.queue, self.tail)
        if self.recorded():
            self.turn.journal.entry(j.DONE, self, self.session_id, n)
        return 0

    cdef uint32_t room(self) noexcept:
        """Messages of QoS 1 and 2 that would be sent at once: the connection's window and its output have room."""
        cdef Outlet outlet = self.outlet
        cdef uint64_t taken, window
        if outlet is None or outlet.closed:
            return 0
        if buffer_size(&outlet.out) > SEND_BYTES:
            outlet.wants_room = True
            return 0
        taken = self.queue.inflight + queue_unsent(self.queue, self.tail) + self.pending
        window = min(self.turn.limits.max_inflight, <uint32_t>outlet.receive_maximum)
        return <uint32_t>(window - min(window, taken))

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
                return 0
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
                return 0
            self.queue.next = n + 1
            e = queue_entry(self.queue, n)
            if e.state == WAITING:
                if e.message.expires and e.message.expires <= self.turn.clock and not e.flags & DUP:
                    self.turn.counters[EXPIRED] += 1      # not begun: it is deleted [5: MQTT-3.3.2-5]
                    self.trace("dropped", e.message, e.flags & QOS, "it has expired")
                    self.finish(n)
                elif self.may_not_read(e.message):
                    self.finish(n)
                else:
                    self.send_publish(n, e)
            elif e.state == GOT_PUBREC and self.level < 5:
                count_inflight(self, 1)
                outlet.acknowledge(PUBREL, packet_id_of(n), False, 0, 0)

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

    cdef bytes identifiers_of(self, const Entry* e):
        """The subscription identifiers of an entry, as properties."""
        if e.flags & OF_GROUP:
            return (<Membership>self.shares.items[e.identifiers]).properties
        return self.identifier_sets[e.identifiers] if e.identifiers else b""

    cdef int trace(self, str step, const Message* message, int qos, str detail) except -1:
        """Report a step of the message to the tracer, if there is one."""
        if self.turn.tracer is not None:
            self.turn.tracer.note_message(step, self.client_id, message, qos, detail)
        return 0

    cdef int send_publish(self, uint64_t n, Entry* e) except -1:
        cdef Message* m = e.message
        cdef uint8_t retain = e.flags & (
            RETAINED_MESSAGE | RETAIN_AS_PUBLISHED if self.outlet.keeps_retain else RETAINED_MESSAGE)
        if not self.put_publish(
                m, PUBLISH_QOS_0 | (FLAG_DUP if e.flags & DUP else 0) | (e.flags & QOS) << 1 | (FLAG_RETAIN if retain else 0),
                packet_id_of(n), self.identifiers_of(e)):
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
        cdef Outlet outlet = self.outlet
        cdef uint32_t remaining = publish_remaining(m.topic_length, m.payload_length, first_byte & 6)
        cdef Py_ssize_t topic_length = m.topic_length
        cdef uint16_t alias = 0
        cdef bint in_place = False
        cdef uint8_t* properties
        if outlet.level == 5:
            remaining += <uint32_t>properties_size(m.expires != 0, 0, len(identifiers), m.properties_length)
            if publish_size(remaining) > <Py_ssize_t>outlet.largest:
                self.turn.counters[TOO_LARGE] += 1
                self.trace("dropped", m, first_byte >> 1 & 3, "the client takes no packet of its size")
                return False
            if outlet.aliases.maximum and publish_size(remaining) + ALIAS_ROOM <= <Py_ssize_t>outlet.largest:
                alias = alias_of(&outlet.aliases, m.data, topic_length, &in_place)
                if alias:
                    topic_length = 0 if in_place else topic_length
                    remaining = publish_remaining(topic_length, m.payload_length, first_byte & 6)
                    remaining += <uint32_t>properties_size(m.expires != 0, alias, len(identifiers), m.properties_length)
        properties = write_publish(outlet.reserve(publish_size(remaining)), first_byte, remaining, m.data,
                                   topic_length, packet_id, message_payload(m), m.payload_length)
        if outlet.level == 5:
            write_properties(properties, m.expires != 0, seconds_left(m.expires, self.turn.clock), alias, identifiers,
                             len(identifiers), message_properties(m), m.properties_length)
        self.turn.counters[PACKETS_SENT] += 1
        self.turn.counters[PUBLISH_SENT] += 1
        self.turn.counters[PUBLISH_BYTES_SENT] += m.payload_length
        return True

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
                self.turn.journal.entry(j.RECEIVED, self, self.session_id, n)
        # An unknown identifier is answered too, so that the client can complete its half [MQTT-4.3.3-1].
        self.outlet.acknowledge(PUBREL, packet_id, fresh and self.recorded(),
                                CODE_PACKET_IDENTIFIER_NOT_FOUND if e == NULL else 0, 0)
        return True

    cdef bint gave_back(self, uint64_t n, Entry* e, uint8_t code) except -1:
        """The client has refused an entry. Whether it was a shared subscription's, which has taken it back."""
        if not e.flags & OF_GROUP or not (<Membership>self.shares.items[e.identifiers]).refused(n, code):
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

    # ---- QoS 2 messages from the client ----

    cdef bint awaits(self, uint16_t packet_id) noexcept:
        """Whether a message with this packet identifier waits for PUBREL."""
        cdef Awaiting* found = incoming_find(self.incoming, packet_id)
        return found != NULL and found.message != NULL

    cdef int await_release(self, uint16_t packet_id, Message* message) except -1:
        """Keep a QoS 2 message until PUBREL; takes over the caller's reference."""
        if incoming_add(&self.incoming, packet_id, message) < 0:
            raise MemoryError
        if self.recorded():
            self.turn.journal.awaiting(self, self.session_id, packet_id, message)
        return 0

    cdef Message* release(self, uint16_t packet_id) except? NULL:
        """Handle PUBREL. Returns the message, whose reference passes to the caller, or NULL if none waits."""
        cdef Message* message = incoming_remove(self.incoming, packet_id)
        if message != NULL and self.recorded():
            self.turn.journal.entry(j.RELEASED, self, self.session_id, packet_id)
        return message

    # ---- store ----

    def record(self, bint connected):
        """Write the session to the journal: its level, its user, and whether it is connected."""
        cdef bytes data
        if self.kind == LOCAL and self.recorded():
            data = struct.pack("<QQ", min(self.queue.head, self.tail), self.first_unsent()) + self.client_id
            self.turn.journal.text(j.SESSION, self.session_id, self.level | connected << 7, data, len(data))
            if self.user is not None:
                data = self.user
                self.turn.journal.text(j.SESSION_USER, self.session_id, 0, data, len(data))

    cdef uint64_t first_unsent(self) noexcept:
        """The queue number below which all may have been sent."""
        return min(max(self.queue.sent, self.queue.next), self.tail)

    def record_gone(self):
        """Write the end of the session to the journal."""
        if self.kind == LOCAL and self.recorded():
            self.turn.journal.number(j.SESSION_GONE, self.session_id)

    def record_messages(self):
        """Write the queue and the QoS 2 states to the journal again."""
        cdef uint64_t n = self.queue.head
        cdef uint32_t i
        cdef Entry* e
        cdef bytes identifiers
        if not self.recorded():
            return
        while n < self.tail:
            e = queue_entry(self.queue, n)
            if e.message != NULL:
                identifiers = self.identifiers_of(e)
                self.turn.journal.queued(self, self.session_id, n, e.message, e.flags & STORED_FLAGS, identifiers,
                                         len(identifiers))
            elif e.state == GOT_PUBREC:
                self.turn.journal.entry(j.RECEIVED, self, self.session_id, n)
            if e.flags & OF_GROUP:
                (<Membership>self.shares.items[e.identifiers]).record_given(self.shares.places[n & self.shares.mask], n)
            n += 1
        for i in range(incoming_places(self.incoming)):
            if self.incoming.items[i].message != NULL:
                self.turn.journal.awaiting(self, self.session_id, self.incoming.items[i].packet_id, self.incoming.items[i].message)

    @property
    def loading(self):
        """Whether the queue is being restored."""
        return self.restoring

    @property
    def next_number(self):
        """The queue number that the next message gets."""
        return self.tail

    def load(self):
        """Prepare to restore the queue, until `restored`. Messages that arrive after `restore` are accepted too.

        Messages that arrive before `restore` are in the queue that is read.
        """
        self.clear()
        self.tail = 0
        begin_queue(self)
        self.restoring = True

    def unload(self):
        """Release the queue after the client left this node. Returns the `sent` limit that `restore` takes."""
        cdef uint64_t sent = self.first_unsent()
        if self.shares is not None:
            self.shares.detached()                # also if the client was gone before it was attached
        self.clear()
        self.tail = 1
        self.restoring = False
        return sent

    cdef Entry* restored_entry(self, uint64_t n) except NULL:
        """Entry n, created if missing. Entries before it that are still missing may be restored later."""
        if n >= self.tail and n - self.tail > GAP_MAX:
            raise DamagedBlock("a queue number out of range")
        while self.tail <= n:
            make_room(self)
            queue_entry(self.queue, self.tail)[0] = Entry(NULL, 0, 2, ACKED, 0)
            self.tail += 1
        return queue_entry(self.queue, n)

    def restore(self, uint64_t first, uint64_t sent):
        """Restore a SESSION record: all before `first` is done, all before `sent` has been sent."""
        cdef uint64_t n
        if first == 0 or sent > max(first, self.tail) + GAP_MAX:
            raise DamagedBlock("queue numbers out of range")
        begin_queue(self)
        n = self.queue.head
        while n < first and n < self.tail:
            self.restore_done(n)                  # a no-op after a DONE record
            n += 1
        while self.queue.head < first and self.queue.head < self.tail:
            self.queue.head += 1
        if self.queue.head < first:
            self.queue.head = self.tail = first
        self.queue.next = self.queue.head
        self.queue.sent = max(self.queue.sent, sent)

    def restore_queued(self, uint64_t n, Restored message, uint8_t flags, bytes identifiers=b""):
        """Restore a QUEUED record, with the identifiers of subscriptions as properties; a repeated one is skipped."""
        cdef Entry* e
        if not 1 <= flags & QOS <= 2:
            raise DamagedBlock("a queued message of QoS 0 or 3")
        if n < self.queue.head:
            return
        e = self.restored_entry(n)
        if e.state != ACKED:
            return
        e[0] = Entry(message_hold(message.message), 0, flags, WAITING,
                     self.identifier_set(identifiers, len(identifiers)) if identifiers else 0)
        count_queued(self, 1, message_size(e.message))

    def restore_done(self, uint64_t n):
        """Restore a DONE record. A compaction may have dropped the entry, but its number is not used again."""
        if n >= self.tail:
            self.restored_entry(n)
        elif n >= self.queue.head and queue_entry(self.queue, n).state != ACKED:
            self.finish(n)

    def restore_received(self, uint64_t n):
        """Restore a RECEIVED record: the client is to get PUBREL."""
        cdef Entry* e
        if n < self.queue.head:
            return
        e = self.restored_entry(n)
        if e.state == ACKED:
            count_queued(self, 1, 0)
        if e.message != NULL:
            count_queued(self, 0, -message_size(e.message))
            message_release(e.message)
        e[0] = Entry(NULL, 0, 2 | DUP | (e.flags & OF_GROUP), GOT_PUBREC, e.identifiers if e.flags & OF_GROUP else 0)

    def restore_awaiting(self, uint16_t packet_id, Restored message):
        """Restore an AWAITING record."""
        if not self.awaits(packet_id):
            self.await_release(packet_id, message_hold(message.message))

    def restore_released(self, uint16_t packet_id):
        """Restore a RELEASED record."""
        cdef Message* message = self.release(packet_id)
        if message != NULL:
            message_release(message)

    def restored(self, bint connected):
        """End the restore: messages that may have been sent to the client before get DUP.

        If the client was connected, all messages do: acknowledgements missing in the store may have released any.
        """
        cdef uint64_t n, sent
        begin_queue(self)
        sent = self.tail if connected else self.queue.sent
        if self.tail < self.queue.sent:                 # the newest were acknowledged; their numbers are not reused
            self.restored_entry(self.queue.sent - 1)
        self.restoring = False
        self.committed = self.tail if self.kind == LOCAL and self.recorded() else <uint64_t>-1
        queue_skip_acked(self.queue, self.tail)
        n = self.queue.head
        while n < sent:
            if queue_entry(self.queue, n).state == WAITING:
                queue_entry(self.queue, n).flags |= DUP
            n += 1
        self.queue.sent = max(self.queue.sent, sent)
        self.queue.next = self.queue.head
        self.drop_empty_queue()


cdef class Restored:
    """A message restored from the store, kept while records that name it are read."""

    def __cinit__(self, uint64_t number, int qos, bint retain, bytes topic not None, bytes payload not None,
                  bytes properties=b"", int64_t expires=0):
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), <uint8_t>qos, retain)
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.expires = expires
        self.message = message_new(&publication)
        if self.message == NULL:
            raise MemoryError
        self.message.stored_id = number

    def __dealloc__(self):
        if self.message != NULL:
            message_release(self.message)

    @property
    def topic(self):
        """Topic name, as bytes."""
        return self.message.data[:self.message.topic_length]

    @property
    def properties(self):
        """Its property block, without length, alias and expiry, as bytes."""
        return message_properties(self.message)[:<Py_ssize_t>self.message.properties_length]

    @property
    def expires(self):
        """The time of the turn's clock at which it expires; 0 = never."""
        return self.message.expires

    @expires.setter
    def expires(self, int64_t clock):
        self.message.expires = clock

    @property
    def payload(self):
        """Payload, as bytes."""
        return message_payload(self.message)[:<Py_ssize_t>self.message.payload_length]

    @property
    def qos(self):
        """QoS as published."""
        return self.message.qos

    @property
    def retain(self):
        """RETAIN as published."""
        return bool(self.message.retain)
