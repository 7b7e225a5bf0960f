# Writes a message to a connection as PUBLISH. See message_writer.pyx.

from libc.stdint cimport uint8_t, uint16_t

from .message cimport Message
from .turn cimport Outlet

cdef bint write_message(Outlet outlet, const Message* m, uint8_t first_byte, uint16_t packet_id,
                        bytes identifiers) except -1
