# A shared subscription: a group of sessions, of which each message goes to one. See group.pyx.

from libc.stdint cimport uint8_t, uint64_t

from .group_distributor cimport Distributor
from .group_backing cimport GroupBacking
from .group_backlog cimport Backlog
from .group_subscriber cimport GroupSubscriber
from .group_rotation cimport Rotation
from .shared_subscription cimport SessionGroup
from .message cimport Publication
from .outgoing_queue cimport Entry
from .session cimport Session


cdef class Group(SessionGroup):
    cdef readonly bytes topic_filter
    cdef readonly list subscribers     # in the order of joining
    cdef Rotation rotation         # ... and in turn
    cdef Backlog backlog           # messages that no subscriber has
    cdef Distributor distributor
    cdef readonly GroupBacking backing
    cdef bint ended

    cdef int end(self) except -1
    cdef bint is_empty(self) except -1
    cdef bint has_persistent(self) noexcept
    cdef int join(self, GroupSubscriber subscriber) except -1
    cdef int leave(self, GroupSubscriber subscriber, bint session_ends) except -1
    cdef int options_changed(self, GroupSubscriber subscriber) except -1
    cdef int make_ready(self, GroupSubscriber subscriber) except -1
    cdef bint pass_on(self, Publication* publication) except -1
    cdef GroupSubscriber choose(self, const Publication* publication)
    cdef int take_unsent(self, GroupSubscriber subscriber) except -1
    cdef int release_entry(self, GroupSubscriber subscriber, uint64_t n, Entry* e) except -1
    cdef int subscriber_done(self, GroupSubscriber subscriber, uint64_t place) except -1


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=*) except -1
