# The property block of level 5. See properties.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ..base.cursor cimport Cursor

# A checked property block, as the packet path needs it: without Python objects. Pointers borrow from the block.
cdef struct PropertyScan:
    uint64_t seen              # a bit for each property identifier that the block has
    const uint8_t* expiry      # the property Message Expiry Interval (5 bytes, its identifier included), or NULL
    const uint8_t* alias       # the property Topic Alias (3 bytes), or NULL
    const uint8_t* fault       # the property that is at fault, or NULL
    uint32_t expiry_interval   # seconds
    uint32_t maximum_packet_size   # bytes; 0 = the block does not have it
    uint16_t topic_alias
    uint16_t user_properties   # how many there are
    uint8_t payload_format     # 1: the payload is UTF-8

cdef int scan_properties(const uint8_t* block, Py_ssize_t n, int owner, PropertyScan* scan) noexcept nogil
cdef str property_fault(const PropertyScan* scan)
cdef dict decode_properties(Cursor* c, int packet_type, int owner, int most=*)
cdef bytes encode_properties(int packet_type, int owner, dict properties)
