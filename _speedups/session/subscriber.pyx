"""A subscriber: an object that has subscriptions and gets messages.

The router itself copies QoS 0 packets to sessions. For all else it calls `accept`, so that it does not depend on
queues, other nodes and logs.
"""

from cpython.mem cimport PyMem_Free


cdef class Subscriber(Sender):
    """The base class of sessions, peers and the message log."""

    def __dealloc__(self):
        PyMem_Free(self.subscriptions)

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        """Accept a message, except QoS 0 for a session. Returns 1, or 0 if this receiver is not counted."""
        return 1

    cdef bint recorded(self) noexcept:
        """Whether changes are written to the journal."""
        return False

    @property
    def subscriptions_held(self):
        """Number of subscriptions."""
        return self.subscription_count
