# The connection to Redis. See link.pyx.

from libc.stdint cimport int64_t, uint8_t

from ..net.outgoing_connection cimport OutgoingConnection


cdef class RedisConnection(OutgoingConnection):
    cdef object on_push                # callable: (channel, payload)
    cdef object on_drained             # callable
    cdef object on_lost                # callable
    cdef bint in_slot                  # the server is of a Redis Cluster, and can lose the slot of the keys
    cdef bint skips                    # Redis need not reply to PUBLISH
    cdef readonly str why_closed       # the reason why this side has ended the connection, if it has one
    cdef object waiting                # deque of (then, ns when it was sent): calls without a reply, oldest first
    cdef object withheld               # deque of sizes: output that may not be sent yet, up to each `call_alone`
    cdef list held                     # pushes until `release`; None: they are processed
    cdef list deferred                 # replies and pushes received while `call_first` waits for its reply, or None
    cdef Py_ssize_t replies_before     # earlier calls without a reply
    cdef object on_first               # callable that gets the reply of `call_first`
    cdef int64_t read_at               # ns
    cdef Py_ssize_t missing            # bytes that the first reply needs at least

    cdef int take(self, object item, bint is_push) except -1
    cdef int push(self, object channel, object payload) except -1
    cdef int defer(self, object item, bint is_push) except -1
    cdef str unusable(self, object item, bint is_push)
    cdef int put_argument(self, object argument) except -1
