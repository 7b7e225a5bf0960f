"""The subscribers of a shared subscription in turn.

A message of QoS 0 goes to the next subscriber that is connected (`choose`). For others there is a ring of the
subscribers that have room, so that a group with many subscribers that are busy finds one that is not at once. A second
ring has the subscribers that Redis gives messages by itself (`direct`): they get the node's messages only if no other
subscriber takes them, since Redis counts them apart from the node.
"""

cimport cython
from libc.stdint cimport uint64_t

from ..base.buffers cimport buffer_size
from .group_keys cimport key_of
from .group_subscriber cimport GroupSubscriber, fits
from .group_settings cimport ROTATION, GroupSettings
from .message cimport Publication
from .rights cimport MAY_READ
from .session cimport Session
from .subscriber cimport FLUSH_EARLY
from .turn cimport Outlet


@cython.final
cdef class Rotation:
    """A rotation without subscribers."""

    def __init__(self):
        self.connected = []

    cdef int connect(self, GroupSubscriber subscriber) except -1:
        """The subscriber has a connection."""
        if not subscriber.listed:
            subscriber.listed = True
            self.connected.append(subscriber)
        return 0

    cdef int disconnect(self, GroupSubscriber subscriber) except -1:
        """The subscriber has no connection any more, and gets no messages; the turn of the others stays."""
        cdef Py_ssize_t at
        if subscriber.listed:
            subscriber.listed = False
            at = self.connected.index(subscriber)
            del self.connected[at]
            self.turn_of -= at < self.turn_of
        return self.make_unready(subscriber)

    cdef GroupSubscriber choose(self, GroupSettings settings, const Publication* publication):
        """The subscriber that gets a message of QoS 0: the next that is connected, reads, and may have it; or None."""
        cdef Py_ssize_t count = 0 if settings.paused else len(self.connected), i
        cdef GroupSubscriber subscriber
        cdef Outlet outlet
        cdef Session session
        if settings.strategy_number != ROTATION and count:
            self.turn_of = <Py_ssize_t>(key_of(settings, publication) % <uint64_t>count)
        for i in range(count):
            if self.turn_of >= count:
                self.turn_of = 0
            subscriber = <GroupSubscriber>self.connected[self.turn_of]
            self.turn_of += 1
            session = subscriber.session
            outlet = session.outlet
            if outlet is None or outlet.closed:
                continue
            if buffer_size(&outlet.out) + publication.payload_length > FLUSH_EARLY:
                if not outlet.blocked:
                    outlet.flush()
                if (outlet.closed or buffer_size(&outlet.out) and buffer_size(&outlet.out) + publication.payload_length
                        > outlet.turn.limits.max_outgoing_bytes):
                    continue
            if session.rights is not None and not session.rights.may(
                    publication.topic, publication.topic_length, MAY_READ):
                continue
            if not fits(outlet, len(subscriber.properties), publication.topic_length - publication.hidden,
                        publication.payload_length, 0, publication.expires, publication.properties_length):
                continue
            return subscriber
        return None

    cdef bint make_ready(self, GroupSubscriber subscriber) noexcept:
        """Give messages to the subscriber from now on; False: it gets them already."""
        cdef GroupSubscriber first, last
        if subscriber.ready:
            return False
        subscriber.ready = True
        self.ready_count[subscriber.direct] += 1
        if self.first_ready[subscriber.direct] == NULL:
            self.first_ready[subscriber.direct] = subscriber.before = subscriber.after = <void*>subscriber
        else:
            first = <GroupSubscriber>self.first_ready[subscriber.direct]
            last = <GroupSubscriber>first.before
            subscriber.before, subscriber.after = <void*>last, <void*>first
            last.after = first.before = <void*>subscriber
        return True

    cdef int make_unready(self, GroupSubscriber subscriber) noexcept:
        """Give the subscriber no more messages."""
        if not subscriber.ready:
            return 0
        subscriber.ready = False
        self.ready_count[subscriber.direct] -= 1
        if subscriber.after == <void*>subscriber:
            self.first_ready[subscriber.direct] = NULL
        else:
            (<GroupSubscriber>subscriber.before).after = subscriber.after
            (<GroupSubscriber>subscriber.after).before = subscriber.before
            if self.first_ready[subscriber.direct] == <void*>subscriber:
                self.first_ready[subscriber.direct] = subscriber.after
        subscriber.before = subscriber.after = NULL
        return 0

    cdef bint has_ready(self) noexcept:
        """Whether a subscriber has room, as far as is known."""
        return self.first_ready[False] != NULL or self.first_ready[True] != NULL

    cdef int set_direct(self, GroupSubscriber subscriber, bint direct) noexcept:
        """Redis gives the subscriber messages by itself, or no more."""
        cdef bint ready = subscriber.ready
        if subscriber.direct != direct:
            self.make_unready(subscriber)
            subscriber.direct = direct
            if ready:
                self.make_ready(subscriber)
        return 0
