# The topics that one client may publish and read. See rights.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MAY_READ = 1
    MAY_PUBLISH = 2

cdef struct AclRule:
    uint32_t at                # offset of the topic filter in `text`
    uint16_t size              # its bytes
    uint8_t access             # MAY_READ, MAY_PUBLISH, or both
    uint8_t allow              # else it denies, even if other rules allow

cdef struct Span:              # a topic filter, or what is left of it
    const uint8_t* text
    Py_ssize_t size


cdef class Rights:
    cdef AclRule* rules        # denying rules first
    cdef uint32_t count
    cdef readonly bytes text   # all topic filters, one after the other
    cdef uint64_t number       # unique in the process, unlike the address
    cdef bint denied_before    # the first refusal has been logged

    @staticmethod
    cdef Rights blank(uint32_t count, bytes text)
    cdef Span filter(self, uint32_t number) noexcept
    cdef bint may(self, const uint8_t* topic, Py_ssize_t n, int access) noexcept
