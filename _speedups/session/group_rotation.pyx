"""The members of a shared subscription in turn.

A message of QoS 0 goes to the next member that is connected (`choose`). For others there is a ring of the members that
have room, so that a group with many members that are busy finds one that is not at once.
"""

cimport cython
from libc.stdint cimport uint64_t

from ..base.buffers cimport buffer_size
from .group_keys cimport key_of
from .group_members cimport Member, fits
from .group_settings cimport ROTATION, GroupSettings
from .message cimport Publication
from .rights cimport MAY_READ
from .session cimport Session
from .subscriber cimport FLUSH_EARLY
from .turn cimport Outlet


@cython.final
cdef class Rotation:
    """A rotation without members."""

    def __init__(self):
        self.connected = []

    cdef int connect(self, Member member) except -1:
        """The member has a connection."""
        if not member.listed:
            member.listed = True
            self.connected.append(member)
        return 0

    cdef int disconnect(self, Member member) except -1:
        """The member has no connection any more, and gets no messages; the turn of the others stays."""
        cdef Py_ssize_t at
        if member.listed:
            member.listed = False
            at = self.connected.index(member)
            del self.connected[at]
            self.turn_of -= at < self.turn_of
        return self.make_unready(member)

    cdef Member choose(self, GroupSettings settings, const Publication* publication):
        """The member that gets a message of QoS 0: the next that is connected, reads, and may have it; or None."""
        cdef Py_ssize_t count = 0 if settings.paused else len(self.connected), i
        cdef Member member
        cdef Outlet outlet
        cdef Session session
        if settings.strategy_number != ROTATION and count:
            self.turn_of = <Py_ssize_t>(key_of(settings, publication) % <uint64_t>count)
        for i in range(count):
            if self.turn_of >= count:
                self.turn_of = 0
            member = <Member>self.connected[self.turn_of]
            self.turn_of += 1
            session = member.session
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
            if not fits(outlet, len(member.properties), publication.topic_length - publication.hidden,
                        publication.payload_length, 0, publication.expires, publication.properties_length):
                continue
            return member
        return None

    cdef bint make_ready(self, Member member) noexcept:
        """Give messages to the member from now on; False: it gets them already."""
        cdef Member first, last
        if member.ready:
            return False
        member.ready = True
        self.ready_count += 1
        if self.first_ready == NULL:
            self.first_ready = member.before = member.after = <void*>member
        else:
            first = <Member>self.first_ready
            last = <Member>first.before
            member.before, member.after = <void*>last, <void*>first
            last.after = first.before = <void*>member
        return True

    cdef int make_unready(self, Member member) noexcept:
        """Give the member no more messages."""
        if not member.ready:
            return 0
        member.ready = False
        self.ready_count -= 1
        if member.after == <void*>member:
            self.first_ready = NULL
        else:
            (<Member>member.before).after = member.after
            (<Member>member.after).before = member.before
            if self.first_ready == <void*>member:
                self.first_ready = member.after
        member.before = member.after = NULL
        return 0
