"""The messages of a session as Python objects."""

from libc.stdint cimport uint32_t, uint64_t

from .incoming_qos2 cimport incoming_places
from .message cimport Message, message_payload
from .outgoing_queue cimport ACKED, DUP, QOS, RETAINED_MESSAGE, Entry, queue_entry
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
