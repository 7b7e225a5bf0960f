"""From a published message to everybody who gets it: subscribers, queues, the retained tree.

Owns no state of its own but scratch memory. QoS 0 is one copy of the encoded packet per receiver; a message object is
made only when a queue, a window or the retained tree has to hold it.
"""

from libc.stdint cimport uint16_t, uint64_t
from libc.string cimport memcmp, memcpy

from _speedups.session.rights cimport MAY_PUBLISH, Rights
from _speedups.base.buffers cimport buffer_free, buffer_reserve, buffer_size
from _speedups.base.cursor cimport varint_size, write_u16, write_varint
from _speedups.routing.subscriptions cimport SubscriptionTree, Plan, Receiver
from _speedups.cluster.message_log cimport MessageLog
from _speedups.session.message cimport Message, message_new, message_release
from _speedups.routing.retained cimport RetainedSearch, RetainedTree
from _speedups.session.session cimport LOCAL, LOG, PEER, Session
from _speedups.codec.topics cimport check_topic_name
from _speedups.session.trace cimport Tracer
from _speedups.session.turn cimport (DELIVERY_DENIED, DROPPED_QUEUE_FULL, DROPPED_SLOW, PACKETS_SENT, PUBLISH_BYTES_SENT, PUBLISH_SENT,
                             PUBLISH_UNROUTED, Outlet, Turn)

cdef enum:
    LONG_NAME = 32767          # bytes: longer topic names are checked each time, since level 3 counts characters
    DUP = 8                    # flag of PUBLISH
    FLUSH_EARLY = 262144       # bytes of output that leave before the end of the turn, while caches are warm


