# Counts the messages of a topic filter. See topic_meter.pyx.

from libc.stdint cimport uint64_t

from .message cimport Publication
from .subscriber cimport Plan, Receiver, Subscriber


cdef class TopicMeter(Subscriber):
    cdef readonly uint64_t received        # messages that this node has accepted
    cdef readonly uint64_t received_bytes  # of their payloads
    cdef readonly uint64_t sent            # deliveries of messages to sessions
    cdef readonly uint64_t sent_bytes      # of their payloads
