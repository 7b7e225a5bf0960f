# Messages of shared subscriptions in the queues that Redis has. See given.pyx.

from libc.stdint cimport int64_t, uint64_t

from ..session.group_subscriber cimport GroupSubscriber
from ..session.session cimport Session

cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, object counted_by, int64_t key=*,
                    uint64_t failures=*) except -1
cdef int forget_given(GroupSubscriber subscriber, uint64_t place) except -1
