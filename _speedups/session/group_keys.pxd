# Order by key in a shared subscription. See group_keys.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .group_settings cimport GroupSettings
from .shared_subscription cimport SharedSubscription
from .message cimport Publication


cdef class Key:
    cdef uint32_t hash
    cdef SharedSubscription subscriber         # that has its unacknowledged messages; None: the key is free
    cdef uint32_t given            # its messages that the subscriber has and has not acknowledged
    cdef uint32_t begun            # of these, QoS 2 that waits for the store
    cdef uint32_t known            # its messages: given, parked, or in the queue of the group
    cdef list parked               # heap of (place, Held): messages that wait for the subscriber, or for their turn
    cdef bint blocked              # no subscriber with room may take the first of these now
    cdef uint8_t held              # reasons why nobody may get a message of the key; for groups of a cluster
    cdef uint64_t number           # of its last assignment to this node; 0 = not this node's, or there is one node
    cdef uint64_t hold             # number of the last time that it was held

    cdef bint has_before(self, uint64_t place) except -1


cdef class KeyTable:
    cdef readonly uint8_t strategy
    cdef dict keys                 # hash -> Key
    cdef dict places               # place -> Key
    cdef dict bound                # SharedSubscription -> heap of (place, Key): parked messages of the keys bound to it
    cdef list free                 # likewise of free keys
    cdef list oldest               # likewise of all keys; perhaps outdated, as all these heaps
    cdef dict blocked              # Key -> None
    cdef list woken                # subscribers with room that may have parked messages
    cdef Py_ssize_t count          # of parked messages

    cdef Key note(self, uint64_t place, uint32_t hash)
    cdef Key of(self, uint64_t place)
    cdef int forget(self, uint64_t place) except -1
    cdef int remove(self, Key key) except -1
    cdef int bind(self, uint64_t place, SharedSubscription subscriber) except -1
    cdef bint release(self, uint64_t place) except -1
    cdef bint done(self, uint64_t place) except -1
    cdef int begin(self, uint64_t place) except -1
    cdef int begin_ended(self, uint64_t place) except -1
    cdef int park(self, Key key, uint64_t place, object held) except -1
    cdef object take(self, Key key)
    cdef int offer(self, Key key) except -1
    cdef int block(self, Key key) except -1
    cdef int unblock(self, Key key) except -1
    cdef int unblock_all(self) except -1
    cdef int wake(self, SharedSubscription subscriber) except -1
    cdef Key next_of(self, SharedSubscription subscriber)
    cdef Key next_free(self)
    cdef Key with_oldest(self)
    cdef list all_parked(self)
    cdef int unpark(self, Key key, set removed) except -1
    cdef list remove_parked(self, Key key)


cdef uint32_t key_of(GroupSettings settings, const Publication* publication) except? 0
