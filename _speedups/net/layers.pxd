# The layers between a channel and its socket, for output. See layers.pyx.

from libc.stdint cimport uint8_t

from .tls cimport Tls
from .websocket cimport WebSocket

cdef Py_ssize_t push(Tls tls, WebSocket frames, int fd, uint8_t* record, const uint8_t* p, Py_ssize_t size) except -4
