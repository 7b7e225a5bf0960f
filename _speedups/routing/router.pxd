# From a published message to everybody who gets it. See router.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from _speedups.session.rights cimport Rights
from _speedups.base.buffers cimport Buffer
from _speedups.routing.subscriptions cimport SubscriptionTree, Plan
from _speedups.session.message cimport Message
from _speedups.routing.retained cimport RetainedTree
from _speedups.session.turn cimport Turn


cdef class Router:
    cdef readonly Turn turn
    cdef readonly SubscriptionTree filters
    cdef readonly RetainedTree retained
    cdef bint looked_up                # the topic name checked last has been ...
    cdef Plan* plan                    # ... and this is its plan, which may be stale, or NULL; good until filters change
    cdef uint64_t topic_hash           # of that name
    cdef Buffer scratch                # a QoS 0 packet made from a message with a packet identifier

    cdef int check_topic(self, const uint8_t* topic, Py_ssize_t n, int level) except -1
    cdef bint may_publish(self, Rights rights, const uint8_t* topic, Py_ssize_t n) except -1
    cdef const uint8_t* encode(self, const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                               Py_ssize_t payload_length, Py_ssize_t size) except NULL
    cdef int retain(self, const uint8_t* topic, Py_ssize_t n, Py_ssize_t payload_length, Message* message) except -1
    cdef int route(self, const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                   Py_ssize_t payload_length, uint8_t qos, bint retain, const uint8_t* packet, Message* message,
                   object publisher, uint8_t dup=*, bint forwarded=*, bint checked=*) except -1
