"""The messages of a session as Python objects, for reports and tests."""

from libc.stdint cimport uint32_t, uint64_t

from .incoming_qos2 cimport incoming_places
from .message cimport Message, message_payload
from .outgoing_queue cimport ACKED, DUP, QOS, RETAINED_MESSAGE, WAITING, Entry, packet_id_of, queue_entry
from .session cimport Session
from .session_queue cimport SessionQueue


def entries(SessionQueue session not None):
    """The messages that the client has not acknowledged, oldest first.

    A list of (queue number, state, QoS, DUP, RETAIN, topic name, payload). The state is "waiting", "sent", or
    "pubrec" after PUBREC. The message is then released, and topic name and payload are None.
    """
    cdef uint64_t n = session.queue.head
    cdef Entry* e
    cdef Message* m
    cdef list found = []
    while n < session.tail:
        e = queue_entry(session.queue, n)
        m = e.message
        if e.state != ACKED:
            found.append((
                n, ("waiting", "sent", "pubrec")[e.state], e.flags & QOS, e.flags & DUP != 0,
                e.flags & RETAINED_MESSAGE != 0,
                None if m == NULL else m.data[:m.topic_length],
                None if m == NULL else message_payload(m)[:<Py_ssize_t>m.payload_length]))
        n += 1
    return found


def awaited(SessionQueue session not None):
    """QoS 2 messages from the client that wait for PUBREL: a list of (packet identifier, topic name, payload)."""
    cdef uint32_t i
    cdef Message* m
    cdef list found = []
    for i in range(incoming_places(session.incoming)):
        m = session.incoming.items[i].message
        if m == NULL:
            continue
        found.append((session.incoming.items[i].packet_id, m.data[:m.topic_length],
                      message_payload(m)[:<Py_ssize_t>m.payload_length]))
    return found


def hold_up(Session session not None):
    """The oldest message that the client has not acknowledged, if it was sent and others wait to be sent; or None.

    A tuple of its queue number, its packet identifier, its topic name (None after PUBREC), and the number of messages
    that wait. Shared subscriptions keep the messages that they can't give to a client without a free packet identifier.
    """
    cdef uint64_t head = session.queue.head
    cdef Entry* e
    if (session.outlet is None or session.restoring or not session.queue.inflight
            or (session.queue.queued == session.queue.inflight and session.numbers_left())):
        return None
    e = queue_entry(session.queue, head)
    if e.state == WAITING:
        return None
    return (head, packet_id_of(head), None if e.message == NULL else e.message.data[:e.message.topic_length],
            session.queue.queued - session.queue.inflight)


def capacity(SessionQueue session not None):
    """Entries that the queue has memory for."""
    return session.queue.mask + 1 if session.queue.entries != NULL else 0