cdef bint is_sys(const uint8_t* topic, Py_ssize_t n) noexcept:
    """Whether only the node itself publishes there, of itself."""
    return n >= 4 and memcmp(topic, b"$SYS", 4) == 0 and (n == 4 or topic[4] == c'/')


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
        """0, or the TopicFault of a topic name. One that has a delivery plan was found valid before."""
        self.looked_up = 0 < n <= LONG_NAME
        if self.looked_up:
            self.plan = self.filters.known(topic, n, &self.topic_hash)
            if self.plan != NULL:
                return 0
        return check_topic_name(topic, n, level, self.turn.limits.max_topic_levels)

    cdef bint may_publish(self, Rights rights, const uint8_t* topic, Py_ssize_t n) except -1:
        """Whether a client with these rights may publish to the topic name that was checked just before.

        The plan of the name remembers whose rights allowed it last.
        """
        cdef Plan* plan = self.plan if self.looked_up else NULL
        if plan != NULL and plan.publisher == rights.number:
            return True
        if not rights.may(topic, n, MAY_PUBLISH):
            return False
        if plan != NULL:
            plan.publisher = rights.number
        return True

    cdef int route(self, const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                   Py_ssize_t payload_length, uint8_t qos, bint retain, const uint8_t* packet, Message* message,
                   object publisher, uint8_t dup=0, bint forwarded=False, bint checked=False) except -1:
        """Publish a message with a valid topic name.

        `packet` is the message as a QoS 0 packet, in the shortest encoding and without flags, or NULL; `message` the
        same as an object, or NULL. `publisher` is the session it came from, or the client id of one that is not here,
        or None: the message is the broker's own. `dup` is DUP or 0. One that another node `forwarded` goes to the
        clients here, and no further. `checked`: the topic name was, just before, and no filter has changed since.
        Returns the number of receivers.
        """
        cdef uint64_t h
        cdef uint32_t i, count
        cdef Plan* plan
        cdef Receiver* receiver
        cdef Session session
        cdef Outlet outlet
        cdef Message* made = NULL
        cdef uint8_t* p
        cdef uint8_t hint
        cdef Py_ssize_t size = 0, limit = self.turn.limits.max_outgoing_bytes
        cdef uint64_t sent = 0
        cdef uint32_t logs = 0
        cdef Tracer tracer = self.turn.tracer
        cdef object hears = self.turn.hears_deliver
        if checked and self.looked_up:
            plan = self.plan
            h = self.topic_hash
        else:
            plan = self.filters.known(topic, topic_length, &h)
        if plan == NULL or plan.generation != self.filters.generation:
            plan = self.filters.plan(topic, topic_length, h)
        count = plan.count
        try:
            if message == NULL and (retain or qos) and (count or retain):
                message = made = message_new(topic, topic_length, payload, payload_length, qos, retain)
                if message == NULL:
                    raise MemoryError
            if retain:
                self.retain(topic, topic_length, payload_length, message)
            if tracer is not None and not tracer.follows(topic, topic_length):
                tracer = None
            if tracer is not None and (retain or count == 0):
                tracer.tell("retained" if retain else "dropped", None, topic, topic_length, payload, payload_length, qos,
                            "" if retain else "nobody here has subscribed")
            for i in range(count):
                receiver = &plan.receivers[i]
                session = <Session>receiver.session
                hint = 0
                if session.kind != LOCAL:
                    if session.kind == LOG:
                        logs += 1
                        if publisher is not None and not forwarded:
                            (<MessageLog>session).append(publisher, plan, topic, topic_length, payload, payload_length,
                                                         qos | retain << 2 | dup)
                        continue
                    if forwarded and (session.kind == PEER or (qos and receiver.qos)):
                        continue                      # who accepted it has put it into the queues in Redis
                    if session.kind == PEER and qos:
                        if receiver.qos:
                            self.turn.journal.forward(session, message)
                            if tracer is not None:
                                tracer.tell_message("forwarded", session.client_id, message, qos, "")
                            continue
                        hint = DUP                    # tells those who have it in a queue
                if qos and receiver.qos:
                    session.enqueue(message, qos if qos < receiver.qos else receiver.qos, False)
                    continue
                outlet = session.outlet
                if hears is not None and outlet is not None and session.kind != PEER and not hears(
                        session, topic[:topic_length], payload[:payload_length], 0, False):
                    self.turn.counters[DELIVERY_DENIED] += 1
                    if tracer is not None:
                        tracer.tell("dropped", session.client_id, topic, topic_length, payload, payload_length, 0,
                                    "a hook keeps it from the client")
                    continue
                if outlet is None or outlet.closed:
                    if tracer is not None:
                        tracer.tell("dropped", session.client_id, topic, topic_length, payload, payload_length, 0,
                                    "QoS 0, and not connected")
                    continue                          # QoS 0 is not kept for the absent
                if size == 0:
                    size = 2 + topic_length + payload_length
                    size += 1 + varint_size(<uint32_t>size)
                    if packet == NULL:
                        packet = self.encode(topic, topic_length, payload, payload_length, size)
                if buffer_size(&outlet.out) + size > FLUSH_EARLY:
                    if not outlet.blocked:
                        outlet.flush()
                    if buffer_size(&outlet.out) + size > limit and buffer_size(&outlet.out) > 0:
                        self.turn.counters[DROPPED_SLOW] += 1
                        if tracer is not None:
                            tracer.tell("dropped", session.client_id, topic, topic_length, payload, payload_length, 0,
                                        "QoS 0, and it reads too slowly")
                        continue
                p = outlet.reserve(size)
                memcpy(p, packet, size)
                p[0] |= hint
                sent += session.kind != PEER
                if tracer is not None:
                    tracer.tell("sent" if session.kind != PEER else "forwarded", session.client_id, topic, topic_length,
                                payload, payload_length, 0, "")
        finally:
            if made != NULL:
                message_release(made)
        if sent:
            self.turn.counters[PACKETS_SENT] += sent
            self.turn.counters[PUBLISH_SENT] += sent
            self.turn.counters[PUBLISH_BYTES_SENT] += sent * <uint64_t>payload_length
        elif count == logs:
            self.turn.counters[PUBLISH_UNROUTED] += 1
        return <int>(count - logs)

    cdef const uint8_t* encode(self, const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                               Py_ssize_t payload_length, Py_ssize_t size) except NULL:
        """A QoS 0 packet in scratch memory, good until the next one."""
        cdef uint8_t* p
        self.scratch.start = self.scratch.end = 0
        p = buffer_reserve(&self.scratch, &self.turn.pool, size)
        if p == NULL:
            raise MemoryError
        p[0] = 0x30
        p += 1 + write_varint(p + 1, <uint32_t>(2 + topic_length + payload_length))
        write_u16(p, <uint16_t>topic_length)
        memcpy(p + 2, topic, topic_length)
        memcpy(p + 2 + topic_length, payload, payload_length)
        return self.scratch.data

    cdef int retain(self, const uint8_t* topic, Py_ssize_t n, Py_ssize_t payload_length, Message* message) except -1:
        """Keep the message for later subscribers; one without payload clears [MQTT-3.3.1-5, 6, 10]."""
        cdef bint recorded = self.turn.journal.epoch and not is_sys(topic, n)
        if recorded and self.turn.journal.shared:     # it takes effect when all nodes are told, in one order
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
        """Publish a message that has not just come in a packet: a will, or one of the broker's own.

        Args:
            topic: a valid topic name, UTF-8.
            payload: its bytes.
            qos: 0, 1 or 2.
            retain: whether it is kept for later subscribers.
            publisher: client id of the client whose message it is; None: the broker's own.

        Returns:
            The number of receivers.
        """
        cdef const uint8_t* t = topic
        cdef const uint8_t* p = payload
        return self.route(t, len(topic), p, len(payload), <uint8_t>qos, retain, NULL, NULL, publisher)

    def deliver(self, bytes batch not None):
        """Give the messages of another node's batch to the clients here.

        Args:
            batch: PUBLISH packets, as `_speedups.peer` and `_speedups.ledger` write them.

        Returns:
            How many there were.

        Raises:
            ValueError: it is not that.
        """
        cdef const uint8_t* p = batch
        cdef const uint8_t* end = p + len(batch)
        cdef const uint8_t* packet
        cdef const uint8_t* payload
        cdef uint32_t remaining
        cdef Py_ssize_t topic_length
        cdef int shift, count = 0
        cdef uint8_t qos
        while p < end:
            packet = p
            p += 1
            remaining = 0
            shift = 0
            while p < end and shift < 28:
                remaining |= <uint32_t>(p[0] & 0x7F) << shift
                shift += 7
                p += 1
                if (p - 1)[0] < 0x80:
                    break
            if packet[0] >> 4 != 3 or end - p < <Py_ssize_t>remaining or remaining < 2:
                raise ValueError("a batch that can't be read")
            topic_length = p[0] << 8 | p[1]
            qos = packet[0] >> 1 & 3
            payload = p + 2 + topic_length + 2 * (qos > 0)
            if payload > p + remaining:
                raise ValueError("a batch that can't be read")
            if packet[0] == 0x30 | DUP:               # published with more, but wanted by nobody here with more
                self.route(p + 2, topic_length, payload, p + remaining - payload, 1, False, NULL, NULL, None, 0, True)
            else:
                self.route(p + 2, topic_length, payload, p + remaining - payload, qos, False,
                           packet if qos == 0 else NULL, NULL, None, 0, True)
            p += remaining
            count += 1
        return count

    def record_retained(self, RetainedSearch search not None, int most):
        """Write up to `most` retained messages of the search into the journal once more; False at its end."""
        cdef Message* m
        while most > 0:
            if not search.step():
                return False
            m = search.found()
            if m != NULL:
                self.turn.journal.retained(m)
                most -= 1
        return True
