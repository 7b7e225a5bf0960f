"""The messages of one client id: those that its client has not acknowledged, and QoS 2 messages that wait for PUBREL.

Owns queue numbers, and the limits of the queue. Changes that must survive a restart are recorded in the turn's journal.

Queue numbers are packet identifiers: the n-th message of a session (from 1) is always sent with packet identifier
(n - 1) mod 65535 + 1. Identifiers, order and DUP thus survive a crash of the node without further state. An entry
leaves the queue when it is acknowledged; an entry acknowledged out of order waits as ACKED for the entries before it.
At most 65534 entries lie between the oldest unacknowledged and the newest sent entry, so identifiers are unique.
"""

cimport cython
from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint8_t

from . cimport journal as j
from .counters cimport EXPIRED
from .incoming_qos2 cimport (
    Awaiting, incoming_add, incoming_find, incoming_free, incoming_places, incoming_remove,
)
from .message cimport (
    Message, Publication, message_hold, message_payload, message_release, message_size,
)
from .outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, NEVER_EXPIRES, OF_GROUP, PACKET_IDS, QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE,
    STORED_FLAGS, WAITING, Entry, queue_entry, queue_free, queue_skip_acked,
)
from .subscriber cimport KEEP_RETAIN, LOCAL, SHARED, Plan, Receiver, Subscriber
from .tenant cimport queue_is_over
from .turn cimport Turn

from .journal import DamagedBlock

cdef enum:
    ACKED_MAX = PACKET_IDS     # entries that may wait as ACKED: for more, the numbers behind them are closed up
    IDENTIFIER_SETS_MAX = 4096 # sets of subscription identifiers in a queue; past it messages get none

NO_QUEUE.head = NO_QUEUE.next = NO_QUEUE.sent = <uint64_t>-1
NO_QUEUE.earliest = NEVER_EXPIRES


cdef inline int get_limits(SessionQueue session, QueueLimits* limits) except -1:
    """The limits of a session's queue: those of the configuration, or its own."""
    limits.messages = session.turn.limits.max_queued_messages
    limits.size = session.turn.limits.max_queued_bytes
    limits.drop_oldest = session.turn.limits.drop_oldest
    if session.turn.own_limits is not None:
        own = session.turn.own_limits.get(session.client_id)
        if own is not None:
            limits.messages, limits.size, limits.drop_oldest = own
    return 0


