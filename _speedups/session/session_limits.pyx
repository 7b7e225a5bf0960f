"""Whether the queue of a session is full, and the drop of its expired or, with `drop-old`, its oldest messages.

A dropped entry waits as ACKED for the entries in flight before it, as one that was acknowledged does.
"""

from libc.stdint cimport int64_t, uint64_t

from . cimport journal as j
from .counters cimport EXPIRED
from .outgoing_queue cimport (
    ACKED, DUP, NEVER_EXPIRES, OF_GROUP, PACKET_IDS, QOS, STORED_FLAGS, WAITING, Entry, queue_entry,
)
from .session_queue cimport QueueLimits, SessionQueue
from .subscriber cimport LOCAL
from .tenant cimport queue_is_over

cdef enum:
    ACKED_MAX = PACKET_IDS     # entries that may wait as ACKED: for more, the numbers behind them are closed up


cdef bint is_over(SessionQueue session, const QueueLimits* limits, Py_ssize_t size) noexcept:
    """Whether a message of this size is one too many; one alone never is, but for the tenant."""
    return (session.queue.queued >= limits.messages
            or (session.queue.queued and session.queue.queued_bytes + <uint64_t>size > limits.size)
            or queue_is_over(session.tenant, <int64_t>size))


cdef bint drop_expired(SessionQueue session) except -1:
    """Drop all messages that were never sent and have expired; whether there were any.

    All entries are looked at, but only when a message may have expired since the last time: at most once in a tick.
    """
    cdef uint64_t n = max(session.queue.next, session.queue.droppable)
    cdef Entry* e
    cdef bint found = False
    cdef int64_t earliest = NEVER_EXPIRES
    if session.queue.earliest > session.turn.clock or is_too_long(session):
        return False
    while n < session.tail:
        e = queue_entry(session.queue, n)
        if e.state == WAITING and not e.flags & DUP and e.message.expires:
            if e.message.expires > session.turn.clock:
                earliest = min(earliest, e.message.expires)
            else:
                session.turn.counters[EXPIRED] += 1
                session.trace("dropped", e.message, e.flags & QOS, "it has expired")
                session.finish(n)
                found = True
        n += 1
    session.queue.earliest = earliest
    return found


cdef bint is_too_long(SessionQueue session) except -1:
    """Whether too many entries wait as ACKED, so that no more may be dropped."""
    if session.kind == LOCAL and session.tail - session.queue.head > ACKED_MAX + <uint64_t>session.queue.queued:
        close_gaps(session)
    return session.tail - session.queue.head > ACKED_MAX + <uint64_t>session.queue.queued


cdef int close_gaps(SessionQueue session) except -1:
    """Give messages that were never sent the numbers of dropped ones before them, which no client has seen.

    Messages of shared subscriptions keep their numbers, and so do all before them.
    """
    cdef uint64_t first = max(session.first_unsent(), session.queue.head), n, to
    cdef Entry* e
    cdef bytes identifiers
    cdef bint recorded = session.recorded()
    for n in range(first, session.tail):
        if queue_entry(session.queue, n).flags & OF_GROUP:
            first = n + 1
    while first < session.tail and queue_entry(session.queue, first).state != ACKED:
        first += 1
    to = first
    for n in range(first, session.tail):
        e = queue_entry(session.queue, n)
        if e.state != ACKED:
            queue_entry(session.queue, to)[0] = e[0]
            e.message, e.state = NULL, ACKED
            e = queue_entry(session.queue, to)
            if recorded:
                identifiers = session.identifiers_of(e)
                session.turn.journal.entry(j.DONE, session, session.session_id, n, 0)
                session.turn.journal.queued(session, session.session_id, to, e.message, e.flags & STORED_FLAGS,
                                            identifiers, len(identifiers))
                session.turn.await_commit(session)
            to += 1
    session.tail = to
    session.queue.droppable = min(session.queue.droppable, first)
    if recorded:
        session.turn.forget_tails(session, first)
        session.committed = min(session.committed, first)
    return 0


cdef bint drop_one(SessionQueue session) except -1:
    """Drop the oldest message that has never been sent; False when there is none.

    Dropped entries wait as ACKED for entries in flight, which stay. If those are not acknowledged, then nothing
    more can be dropped after a while.
    """
    cdef uint64_t n
    if is_too_long(session):
        return False
    n = max(session.queue.next, session.queue.droppable)
    while n < session.tail and (queue_entry(session.queue, n).state != WAITING
                             or queue_entry(session.queue, n).flags & (DUP | OF_GROUP)):
        n += 1
    session.queue.droppable = n                        # no entry before this one can become droppable again
    if n >= session.tail:
        return False
    session.trace("dropped", queue_entry(session.queue, n).message, queue_entry(session.queue, n).flags & QOS,
               "the queue is full, and it was the oldest")
    session.finish(n)
    return True
