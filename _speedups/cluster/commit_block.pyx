"""A block: a turn's changes, packed for Redis, until Redis has them."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from .given cimport forget_given, note_given
from ..session.message cimport message_release


cdef list ended_assignments(list moves, list done):
    return [*zip(moves[1::6], moves[2::6]), *zip(done[::2], done[1::2])]


cdef class Block:
    """A turn's changes, to be sent to Redis."""

    @property
    def ended_assignments(self):
        """(group, place) of the assignments that end with this block, as a list."""
        return ended_assignments(self.moves, self.done)

    def changes_without(self, list known not None):
        """The changes, without the changes of publications with these numbers."""
        left_out = {place for number in known for place in self.numbered_changes.get(number, ())}
        return [record for place, record in enumerate(self.changes, 1) if place not in left_out]

    cdef int renumber(self, bytes header) except -1:
        """Other blocks were sent before this one since it was packed: its batch has another header."""
        cdef Py_ssize_t at
        if self.header and header != self.header:
            at = self.commit.index(self.header, self.header_from)
            self.commit = self.commit[:at] + header + self.commit[at + len(self.header):]
            self.batch = header + self.batch[len(self.header):]
            self.header = header
        return 0

    def __len__(self):
        return (len(self.commit) + self.texts_size + len(self.batch) + sum(map(len, self.acks))
                + (len(self.entry[1]) if self.entry is not None else 0))

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.message_count):
            message_release(self.messages[i].message)
        free(self.messages)
        free(self.pushes.items)

    def numbered(self, list reply not None):
        """Redis has the block: sessions whose clients are here get their messages.

        Args:
            reply: first queue number and count for each session in turn; number 0 for sessions of other nodes.
        """
        cdef Py_ssize_t i = 0, j, number = 0
        cdef uint64_t first, count
        cdef Session session
        cdef Queued* queued
        for item in self.sessions:
            session = item
            first = reply[number]
            count = reply[number + 1]
            number += 2
            j = i
            while j < self.pushes.count and self.pushes.items[j].session == self.pushes.items[i].session:
                if first and <uint64_t>(j - i) < count:
                    queued = &self.messages[self.pushes.items[j].number]
                    of_group = self.of_groups.get(self.pushes.items[j].number) if self.of_groups else None
                    session.arrive(first + (j - i), queued.message, queued.flags,
                                   self.identifiers.get(self.pushes.items[j].number, b""),
                                   len(<bytes>self.texts[self.pushes.items[j].number]), of_group is not None)
                    if of_group is not None:
                        note_given(session, first + (j - i), of_group[0], of_group[1], of_group[2])
                        if of_group[3] is not None:
                            of_group[3].arrived()
                else:
                    hand_over = self.not_given(self.pushes.items[j].number)
                    if hand_over is None:
                        pass
                    elif <uint64_t>(j - i) < count:           # its client is elsewhere
                        hand_over.arrived()
                    else:
                        hand_over.failed()
                session.pending -= session.pending > 0
                j += 1
            i = j
            go_on(session)

    cdef object not_given(self, uint64_t number):
        """A message of a group is not in the session's queue, or is counted again when the queue is read.

        Returns its HandOver, if there is one.
        """
        of_group = self.of_groups.get(number) if self.of_groups else None
        if of_group is None:
            return None
        forget_given(of_group[2], of_group[1])
        return of_group[3]

    def unnumbered(self):
        """Redis has the block, but its reply was lost: the caller must read the queues. Returns the sessions."""
        cdef Session session
        cdef Py_ssize_t i = 0, first
        for item in self.sessions:
            session = item
            session.pending = 0
            first = i
            while i < self.pushes.count and self.pushes.items[i].session == self.pushes.items[first].session:
                hand_over = self.not_given(self.pushes.items[i].number)
                if hand_over is not None:
                    hand_over.ask()
                i += 1
            go_on(session)
        return self.sessions


cdef int go_on(Session session) except -1:
    """Fewer messages are on their way to the session's queue: it may pull more, also if it had got these before."""
    if session.outlet is not None:
        session.turn.schedule_send(session)
    return 0
