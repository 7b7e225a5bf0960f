"""The part of a group in the store: its records in the journal, and its restoration after a restart.

While a persistent session is a member, the group is `kept`: its messages are in the journal (GROUP_QUEUED), until they
are in the queue of a persistent session (GIVEN), or done (GROUP_DONE). Else all members end with the node.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from . cimport journal as j
from .group_keys cimport Key
from .group_members cimport GroupMembers, Member, entries_of
from .group_queue cimport Held
from .group_settings cimport BY_PUBLISHER
from .message cimport Message, message_hold
from .outgoing_queue cimport ACKED, OF_GROUP, QOS, Entry, queue_entry
from .session cimport Session
from .session_store cimport Restored


@cython.no_gc_clear                       # as for Session: the end of the group subtracts from the totals of `turn`
cdef class GroupStore(GroupMembers):
    """A group that writes what is to survive a restart; the arguments are those of GroupMembers."""

    cdef bint recorded(self) noexcept:
        return self.kept and self.turn.journal.epoch != 0

    cdef int keep(self) except -1:
        """Write the group and its messages to the journal from now on."""
        self.kept = True
        self.record()
        self.record_messages()
        return 0

    cdef int stop_keeping(self, bint records) except -1:
        """The last member with a persistent session has left."""
        if self.turn.journal.epoch and records:
            self.turn.journal.number(j.GROUP_GONE, self.session_id)
        self.kept = False
        return 0

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        if self.recorded():
            self.record_key(place)
            self.turn.journal.group_queued(self.session_id, place, message)
        return 0

    cdef int record_key(self, uint64_t place) except -1:
        """Write the key of a message, unless it follows from its topic name."""
        cdef Key key
        if self.keys is not None and self.keys.strategy == BY_PUBLISHER:
            key = self.keys.of(place)
            if key is not None:
                self.turn.journal.group_key(self.session_id, place, key.hash)
        elif self.restored_keys is not None and place in self.restored_keys:
            self.turn.journal.group_key(self.session_id, place, self.restored_keys[place])
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        if self.recorded():
            self.turn.journal.numbers(j.GROUP_DONE, self.session_id, place)
        return 0

    def record(self):
        """Write the group to the journal, before records that refer to it."""
        if self.recorded():
            self.turn.journal.text(j.GROUP, self.session_id, self.client_id, len(self.client_id))
            if self.settings.declared:
                self.record_declaration()

    def record_declaration(self):
        """Write to the journal how the group is declared, or that it is not."""
        cdef const uint8_t* text = self.settings.declaration
        if self.recorded():
            self.turn.journal.text(j.GROUP_DECLARED, self.session_id, text, len(self.settings.declaration))

    def record_messages(self):
        """Write the messages that wait to the journal again, and those that clean sessions have not acknowledged."""
        cdef uint64_t n
        cdef Held held
        cdef Member member
        cdef Session session
        cdef Entry* e
        if not self.recorded():
            return
        for held in (*self.waiting_messages(), *self.dead):
            self.record_queued(held.place, held.message)
        for place in self.failures or ():
            self.record_failure(place)
        for member in self.members:
            session = member.session
            for n in () if session.recorded() else entries_of(member):
                e = queue_entry(session.queue, n)
                if e.message != NULL and e.flags & QOS == 1:
                    self.record_queued(session.shares.places[n & session.shares.mask], e.message)

    # ---- restore ----

    def restore_queued(self, uint64_t place, Restored message not None):
        """Restore a GROUP_QUEUED record."""
        if self.restored_places is None:
            self.restored_places = {}
        self.restored_places[place] = message
        self.next_place = max(self.next_place, place + 1)

    def restore_done(self, uint64_t place):
        """Restore a GROUP_DONE record."""
        self.forget_failures(place)
        if self.restored_places is not None:
            self.restored_places.pop(place, None)

    def restore_key(self, uint64_t place, uint32_t key):
        """Restore a GROUP_KEY record."""
        if self.restored_keys is None:
            self.restored_keys = {}
        self.restored_keys[place] = key

    def restore_gone(self):
        """Restore a GROUP_GONE record: no message of the group is kept. GROUP may follow again."""
        self.restored_places = None
        self.failures = None

    def restore_given(self, uint64_t place, Session session not None, uint64_t n):
        """Restore a GIVEN record: the entry `n` of the session's queue is the message of this place."""
        cdef Member member
        cdef Entry* e
        if self.restored_places is not None:
            self.restored_places.pop(place, None)
        self.next_place = max(self.next_place, place + 1)
        for member in self.members:
            if member.session is session and session.queue.head <= n < session.tail:
                e = queue_entry(session.queue, n)
                if e.state != ACKED and not e.flags & OF_GROUP:
                    e.flags |= OF_GROUP
                    e.identifiers = member.index
                    session.shares.put(session.queue.head, n, place)
                    member.given += 1

    def restored(self):
        """End the restore: the messages that wait are in the order of their places."""
        cdef Restored message
        self.kept = self.kept or self.settings.declared
        if self.failures is not None:
            self.prune_failures()
        places, self.restored_places = self.restored_places or {}, None
        for place in sorted(places):
            message = places[place]
            if self.has_failed(place):
                self.take_dead(place, message_hold(message.message))
                continue
            self.wait(place, message_hold(message.message), True)
        self.find_keys()
        if self.keys is not None:
            self.restored_keys = None

    def restore_failed(self, uint64_t place, uint64_t failures):
        """Restore a GROUP_FAILED record."""
        if self.failures is None:
            self.failures = {}
        self.failures[place] = (failures >> 8, failures & 255, None)

    cdef int prune_failures(self) except -1:
        """Forget what a compaction has written of messages that were done meanwhile."""
        cdef Member member
        cdef Session session
        cdef uint64_t n
        cdef set live = set(self.restored_places or ())
        for member in self.members:
            session = member.session
            for n in entries_of(member):
                live.add(session.shares.places[n & session.shares.mask])
        for place in [place for place in self.failures if place not in live]:
            self.forget_failures(place)
        return 0

    cdef int find_keys(self) except -1:
        """Note the keys of the messages that are here, as far as they are known."""
        raise NotImplementedError
