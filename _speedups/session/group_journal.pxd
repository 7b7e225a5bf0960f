# A shared subscription in the store of a node alone. See group_journal.pyx.

from libc.stdint cimport uint64_t

from .group cimport Group
from .group_backing cimport GroupBacking
from .journal cimport Journal
from .message cimport Message

cdef class GroupJournal(GroupBacking):
    cdef readonly Group group
    cdef Journal journal
    cdef uint64_t next_place
    cdef dict restored_keys        # place -> hash of the publisher, until `configure` asks for it; or None
    cdef dict restored_places      # place -> Restored, while the store is read

    cdef bint recorded(self) noexcept
    cdef int keep(self) except -1
    cdef int stop_keeping(self, bint records) except -1
    cdef int record_key(self, uint64_t place) except -1
    cdef int record_declaration(self) except -1
    cdef int note_key(self, uint64_t place, const Message* message) except -1
    cdef int restored(self) except -1
    cdef int prune_failures(self) except -1
