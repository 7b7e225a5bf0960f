# Routes a published message to its receivers. See router.pyx.

from libc.stdint cimport uint8_t, uint64_t

from ..base.buffers cimport Buffer
from ..codec.properties cimport PropertyScan
from .delayed cimport DelayedMessages
from .foreign_sessions cimport ForeignSessions
from .retained cimport RetainedTree
from .subscriptions cimport SubscriptionTree
from ..session.group cimport Group
from ..session.message cimport Message, Publication
from ..session.rights cimport Rights
from ..session.subscriber cimport Plan, Receiver, Subscriber
from ..session.trace cimport Tracer
from ..session.turn cimport Outlet, Turn


cdef class Router:
    cdef readonly Turn turn
    cdef readonly SubscriptionTree filters
    cdef readonly ForeignSessions foreign
    cdef readonly RetainedTree retained
    cdef readonly DelayedMessages delayed
    cdef Buffer scratch                # a QoS 0 packet made from a message with a packet identifier
    cdef Buffer scratch_5              # likewise of level 5
    cdef Buffer stripped               # a property block from which something was taken
    cdef Buffer qualified              # a topic name with the prefix of its tenant

    cdef int check_topic(self, Publication* publication, Py_ssize_t hidden, int level) except -1
    cdef int count_for_tenant(self, const Publication* publication, uint64_t sent, uint64_t dropped) except -1
    cdef int fault_of(self, const uint8_t* topic, Py_ssize_t n, int level) noexcept
    cdef int qualify(self, Publication* publication, const uint8_t* prefix, Py_ssize_t size, uint64_t prefix_part,
                     int level) except -1
    cdef int publish_now_or_later(self, Publication* publication) except -1
    cdef int delay(self, Publication* publication) except -1
    cdef int publish_due(self, Message* message, bytes publisher) except -1
    cdef int begin_expiry(self, Publication* publication) except -1
    cdef int publish_chunk(self, const Publication* chunk) except -1
    cdef int route(self, Publication* publication) except -1
    cdef int give_in_slices(self, Publication* publication, const Plan* plan) except -1
    cdef bint may_deliver(self, Subscriber subscriber, const Publication* publication, Tracer tracer) except -1
    cdef bint send_to_one(self, Group group, Publication* publication, Tracer tracer) except -1
    cdef bint send_level_5(self, Subscriber subscriber, Outlet outlet, const uint8_t* identifiers,
                           Py_ssize_t identifiers_size, uint8_t flags, Publication* publication,
                           Tracer tracer) except -1
    cdef int encode_level_5(self, Publication* publication) except -1
    cdef int take_block(self, Publication* publication) except -1
    cdef int set_properties(self, Publication* publication, const uint8_t* block, Py_ssize_t n,
                            const PropertyScan* scan) except -1
    cdef int strip(self, Publication* publication, const uint8_t* expiry, const uint8_t* alias) except -1
    cdef int encode(self, Publication* publication) except -1
    cdef int retain(self, const Publication* publication) except -1
