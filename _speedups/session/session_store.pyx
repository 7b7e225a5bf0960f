"""A session in the store: its records in the journal, and how they are restored after a restart.

In a cluster a session has no records of its own: its queue is in Redis, and is restored here when its client connects.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from . cimport journal as j
from .incoming_qos2 cimport incoming_places
from .message cimport (
    Message, Publication, message_hold, message_new, message_payload, message_properties, message_release,
    message_size, publication_of,
)
from .outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, STORED_FLAGS, WAITING, Entry, queue_entry, queue_skip_acked,
)
from .session_queue cimport GAP_MAX, SessionQueue, begin_queue, count_queued
from .subscriber cimport LOCAL

from .journal import DamagedBlock


@cython.no_gc_clear                       # as for SessionQueue
cdef class SessionStore(SessionQueue):
    """A session that writes records and is restored from them; the arguments are those of SessionQueue."""

    def record(self, bint connected):
        """Write the session to the journal: its level, its user, and whether it is connected."""
        cdef bytes user = self.user
        if self.kind == LOCAL and self.recorded():
            self.turn.journal.session(self.session_id, self.level, connected, min(self.queue.head, self.tail),
                                      self.first_unsent(), self.client_id)
            if user is not None:
                self.turn.journal.text(j.SESSION_USER, self.session_id, user, len(user))

    def record_gone(self):
        """Write the end of the session to the journal."""
        if self.kind == LOCAL and self.recorded():
            self.turn.journal.number(j.SESSION_GONE, self.session_id)

    def record_messages(self):
        """Write the queue and the QoS 2 states to the journal again."""
        cdef uint64_t n = self.queue.head
        cdef uint32_t i
        cdef Entry* e
        cdef bytes identifiers
        if not self.recorded():
            return
        while n < self.tail:
            e = queue_entry(self.queue, n)
            if e.message != NULL:
                identifiers = self.identifiers_of(e)
                self.turn.journal.queued(self, self.session_id, n, e.message, e.flags & STORED_FLAGS, identifiers,
                                         len(identifiers))
            elif e.state == GOT_PUBREC:
                self.turn.journal.entry(j.RECEIVED, self, self.session_id, n, 0)
            if e.flags & OF_GROUP:
                self.shares.record_given(n, e.identifiers)
            n += 1
        for i in range(incoming_places(self.incoming)):
            if self.incoming.items[i].message != NULL:
                self.turn.journal.awaiting(
                    self, self.session_id, self.incoming.items[i].packet_id, self.incoming.items[i].message)

    # ---- restore ----

    @property
    def loading(self):
        """Whether the queue is being restored."""
        return self.restoring

    @property
    def next_number(self):
        """The queue number that the next message gets."""
        return self.tail

    def load(self):
        """Prepare to restore the queue, until `restored`. Messages that arrive after `restore` are accepted too.

        Messages that arrive before `restore` are in the queue that is read.
        """
        self.clear()
        self.tail = 0
        begin_queue(self)
        self.restoring = True

    def unload(self):
        """Release the queue after the client left this node. Returns the `sent` limit that `restore` takes."""
        cdef uint64_t sent = self.first_unsent()
        if self.shares is not None:
            self.shares.detached()                # also if the client was gone before it was attached
        self.clear()
        self.tail = 1
        self.restoring = False
        return sent

    def restore(self, uint64_t first, uint64_t sent):
        """Restore a SESSION record: all before `first` is done, all before `sent` has been sent."""
        cdef uint64_t n
        if first == 0 or sent > max(first, self.tail) + GAP_MAX:
            raise DamagedBlock("queue numbers out of range")
        begin_queue(self)
        n = self.queue.head
        while n < first and n < self.tail:
            self.restore_done(n)                  # a no-op after a DONE record
            n += 1
        while self.queue.head < first and self.queue.head < self.tail:
            self.queue.head += 1
        if self.queue.head < first:
            self.queue.head = self.tail = first
        self.queue.next = self.queue.head
        self.queue.sent = max(self.queue.sent, sent)

    def restore_queued(self, uint64_t n, Restored message, uint8_t flags, bytes identifiers=b""):
        """Restore a QUEUED record, with the identifiers of subscriptions as properties; a repeated one is skipped."""
        cdef Entry* e
        if not 1 <= flags & QOS <= 2:
            raise DamagedBlock("a queued message of QoS 0 or 3")
        if n < self.queue.head:
            return
        e = self.restored_entry(n)
        if e.state != ACKED:
            return
        e[0] = Entry(message_hold(message.message), 0, flags, WAITING,
                     self.identifier_set(identifiers, len(identifiers)) if identifiers else 0, 0)
        count_queued(self, 1, message_size(e.message))
        self.note_expiry(e.message)

    def restore_done(self, uint64_t n):
        """Restore a DONE record. A compaction may have dropped the entry, but its number is not used again."""
        if n >= self.tail:
            self.restored_entry(n)
        elif n >= self.queue.head and queue_entry(self.queue, n).state != ACKED:
            self.finish(n)

    def restore_received(self, uint64_t n):
        """Restore a RECEIVED record: the client is to get PUBREL."""
        cdef Entry* e
        if n < self.queue.head:
            return
        e = self.restored_entry(n)
        if e.state == ACKED:
            count_queued(self, 1, 0)
        if e.message != NULL:
            count_queued(self, 0, -message_size(e.message))
            message_release(e.message)
        if e.flags & OF_GROUP:
            e[0] = Entry(NULL, 0, 2 | DUP | OF_GROUP, GOT_PUBREC, e.identifiers, e.size)
        else:
            e[0] = Entry(NULL, 0, 2 | DUP, GOT_PUBREC, 0, 0)

    def restore_awaiting(self, uint16_t packet_id, Restored message, uint32_t progress=0):
        """Restore an AWAITING record. `progress`: of the message's publication, which a node that has ended began."""
        if not self.awaits(packet_id):
            self.await_release(packet_id, message_hold(message.message), progress)

    def restore_released(self, uint16_t packet_id):
        """Restore a RELEASED record."""
        cdef Message* message = self.release(packet_id).message
        if message != NULL:
            message_release(message)

    def restored(self, bint connected):
        """End the restore: messages that may have been sent to the client before get DUP.

        If the client was connected, all messages do: acknowledgements missing in the store may have released any.
        """
        cdef uint64_t n, sent
        begin_queue(self)
        sent = self.tail if connected else self.queue.sent
        if self.tail < self.queue.sent:                 # the newest were acknowledged; their numbers are not reused
            self.restored_entry(self.queue.sent - 1)
        self.restoring = False
        self.committed = self.tail if self.kind == LOCAL and self.recorded() else <uint64_t>-1
        queue_skip_acked(self.queue, self.tail)
        n = self.queue.head
        while n < sent:
            if queue_entry(self.queue, n).state == WAITING:
                queue_entry(self.queue, n).flags |= DUP
            n += 1
        self.queue.sent = max(self.queue.sent, sent)
        self.queue.next = self.queue.head
        self.drop_empty_queue()


