# The journal of a node alone that logs messages. See journal.pyx.

from .message_log cimport MessageLog
from ..session.journal cimport Journal


cdef class Block:
    cdef readonly bytes records        # as a journal without a log has them; empty = none
    cdef readonly tuple entry          # of the message log: (id, block)


cdef class LoggedJournal(Journal):
    cdef readonly MessageLog log       # None = messages are not logged
    cdef Py_ssize_t noted      # bytes of `records` that note messages to be logged
