# The members of a shared subscription in turn. See group_rotation.pyx.

cimport cython
from libc.stdint cimport uint32_t

from .group_members cimport Member
from .group_settings cimport GroupSettings
from .message cimport Publication


@cython.final
cdef class Rotation:
    cdef list connected            # members with a connection, in the order of their connections ...
    cdef Py_ssize_t turn_of        # ... and the next of them to get a message of QoS 0
    cdef void* first_ready         # a ring of Members with room; NULL = none has ...
    cdef uint32_t ready_count      # ... and their number

    cdef int connect(self, Member member) except -1
    cdef int disconnect(self, Member member) except -1
    cdef Member choose(self, GroupSettings settings, const Publication* publication)
    cdef bint make_ready(self, Member member) noexcept
    cdef int make_unready(self, Member member) noexcept
