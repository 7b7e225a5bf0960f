# The records of shared subscriptions in a block for Redis. See group_records.pyx.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ..session.journal cimport Journal
from ..session.session cimport Session


@cython.final
cdef class GroupRecords:
    cdef Journal journal
    cdef list moves                    # step, group, place, text, number, code, in turn
    cdef list done                     # group, place, in turn: assignments that have ended
    cdef dict rooms                    # group -> (group, room, subscribers here, assignments received, largest packet)
    cdef dict subscribers              # (group, client id) -> room of the subscriber: `announce_subscriber`
    cdef dict idle                     # (group, key) -> number of its last assignment: keys without messages here
    cdef dict closed                   # likewise: keys that this node gives up
    cdef dict checks                   # (group, key) -> number of the question whether it must still be held
    cdef readonly tuple limits         # of a group: messages, bytes, 1 = drop the oldest
    cdef readonly object epoch_of      # callable: returns the epoch of a connection's claim, 0 = it has none
    cdef readonly dict under_way       # (group, place) of messages that go to queues of other shards -> hash of the key
    cdef readonly list unsure          # HandOver: the reply was lost
    cdef readonly set to_tick          # GroupAssignments whose `tick` has something to do

    cdef object begin(self)
    cdef int note(self) except -1
    cdef int move(self, bytes step, bytes group, uint64_t place, bytes text, uint64_t number, uint64_t code) except -1
    cdef int given(self, bytes group, uint64_t place, Session session) except -1
    cdef int put(self, bytes group, uint64_t place, bytes heads, uint64_t number) except -1
    cdef int back(self, bytes group, uint64_t place) except -1
    cdef int failed(self, bytes group, uint64_t place, tuple failures) except -1
    cdef int dead(self, bytes group, uint64_t place) except -1
    cdef int refused(self, bytes group, uint64_t place, bytes client_id, uint64_t n, uint8_t code) except -1
    cdef int end(self, bytes group, uint64_t place) except -1
    cdef int key_idle(self, bytes group, uint32_t key, uint64_t number) except -1
    cdef int key_closed(self, bytes group, uint32_t key, uint64_t number) except -1
    cdef bint is_key_under_way(self, bytes group, uint32_t key) except -1
    cdef int check_key(self, bytes group, uint32_t key, uint64_t hold) except -1
    cdef int announce(self, bytes group, uint64_t room, uint64_t weight, uint64_t total,
                      uint64_t largest) except -1
    cdef int announce_subscriber(self, bytes group, Session session, uint64_t limit, bint by_length, uint8_t options,
                             bytes identifiers) except -1
    cdef bint changes(self) noexcept
    cdef bytes pack_settled(self)


cdef list flat_keys(dict numbers)
