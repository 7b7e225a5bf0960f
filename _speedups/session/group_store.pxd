# The part of a shared subscription in the store. See group_store.pyx.

from libc.stdint cimport uint64_t

from .group_members cimport GroupMembers

cdef class GroupStore(GroupMembers):
    cdef uint64_t next_place
    cdef dict restored_keys        # place -> hash of the publisher, until `configure` asks for it; or None
    cdef dict restored_places      # place -> Restored, while the store is read

    cdef int prune_failures(self) except -1
    cdef int find_keys(self) except -1
