# The state of one client id: subscriptions, queue, packets in flight. See session.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _speedups.session.message cimport Message
from _speedups.session.subscriber cimport Subscriber

cdef enum EntryState:
    WAITING = 0                # not sent on this connection
    SENT = 1                   # PUBLISH sent; PUBACK or PUBREC awaited
    GOT_PUBREC = 2             # PUBREC has come and is to be answered, or PUBREL sent; PUBCOMP awaited
    ACKED = 3                   # acknowledged or dropped; waits for those before it

# One queued message. Queue number n is kept at queue[n & mask].
cdef struct Entry:
    Message* message           # owns a reference; NULL from GOT_PUBREC on
    uint32_t sent_tick         # when it was last sent
    uint8_t qos                # granted: 1 or 2
    uint8_t state              # EntryState
    uint8_t dup                # it may have been sent before
    uint8_t retain             # RETAIN as it will be sent

# A QoS 2 message received, whose PUBREL has not come.
cdef struct Awaiting:
    Message* message           # owns a reference
    uint16_t packet_id


cdef class Source:
    # Messages that the session draws when it has room: retained messages after SUBSCRIBE.
    cdef bint draw(self, Session session) except -1


cdef class Session(Subscriber):
    cdef public object owner           # for the Python side: what else belongs to the session
    cdef public object user            # bytes: the verified user whose session it is; None = nobody's
    cdef readonly bint persistent      # it outlives its connection
    cdef bint restoring                # records are being read back
    cdef uint32_t pending              # messages given to the journal whose queue numbers are not known yet
    cdef readonly uint8_t level        # protocol level of the last connection
    cdef Entry* queue
    cdef uint32_t mask                 # capacity of the queue - 1
    cdef uint64_t head                 # oldest queue number that is not ACKED
    cdef uint64_t next                 # next queue number to send; `tail` is the next to give
    cdef uint64_t sent                 # below this all may have been sent before; kept up to date when `next` goes back
    cdef uint32_t inflight             # SENT and GOT_PUBREC entries between head and next
    cdef uint32_t queued               # entries that are not ACKED
    cdef uint64_t queued_bytes
    cdef uint64_t droppable            # no entry below this was never sent and is not ACKED
    cdef Awaiting* awaiting            # by packet identifier, open addressing; no message = empty; at most half full
    cdef uint32_t awaiting_mask        # its size - 1
    cdef uint32_t awaiting_count
    cdef uint64_t awaiting_bytes       # of topic names and payloads
    cdef list sources                  # of Source, in the order they came; None when empty

    cdef void clear(self) noexcept
    cdef int grow(self) except -1
    cdef int enqueue(self, Message* message, uint8_t qos, bint retain) except -1
    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags) except -1
    cdef bint drop_one(self) except -1
    cdef int finish(self, uint64_t n) except -1
    cdef void skip_gone(self) noexcept
    cdef Entry* restored_entry(self, uint64_t n) except NULL
    cdef bint may_not_read(self, Message* m, bint sends=?) except -1
    cdef int trace(self, str step, const Message* message, int qos, str detail) except -1
    cdef int send_publish(self, uint64_t n, Entry* e) except -1
    cdef Entry* inflight_entry(self, uint16_t packet_id, uint64_t* n) noexcept
    cdef bint puback(self, uint16_t packet_id) except -1
    cdef bint pubrec(self, uint16_t packet_id) except -1
    cdef bint pubcomp(self, uint16_t packet_id) except -1
    cdef Awaiting* find_awaiting(self, uint16_t packet_id) noexcept
    cdef bint awaits(self, uint16_t packet_id) noexcept
    cdef int await_release(self, uint16_t packet_id, Message* message) except -1
    cdef Message* release(self, uint16_t packet_id) except? NULL


cdef class Restored:
    cdef Message* message