cdef class Restored:
    """A message restored from the store, kept while records that name it are read."""

    def __cinit__(self, uint64_t number, int qos, bint retain, bytes topic not None, bytes payload not None,
                  bytes properties=b"", int64_t expires=0):
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), <uint8_t>qos, retain)
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.expires = expires
        self.message = message_new(&publication)
        if self.message == NULL:
            raise MemoryError
        self.message.stored_id = number

    def __dealloc__(self):
        if self.message != NULL:
            message_release(self.message)

    @property
    def topic(self):
        """Topic name, as bytes."""
        return self.message.data[:self.message.topic_length]

    @property
    def properties(self):
        """Its property block, without length, alias and expiry, as bytes."""
        return message_properties(self.message)[:<Py_ssize_t>self.message.properties_length]

    @property
    def expires(self):
        """The time of the turn's clock at which it expires; 0 = never."""
        return self.message.expires

    @expires.setter
    def expires(self, int64_t clock):
        self.message.expires = clock

    @property
    def payload(self):
        """Payload, as bytes."""
        return message_payload(self.message)[:<Py_ssize_t>self.message.payload_length]

    @property
    def qos(self):
        """QoS as published."""
        return self.message.qos

    @property
    def retain(self):
        """RETAIN as published."""
        return bool(self.message.retain)
