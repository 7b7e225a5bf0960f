# The messages of one client id. See session_queue.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..base.flag cimport flag
from .incoming_qos2 cimport Awaiting, IncomingQos2
from .shared_subscription cimport SharedSubscriptions
from .message cimport Message
from .outgoing_queue cimport Entry, OutgoingQueue, queue_grow, queue_new
from .subscriber cimport SHARED, Subscriber

cdef OutgoingQueue NO_QUEUE            # of all sessions without messages

cdef enum:
    GAP_MAX = 1 << 24                  # queue numbers that a store may skip

cdef struct QueueLimits:
    uint64_t messages
    uint64_t size                      # bytes
    bint drop_oldest                   # else the arriving message


cdef class SessionQueue(Subscriber):
    cdef public object owner           # for Python: the object that holds the rest of the session
    cdef public uint32_t away_since    # for Python: time of the turn's clock at which its last connection ended
    cdef readonly uint8_t level        # protocol level of the last connection
    cdef readonly flag persistent      # outlives its connection
    cdef flag restoring                # records are being restored
    cdef OutgoingQueue* queue          # NO_QUEUE until the first message; `tail` is the next queue number to give
    cdef IncomingQos2* incoming        # QoS 2 messages from the client; NULL until the first
    cdef SharedSubscriptions shares    # its shared subscriptions; None until it has one

    cdef void clear(self) noexcept
    cdef int drop_empty_queue(self) noexcept
    cdef uint64_t first_unsent(self) noexcept
    cdef void note_expiry(self, const Message* message) noexcept
    cdef bint in_flight(self, uint64_t n, const Entry* e) noexcept
    cdef int finish(self, uint64_t n) except -1
    cdef Entry* restored_entry(self, uint64_t n) except NULL
    cdef bytes identifiers_of(self, const Entry* e)
    cdef int trace(self, str step, const Message* message, int qos, str detail) except -1
    cdef bint awaits(self, uint16_t packet_id) noexcept
    cdef int await_release(self, uint16_t packet_id, Message* message, uint32_t progress=?,
                           uint64_t number=?) except -1
    cdef Awaiting release(self, uint16_t packet_id) noexcept
    cdef int released(self, uint16_t packet_id) except -1


cdef inline int begin_queue(SessionQueue session) except -1:
    """Ensure that the session has its own queue."""
    cdef OutgoingQueue* queue
    if session.queue == &NO_QUEUE:
        queue = queue_new(session.tail)
        if queue == NULL:
            raise MemoryError
        session.queue = queue
    return 0


cdef inline int make_room(SessionQueue session) except -1:
    """Ensure room for the entry `tail` in the session's queue."""
    begin_queue(session)
    if queue_grow(session.queue, session.tail) < 0:
        raise MemoryError
    return 0


cdef inline void count_queued(SessionQueue session, int64_t messages, int64_t size) noexcept:
    """Add to the messages and bytes in the session's queue, and to the node's totals."""
    session.queue.queued += <uint32_t>messages
    session.queue.queued_bytes += <uint64_t>size
    session.turn.queued += messages
    session.turn.queued_bytes += size
    if session.tenant is not None and session.kind != SHARED:
        session.tenant.queued_here += size


cdef inline void count_inflight(SessionQueue session, int64_t messages) noexcept:
    """Add to the session's messages sent and not acknowledged, and to the node's total."""
    session.queue.inflight += <uint32_t>messages
    session.turn.inflight += messages


cdef inline int get_limits(SessionQueue session, QueueLimits* limits) except -1:
    """The limits of a session's queue: of the configuration, or its own."""
    limits.messages = session.turn.limits.max_queued_messages
    limits.size = session.turn.limits.max_queued_bytes
    limits.drop_oldest = session.turn.limits.drop_oldest
    if session.turn.own_limits is not None:
        own = session.turn.own_limits.get(session.client_id)
        if own is not None:
            limits.messages, limits.size, limits.drop_oldest = own
    return 0
