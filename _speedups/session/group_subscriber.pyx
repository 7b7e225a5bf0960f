"""A session in a shared subscription: its room, and its part of the session's queue.

A message that is given to a subscriber is an entry of the queue of its session (`session.pyx`).
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.tenants cimport tenant_size
from .shared_subscription cimport SharedSubscription, SessionGroup
from .message cimport Message, message_hold, message_size
from .outgoing_queue cimport ACKED, OF_GROUP, QOS, SENT, WAITING, Entry, queue_entry, queue_skip_acked
from .rights cimport MAY_READ
from .session cimport Session
from .session_queue cimport count_inflight, count_queued, make_room


@cython.final
cdef class GroupSubscriber(SharedSubscription):
    """The subscription of a session in a group."""

    def __init__(self, SessionGroup group not None, Session session not None):
        self.group = group
        self.session = session

    @property
    def given_now(self):
        """Messages that it has got and not acknowledged."""
        return self.given

    @property
    def is_connected(self):
        """Whether its session has a connection."""
        return self.session.outlet is not None

    cdef uint32_t room(self) noexcept:
        """Messages that it takes now: fewer than its window, and no more than its session would send at once.

        One that waited in the session would be lost with a clean session although no client had seen it.
        """
        if self.group is None or self.group.settings.paused or self.given >= self.group.settings.window:
            return 0
        return min(self.group.settings.window - self.given, self.session.room())

    cdef uint32_t whole_room(self) noexcept:
        """Messages that it takes when it has none."""
        if self.group is None or self.group.settings.paused or self.session.outlet is None:
            return 0
        return min(self.group.settings.window, self.session.turn.limits.max_inflight,
                   <uint32_t>self.session.outlet.receive_maximum)

    cdef bint may_take(self, const Message* message) except -1:
        """Whether its client may read the message, and takes a packet of its size."""
        cdef Session session = self.session
        cdef uint8_t qos
        if session.rights is not None and not session.rights.may(message.data, message.topic_length, MAY_READ):
            return False
        if session.outlet is None:
            return True
        qos = min(message.qos, <uint8_t>(self.options & MAXIMUM_QOS))
        return fits(session.outlet, len(self.properties),
                    message.topic_length - tenant_size(message.data, message.topic_length),
                    message.payload_length, qos, message.expires, message.properties_length)

    cdef list entries(self):
        """The queue numbers of the group's messages that it has and has not acknowledged."""
        cdef Session session = self.session
        cdef uint64_t n
        cdef Entry* e
        cdef list found = []
        for n in range(session.queue.head, session.tail):
            e = queue_entry(session.queue, n)
            if e.flags & OF_GROUP and e.identifiers == self.index and e.state != ACKED:
                found.append(n)
        return found


# ---- the queue of a subscriber's session ----

cdef uint64_t put_entry(GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except 0:
    """Put a message of the group into the queue of the subscriber's session; returns its queue number."""
    cdef Session session = subscriber.session
    cdef uint64_t n = session.tail
    make_room(session)
    session.shares.put(session.queue.head, n, place)
    queue_entry(session.queue, n)[0] = Entry(message_hold(message), 0, flags | OF_GROUP, WAITING, subscriber.index, 0)
    if session.recorded():
        session.turn.journal.queued(session, session.session_id, n, message, flags, subscriber.properties,
                                    len(subscriber.properties))
        session.turn.await_commit(session)
    session.tail += 1
    count_queued(session, 1, message_size(message))
    session.turn.schedule_send(session)
    return n


cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL:
    """Take an entry out of the session's queue, as if it were done; its reference passes to the caller."""
    cdef Message* message = e.message
    if e.state == SENT:
        count_inflight(session, -<int64_t>session.in_flight(n, e))
    count_queued(session, -1, -message_size(message))
    e[0] = Entry(NULL, 0, e.flags & QOS, ACKED, 0, 0)
    queue_skip_acked(session.queue, session.tail)
    return message


def has_given(Session session not None):
    """Whether the session has messages of groups."""
    cdef SharedSubscription subscription
    if session.shares is not None:
        for subscription in session.shares.items:
            if subscription is not None and subscription.given:
                return True
    return False
