"""A shared subscription in the store of a node alone: its records in the journal, and its restore after a restart.

While a persistent session is a subscriber, or the group is declared, the group is *kept*: its messages are in the
journal (GROUP_QUEUED), until they are in the queue of a persistent session (GIVEN), or done (GROUP_DONE). Else all
subscribers end with the node.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from . cimport journal as j
from .group cimport Group, give_back
from .group_backing cimport GroupBacking
from ..base.name_hash cimport hash_of
from .group_keys cimport Key
from .group_subscriber cimport GroupSubscriber, put_entry
from .group_queue cimport Held
from .group_settings cimport BY_PUBLISHER, BY_TOPIC
from .message cimport Message, Publication, message_hold
from .outgoing_queue cimport ACKED, OF_GROUP, QOS, Entry, queue_entry
from .session cimport Session
from .session_store cimport Restored


cdef class GroupJournal(GroupBacking):
    """The records of a group without subscribers.

    Args:
        group: that has this as its backing.
    """

    def __init__(self, Group group not None):
        self.group = group
        self.journal = group.turn.journal
        self.next_place = 1
        self.limits_here = True

    cdef bint recorded(self) noexcept:
        """Whether messages are written to the journal."""
        return self.kept and self.journal.epoch != 0

    # ---- messages ----

    cdef uint64_t place_new(self, const Publication* publication, uint8_t qos, Message* message) except? 0:
        self.next_place += 1
        return self.next_place - 1

    cdef int put(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1:
        return self.record_given(subscriber, place, put_entry(subscriber, place, message, flags))

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        if record and self.kept:
            self.record_queued(place, message)
        return self.group.backlog.come_back(place, message)

    cdef int take_refused(self, GroupSubscriber subscriber, uint64_t n, uint8_t code) except -1:
        return give_back(subscriber.session, n, queue_entry(subscriber.session.queue, n), code)

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        if self.recorded():
            self.record_key(place)
            self.journal.group_queued(self.group.session_id, place, message)
        return 0

    cdef int record_key(self, uint64_t place) except -1:
        """Write the key of a message, unless it follows from its topic name."""
        cdef Key key
        if self.group.backlog.keys is not None and self.group.backlog.keys.strategy == BY_PUBLISHER:
            key = self.group.backlog.keys.of(place)
            if key is not None:
                self.journal.group_key(self.group.session_id, place, key.hash)
        elif self.restored_keys is not None and place in self.restored_keys:
            self.journal.group_key(self.group.session_id, place, self.restored_keys[place])
        return 0

    cdef int record_given(self, GroupSubscriber subscriber, uint64_t place, uint64_t n) except -1:
        if subscriber.session.recorded():
            self.record_key(place)
            self.journal.given(self.group.session_id, place, subscriber.session.session_id, n)
        return 0

    cdef int record_failure(self, uint64_t place) except -1:
        cdef tuple failures = self.group.backlog.failures.of(place) or (0, 0, None)
        if self.recorded():
            self.journal.group_failed(self.group.session_id, place, failures[0], failures[1])
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        if self.recorded():
            self.journal.numbers(j.GROUP_DONE, self.group.session_id, place)
        return 0

    cdef int record_dead(self, uint64_t place) except -1:
        return self.record_done(place)

    # ---- the group ----

    cdef int joined(self, Session session) except -1:
        if session.recorded() and not self.kept:
            self.keep()
        elif session.persistent and session.restoring:
            self.kept = True
        return 0

    cdef int left(self, bint records) except -1:
        if self.kept and not self.group.has_persistent():
            self.stop_keeping(records)
        return 0

    cdef int configured(self, bint was_declared) except -1:
        if self.group.settings.declared and not self.kept and self.journal.epoch:
            self.keep()
        elif self.group.settings.declared or was_declared:
            self.record_declaration()
        return self.left(True)

    cdef int keep(self) except -1:
        """Write the group and its messages to the journal from now on."""
        self.kept = True
        self.record()
        self.record_messages()
        return 0

    cdef int stop_keeping(self, bint records) except -1:
        """The last subscriber with a persistent session has left."""
        if self.journal.epoch and records:
            self.journal.number(j.GROUP_GONE, self.group.session_id)
        self.kept = False
        return 0

    cdef int order_changed(self) except -1:
        """Note the keys of the messages that are here, as far as they are known."""
        cdef uint64_t n, place
        cdef Held held
        cdef GroupSubscriber subscriber
        cdef Session session
        if self.group.backlog.keys is None:
            return 0
        for held in self.group.backlog.queue.messages():
            self.note_key(held.place, held.message)
        for subscriber in self.group.subscribers:
            session = subscriber.session
            for n in subscriber.entries():
                if queue_entry(session.queue, n).message != NULL:
                    place = session.shares.place(n)
                    self.note_key(place, queue_entry(session.queue, n).message)
                    self.group.backlog.keys.bind(place, subscriber)
        return 0

    cdef int note_key(self, uint64_t place, const Message* message) except -1:
        """Note the key of a message that is here already."""
        if self.group.backlog.keys.of(place) is None:
            if self.group.backlog.keys.strategy == BY_TOPIC:
                self.group.backlog.keys.note(place, hash_of(message.data, message.topic_length))
            elif self.restored_keys is not None and place in self.restored_keys:
                self.group.backlog.keys.note(place, self.restored_keys[place])
        return 0

    cdef int abandon(self) except -1:
        return self.group.backlog.purge() if self.group.distributor.is_empty() else 0

    def record(self):
        """Write the group to the journal, before records that refer to it."""
        cdef const uint8_t* name = self.group.client_id
        if self.recorded():
            self.journal.text(j.GROUP, self.group.session_id, name, len(self.group.client_id))
            if self.group.settings.declared:
                self.record_declaration()

    cdef int record_declaration(self) except -1:
        """Write to the journal how the group is declared, or that it is not."""
        cdef const uint8_t* text = self.group.settings.declaration
        if self.recorded():
            self.journal.text(j.GROUP_DECLARED, self.group.session_id, text, len(self.group.settings.declaration))
        return 0

    def record_messages(self):
        """Write the messages that wait to the journal again, and the unacknowledged messages of clean sessions."""
        cdef uint64_t n
        cdef Held held
        cdef GroupSubscriber subscriber
        cdef Session session
        cdef Entry* e
        if not self.recorded():
            return
        for held in (*self.group.backlog.queue.messages(), *(self.group.backlog.failures.dead or ())):
            self.record_queued(held.place, held.message)
        for place in self.group.backlog.failures.by_place or ():
            self.record_failure(place)
        for subscriber in self.group.subscribers:
            session = subscriber.session
            for n in () if session.recorded() else subscriber.entries():
                e = queue_entry(session.queue, n)
                if e.message != NULL and e.flags & QOS == 1:
                    self.record_queued(session.shares.place(n), e.message)

    # ---- restore ----

    def restore_queued(self, uint64_t place, Restored message not None):
        """Restore a GROUP_QUEUED record."""
        if self.restored_places is None:
            self.restored_places = {}
        self.restored_places[place] = message
        self.next_place = max(self.next_place, place + 1)

    def restore_failed(self, uint64_t place, uint64_t failures):
        """Restore a GROUP_FAILED record."""
        self.group.backlog.failures.restore(place, failures)

    def restore_done(self, uint64_t place):
        """Restore a GROUP_DONE record."""
        self.group.backlog.failures.forget(place)
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
        self.group.backlog.failures.forget_others(set())

    def restore_given(self, uint64_t place, Session session not None, uint64_t n):
        """Restore a GIVEN record: the entry `n` of the session's queue is the message of this place."""
        cdef GroupSubscriber subscriber
        cdef Entry* e
        if self.restored_places is not None:
            self.restored_places.pop(place, None)
        self.next_place = max(self.next_place, place + 1)
        for subscriber in self.group.subscribers:
            if subscriber.session is session and session.queue.head <= n < session.tail:
                e = queue_entry(session.queue, n)
                if e.state != ACKED and not e.flags & OF_GROUP:
                    e.flags |= OF_GROUP
                    e.identifiers = subscriber.index
                    session.shares.put(session.queue.head, n, place)
                    subscriber.given += 1

    cdef int restored(self) except -1:
        """End the restore: the messages that wait are in the order of their places."""
        cdef Restored message
        self.kept = self.kept or self.group.settings.declared
        self.prune_failures()
        places, self.restored_places = self.restored_places or {}, None
        for place in sorted(places):
            message = places[place]
            self.group.backlog.restore(place, message_hold(message.message))
        self.order_changed()
        if self.group.backlog.keys is not None:
            self.restored_keys = None
        return 0

    cdef int prune_failures(self) except -1:
        """Forget the failures of messages that were done while a compaction wrote them."""
        cdef GroupSubscriber subscriber
        cdef uint64_t n
        cdef set live = set(self.restored_places or ())
        if self.group.backlog.failures.by_place is None:
            return 0
        for subscriber in self.group.subscribers:
            for n in subscriber.entries():
                live.add(subscriber.session.shares.place(n))
        return self.group.backlog.failures.forget_others(live)