@cython.no_gc_clear                       # the collector must not clear `turn`: `clear` subtracts from its totals
cdef class SessionQueue(Subscriber):
    """The queue of a session, empty.

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
        self.tenant = turn.tenants.of(client_id, len(client_id))
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
            message: the session takes a reference of its own.
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
        while not flags & RETAINED_MESSAGE and self.is_over(&limits, size):
            if self.drop_expired():
                continue
            self.turn.queue_is_full(self.client_id)
            if not limits.drop_oldest or not self.drop_one():
                self.trace("dropped", message, flags & QOS, "the queue is full")
                return 0
        make_room(self)
        e = queue_entry(self.queue, self.tail)
        e[0] = Entry(message_hold(message), 0, flags, WAITING, self.identifier_set(identifiers, n) if n else 0, 0)
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

    cdef bint is_over(self, const QueueLimits* limits, Py_ssize_t size) noexcept:
        """Whether a message of this size is one too many; one alone never is, but for the tenant."""
        return (self.queue.queued >= limits.messages
                or (self.queue.queued and self.queue.queued_bytes + <uint64_t>size > limits.size)
                or queue_is_over(self.tenant, <int64_t>size))

    cdef uint16_t identifier_set(self, const uint8_t* identifiers, Py_ssize_t n) except? 0:
        """The number of a set of subscription identifiers, as encoded properties; 0: there are too many sets.

        The session has a queue of its own.
        """
        cdef bytes wanted = identifiers[:n]
        cdef list sets
        if self.queue.head == self.tail:
            self.forget_identifier_sets()
        if self.queue.identifier_sets == NULL:
            sets = [b""]
            Py_INCREF(sets)
            self.queue.identifier_sets = <PyObject*>sets
        sets = <list>self.queue.identifier_sets
        if wanted in sets:
            return <uint16_t>sets.index(wanted)
        if len(sets) >= IDENTIFIER_SETS_MAX:
            sets = self.used_identifier_sets()
            if len(sets) >= IDENTIFIER_SETS_MAX:
                return 0
        sets.append(wanted)
        return <uint16_t>(len(sets) - 1)

    cdef int forget_identifier_sets(self) except -1:
        """The queue is empty."""
        Py_XDECREF(self.queue.identifier_sets)
        self.queue.identifier_sets = NULL
        return 0

    cdef list used_identifier_sets(self):
        """Keep only the sets that entries of the queue have, with new numbers."""
        cdef list sets = <list>self.queue.identifier_sets, used = [b""]
        cdef dict numbers = {0: 0}
        cdef uint64_t n
        cdef Entry* e
        for n in range(self.queue.head, self.tail):
            e = queue_entry(self.queue, n)
            if e.message != NULL and e.identifiers and not e.flags & OF_GROUP:
                if e.identifiers not in numbers:
                    numbers[e.identifiers] = len(used)
                    used.append(sets[e.identifiers])
                e.identifiers = <uint16_t>numbers[e.identifiers]
        sets[:] = used
        return sets

    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags, bytes identifiers, Py_ssize_t size,
                    bint of_group) except -1:
        """Add a message that has queue number `n`; `flags` are EntryFlags. A repeated number is ignored.

        `identifiers` are those of the subscriptions that it matched, as properties. `size`: bytes of the entry in
        Redis. `of_group`: it is from a shared subscription, whose window is its limit here: dropped, no other member
        would get it.
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
            self.forget_identifier_sets()
        e = self.restored_entry(n)
        e[0] = Entry(message_hold(message), 0, flags & STORED_FLAGS, WAITING,
                     self.identifier_set(identifiers, len(identifiers)) if identifiers else 0, <uint32_t>size)
        count_queued(self, 1, message_size(message))
        self.note_expiry(message)
        get_limits(self, &limits)
        if limits.drop_oldest and not self.restoring and not of_group:
            while (self.queue.queued > limits.messages
                   or (self.queue.queued > 1 and self.queue.queued_bytes > limits.size)):
                if self.drop_expired():
                    continue
                if not self.drop_one():
                    break
                self.turn.queue_is_full(self.client_id)
        return self.turn.schedule_send(self)

    cdef Entry* restored_entry(self, uint64_t n) except NULL:
        """Entry n, created if missing. Entries before it that are still missing may be restored later."""
        if n >= self.tail and n - self.tail > GAP_MAX:
            raise DamagedBlock("a queue number out of range")
        while self.tail <= n:
            make_room(self)
            queue_entry(self.queue, self.tail)[0] = Entry(NULL, 0, 2, ACKED, 0, 0)
            self.tail += 1
        return queue_entry(self.queue, n)

    cdef void note_expiry(self, const Message* message) noexcept:
        """A message was added that may expire."""
        if message.expires and message.expires < self.queue.earliest:
            self.queue.earliest = message.expires

    cdef bint drop_expired(self) except -1:
        """Drop all messages that were never sent and have expired; whether there were any.

        All entries are looked at, but only when a message may have expired since the last time: at most once in a tick.
        """
        cdef uint64_t n = max(self.queue.next, self.queue.droppable)
        cdef Entry* e
        cdef bint found = False
        cdef int64_t earliest = NEVER_EXPIRES
        if self.queue.earliest > self.turn.clock or self.is_too_long():
            return False
        while n < self.tail:
            e = queue_entry(self.queue, n)
            if e.state == WAITING and not e.flags & DUP and e.message.expires:
                if e.message.expires > self.turn.clock:
                    earliest = min(earliest, e.message.expires)
                else:
                    self.turn.counters[EXPIRED] += 1
                    self.trace("dropped", e.message, e.flags & QOS, "it has expired")
                    self.finish(n)
                    found = True
            n += 1
        self.queue.earliest = earliest
        return found

    cdef bint is_too_long(self) except -1:
        """Whether too many entries wait as ACKED, so that no more may be dropped."""
        if self.kind == LOCAL and self.tail - self.queue.head > ACKED_MAX + <uint64_t>self.queue.queued:
            self.close_gaps()
        return self.tail - self.queue.head > ACKED_MAX + <uint64_t>self.queue.queued

    cdef int close_gaps(self) except -1:
        """Give messages that were never sent the numbers of dropped ones before them, which no client has seen.

        Messages of shared subscriptions keep their numbers, and so do all before them.
        """
        cdef uint64_t first = max(self.first_unsent(), self.queue.head), n, to
        cdef Entry* e
        cdef bytes identifiers
        cdef bint recorded = self.recorded()
        for n in range(first, self.tail):
            if queue_entry(self.queue, n).flags & OF_GROUP:
                first = n + 1
        while first < self.tail and queue_entry(self.queue, first).state != ACKED:
            first += 1
        to = first
        for n in range(first, self.tail):
            e = queue_entry(self.queue, n)
            if e.state != ACKED:
                queue_entry(self.queue, to)[0] = e[0]
                e.message, e.state = NULL, ACKED
                e = queue_entry(self.queue, to)
                if recorded:
                    identifiers = self.identifiers_of(e)
                    self.turn.journal.entry(j.DONE, self, self.session_id, n, 0)
                    self.turn.journal.queued(self, self.session_id, to, e.message, e.flags & STORED_FLAGS, identifiers,
                                             len(identifiers))
                    self.turn.await_commit(self)
                to += 1
        self.tail = to
        self.queue.droppable = min(self.queue.droppable, first)
        if recorded:
            self.turn.forget_tails(self, first)
            self.committed = min(self.committed, first)
        return 0

    cdef bint in_flight(self, uint64_t n, const Entry* e) noexcept:
        """Whether the entry is counted as in flight on this connection."""
        return n < self.queue.next or (self.level == 5 and e.state == GOT_PUBREC)

    cdef bint drop_one(self) except -1:
        """Drop the oldest message that has never been sent; False when there is none.

        Dropped entries wait as ACKED for entries in flight, which stay. If those are not acknowledged, then nothing
        more can be dropped after a while.
        """
        cdef uint64_t n
        if self.is_too_long():
            return False
        n = max(self.queue.next, self.queue.droppable)
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
        cdef uint32_t size = e.size
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
            self.turn.journal.entry(j.DONE, self, self.session_id, n, size)
        return 0

    cdef uint64_t first_unsent(self) noexcept:
        """The queue number below which all may have been sent."""
        return min(max(self.queue.sent, self.queue.next), self.tail)

    cdef bytes identifiers_of(self, const Entry* e):
        """The subscription identifiers of an entry, as properties."""
        if e.flags & OF_GROUP:
            return self.shares.properties(e.identifiers)
        return (<list>self.queue.identifier_sets)[e.identifiers] if e.identifiers else b""

    cdef int trace(self, str step, const Message* message, int qos, str detail) except -1:
        """Report a step of the message to the tracer, if there is one."""
        if self.turn.tracer is not None:
            self.turn.tracer.note_message(step, self.client_id, message, qos, detail)
        return 0

    # ---- QoS 2 messages from the client ----

    cdef bint awaits(self, uint16_t packet_id) noexcept:
        """Whether a message with this packet identifier waits for PUBREL."""
        cdef Awaiting* found = incoming_find(self.incoming, packet_id)
        return found != NULL and found.message != NULL

    cdef int await_release(self, uint16_t packet_id, Message* message, uint32_t progress=0) except -1:
        """Keep a QoS 2 message until PUBREL; takes over the caller's reference. `progress`: as in Publication."""
        if incoming_add(&self.incoming, packet_id, message, progress) < 0:
            raise MemoryError
        if self.recorded():
            self.turn.journal.awaiting(self, self.session_id, packet_id, message)
        return 0

    cdef Awaiting release(self, uint16_t packet_id) noexcept:
        """Handle PUBREL: remove the message, whose reference passes to the caller. It is NULL if none waits."""
        return incoming_remove(self.incoming, packet_id)

    cdef int released(self, uint16_t packet_id) except -1:
        """Record that a message is released, when all receivers have it."""
        if self.recorded():
            self.turn.journal.entry(j.RELEASED, self, self.session_id, packet_id, 0)
        return 0
