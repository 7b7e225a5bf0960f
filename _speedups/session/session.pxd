# The state of one client id: subscriptions, queue, packets in flight. See session.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _speedups.base.flag cimport flag
from _speedups.session.incoming_qos2 cimport IncomingQos2
from _speedups.session.membership cimport Memberships
from _speedups.session.message cimport Message
from _speedups.session.outgoing_queue cimport Entry, OutgoingQueue, queue_grow, queue_new
from _speedups.session.subscriber cimport Subscriber

cdef OutgoingQueue NO_QUEUE            # of all sessions without messages


cdef enum Pulled:
    SOURCE_ENDED = 0
    SOURCE_GOES_ON = 1
    NO_ROOM = 2                        # the queue has no room for its next message


cdef class MessageSource:
    # A sequence of messages that the session pulls when it has room: retained messages after SUBSCRIBE, streams.
    cdef int pull(self, Session session) except -1


cdef class Session(Subscriber):
    cdef public object owner           # for Python: the object that holds the rest of the session
    cdef public object user            # bytes: the verified user that owns the session; None = no user
    cdef public object expiry          # for Python: Session Expiry Interval in seconds; None = as configured
    cdef public uint32_t away_since    # for Python: time of the turn's clock at which its last connection ended
    cdef readonly uint8_t level        # protocol level of the last connection
    cdef readonly flag persistent      # outlives its connection
    cdef flag restoring                # records are being restored
    cdef OutgoingQueue* queue          # NO_QUEUE until the first message; `tail` is the next queue number to give
    cdef IncomingQos2* incoming        # QoS 2 messages from the client; NULL until the first
    cdef list identifier_sets          # of bytes: the sets of subscription identifiers of queued messages, from 1 on
    cdef Memberships shares            # its shared subscriptions; None until it has one

    cdef void clear(self) noexcept
    cdef int drop_empty_queue(self) noexcept
    cdef uint64_t first_unsent(self) noexcept
    cdef int enqueue(self, Message* message, uint8_t flags, const uint8_t* identifiers, Py_ssize_t n) except -1
    cdef uint16_t identifier_set(self, const uint8_t* identifiers, Py_ssize_t n) except? 0
    cdef bint drop_expired(self) except -1
    cdef bint in_flight(self, uint64_t n, const Entry* e) noexcept
    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags, bytes identifiers) except -1
    cdef bint drop_one(self) except -1
    cdef int finish(self, uint64_t n) except -1
    cdef Entry* restored_entry(self, uint64_t n) except NULL
    cdef uint32_t room(self) noexcept
    cdef bint may_not_read(self, Message* m, bint sends=?) except -1
    cdef bytes identifiers_of(self, const Entry* e)
    cdef int trace(self, str step, const Message* message, int qos, str detail) except -1
    cdef int send_publish(self, uint64_t n, Entry* e) except -1
    cdef bint put_publish(self, const Message* m, uint8_t first_byte, uint16_t packet_id, bytes identifiers) except -1
    cdef bint puback(self, uint16_t packet_id, uint8_t code) except -1
    cdef bint pubrec(self, uint16_t packet_id, uint8_t code) except -1
    cdef bint gave_back(self, uint64_t n, Entry* e, uint8_t code) except -1
    cdef bint pubcomp(self, uint16_t packet_id) except -1
    cdef bint awaits(self, uint16_t packet_id) noexcept
    cdef int await_release(self, uint16_t packet_id, Message* message) except -1
    cdef Message* release(self, uint16_t packet_id) except? NULL


cdef class Restored:
    cdef Message* message

cdef inline int begin_queue(Session session) except -1:
    """Ensure that the session has a queue of its own."""
    cdef OutgoingQueue* queue
    if session.queue == &NO_QUEUE:
        queue = queue_new(session.tail)
        if queue == NULL:
            raise MemoryError
        session.queue = queue
    return 0


cdef inline int make_room(Session session) except -1:
    """Ensure room for the entry `tail` in the session's queue."""
    begin_queue(session)
    if queue_grow(session.queue, session.tail) < 0:
        raise MemoryError
    return 0


cdef inline void count_queued(Session session, int64_t messages, int64_t size) noexcept:
    """Add to the messages and bytes in the session's queue, and to the node's totals."""
    session.queue.queued += <uint32_t>messages
    session.queue.queued_bytes += <uint64_t>size
    session.turn.queued += messages
    session.turn.queued_bytes += size


cdef inline void count_inflight(Session session, int64_t messages) noexcept:
    """Add to the session's messages sent and not acknowledged, and to the node's total."""
    session.queue.inflight += <uint32_t>messages
    session.turn.inflight += messages
