# The interface for other compiled modules. See decode.pyx.

from libc.stdint cimport uint8_t

cdef object decode_body(uint8_t first_byte, const uint8_t* body, Py_ssize_t n, int level)
