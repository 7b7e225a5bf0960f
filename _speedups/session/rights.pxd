# What one client may publish and read. See acl.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MAY_READ = 1
    MAY_PUBLISH = 2

cdef struct AclRule:
    uint32_t at                # of the topic filter, in `text`
    uint16_t size              # bytes of it
    uint8_t access             # MAY_READ, MAY_PUBLISH, or both
    uint8_t allow              # else it denies, whatever others allow


cdef class Rights:
    cdef AclRule* rules        # those that deny come first
    cdef uint32_t count
    cdef readonly bytes text   # all topic filters, one after the other
    cdef readonly tuple key    # what the rules say: equal for equal rights
    cdef uint64_t number       # no other Rights ever had it, unlike the address
    cdef bint denied_before    # for whoever logs the first refusal

    cdef bint may(self, const uint8_t* topic, Py_ssize_t n, int access) noexcept
