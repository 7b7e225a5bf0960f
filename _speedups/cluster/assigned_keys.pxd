# The keys of a shared subscription that Redis has bound to this node. See assigned_keys.pyx.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .group_records cimport GroupRecords
from ..session.group cimport Group
from ..session.group_keys cimport Key
from ..session.group_subscriber cimport GroupSubscriber


cdef enum:                      # reasons to hold a key
    ELSEWHERE = 1              # a session that is not here may have messages of it
    CLOSING = 2                # this node gives the key up


@cython.final
cdef class AssignedKeys:
    cdef Group group
    cdef GroupRecords records
    cdef set places                # of the messages that Redis has assigned to this node, and that it has
    cdef dict entrusted            # place -> GroupSubscriber: messages that are in queues of persistent sessions
    cdef dict held                 # hash -> Key: keys that are held for a session that is elsewhere
    cdef uint64_t holds            # how often a key was held
    cdef int64_t check_at          # time of the turn's clock at which Redis is asked about `held` ...
    cdef int64_t check_every       # ... and how long it waits then, in ticks

    cdef int forget_all(self) except -1
    cdef bint is_mine(self, uint64_t place) except -1
    cdef bint is_known(self, uint64_t place) except -1
    cdef int64_t hash_of(self, uint64_t place) except -2
    cdef int renumber(self, uint64_t place, uint64_t number) except -1
    cdef int end_key(self, Key key, uint64_t place) except -1
    cdef int note(self, GroupSubscriber subscriber, uint64_t place, uint32_t hash, uint64_t failures) except -1
    cdef int not_arrived(self, uint64_t place) except -1
    cdef int leaves(self, GroupSubscriber subscriber) except -1
    cdef int hold(self, Key key) except -1
    cdef int ask(self, Key key) except -1
    cdef int check(self) except -1
    cdef int free(self, uint32_t hash, uint64_t hold) except -1
    cdef int close(self, Key key) except -1
    cdef int close_all(self) except -1
    cdef int close_blocked(self) except -1
    cdef int close_again(self) except -1
    cdef int closed(self, uint32_t hash, uint64_t number) except -1
