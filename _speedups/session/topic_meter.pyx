"""Counts the messages that match a topic filter.

A meter is a subscriber, so delivery plans have it, and messages need no extra matching: a message whose topic no meter
has costs nothing.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .message cimport Publication
from .subscriber cimport GROUP, LOG, SHARED, Plan, Receiver, Subscriber
from .turn cimport Turn


cdef class TopicMeter(Subscriber):
    """A meter; the caller subscribes it to its filters.

    Args:
        turn: of the node.
    """

    def __init__(self, Turn turn not None):
        self.turn = turn
        self.client_id = b""
        self.kind = LOG

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        """Count a message, and the sessions and groups that get it. The meter is not counted as a receiver."""
        cdef uint64_t sessions = 0
        cdef uint32_t i
        cdef uint8_t kind
        for i in range(plan.count):
            kind = (<Subscriber>plan.receivers[i].subscriber).kind
            sessions += kind <= SHARED or kind == GROUP
        if not publication.forwarded:
            self.received += 1
            self.received_bytes += publication.payload_length
        self.sent += sessions
        self.sent_bytes += sessions * <uint64_t>publication.payload_length
        return 0
