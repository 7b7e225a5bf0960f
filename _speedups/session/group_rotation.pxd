# The subscribers of a shared subscription in turn. See group_rotation.pyx.

cimport cython
from libc.stdint cimport uint32_t

from .group_subscriber cimport GroupSubscriber
from .group_settings cimport GroupSettings
from .message cimport Publication


@cython.final
cdef class Rotation:
    cdef list connected            # subscribers with a connection, in the order of their connections ...
    cdef Py_ssize_t turn_of        # ... and the next of them to get a message of QoS 0
    cdef void* first_ready[2]      # rings of Subscribers with room, by `direct`; NULL = none has ...
    cdef uint32_t ready_count[2]   # ... and their numbers

    cdef int connect(self, GroupSubscriber subscriber) except -1
    cdef int disconnect(self, GroupSubscriber subscriber) except -1
    cdef GroupSubscriber choose(self, GroupSettings settings, const Publication* publication)
    cdef bint make_ready(self, GroupSubscriber subscriber) noexcept
    cdef int make_unready(self, GroupSubscriber subscriber) noexcept
    cdef bint has_ready(self) noexcept
    cdef int set_direct(self, GroupSubscriber subscriber, bint direct) noexcept
