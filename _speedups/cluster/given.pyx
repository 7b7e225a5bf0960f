"""Marks entries of a session's queue that a group at this node, or Redis, has given to the session."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ..session.group cimport Group
from ..session.group_subscriber cimport GroupSubscriber
from ..session.outgoing_queue cimport ACKED, OF_GROUP, Entry, queue_entry
from ..session.session cimport Session


cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, object counted_by, int64_t key=-1,
                    uint64_t failures=0) except -1:
    """Entry `n` of the queue is from this group, with this place.

    `counted_by`: the subscriber that counts it already, which may have left the group; None: there is none.
    `key`: the hash of its key; -1: it has none, or the group knows it.
    `failures`: as for `Failures.restore`.
    """
    cdef GroupSubscriber subscriber
    cdef Entry* e
    if session.shares is None or not session.queue.head <= n < session.tail:
        return 0
    e = queue_entry(session.queue, n)
    if e.message == NULL or e.state == ACKED or e.flags & OF_GROUP:
        return 0
    subscriber = session.shares.of(name)
    if subscriber is not None:
        e.flags |= OF_GROUP
        e.identifiers = subscriber.index
        session.shares.put(session.queue.head, n, place)
        subscriber.given += subscriber is not counted_by
        if key >= 0:
            (<Group>subscriber.group).backing.arrived(subscriber, place, <uint32_t>key, failures)
    return 0


cdef int forget_given(GroupSubscriber subscriber, uint64_t place) except -1:
    """A message that was given to the subscriber did not arrive in the queue of its session."""
    subscriber.given -= subscriber.given > 0
    return 0 if subscriber.group is None else (<Group>subscriber.group).backing.not_arrived(place)
