# A message of a group that goes to the queue of a session of another shard. See hand_over.pyx.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ..session.journal cimport Journal


cdef class HandOver:
    cdef readonly Journal journal      # ClusterJournal of the shard of the group
    cdef readonly bytes group
    cdef readonly uint64_t place
    cdef readonly bytes client_id
    cdef readonly uint8_t shard        # of the session
    cdef readonly bytes number         # under which the shard of the session gets the message
    cdef readonly int64_t key          # hash of the message's key; -1: it has none
