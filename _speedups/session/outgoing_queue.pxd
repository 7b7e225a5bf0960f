# The queue of a session: messages that its client has not acknowledged, by queue number. Inline.
#
# Queue numbers are packet identifiers: the n-th message of a session (from 1) is always sent with packet identifier
# (n - 1) mod 65535 + 1. An entry leaves the queue when it is acknowledged; one acknowledged out of order waits as ACKED
# for the entries before it. The next queue number, `tail`, belongs to the session (Sender): commits note it.
#
# A session gets a queue with its first message, and loses it when its client leaves and it is empty. Without one it has
# NO_QUEUE, as all such sessions: empty, with queue numbers above any `tail`, and never written to.

from cpython.ref cimport PyObject, Py_XDECREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from .message cimport Message, message_release

cdef enum:
    PACKET_IDS = 65535
    FIRST_CAPACITY = 8
    CAPACITY_KEPT = 1024       # entries of an empty queue whose memory is not returned

cdef enum:
    NEVER_EXPIRES = 0x7FFFFFFFFFFFFFFF   # a time of the turn's clock

cdef enum EntryState:
    WAITING = 0                # not sent on this connection
    SENT = 1                   # PUBLISH sent; PUBACK or PUBREC awaited
    GOT_PUBREC = 2             # PUBREC received; PUBREL to be sent, or sent and PUBCOMP awaited
    ACKED = 3                  # acknowledged or dropped; waits for the entries before it

cdef enum EntryFlags:
    QOS = 3                    # granted: 1 or 2
    RETAINED_MESSAGE = 4       # sent with RETAIN at every level: a new subscription matched a retained message
    RETAIN_AS_PUBLISHED = 8    # sent with RETAIN at level 5, and to bridges
    DUP = 16                   # may have been sent before
    OF_GROUP = 32              # from a shared subscription
    STORED_FLAGS = 15          # messages that a store keeps

cdef struct Entry:
    Message* message           # owns a reference; NULL from GOT_PUBREC on
    uint32_t sent_tick         # tick of the last sending
    uint8_t flags              # bits of EntryFlags
    uint8_t state              # EntryState
    uint16_t identifiers       # number of a set of subscription identifiers in the session, 0 = none; OF_GROUP: of the
                               # subscription
    uint32_t size              # bytes that the entry has in Redis: none after PUBREC, unless it is OF_GROUP

cdef struct OutgoingQueue:
    Entry* entries             # queue number n is kept at entries[n & mask]; NULL = no memory for any
    uint32_t mask              # capacity - 1
    uint32_t inflight          # SENT and GOT_PUBREC entries between head and next
    uint64_t head              # oldest queue number that is not ACKED
    uint64_t next              # next queue number to send
    uint64_t sent              # below this all may have been sent before; updated when `next` moves back
    uint64_t queued_bytes      # topic names, properties and payloads
    uint64_t droppable         # every entry below this was sent before or is ACKED
    int64_t earliest           # no message that was never sent expires before; NEVER_EXPIRES = none expires
    uint32_t queued            # entries that are not ACKED
    PyObject* identifier_sets  # owned: a list of bytes, the sets of subscription identifiers of the messages; or NULL


cdef inline uint16_t packet_id_of(uint64_t n) noexcept nogil:
    return <uint16_t>((n - 1) % PACKET_IDS + 1)


cdef inline Entry* queue_entry(OutgoingQueue* queue, uint64_t n) noexcept nogil:
    return &queue.entries[n & queue.mask]


cdef inline OutgoingQueue* queue_new(uint64_t first) noexcept nogil:
    """An empty queue, whose first message gets this number. NULL: out of memory."""
    cdef OutgoingQueue* queue = <OutgoingQueue*>malloc(sizeof(OutgoingQueue))
    if queue != NULL:
        queue[0] = OutgoingQueue(NULL, 0, 0, first, first, first, 0, 0, NEVER_EXPIRES, 0, NULL)
    return queue


cdef inline uint64_t queue_unsent(const OutgoingQueue* queue, uint64_t tail) noexcept nogil:
    """Number of entries that were not sent on this connection, or are to be sent again."""
    return tail - min(queue.next, tail)


cdef inline int queue_grow(OutgoingQueue* queue, uint64_t tail) noexcept nogil:
    """Ensure room for the entry `tail`; -1: out of memory."""
    cdef uint32_t capacity = (queue.mask + 1) * 2 if queue.entries != NULL else FIRST_CAPACITY
    cdef Entry* entries
    cdef uint64_t n = queue.head
    if queue.entries != NULL and tail - queue.head <= queue.mask:
        return 0
    entries = <Entry*>calloc(capacity, sizeof(Entry))
    if entries == NULL:
        return -1
    while n < tail:
        entries[n & (capacity - 1)] = queue.entries[n & queue.mask]
        n += 1
    free(queue.entries)
    queue.entries = entries
    queue.mask = capacity - 1
    return 0


cdef inline void queue_skip_acked(OutgoingQueue* queue, uint64_t tail) noexcept nogil:
    """Remove the oldest entries that are ACKED, and free the memory of a queue that has become empty."""
    while queue.head < tail and queue.entries[queue.head & queue.mask].state == ACKED:
        queue.head += 1
    if queue.next < queue.head:
        queue.next = queue.head
    if queue.head == tail and queue.mask >= CAPACITY_KEPT:
        free(queue.entries)
        queue.entries = NULL
        queue.mask = 0


cdef inline Entry* queue_in_flight(OutgoingQueue* queue, uint64_t tail, uint16_t packet_id, uint64_t* n) noexcept nogil:
    """The entry that the client may acknowledge with this packet identifier, and its queue number; or NULL.

    An entry that is about to be sent again counts too: the reply to its first sending may be in transit.
    """
    cdef Entry* entry
    if packet_id == 0 or queue.head >= tail:
        return NULL
    n[0] = queue.head + (<uint64_t>packet_id + PACKET_IDS - packet_id_of(queue.head)) % PACKET_IDS
    if n[0] >= tail:
        return NULL
    entry = queue_entry(queue, n[0])
    if entry.state == ACKED or (entry.state == WAITING and not entry.flags & DUP):
        return NULL
    return entry


cdef inline void queue_free(OutgoingQueue* queue, uint64_t tail) noexcept:
    """Release all messages and the memory. The caller adjusts the counts."""
    cdef uint64_t n = queue.head
    while n < tail:
        if queue_entry(queue, n).message != NULL:
            message_release(queue_entry(queue, n).message)
        n += 1
    Py_XDECREF(queue.identifier_sets)
    free(queue.entries)
    free(queue)
