"""A session in the store: its records in the journal, and how they are restored after a restart.

In a cluster a session writes no records: its queue is in Redis, and is restored here when its client connects.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from . cimport journal as j
from .subscription_identifiers cimport identifier_set
from .incoming_qos2 cimport incoming_places
from .message cimport (
    Message, Publication, message_hold, message_new, message_payload, message_properties, message_release,
    message_size, publication_of,
)
from .outgoing_queue cimport (
    ACKED, DUP, GOT_PUBREC, OF_GROUP, QOS, STORED_FLAGS, WAITING, Entry, queue_entry, queue_skip_acked,
)
from .session cimport Session
from .session_queue cimport GAP_MAX, begin_queue, count_queued
from .subscriber cimport LOCAL

from .journal import DamagedBlock


def record(Session session not None, bint connected):
    """Write the session to the journal: its level, its user, and whether it is connected."""
    cdef bytes user = session.user
    if session.kind == LOCAL and session.recorded():
        session.turn.journal.session(session.session_id, session.level, connected,
                                     min(session.queue.head, session.tail),
                                     session.first_unsent(), session.client_id)
        if user is not None:
            session.turn.journal.text(j.SESSION_USER, session.session_id, user, len(user))


def record_gone(Session session not None):
    """Write the end of the session to the journal."""
    if session.kind == LOCAL and session.recorded():
        session.turn.journal.number(j.SESSION_GONE, session.session_id)


def record_messages(Session session not None):
    """Write the queue and the QoS 2 states to the journal again."""
    cdef uint64_t n = session.queue.head
    cdef uint32_t i
    cdef Entry* e
    cdef bytes identifiers
    if not session.recorded():
        return
    while n < session.tail:
        e = queue_entry(session.queue, n)
        if e.message != NULL:
            identifiers = session.identifiers_of(e)
            session.turn.journal.queued(session, session.session_id, n, e.message, e.flags & STORED_FLAGS, identifiers,
                                        len(identifiers))
        elif e.state == GOT_PUBREC:
            session.turn.journal.entry(j.RECEIVED, session, session.session_id, n, 0)
        if e.flags & OF_GROUP:
            session.shares.record_given(n, e.identifiers)
        n += 1
    for i in range(incoming_places(session.incoming)):
        if session.incoming.items[i].message != NULL:
            session.turn.journal.awaiting(
                session, session.session_id, session.incoming.items[i].packet_id, session.incoming.items[i].message,
                session.incoming.items[i].number)


# ---- restore ----


def load(Session session not None):
    """Prepare to restore the queue, until `end_restore`. Messages that arrive after `restore` are accepted too.

    Messages that arrive before `restore` are in the queue that is read.
    """
    session.clear()
    session.tail = 0
    begin_queue(session)
    session.restoring = True


def unload(Session session not None):
    """Release the queue after the client left this node. Returns the `sent` limit that `restore` takes."""
    cdef uint64_t sent = session.first_unsent()
    if session.shares is not None:
        session.shares.detached()             # also if the client was gone before it was attached
    session.clear()
    session.tail = 1
    session.restoring = False
    return sent


def restore(Session session not None, uint64_t first, uint64_t sent):
    """Restore a SESSION record: all before `first` is done, all before `sent` has been sent."""
    cdef uint64_t n
    if first == 0 or sent > max(first, session.tail) + GAP_MAX:
        raise DamagedBlock("queue numbers out of range")
    begin_queue(session)
    n = session.queue.head
    while n < first and n < session.tail:
        restore_done(session, n)                  # a no-op after a DONE record
        n += 1
    while session.queue.head < first and session.queue.head < session.tail:
        session.queue.head += 1
    if session.queue.head < first:
        session.queue.head = session.tail = first
    session.queue.next = session.queue.head
    session.queue.sent = max(session.queue.sent, sent)


def restore_queued(Session session not None, uint64_t n, Restored message, uint8_t flags, bytes identifiers=b""):
    """Restore a QUEUED record, with the identifiers of subscriptions as properties; a repeated one is skipped."""
    cdef Entry* e
    if not 1 <= flags & QOS <= 2:
        raise DamagedBlock("a queued message of QoS 0 or 3")
    if n < session.queue.head:
        return
    e = session.restored_entry(n)
    if e.state != ACKED:
        return
    e[0] = Entry(message_hold(message.message), 0, flags, WAITING,
                 identifier_set(session.queue, session.tail, identifiers, len(identifiers)) if identifiers else 0, 0)
    count_queued(session, 1, message_size(e.message))
    session.note_expiry(e.message)


def restore_done(Session session not None, uint64_t n):
    """Restore a DONE record. A compaction may have dropped the entry, but its number is not used again."""
    if n >= session.tail:
        session.restored_entry(n)
    elif n >= session.queue.head and queue_entry(session.queue, n).state != ACKED:
        session.finish(n)


def restore_received(Session session not None, uint64_t n):
    """Restore a RECEIVED record: the client is to get PUBREL."""
    cdef Entry* e
    if n < session.queue.head:
        return
    e = session.restored_entry(n)
    if e.state == ACKED:
        count_queued(session, 1, 0)
    if e.message != NULL:
        count_queued(session, 0, -message_size(e.message))
        message_release(e.message)
    if e.flags & OF_GROUP:
        e[0] = Entry(NULL, 0, 2 | DUP | OF_GROUP, GOT_PUBREC, e.identifiers, e.size)
    else:
        e[0] = Entry(NULL, 0, 2 | DUP, GOT_PUBREC, 0, 0)


def restore_awaiting(Session session not None, uint16_t packet_id, Restored message, uint32_t progress=0,
                     uint64_t number=0):
    """Restore an AWAITING record. `progress`, `number`: of the message's publication, which a node that has ended
    began."""
    if not session.awaits(packet_id):
        session.await_release(packet_id, message_hold(message.message), progress, number)


def restore_released(Session session not None, uint16_t packet_id):
    """Restore a RELEASED record."""
    cdef Message* message = session.release(packet_id).message
    if message != NULL:
        message_release(message)


def end_restore(Session session not None, bint connected):
    """End the restore: messages that may have been sent to the client before get DUP.

    If the client was connected, all messages do: acknowledgements missing in the store may have released any.
    """
    cdef uint64_t n, sent
    begin_queue(session)
    sent = session.tail if connected else session.queue.sent
    if session.tail < session.queue.sent:         # the newest were acknowledged; their numbers are not reused
        session.restored_entry(session.queue.sent - 1)
    session.restoring = False
    session.committed = session.tail if session.kind == LOCAL and session.recorded() else <uint64_t>-1
    queue_skip_acked(session.queue, session.tail)
    n = session.queue.head
    while n < sent:
        if queue_entry(session.queue, n).state == WAITING:
            queue_entry(session.queue, n).flags |= DUP
        n += 1
    session.queue.sent = max(session.queue.sent, sent)
    session.queue.next = session.queue.head
    session.drop_empty_queue()


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
