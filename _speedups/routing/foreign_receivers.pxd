# The receivers of messages for records of a ForeignTable. See foreign_receivers.pyx.

from libc.stdint cimport uint32_t, uint64_t

from ..session.session cimport Session
from ..session.subscriber cimport Subscriber
from ..session.turn cimport Turn
from .foreign cimport ForeignTable, Match


cdef class ForeignReceivers:
    cdef readonly ForeignTable table
    cdef Turn turn
    cdef list nodes                    # Subscriber by its number in the table; None: no node has the number
    cdef list leaving                  # numbers of nodes that have left, and still have routes in the table
    cdef dict current                  # client id -> Session that stands for its record
    cdef dict retiring                 # likewise: no plan has it, and blocks under way may have it

    cdef Subscriber receiver_of(self, const Match* match)
    cdef bint sweep(self) except -1
    cdef bint may_retire(self) noexcept
    cdef object retire(self)
    cdef Session stand_in(self, bytes client_id, uint64_t incarnation)
