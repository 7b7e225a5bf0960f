# The state of one client id: subscriptions, queue, packets in flight. See session.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from .message cimport Message
from .outgoing_queue cimport Entry
from .session_queue cimport SessionQueue


cdef enum Pulled:
    SOURCE_ENDED = 0
    SOURCE_GOES_ON = 1
    NO_ROOM = 2                        # the queue has no room for its next message


cdef class MessageSource:
    # A sequence of messages that the session pulls when it has room: retained messages after SUBSCRIBE, streams.
    cdef int pull(self, Session session) except -1


cdef class Session(SessionQueue):
    cdef public object user            # bytes: the verified user that owns the session; None = no user
    cdef public object expiry          # for Python: Session Expiry Interval in seconds; None = as configured

    cdef int enqueue(self, Message* message, uint8_t flags, const uint8_t* identifiers, Py_ssize_t n) except -1
    cdef int arrive(self, uint64_t n, Message* message, uint8_t flags, bytes identifiers, Py_ssize_t size,
                    bint of_group) except -1
    cdef uint64_t numbers_left(self) noexcept
    cdef uint32_t room(self) noexcept
    cdef int note_unsent(self) except -1
    cdef bint withheld(self, uint64_t n, const Entry* e) except -1
    cdef bint may_not_read(self, Message* m, bint sends=?) except -1
    cdef int send_publish(self, uint64_t n, Entry* e) except -1
    cdef bint put_publish(self, const Message* m, uint8_t first_byte, uint16_t packet_id, bytes identifiers) except -1
    cdef bint puback(self, uint16_t packet_id, uint8_t code) except -1
    cdef bint pubrec(self, uint16_t packet_id, uint8_t code) except -1
    cdef bint gave_back(self, uint64_t n, Entry* e, uint8_t code) except -1
    cdef bint pubcomp(self, uint16_t packet_id) except -1
