"""A subscriber: what has subscriptions and gets messages.

The router itself copies QoS 0 packets to sessions. For all else it calls `accept`, so that it knows nothing of queues,
other nodes and logs.
"""

from libc.stdlib cimport free


cdef class Subscriber(Sender):
    """Has subscriptions; sessions, peers and the log derive from it."""

    def __dealloc__(self):
        free(self.subscriptions)

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        """Take a message that is not QoS 0 for a session. Returns 1, or 0 if this is no receiver that counts."""
        return 1

    cdef bint recorded(self) noexcept:
        """Whether changes go into the journal."""
        return False

    @property
    def subscriptions_held(self):
        """How many subscriptions it has."""
        return self.subscription_count
