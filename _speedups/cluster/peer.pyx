"""Another node, as a subscriber: it has the filters of its clients, and gets messages as one batch per turn.

A batch of QoS 0 messages is their PUBLISH packets one after the other, as sent to clients, so that neither side encodes
again; one of level 5 has packet type 0 (_speedups/cluster/packing.pyx). A packet of type 15 before a message has the
name of a shared subscription: the message is for one of its subscribers. DUP, which QoS 0 does not use, marks messages
published with QoS 1 or 2: sessions with a queue in Redis have them there.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..base.buffers cimport buffer_free, buffer_size
from ..base.cursor cimport write_varint
from ..codec.publish cimport (
    FLAG_DUP, FLAG_RETAIN, FORWARD_5, FORWARD_GROUP, PUBLISH_QOS_0, properties_size, publish_remaining, publish_size,
    write_properties, write_publish,
)
from ..session.counters cimport DROPPED_UNLINKED
from ..session.message cimport Publication, seconds_left
from ..session.subscriber cimport PEER, Plan, Receiver, Subscriber, has_room, trace_delivery
from ..session.trace cimport Tracer
from ..session.turn cimport Turn


cdef class PeerOutlet(Outlet):
    """The output to a node.

    Args:
        turn: of this node.
        send: called with each batch, at the end of a turn; it returns whether the batch is on its way.
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
        if not self.send(batch):
            self.turn.counters[DROPPED_UNLINKED] += self.messages
        self.messages = 0
        return 0

    def hold(self, bint wait):
        """Keep output, and drop it past the limit, or resume sending."""
        self.blocked = wait
        self.flush()


cdef class Peer(Subscriber):
    """Another node with clients, as seen by this node.

    Args:
        turn: this node's turn.
        number: its number in the journal; arbitrary.
        node: its node id.
        send: called with each batch of QoS 0 messages; it returns whether the batch is on its way.
    """

    def __init__(self, Turn turn not None, uint64_t number, bytes node not None, send):
        self.turn = turn
        self.session_id = number
        self.client_id = node
        self.kind = PEER
        self.outlet = PeerOutlet(turn, send)

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        if publication.forwarded:
            return 1                                  # the node that accepted the message has sent it to all nodes
        if publication.qos and receiver.qos == IN_QUEUES:
            return 1
        if publication.qos and receiver.qos == LOGGED:
            self.turn.journal.forward(self, publication.message)
            if self.turn.tracer is not None:
                trace_delivery(self.turn.tracer, "forwarded", self, publication, publication.qos, "")
            return 1
        return self.send_qos_0(publication, b"")

    cdef int accept_for(self, Publication* publication, bytes group) except -1:
        """Send a QoS 0 message that this node gives to one subscriber of a group."""
        return self.send_qos_0(publication, group)

    cdef int send_qos_0(self, Publication* publication, bytes group) except -1:
        """Send a QoS 0 message, to all subscribers at the node or to one of a group; returns 1."""
        cdef Tracer tracer = self.turn.tracer
        cdef bint is_level_5 = publication.properties_length or publication.expires
        cdef uint8_t first_byte
        cdef uint32_t remaining
        cdef Py_ssize_t n = len(group), size
        cdef uint8_t* p
        cdef bint sent
        # DUP means "published with QoS 1 or 2": sessions that have it in a queue then skip it.
        first_byte = (FORWARD_5 if is_level_5 else PUBLISH_QOS_0) | FLAG_DUP * (publication.qos > 0 and n == 0)
        if publication.retain:
            first_byte |= FLAG_RETAIN
        remaining = publish_remaining(publication.topic_length, publication.payload_length, 0)
        if is_level_5:
            remaining += <uint32_t>properties_size(publication.expires != 0, 0, 0, publication.properties_length)
        size = publish_size(remaining) + (publish_size(<uint32_t>n) if n else 0)
        sent = has_room(self.outlet, size)
        if sent:
            (<PeerOutlet>self.outlet).messages += 1
            p = self.outlet.reserve(size)
            if n:
                p[0] = FORWARD_GROUP
                p += 1 + write_varint(p + 1, <uint32_t>n)
                memcpy(p, <const uint8_t*>group, n)
                p += n
            p = write_publish(p, first_byte, remaining, publication.topic, publication.topic_length, 0,
                              publication.payload, publication.payload_length)
            if is_level_5:
                write_properties(p, publication.expires != 0, seconds_left(publication.expires, self.turn.clock), 0,
                                 NULL, 0,
                                 publication.properties, publication.properties_length)
        if tracer is not None:
            trace_delivery(tracer, "forwarded" if sent else "dropped", self, publication, 0,
                           "" if sent else "QoS 0, and it reads too slowly")
        return 1

    def hold(self, bint wait):
        """Pause or resume sending."""
        (<PeerOutlet>self.outlet).hold(wait)
