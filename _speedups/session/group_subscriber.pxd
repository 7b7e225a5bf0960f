# A session in a shared subscription. See group_subscriber.pyx.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.publish cimport properties_size, publish_remaining, publish_size
from .shared_subscription cimport SharedSubscription
from .message cimport Message
from .outgoing_queue cimport Entry
from .session cimport Session
from .turn cimport Outlet

cdef enum:
    MAXIMUM_QOS = 3                # of the options of a subscription


# The room of a subscriber, as the store of a cluster has it: see `AnnouncedRoom` in cluster/group_room.pyx.
cdef struct KnownRoom:
    int64_t total                  # messages that Redis has put into the session's queue; -1 = it is yet to be asked
    uint64_t rights_number         # of the rights for which `reads_all` was determined; 0 = none
    uint32_t room                  # messages that Redis may put there, as far as this node knows
    uint32_t steady                # the subscriber has room while its session's queue is shorter; 0 = see `room`
    bint reads_all                 # the client may read whatever the topic filter matches


@cython.final
cdef class GroupSubscriber(SharedSubscription):
    cdef readonly Session session
    cdef bint listed               # in Rotation.connected
    cdef bint direct               # Redis puts messages of the group into the session's queue by itself
    cdef KnownRoom known
    cdef void* before              # Subscribers of the ring of those with room ...
    cdef void* after               # ... not owned

    cdef uint32_t room(self) noexcept
    cdef uint32_t whole_room(self) noexcept
    cdef bint may_take(self, const Message* message) except -1
    cdef list entries(self)


cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL
cdef uint64_t put_entry(GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except 0


cdef inline bint fits(Outlet outlet, Py_ssize_t identifiers_size, Py_ssize_t topic_length, Py_ssize_t payload_length,
                      uint8_t qos, int64_t expires, Py_ssize_t properties_length) noexcept:
    """Whether the packet is not too large for the client [5: MQTT-3.1.2-24]."""
    return outlet.level < 5 or publish_size(
        publish_remaining(topic_length, payload_length, 2 if qos else 0)
        + <uint32_t>properties_size(expires != 0, 0, identifiers_size, properties_length)) <= <Py_ssize_t>outlet.largest
