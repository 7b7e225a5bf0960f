"""The journal of a node alone that logs messages: a turn's records, and the entry of the log that belongs to them.

A message of QoS 1 or 2 is logged in the same step as the records of its turn: the store keeps both, or none of them. So
the block of such a turn has both.
"""

from libc.stdint cimport uint8_t

from ..base.buffers cimport buffer_size
from ..session.journal cimport WILL_GONE, Journal


cdef class Block:
    """A turn's records with an entry of the log of messages."""

    def __cinit__(self, bytes records not None, tuple entry not None):
        self.records = records
        self.entry = entry

    def __len__(self):
        return len(self.records) + len(<bytes>self.entry[1])


cdef class LoggedJournal(Journal):
    """The journal of a node alone. Its blocks are bytes, or a Block if messages of the turn must be logged."""

    def attach(self, MessageLog log not None):
        """Commit the blocks of this log together with those of the journal."""
        self.log = log

    cdef int logged(self, Py_ssize_t size) except -1:
        """Note a message that must be logged. `records` grows, because other modules test its size."""
        cdef Py_ssize_t before = buffer_size(&self.records)
        cdef const uint8_t* nobody = b""
        self.with_text(WILL_GONE, 0, nobody, 0)       # of no client: a restore passes over it
        self.noted += buffer_size(&self.records) - before
        self.weight += size
        return 0

    def take(self):
        cdef bytes records = Journal.take(self)
        cdef bint is_bare = len(records) == self.noted
        self.weight = self.noted = 0
        if self.log is None or not self.log.required:
            return records
        return Block(b"" if is_bare else records, self.log.take_block())
