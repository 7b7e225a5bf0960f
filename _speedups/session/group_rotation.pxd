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
    cdef void* first_ready         # a ring of Subscribers with room; NULL = none has ...
    cdef uint32_t ready_count      # ... and their number

    cdef int connect(self, GroupSubscriber subscriber) except -1
    cdef int disconnect(self, GroupSubscriber subscriber) except -1
    cdef GroupSubscriber choose(self, GroupSettings settings, const Publication* publication)
    cdef bint make_ready(self, GroupSubscriber subscriber) noexcept
    cdef int make_unready(self, GroupSubscriber subscriber) noexcept
