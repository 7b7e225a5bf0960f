"""The messages of one client id: messages that its client has not acknowledged, and QoS 2 messages that wait for
PUBREL.

Owns queue numbers. Changes that must survive a restart are recorded in the turn's journal.

Queue numbers are packet identifiers: the n-th message of a session (from 1) is always sent with packet identifier
(n - 1) mod 65535 + 1. Identifiers, order and DUP thus survive a crash of the node without further state. An entry
leaves the queue when it is acknowledged; an entry acknowledged out of order waits as ACKED for the entries before it.
At most 65534 entries lie between the oldest unacknowledged and the newest sent entry, so identifiers are unique.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from . cimport journal as j
from ..base.name_hash cimport shard_of
from .incoming_qos2 cimport (
    Awaiting, incoming_add, incoming_count, incoming_find, incoming_free, incoming_places, incoming_remove,
)
from .message cimport Message, message_release, message_size
from .outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, NEVER_EXPIRES, OF_GROUP, QOS, RETAINED_MESSAGE, Entry, queue_entry, queue_free,
    queue_skip_acked,
)
from .subscriber cimport LOCAL, SHARED, Subscriber
from .turn cimport Turn

from .journal import DamagedBlock

NO_QUEUE.head = NO_QUEUE.next = NO_QUEUE.sent = <uint64_t>-1
NO_QUEUE.earliest = NEVER_EXPIRES


@cython.no_gc_clear                       # the collector must not clear `turn`: `clear` subtracts from its totals
cdef class SessionQueue(Subscriber):
    """The queue of a session, empty.

    Args:
        turn: the node's turn.
        number: the session's id in the journal; never used twice in one store.
        client_id: UTF-8 bytes.
        persistent: whether the session outlives its connection (clean session 0).
        shared: the queue is in Redis, which numbers the messages; `arrive` adds them here.
        restoring: the session's records are read from the store until `end_restore`.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes client_id not None, *, bint persistent, int level=4,
                 bint restoring=False, bint shared=False):
        self.turn = turn
        self.session_id = number
        self.client_id = client_id
        self.tenant = turn.tenants.of(client_id, len(client_id))
        self.shard = shard_of(client_id, len(client_id), turn.journal.shards)
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
    def queue_bytes(self):
        """Bytes of the topic names and payloads in the queue."""
        return self.queue.queued_bytes

    @property
    def inflight(self):
        """QoS 1 and 2 messages that were sent and that the client has not acknowledged."""
        return self.queue.inflight

    @property
    def awaiting_release(self):
        """QoS 2 messages from the client that wait for its PUBREL."""
        return incoming_count(self.incoming)

    # ---- messages to the client ----

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

    cdef bint in_flight(self, uint64_t n, const Entry* e) noexcept:
        """Whether the entry is counted as in flight on this connection."""
        return n < self.queue.next or (self.level == 5 and e.state == GOT_PUBREC)

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
        """Report a step of the message to the tracer and to the watch, if they are there."""
        if self.turn.tracer is not None:
            self.turn.tracer.note_message(step, self.client_id, message, qos, detail)
        if self.turn.watch is not None:
            self.turn.watch.note(step, message, detail)
        return 0

    # ---- QoS 2 messages from the client ----

    cdef bint awaits(self, uint16_t packet_id) noexcept:
        """Whether a message with this packet identifier waits for PUBREL."""
        cdef Awaiting* found = incoming_find(self.incoming, packet_id)
        return found != NULL and found.message != NULL

    cdef int await_release(self, uint16_t packet_id, Message* message, uint32_t progress=0,
                           uint64_t number=0) except -1:
        """Keep a QoS 2 message until PUBREL; takes over the caller's reference.

        `progress`, `number`: as in Publication; a message that the store does not have yet gets its number here.
        """
        cdef bint recorded = self.recorded()
        if recorded:
            number = self.turn.journal.new_number()
        if incoming_add(&self.incoming, packet_id, message, progress, number) < 0:
            raise MemoryError
        if recorded:
            self.turn.journal.awaiting(self, self.session_id, packet_id, message, number)
        return 0

    cdef Awaiting release(self, uint16_t packet_id) noexcept:
        """Handle PUBREL: remove the message, whose reference passes to the caller. It is NULL if none waits."""
        return incoming_remove(self.incoming, packet_id)

    cdef int released(self, uint16_t packet_id) except -1:
        """Record that a message is released, when all receivers have it."""
        if self.recorded():
            self.turn.journal.entry(j.RELEASED, self, self.session_id, packet_id, 0)
        return 0
