"""Routes a published message to its receivers: subscribers, queues, the retained tree.

Owns no state except scratch memory. QoS 0 is one copy of the encoded packet per receiver. A message object is created
only when a queue, a window or the retained tree must hold it.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from _speedups.base.buffers cimport buffer_free, buffer_reserve, buffer_size
from _speedups.base.cursor cimport Cursor, read_header
from _speedups.codec.publish cimport (
    FLAG_DUP, PUBLISH_QOS_0, is_sys, publish_remaining, publish_size, write_publish,
)
from _speedups.codec.tables cimport PUBLISH
from _speedups.codec.topics cimport TOPIC_CONTROL_CHARACTER, check_topic_name, holds_control_character
from _speedups.routing.retained cimport RetainedSearch, RetainedTree
from _speedups.routing.subscriptions cimport SubscriptionTree
from _speedups.session.counters cimport (
    DELIVERY_DENIED, DROPPED_QUEUE_FULL, PACKETS_SENT, PUBLISH_BYTES_SENT, PUBLISH_SENT, PUBLISH_UNROUTED,
)
from _speedups.session.message cimport Message, Publication, message_new, message_release, publication_of
from _speedups.session.rights cimport MAY_PUBLISH, Rights
from _speedups.session.subscriber cimport (
    FLUSH_EARLY, SHARED, Plan, Receiver, Subscriber, has_room, trace_delivery,
)
from _speedups.session.trace cimport Tracer
from _speedups.session.turn cimport Outlet, Turn

cdef enum:
    LONG_NAME = 32767          # bytes: longer topic names are checked each time, since level 3 counts characters


cdef class Router:
    """The router of a node."""

    def __init__(self, Turn turn not None):
        self.turn = turn
        self.filters = SubscriptionTree()
        self.retained = RetainedTree()

    def __dealloc__(self):
        if self.turn is not None:
            buffer_free(&self.scratch, &self.turn.pool)

    cdef int check_topic(self, const uint8_t* topic, Py_ssize_t n, int level) except -1:
        """0, or the TopicFault of a topic name. A name with a delivery plan is valid: it was checked before."""
        cdef int fault
        self.looked_up = 0 < n <= LONG_NAME
        if self.looked_up:
            self.plan = self.filters.known(topic, n, &self.topic_hash)
            if self.plan != NULL:
                return 0
        fault = check_topic_name(topic, n, level, self.turn.limits.max_topic_levels)
        if not fault and not self.turn.limits.control_characters and holds_control_character(topic, n):
            return TOPIC_CONTROL_CHARACTER
        return fault

    cdef bint may_publish(self, Rights rights, const uint8_t* topic, Py_ssize_t n) except -1:
        """Whether a client with these rights may publish to the topic name that was checked just before.

        The plan of the name stores the rights that last allowed it.
        """
        cdef Plan* plan = self.plan if self.looked_up else NULL
        if plan != NULL and plan.publisher == rights.number:
            return True
        if not rights.may(topic, n, MAY_PUBLISH):
            return False
        if plan != NULL:
            plan.publisher = rights.number
        return True

    cdef int route(self, Publication* publication) except -1:
        """Publish a message. Returns the number of receivers."""
        cdef uint64_t h
        cdef uint32_t i
        cdef Plan* plan
        cdef Receiver* receiver
        cdef Subscriber subscriber
        cdef Outlet outlet
        cdef Message* made = NULL
        cdef const uint8_t* packet = publication.packet    # the loop is hot: what it looks at is in locals
        cdef Py_ssize_t size = publication.packet_size
        cdef uint8_t qos = publication.qos
        cdef object hook = self.turn.deliver_hook
        cdef uint64_t sent = 0
        cdef int receivers = 0
        cdef Tracer tracer = self.turn.tracer
        if publication.looked_up and self.looked_up:
            plan = self.plan
            h = self.topic_hash
        else:
            plan = self.filters.known(publication.topic, publication.topic_length, &h)
        if plan == NULL or plan.generation != self.filters.generation:
            plan = self.filters.plan(publication.topic, publication.topic_length, h)
        try:
            if publication.message == NULL and (publication.retain or (publication.qos and plan.count)):
                publication.message = made = message_new(
                    publication.topic, publication.topic_length, publication.payload, publication.payload_length,
                    publication.qos, publication.retain)
                if made == NULL:
                    raise MemoryError
            if publication.retain:
                self.retain(publication)
            if tracer is not None:
                if not tracer.follows(publication.topic, publication.topic_length):
                    tracer = None
                elif publication.retain:
                    trace_delivery(tracer, "retained", None, publication, publication.qos, "")
                elif plan.count == 0:
                    trace_delivery(tracer, "dropped", None, publication, publication.qos, "nobody here has subscribed")
            for i in range(plan.count):
                receiver = &plan.receivers[i]
                subscriber = <Subscriber>receiver.subscriber
                if subscriber.kind > SHARED or (qos and receiver.qos):
                    receivers += subscriber.accept(publication, plan, receiver)
                    continue
                receivers += 1
                outlet = subscriber.outlet
                if outlet is None or outlet.closed:
                    if tracer is not None:                # QoS 0 is not kept for the absent
                        trace_delivery(tracer, "dropped", subscriber, publication, 0, "QoS 0, and not connected")
                    continue
                if hook is not None and not self.may_deliver(subscriber, publication, tracer):
                    continue
                if packet == NULL:
                    self.encode(publication)
                    packet, size = publication.packet, publication.packet_size
                if buffer_size(&outlet.out) + size > FLUSH_EARLY and not has_room(outlet, size):
                    if tracer is not None:
                        trace_delivery(tracer, "dropped", subscriber, publication, 0, "QoS 0, and it reads too slowly")
                    continue
                memcpy(outlet.reserve(size), packet, size)
                sent += 1
                if tracer is not None:
                    trace_delivery(tracer, "sent", subscriber, publication, 0, "")
        finally:
            if made != NULL:
                publication.message = NULL
                message_release(made)
        if sent:
            self.turn.counters[PACKETS_SENT] += sent
            self.turn.counters[PUBLISH_SENT] += sent
            self.turn.counters[PUBLISH_BYTES_SENT] += sent * <uint64_t>publication.payload_length
        elif receivers == 0:
            self.turn.counters[PUBLISH_UNROUTED] += 1
        return receivers

    cdef bint may_deliver(self, Subscriber subscriber, const Publication* publication, Tracer tracer) except -1:
        """Whether the hook allows a QoS 0 message to the client; counts a denial."""
        if self.turn.deliver_hook(subscriber, publication.topic[:publication.topic_length],
                                   publication.payload[:publication.payload_length], 0, False):
            return True
        self.turn.counters[DELIVERY_DENIED] += 1
        if tracer is not None:
            trace_delivery(tracer, "dropped", subscriber, publication, 0, "a hook keeps it from the client")
        return False

    cdef int encode(self, Publication* publication) except -1:
        """Encode it as a QoS 0 packet, in scratch memory that is valid until the next call."""
        cdef uint32_t remaining = publish_remaining(publication.topic_length, publication.payload_length, 0)
        cdef uint8_t* p
        self.scratch.start = self.scratch.end = 0
        p = buffer_reserve(&self.scratch, &self.turn.pool, publish_size(remaining))
        if p == NULL:
            raise MemoryError
        write_publish(p, PUBLISH_QOS_0, remaining, publication.topic, publication.topic_length, 0, publication.payload,
                      publication.payload_length)
        publication.packet = p
        publication.packet_size = publish_size(remaining)
        return 0

    cdef int retain(self, const Publication* publication) except -1:
        """Keep the message for later subscribers; one without payload clears [MQTT-3.3.1-5, 6, 10]."""
        cdef const uint8_t* topic = publication.topic
        cdef Py_ssize_t n = publication.topic_length, payload_length = publication.payload_length
        cdef Message* message = publication.message
        cdef bint recorded = self.turn.journal.epoch and not is_sys(topic, n)
        if recorded and self.turn.journal.shared:     # it takes effect as a replicated change
            if payload_length == 0:
                self.turn.journal.retained_gone(topic, n)
            elif self.retained.has_room(message):
                self.turn.journal.retained(message)
            else:
                self.turn.counters[DROPPED_QUEUE_FULL] += 1
            return 0
        if payload_length == 0:
            if self.retained.remove(topic, n) and recorded:
                self.turn.journal.retained_gone(topic, n)
        elif self.retained.put(message):
            if recorded:
                self.turn.journal.retained(message)
        else:
            self.turn.counters[DROPPED_QUEUE_FULL] += 1
        return 0

    def publish(self, bytes topic not None, bytes payload not None, int qos=0, bint retain=False,
                bytes publisher=None):
        """Publish a message that is not from a packet: a will, or one of the broker's own.

        Args:
            topic: a valid topic name, UTF-8.
            payload: its bytes.
            qos: 0, 1 or 2.
            retain: whether to keep it for later subscribers.
            publisher: client id of the publishing client; None: the broker.

        Returns:
            The number of receivers.
        """
        cdef const uint8_t* t = topic
        cdef const uint8_t* p = payload
        cdef Publication publication = publication_of(t, len(topic), p, len(payload), <uint8_t>qos, retain)
        publication.publisher = <void*>publisher
        return self.route(&publication)

    def deliver(self, bytes batch not None):
        """Deliver the messages of another node's batch to the clients here.

        Args:
            batch: PUBLISH packets, as `_speedups.cluster` (peer, journal) writes them.

        Returns:
            The number of messages.

        Raises:
            ValueError: the batch is not valid.
        """
        cdef const uint8_t* packet
        cdef Publication publication
        cdef Cursor at
        cdef uint32_t remaining = 0
        cdef Py_ssize_t topic_length
        cdef uint8_t first_byte = 0, qos
        cdef int count = 0
        at.p = batch
        at.end = at.p + len(batch)
        while at.p < at.end:
            packet = at.p
            if read_header(&at, &first_byte, &remaining) != 1 or first_byte >> 4 != PUBLISH:
                raise ValueError("a batch that can't be read")
            topic_length = at.p[0] << 8 | at.p[1] if remaining >= 2 else 0
            qos = first_byte >> 1 & 3
            if at.end - at.p < <Py_ssize_t>remaining or <Py_ssize_t>remaining < 2 + topic_length + 2 * (qos > 0):
                raise ValueError("a batch that can't be read")
            publication = publication_of(
                at.p + 2, topic_length, at.p + 2 + topic_length + 2 * (qos > 0),
                <Py_ssize_t>remaining - 2 - topic_length - 2 * (qos > 0), qos, False)
            publication.publisher = <void*>None
            publication.forwarded = True
            if first_byte == PUBLISH_QOS_0 | FLAG_DUP:    # published with a higher QoS, but no receiver here has one
                publication.qos = 1
            elif qos == 0:
                publication.packet = packet
                publication.packet_size = at.p + remaining - packet
            self.route(&publication)
            at.p += remaining
            count += 1
        return count

    def record_retained(self, RetainedSearch search not None, int most):
        """Write up to `most` retained messages of the search to the journal again; False at its end."""
        cdef Message* m
        while most > 0:
            if not search.step():
                return False
            m = search.found()
            if m != NULL:
                self.turn.journal.retained(m)
                most -= 1
        return True
