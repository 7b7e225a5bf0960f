# Where the messages of a shared subscription are kept, beside its node. See group_backing.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .group_keys cimport Key
from .group_subscriber cimport GroupSubscriber
from .message cimport Message, Publication
from .session cimport Session


cdef class GroupBacking:
    cdef readonly bint kept        # the messages of the group survive the node
    cdef bint limits_here          # this node applies the limits of the queue, and keeps the last value of a topic
    cdef bint suspended            # messages may be missing here: none with a key is given

    # Messages.
    cdef uint64_t place_new(self, const Publication* publication, uint8_t qos, Message* message) except? 0
    cdef bint pass_on(self, Publication* publication) except -1
    cdef int put(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1
    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1
    cdef int take_refused(self, GroupSubscriber subscriber, uint64_t n, uint8_t code) except -1
    cdef int record_queued(self, uint64_t place, Message* message) except -1
    cdef int record_given(self, GroupSubscriber subscriber, uint64_t place, uint64_t n) except -1
    cdef int record_failure(self, uint64_t place) except -1
    cdef int record_done(self, uint64_t place) except -1
    cdef int record_dead(self, uint64_t place) except -1
    # Subscribers.
    cdef int joined(self, Session session) except -1
    cdef int leaves(self, GroupSubscriber subscriber) except -1
    cdef int left(self, bint records) except -1
    cdef int qos_elsewhere(self) except -2
    cdef int room_changed(self) except -1
    # The group, and its order by key.
    cdef int configured(self, bint was_declared) except -1
    cdef int order_changed(self) except -1
    cdef bint has_given(self, GroupSubscriber subscriber, uint64_t place) except -1
    cdef int arrived(self, GroupSubscriber subscriber, uint64_t place, uint32_t hash, uint64_t failures) except -1
    cdef int not_arrived(self, uint64_t place) except -1
    cdef int key_done(self, Key key, uint64_t place) except -1
    cdef int has_sent(self) except -1
    cdef int abandon(self) except -1
