"""Messages that Redis has for this node: entries of queues go to their sessions, assigned messages to their groups."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from .given cimport note_given
from .group_assignments cimport GroupAssignments
from .message_codec cimport AS_PUBLISHED, OF_SHARE, Heads, Opened, open_entry, read_heads, read_message
from ..session.group cimport Group
from ..session.message cimport (
    Message, Publication, message_new, message_payload, message_properties, message_release,
)
from ..session.outgoing_queue cimport (
    DUP, GOT_PUBREC, QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE, SENT, WAITING, Entry, queue_entry,
)
from ..session.session cimport Session

from .message_codec import encode_entry, encode_message


def arrive(Session session not None, uint64_t n, bytes data not None, bint given=False):
    """Pass an entry of a queue with queue number `n`, encoded for Redis, to its session.

    `given`: Redis has just given it to the session, as a subscriber of a group.
    """
    cdef Opened entry = open_entry(data, len(data))
    cdef int64_t deadline
    cdef Publication publication = read_message(entry.message, entry.size, &deadline)
    cdef Message* m
    publication.expires = session.turn.journal.at(session.shard).clock_of(deadline)
    m = message_new(&publication)
    if m == NULL:
        raise MemoryError
    try:
        session.arrive(n, m, entry.message[0] & (QOS | RETAINED_MESSAGE)
                       | (RETAIN_AS_PUBLISHED if entry.flags & AS_PUBLISHED else 0),
                       entry.identifiers[:entry.identifiers_length], len(data), entry.flags & OF_SHARE != 0)
        if given:
            session.trace("given", m, entry.message[0] & QOS, "by a shared subscription")
        if entry.flags & OF_SHARE:
            note_given(session, n, entry.group[:entry.group_length], entry.place, None, entry.heads.key,
                       entry.heads.failures)
    finally:
        message_release(m)


def unfinished(Session session not None):
    """The QoS 2 messages that the client may have, and that are not completed.

    Returns:
        A list of (queue number, entry of the queue encoded for Redis). The entry is empty after PUBREC. A message of
        a shared subscription has neither group nor place: Redis may have given the place to another message.
    """
    cdef uint64_t n = session.queue.head, end = session.first_unsent()
    cdef Entry* e
    cdef Message* m
    cdef bytes entry
    cdef list found = []
    while n < end:
        e = queue_entry(session.queue, n)
        if e.flags & QOS == 2 and (e.state == SENT or e.state == GOT_PUBREC or (e.state == WAITING and e.flags & DUP)):
            m = e.message
            entry = b"" if m == NULL else encode_entry(
                encode_message(m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length],
                               2, e.flags & RETAINED_MESSAGE != 0,
                               message_properties(m)[:<Py_ssize_t>m.properties_length],
                               # the inverse of `clock_of`
                               session.turn.journal.at(session.shard).deadline(m.expires + 1 if m.expires else 0)),
                e.flags & RETAIN_AS_PUBLISHED != 0, session.identifiers_of(e))
            found.append((n, entry))
        n += 1
    return found


def renumber(object group not None, uint64_t place, bytes data not None):
    """Redis has assigned a message to this node, which has it: note the number of the assignment."""
    (<GroupAssignments>(<Group?>group).backing).keys.renumber(place, read_heads(data, len(data)).number)


def assigned(object group not None, uint64_t place, bytes data not None):
    """Redis has assigned a message to this node: pass it to the group."""
    cdef int64_t deadline
    cdef Publication publication
    cdef Message* m
    cdef GroupAssignments assignments = (<Group?>group).backing
    cdef const uint8_t* p = data
    cdef Py_ssize_t size = len(data)
    cdef Heads heads = read_heads(p, size)
    if heads.failures:
        assignments.group.backlog.failures.restore(place, heads.failures)
    publication = read_message(p + heads.size, size - heads.size, &deadline)
    publication.expires = assignments.journal.clock_of(deadline)
    m = message_new(&publication)
    if m == NULL:
        raise MemoryError
    try:
        assignments.take(place, m, heads.key, heads.number, heads.elsewhere)
    finally:
        message_release(m)
