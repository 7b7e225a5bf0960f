"""Another node, as a subscriber: it has the filters for which it has clients, and gets messages as one batch a turn.

A batch of QoS 0 messages is their PUBLISH packets one after the other, just as a client would get them, so that neither
side encodes anything again. DUP, which QoS 0 has no use for, marks those that were published with QoS 1 or 2: sessions
whose queue is in Redis have them there.
"""

from libc.stdint cimport uint64_t

from _speedups.base.buffers cimport buffer_free, buffer_size
from _speedups.session.session cimport PEER
from _speedups.session.turn cimport Turn


cdef class PeerOutlet(Outlet):
    """What is on its way to a node.

    Args:
        turn: of this node.
        send: called with each batch, at the end of a turn.
    """

    def __init__(self, Turn turn not None, send):
        self.turn = turn
        self.send = send
        self.level = 4

    cdef int flush(self) except -1:
        if self.blocked or buffer_size(&self.out) == 0:
            return 0
        batch = self.out.data[self.out.start:self.out.end]
        buffer_free(&self.out, &self.turn.pool)
        self.send(batch)
        return 0

    def hold(self, bint wait):
        """Keep what comes, and drop what is too much, or go on sending."""
        self.blocked = wait
        self.flush()


cdef class Peer(Session):
    """A node that has clients, as this one sees it.

    Args:
        turn: of this node.
        number: for the journal; any.
        node: its id.
        send: called with each batch of QoS 0 messages.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes node not None, send):
        Session.__init__(self, turn, number, node, persistent=False)
        self.kind = PEER
        self.outlet = PeerOutlet(turn, send)

    def hold(self, bint wait):
        """Stop sending for now, or go on."""
        (<PeerOutlet>self.outlet).hold(wait)
