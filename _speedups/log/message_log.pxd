# The message log: accepted messages, as columns for readers such as Spark. See message_log.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ..base.buffers cimport Buffer, Pool
from ..session.message cimport Publication
from ..session.subscriber cimport Plan, Subscriber

cdef enum:
    LAYOUT = 1                 # of a block
    HAS_PROPERTIES = 1         # bit of the header: the block has the columns of properties
    HEADER = 48                # bytes


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept:
    """The bytes that a column of `n` bytes takes."""
    return (n + 7) & ~7


# A message of the block being filled.
cdef struct Row:
    int64_t accepted           # microseconds since 1970
    int32_t client             # place in the block's client ids
    int32_t topic              # place in its topic names
    int32_t payload_end        # in `payloads`
    uint8_t flags              # QoS | RETAIN << 2 | DUP << 3


cdef class MessageLog(Subscriber):
    cdef object write              # callable: takes the id of an entry and its block
    cdef object wait               # callable: requests a call of `close` a moment later
    cdef Pool pool
    cdef Buffer rows               # of Row
    cdef Buffer payloads, topics
    cdef Buffer topic_ends         # of int32_t
    cdef Buffer properties         # property blocks, with the expiry, without length
    cdef Buffer property_ends      # of int32_t, one for each row; empty until a row has properties
    cdef list clients              # client ids
    cdef uint64_t blocks           # number of the block being filled; marks the plans in it
    cdef int64_t now               # microseconds; 0 = not read yet
    cdef int64_t last              # the latest time used: the log's time never decreases
    cdef bint required             # a message in the block is acknowledged only when the block is stored
    cdef bint waiting              # `wait` was called
    cdef public bint suspended     # only messages that must be logged are logged
    cdef readonly uint64_t lacking     # messages not logged for this reason
    cdef readonly uint64_t rows_before     # of this block, in the whole log
    cdef readonly uint64_t bytes_before

    cdef void free_columns(self) noexcept
    cdef int append(self, const Publication* publication, Plan* plan) except -1
    cdef int append_properties(self, const Publication* publication) except -1
    cdef Py_ssize_t content_size(self) noexcept
    cdef int32_t client(self, object publisher) except -1
    cdef int32_t topic(self, Plan* plan, const uint8_t* topic, Py_ssize_t n) except -1
    cdef tuple take_block(self)
    cdef object put_header(self, uint8_t* p, uint32_t rows, uint32_t topics, bint properties)
    cdef tuple next_entry(self, Py_ssize_t rows, bytes block)
