# Fields of packets, decoded and encoded. See fields.pyx.

from libc.stdint cimport uint32_t

from ..base.cursor cimport Cursor

cdef object check_level(int level)
cdef object short_body(int packet_type, str field)
cdef str decode_text(Cursor* c, int packet_type, str field)
cdef bytes decode_binary(Cursor* c, int packet_type, str field)
cdef str decode_topic_name(Cursor* c, int packet_type, str field, int level, bint may_be_empty)
cdef str decode_topic_filter(Cursor* c, int packet_type)
cdef int decode_packet_id(Cursor* c, int packet_type) except -1
cdef int decode_reason_code(Cursor* c, int packet_type) except -1
cdef list decode_reason_codes(Cursor* c, int packet_type)
cdef uint32_t decode_varint(Cursor* c, int packet_type, str field) except? 0xFFFFFFFF
cdef object invalid(int packet_type, str reason)
cdef bytes number(int packet_type, str field, object value, int size)
cdef bytes binary(int packet_type, str field, object value)
cdef bytes text(int packet_type, str field, object value)
cdef bytes topic(int packet_type, str field, object value, int level)
cdef bytes varint(int packet_type, str field, object value)
cdef bytes packet_id_bytes(int packet_type, int packet_id)
cdef bytes reason_code_bytes(int packet_type, object code)
