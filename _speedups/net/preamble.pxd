# The preamble of a connection: the bytes before the first byte of MQTT. See preamble.pyx.

from .connection cimport Connection

cdef bint read_preamble(Connection c) except -1
cdef Py_ssize_t upgrade_websocket(Connection c, Py_ssize_t n) except -1
cdef int after_frames(Connection c) except -1
