"""Batches of messages from other nodes: each is delivered once. The form of a batch is in cluster/peers/wire.py."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from ..routing.router cimport Router

cdef enum:
    CREDIT_STEP = 1048576      # bytes of QoS 0 after which a node confirms its position


cdef class Progress:
    """How far the messages of a node have come to this one."""

    cdef public uint64_t seen          # the last entry of its log that was delivered here
    cdef public uint64_t credited      # the position in its QoS 0 that this node has confirmed


cdef class Batches:
    """Receives the messages to this node, and delivers the batches among them.

    Args:
        router: of this node.
        members: node id -> Progress, of the other nodes.
        departed: likewise, of nodes that have left.
        confirm: called with the id of a node and a position in its QoS 0 that is to be confirmed.
        other: called with each message that is no batch.
    """

    cdef Router router
    cdef dict members
    cdef dict departed
    cdef object confirm
    cdef object other

    def __init__(self, Router router not None, dict members not None, dict departed not None, confirm not None,
                 other not None):
        self.router = router
        self.members = members
        self.departed = departed
        self.confirm = confirm
        self.other = other

    def receive(self, bytes channel not None, bytes payload not None):
        """Handle a message. Returns the number of publications in it.

        Raises:
            ValueError: a batch is not valid.
        """
        cdef const uint8_t* p = payload
        cdef Py_ssize_t size = len(payload)
        cdef Py_ssize_t end = 2 + (p[1] if size > 1 else 0)
        cdef uint64_t number
        cdef Progress progress
        if size < end + 8 or (p[0] != c'L' and p[0] != c'Q'):
            self.other(payload)
            return 0
        memcpy(&number, p + end, 8)
        node = payload[2:end]
        progress = self.members.get(node) or self.departed.get(node)
        if p[0] == c'Q':
            if progress is None:     # it has left: its clients are elsewhere, and their later messages came before
                return 0
            if number >= progress.credited + CREDIT_STEP:
                progress.credited = number
                self.confirm(node, number)
        elif progress is not None:
            if number <= progress.seen:
                return 0
            progress.seen = number
        return self.router.deliver(payload[end + 8:])
