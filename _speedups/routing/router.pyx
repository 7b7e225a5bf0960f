"""Routes a published message to its receivers: subscribers, queues, the retained tree.

Owns no state except scratch memory. QoS 0 is one copy of the encoded packet per receiver. A message object is created
only when a queue, a window or the retained tree must hold it.
"""

from cpython.bytes cimport PyBytes_Check
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..base.buffers cimport buffer_free, buffer_reserve, buffer_size
from ..base.cursor cimport Cursor, read_header, read_varint
from ..codec.properties cimport PropertyScan, scan_properties
from ..codec.publish cimport (
    ALIAS_SIZE, EXPIRY_SIZE, FLAG_DUP, FLAG_RETAIN, FORWARD_5, FORWARD_GROUP, PUBLISH_QOS_0, is_reserved,
    properties_size, publish_remaining, publish_size, write_properties, write_publish,
)
from ..codec.tables cimport PUBLISH
from ..codec.topics cimport (
    TOPIC_BYTES_MAX, TOPIC_CONTROL_CHARACTER, TOPIC_EMPTY, TOPIC_TOO_LONG, check_topic_name, holds_control_character,
)
from .chunk cimport is_chunk, read_row
from .delayed cimport DelayedMessages, Waiting, delay_of, is_delayed
from .foreign_sessions cimport ForeignSessions
from .plans cimport KEEPS_RETAIN
from .retained cimport RetainedSearch, RetainedTree
from .slices cimport Slices, slices_free, slices_make
from .subscriptions cimport SubscriptionTree
from ..session.counters cimport (
    DELAYED_PUBLISHED, DELAYED_REFUSED, DELIVERY_DENIED, DROPPED_QUEUE_FULL, DROPPED_SLOW, EXPIRED, PACKETS_SENT,
    PUBLISH_BYTES_SENT, PUBLISH_SENT, PUBLISH_UNROUTED, TOO_LARGE, TRANSACTION_MESSAGES,
)
from ..session.message cimport (
    Message, Publication, expiry_after, message_new, message_release, publication_of, publication_of_message,
    seconds_left,
)
from ..session.group cimport Group
from ..session.journal cimport BLOCK_MAX
from ..session.group_subscriber cimport GroupSubscriber
from ..session.rights cimport MAY_PUBLISH, Rights
from ..session.session cimport Session
from ..session.subscriber cimport (
    FLUSH_EARLY, GROUP, KEEP_RETAIN, NOT_OWN, ONLY_OWN, SHARED, Plan, Receiver, Subscriber, has_room, trace_delivery,
)
from ..session.tenant cimport Tenant
from ..session.topic_aliases cimport ALIAS_ROOM, alias_of
from ..session.trace cimport Tracer
from ..session.turn cimport Outlet, Turn

cdef enum:
    LONG_NAME = 32767          # bytes: longer topic names are checked each time, since level 3 counts characters


cdef inline bint is_withheld(Subscriber subscriber, uint8_t flags, const Publication* publication) noexcept:
    """Whether No Local keeps the message from this receiver [5: MQTT-3.8.3-3]."""
    cdef bint own = publication.publisher == <void*>subscriber
    if not own and publication.publisher != NULL and PyBytes_Check(<object>publication.publisher):
        own = <object>publication.publisher == subscriber.client_id
    return own if flags & NOT_OWN else not own


cdef inline uint32_t level_5_remaining(const Publication* publication, uint16_t alias, bint in_place,
                                       Py_ssize_t identifiers_size) noexcept nogil:
    """The Remaining Length of its QoS 0 packet of level 5; `in_place`: with the alias in place of the topic name."""
    return <uint32_t>(publish_remaining(0 if in_place else publication.topic_length - publication.hidden,
                                        publication.payload_length, 0)
                      + properties_size(
                          publication.expires != 0, alias, identifiers_size, publication.properties_length))


cdef inline void write_level_5(uint8_t* p, const Publication* publication, uint32_t remaining, uint16_t alias,
                               bint in_place, const uint8_t* identifiers, Py_ssize_t identifiers_size,
                               int64_t clock) noexcept nogil:
    """Write its QoS 0 packet of level 5."""
    p = write_publish(p, PUBLISH_QOS_0, remaining, publication.topic + publication.hidden,
                      0 if in_place else publication.topic_length - publication.hidden, 0, publication.payload,
                      publication.payload_length)
    write_properties(p, publication.expires != 0, seconds_left(publication.expires, clock), alias, identifiers,
                     identifiers_size, publication.properties, publication.properties_length)


cdef inline uint64_t dropped_by(Turn turn) noexcept:
    """Messages that a full queue or a slow client has lost so far."""
    return turn.counters[DROPPED_SLOW] + turn.counters[DROPPED_QUEUE_FULL]


cdef class Router:
    """The router of a node."""

    def __init__(self, Turn turn not None):
        self.turn = turn
        self.filters = SubscriptionTree()
        self.filters.by_shard = turn.journal.shards > 1
        self.retained = RetainedTree()
        self.filters.set_tenants(turn.tenants)
        self.foreign = ForeignSessions(turn, self.filters)
        self.retained.set_tenants(turn.tenants)
        self.delayed = DelayedMessages(turn)

    def __dealloc__(self):
        if self.turn is not None:
            buffer_free(&self.scratch, &self.turn.pool)
            buffer_free(&self.scratch_5, &self.turn.pool)
            buffer_free(&self.stripped, &self.turn.pool)
            buffer_free(&self.qualified, &self.turn.pool)

    cdef int check_topic(self, Publication* publication, Py_ssize_t hidden, int level) except -1:
        """Look up the topic name; 0, or its TopicFault. Its client does not know the first `hidden` bytes.

        A name with a delivery plan is valid: it was checked before.
        """
        cdef Plan* plan
        publication.looked_up = 0 < publication.topic_length <= LONG_NAME
        if publication.looked_up:
            plan = self.filters.known(publication.topic, publication.topic_length, &publication.topic_hash)
            publication.plan = plan
            if plan != NULL:
                return 0
        return self.fault_of(publication.topic + hidden, publication.topic_length - hidden, level)

    cdef int fault_of(self, const uint8_t* topic, Py_ssize_t n, int level) noexcept:
        """0, or the TopicFault of a topic name as a client has it."""
        cdef int fault = check_topic_name(topic, n, level, self.turn.limits.max_topic_levels)
        if not fault and not self.turn.limits.control_characters and holds_control_character(topic, n):
            return TOPIC_CONTROL_CHARACTER
        return fault

    cdef int qualify(self, Publication* publication, const uint8_t* prefix, Py_ssize_t size, uint64_t prefix_part,
                     int level) except -1:
        """Put the prefix of a client's tenant in front of the topic name that the client has sent, and check the name.

        Of `$delayed/SECONDS/TOPIC` it is in front of TOPIC. Returns 0, or a TopicFault. A wrong delay stays as it is,
        and is refused later. The plan has the name, or scratch memory has it: valid until another message is
        published.
        """
        cdef const uint8_t* name = publication.topic
        cdef Py_ssize_t n = publication.topic_length, at = 0
        cdef uint32_t seconds = 0
        cdef uint8_t* p
        cdef Plan* plan
        cdef int fault
        publication.hidden = 0
        publication.looked_up = False
        if n == 0:
            return TOPIC_EMPTY
        if n <= LONG_NAME - size:
            plan = self.filters.known_below(prefix, size, prefix_part, name, n, &publication.topic_hash)
            if plan != NULL and plan.generation == self.filters.generation:      # else it is made again
                publication.looked_up = True
                publication.plan = plan
                publication.topic = plan.topic
                publication.topic_length = n + size
                publication.hidden = <uint16_t>size
                return 0
        if name[0] == c'$' and is_delayed(name, n):
            fault = self.fault_of(name, n, level)
            at = delay_of(name, n, &seconds)
            if fault or at < 0:
                return fault
        if n + size > TOPIC_BYTES_MAX:
            return TOPIC_TOO_LONG
        self.qualified.start = self.qualified.end = 0
        p = buffer_reserve(&self.qualified, &self.turn.pool, n + size)
        if p == NULL:
            raise MemoryError
        memcpy(p, name, at)
        memcpy(p + at, prefix, size)
        memcpy(p + at + size, name + at, n - at)
        publication.topic = p
        publication.topic_length = n + size
        publication.hidden = <uint16_t>(at + size)
        return self.check_topic(publication, at + size, level)

    cdef int publish_now_or_later(self, Publication* publication) except -1:
        """Publish a message that enters the broker at this node. Returns the number of receivers."""
        if publication.topic[0] == c'$' and is_delayed(publication.topic, publication.topic_length):
            return self.delay(publication)
        return self.route(publication)

    cdef int delay(self, Publication* publication) except -1:
        """Let a message to `$delayed/SECONDS/TOPIC` wait. Returns 1; 0: it was dropped, and counted."""
        cdef uint32_t seconds = 0
        cdef Py_ssize_t at = delay_of(publication.topic, publication.topic_length, &seconds)
        cdef Py_ssize_t size = publication.topic_length + publication.properties_length + publication.payload_length
        if at < 0 or is_reserved(publication.topic + at, publication.topic_length - at) or self.delayed.is_full(
                publication.topic + at, publication.topic_length - at, size):
            self.turn.counters[DELAYED_REFUSED] += 1
            return 0
        if self.turn.journal.shards > 1:
            self.turn.journal.begin_publication(publication, 1)
        self.delayed.keep(publication, at, seconds)
        if self.turn.journal.shards > 1:
            self.turn.journal.end_publication()
        return 1

    def publish_delayed(self, int most):
        """Publish delayed messages that wait in this node and are due, at most this number; returns how many."""
        cdef Waiting found
        cdef int64_t now
        cdef int count = 0
        if len(self.delayed) == 0:
            return 0
        now = self.delayed.clock()
        while count < most and self.delayed.pop(now, &found):
            try:
                count += self.publish_due(found.message, <bytes><object>found.publisher)
                if self.turn.journal.epoch:
                    self.turn.journal.delayed_gone(found.message)
            finally:
                message_release(found.message)
                Py_DECREF(<object>found.publisher)
            if buffer_size(&self.turn.journal.records) > BLOCK_MAX:
                self.turn.seal()
        return count

    cdef int publish_due(self, Message* message, bytes publisher) except -1:
        """Publish a message that has waited, or a chunk. Returns the number of messages."""
        cdef Publication publication = publication_of_message(message)
        if publisher:                              # else it is the broker
            publication.publisher = <void*>publisher
        if is_chunk(publication.topic, publication.topic_length):
            return self.publish_chunk(&publication)
        self.begin_expiry(&publication)
        self.route(&publication)
        self.turn.counters[DELAYED_PUBLISHED] += 1
        return 1

    cdef int begin_expiry(self, Publication* publication) except -1:
        """The Message Expiry Interval among the properties of a message that has waited begins now."""
        cdef PropertyScan scan
        if publication.properties_length:
            if scan_properties(publication.properties, publication.properties_length, PUBLISH, &scan):
                raise ValueError("not a property block of a message")
            if scan.expiry != NULL:
                publication.message = NULL         # another message: the expiry is no property of it
                self.set_properties(publication, publication.properties, publication.properties_length, &scan)
        return 0

    cdef int publish_chunk(self, const Publication* chunk) except -1:
        """Publish the messages of a chunk whose transaction is committed. Returns their number.

        The caller records, in the block of this turn, that the chunk is published. In a cluster a block that is full
        is sealed before, with the number of messages so far as the progress of the chunk.
        """
        cdef const uint8_t* p = chunk.payload
        cdef const uint8_t* end = p + chunk.payload_length
        cdef Publication publication
        cdef uint32_t count = 0, first = chunk.progress
        while p < end:
            p = read_row(p, end, &publication)
            if p == NULL:
                raise ValueError("not a chunk of a transaction")
            if count >= chunk.progress:
                if count > first and self.turn.journal.most_pushes and self.turn.journal.full:
                    self.turn.journal.progress(None, 0, chunk.will, NULL, count)
                    self.turn.seal()
                    first = count
                publication.publisher = chunk.publisher
                publication.will, publication.shard = chunk.will, chunk.shard
                self.begin_expiry(&publication)
                self.publish_now_or_later(&publication)
            count += 1
        self.turn.counters[TRANSACTION_MESSAGES] += count - chunk.progress
        return <int>(count - chunk.progress)

    cdef int route(self, Publication* publication) except -1:
        """Publish a message. Returns the number of receivers."""
        cdef uint64_t h
        cdef uint32_t i
        cdef Plan* plan
        cdef Receiver* receiver
        cdef Subscriber subscriber
        cdef Outlet outlet
        cdef Message* made = NULL
        cdef uint8_t* p
        cdef const uint8_t* packet = publication.packet    # the loop is hot: locals have all that it reads
        cdef Py_ssize_t size = publication.packet_size
        cdef uint8_t qos = publication.qos
        cdef object hook = self.turn.deliver_hook
        cdef uint64_t sent = 0
        cdef uint64_t dropped = dropped_by(self.turn) if publication.hidden else 0
        cdef int receivers = 0
        cdef uint32_t count
        cdef bint divided = False
        cdef Tracer tracer = self.turn.tracer
        if publication.looked_up:
            plan = <Plan*>publication.plan
            h = publication.topic_hash
        else:
            plan = self.filters.known(publication.topic, publication.topic_length, &h)
        if plan == NULL or plan.generation != self.filters.generation:
            plan = self.filters.plan(publication.topic, publication.topic_length, h)
        if self.turn.journal.shards > 1:
            self.turn.journal.begin_publication(publication, shards_of(publication, plan))
        count = plan.count
        if publication.divisible and self.turn.journal.most_pushes:
            divided = publication.progress or count > <uint32_t>self.turn.journal.most_pushes
            if publication.progress:
                count = 0                             # all but some persistent sessions have it
        try:
            if publication.message == NULL and (
                    (publication.retain and not publication.forwarded) or (publication.qos and plan.count)):
                publication.message = made = message_new(publication)
                if made == NULL:
                    raise MemoryError
            if publication.retain and not publication.forwarded and not publication.progress:
                self.retain(publication)
            if tracer is not None:
                if not tracer.follows(publication):
                    tracer = None
                elif publication.retain:
                    trace_delivery(tracer, "retained", None, publication, publication.qos, "")
                elif plan.count == 0:
                    trace_delivery(tracer, "dropped", None, publication, publication.qos, "nobody here has subscribed")
            for i in range(count):
                receiver = &plan.receivers[i]
                subscriber = <Subscriber>receiver.subscriber
                if receiver.flags & (NOT_OWN | ONLY_OWN) and is_withheld(subscriber, receiver.flags, publication):
                    continue
                if subscriber.kind > SHARED or (qos and receiver.qos):
                    if subscriber.kind == GROUP and not (qos and receiver.qos):
                        receivers += 1
                        if not publication.forwarded:     # else the node that accepted it has chosen the subscriber
                            sent += self.send_to_one(<Group>subscriber, publication, tracer)
                    elif not divided or subscriber.kind != SHARED:
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
                if outlet.level == 5:
                    sent += self.send_level_5(subscriber, outlet, plan.identifiers + receiver.identifiers_at,
                                              receiver.identifiers_size, receiver.flags, publication, tracer)
                    continue
                if packet == NULL:
                    self.encode(publication)
                    packet, size = publication.packet, publication.packet_size
                if buffer_size(&outlet.out) + size > FLUSH_EARLY and not has_room(outlet, size):
                    if tracer is not None:
                        trace_delivery(tracer, "dropped", subscriber, publication, 0, "QoS 0, and it reads too slowly")
                    continue
                p = outlet.reserve(size)
                memcpy(p, packet, size)
                if publication.retain and receiver.flags & KEEP_RETAIN and outlet.keeps_retain:
                    p[0] |= FLAG_RETAIN                   # it is a bridge
                sent += 1
                if tracer is not None:
                    trace_delivery(tracer, "sent", subscriber, publication, 0, "")
            if divided:
                receivers += self.give_in_slices(publication, plan)
        finally:
            if made != NULL:
                publication.message = NULL
                message_release(made)
            if self.turn.journal.shards > 1:
                self.turn.journal.end_publication()
        if sent:
            self.turn.counters[PACKETS_SENT] += sent
            self.turn.counters[PUBLISH_SENT] += sent
            self.turn.counters[PUBLISH_BYTES_SENT] += sent * <uint64_t>publication.payload_length
        elif receivers == 0 and not is_reserved(publication.topic + publication.hidden,
                                                publication.topic_length - publication.hidden):
            self.turn.counters[PUBLISH_UNROUTED] += 1
        if publication.hidden:
            self.count_for_tenant(publication, sent, dropped_by(self.turn) - dropped)
        return receivers

    cdef int count_for_tenant(self, const Publication* publication, uint64_t sent, uint64_t dropped) except -1:
        """Count QoS 0 packets of a message, and messages that queues dropped for it, for its tenant."""
        cdef Tenant tenant
        if not (sent or dropped):
            return 0
        if publication.tenant != NULL:
            tenant = <Tenant>publication.tenant
        else:
            tenant = self.turn.tenants.of(publication.topic, publication.topic_length)
        tenant.sent += sent
        tenant.sent_bytes += sent * <uint64_t>publication.payload_length
        tenant.dropped += dropped
        return 0

    cdef int give_in_slices(self, Publication* publication, const Plan* plan) except -1:
        """Queue a message for the persistent sessions of the plan that lack it. Returns their number.

        A block that is full is sealed, with the progress of the publication. If this node dies before the next one is
        stored, the node that has the publisher then goes on from there. The plan is not valid after that.
        """
        cdef Slices slices
        cdef Subscriber subscriber
        cdef Receiver* receiver
        cdef uint32_t i, hash, last = 0
        cdef int given = 0
        slices_make(&slices, plan)
        try:
            for i in range(slices.count):
                receiver = &slices.places[i].receiver
                subscriber = <Subscriber>receiver.subscriber
                hash = slices.places[i].hash
                if hash < publication.progress or (
                        receiver.flags & (NOT_OWN | ONLY_OWN) and is_withheld(subscriber, receiver.flags, publication)):
                    continue
                if given and self.turn.journal.full and hash > last:
                    self.turn.journal.progress(<object>publication.publisher, publication.packet_id, publication.will,
                                               publication.message, hash)
                    self.turn.seal()
                given += subscriber.accept(publication, &slices.identifiers, receiver)
                last = hash
        finally:
            slices_free(&slices)
        return given

    cdef bint may_deliver(self, Subscriber subscriber, const Publication* publication, Tracer tracer) except -1:
        """Whether the hook allows a QoS 0 message to the client; counts a denial."""
        if self.turn.deliver_hook(subscriber, publication.topic[:publication.topic_length],
                                   publication.payload[:publication.payload_length], 0, False,
                                   publication.properties[:publication.properties_length]):
            return True
        self.turn.counters[DELIVERY_DENIED] += 1
        if tracer is not None:
            trace_delivery(tracer, "dropped", subscriber, publication, 0, "a hook keeps it from the client")
        return False

    cdef bint send_to_one(self, Group group, Publication* publication, Tracer tracer) except -1:
        """Send a QoS 0 message to the next subscriber of a shared subscription; returns whether it was sent."""
        cdef GroupSubscriber chosen
        cdef Session session
        cdef Outlet outlet
        if group.pass_on(publication):
            return False
        chosen = group.choose(publication)
        if chosen is None:
            if tracer is not None:
                trace_delivery(tracer, "dropped", group, publication, 0, "QoS 0, and no subscriber takes it")
            return False
        session = chosen.session
        outlet = session.outlet
        if self.turn.deliver_hook is not None and not self.may_deliver(session, publication, tracer):
            return False
        if outlet.level == 5:
            return self.send_level_5(session, outlet, chosen.properties, len(chosen.properties),
                                     KEEP_RETAIN if chosen.options & KEEPS_RETAIN else 0, publication, tracer)
        if publication.packet == NULL:
            self.encode(publication)
        if not has_room(outlet, publication.packet_size):
            if tracer is not None:
                trace_delivery(tracer, "dropped", session, publication, 0, "QoS 0, and it reads too slowly")
            return False
        memcpy(outlet.reserve(publication.packet_size), publication.packet, publication.packet_size)
        if tracer is not None:
            trace_delivery(tracer, "sent", session, publication, 0, "")
        return True

    cdef bint send_level_5(self, Subscriber subscriber, Outlet outlet, const uint8_t* identifiers,
                           Py_ssize_t identifiers_size, uint8_t flags, Publication* publication,
                           Tracer tracer) except -1:
        """Send a QoS 0 message to a client of level 5; returns whether it was sent.

        For receivers without subscription identifiers and aliases it is one copy of the encoded packet, as below level
        5.
        """
        cdef Py_ssize_t size
        cdef uint32_t remaining = 0
        cdef uint16_t alias = 0
        cdef bint in_place = False
        cdef uint8_t* p
        if publication.packet_5 == NULL:
            self.encode_level_5(publication)
        size = publication.packet_5_size
        if identifiers_size:
            remaining = level_5_remaining(publication, 0, False, identifiers_size)
            size = publish_size(remaining)
        if size > <Py_ssize_t>outlet.largest:
            self.turn.counters[TOO_LARGE] += 1
            if tracer is not None:
                trace_delivery(tracer, "dropped", subscriber, publication, 0, "the client takes no packet of its size")
            return False
        if buffer_size(&outlet.out) + size > FLUSH_EARLY and not has_room(outlet, size):
            if tracer is not None:
                trace_delivery(tracer, "dropped", subscriber, publication, 0, "QoS 0, and it reads too slowly")
            return False
        if outlet.aliases.maximum and size + ALIAS_ROOM <= <Py_ssize_t>outlet.largest:
            alias = alias_of(&outlet.aliases, publication.topic + publication.hidden,
                             publication.topic_length - publication.hidden, &in_place)
            if alias:
                remaining = level_5_remaining(publication, alias, in_place, identifiers_size)
                size = publish_size(remaining)
        p = outlet.reserve(size)
        if identifiers_size or alias:
            write_level_5(p, publication, remaining, alias, in_place, identifiers,
                          identifiers_size, self.turn.clock)
        else:
            memcpy(p, publication.packet_5, size)
        if publication.retain and flags & KEEP_RETAIN:
            p[0] |= FLAG_RETAIN                    # [5: MQTT-3.3.1-13]
        if tracer is not None:
            trace_delivery(tracer, "sent", subscriber, publication, 0, "")
        return True

    cdef int encode_level_5(self, Publication* publication) except -1:
        """Encode it as a QoS 0 packet of level 5, in scratch memory that is valid until the next call."""
        cdef uint32_t remaining = level_5_remaining(publication, 0, False, 0)
        cdef uint8_t* p
        self.scratch_5.start = self.scratch_5.end = 0
        p = buffer_reserve(&self.scratch_5, &self.turn.pool, publish_size(remaining))
        if p == NULL:
            raise MemoryError
        write_level_5(p, publication, remaining, 0, False, NULL, 0, self.turn.clock)
        publication.packet_5 = p
        publication.packet_5_size = <uint32_t>publish_size(remaining)
        return 0

    cdef int set_properties(self, Publication* publication, const uint8_t* block, Py_ssize_t n,
                            const PropertyScan* scan) except -1:
        """Give the publication a property block that was scanned, without alias and expiry. Its expiry begins now."""
        publication.properties = block
        publication.properties_length = n
        if scan.expiry != NULL:
            publication.expires = expiry_after(scan.expiry_interval, self.turn.clock)
        if scan.expiry != NULL or scan.alias != NULL:
            self.strip(publication, scan.expiry, scan.alias)
        return 0

    cdef int strip(self, Publication* publication, const uint8_t* expiry, const uint8_t* alias) except -1:
        """Take the properties Message Expiry Interval and Topic Alias, unless NULL, out of the property block.

        They usually stand at an end of it: the block is shortened. Else it is copied, to scratch memory.
        """
        cdef const uint8_t* block = publication.properties
        cdef const uint8_t* end = block + publication.properties_length
        cdef const uint8_t* first = expiry
        cdef const uint8_t* second = alias
        cdef Py_ssize_t first_size = EXPIRY_SIZE, second_size = ALIAS_SIZE
        cdef uint8_t* p
        if first == NULL or (second != NULL and second < first):
            first, second = second, first
            first_size, second_size = second_size, first_size
        if second != NULL and second + second_size == end:
            end, second = second, NULL
        if first == block:
            block, first = block + first_size, second
            first_size, second = second_size, NULL
            if first != NULL and first == block:
                block, first = block + first_size, NULL
        if first != NULL and second == NULL and first + first_size == end:
            end, first = first, NULL
        publication.properties = block
        publication.properties_length = end - block
        if first == NULL:
            return 0
        self.stripped.start = self.stripped.end = 0
        p = buffer_reserve(&self.stripped, &self.turn.pool, end - block)
        if p == NULL:
            raise MemoryError
        publication.properties = p
        publication.properties_length -= first_size
        memcpy(p, block, first - block)
        p += first - block
        block = first + first_size
        if second != NULL:
            publication.properties_length -= second_size
            memcpy(p, block, second - block)
            p += second - block
            block = second + second_size
        memcpy(p, block, end - block)
        return 0

    cdef int encode(self, Publication* publication) except -1:
        """Encode it as a QoS 0 packet, in scratch memory that is valid until the next call."""
        cdef Py_ssize_t shown = publication.topic_length - publication.hidden
        cdef uint32_t remaining = publish_remaining(shown, publication.payload_length, 0)
        cdef uint8_t* p
        self.scratch.start = self.scratch.end = 0
        p = buffer_reserve(&self.scratch, &self.turn.pool, publish_size(remaining))
        if p == NULL:
            raise MemoryError
        write_publish(p, PUBLISH_QOS_0, remaining, publication.topic + publication.hidden, shown, 0,
                      publication.payload,
                      publication.payload_length)
        publication.packet = p
        publication.packet_size = <uint32_t>publish_size(remaining)
        return 0

    cdef int retain(self, const Publication* publication) except -1:
        """Keep the message for later subscribers; one without payload clears [MQTT-3.3.1-5, 6, 10]."""
        cdef const uint8_t* topic = publication.topic
        cdef Py_ssize_t n = publication.topic_length, payload_length = publication.payload_length
        cdef Message* message = publication.message
        cdef bint recorded = self.turn.journal.epoch and not is_reserved(topic, n)
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
                bytes publisher=None, bytes properties=b"", uint64_t will=0, uint32_t progress=0):
        """Publish a message that is not from a packet: a will, or one of the broker's own.

        Args:
            topic: a valid topic name, UTF-8.
            payload: its bytes.
            qos: 0, 1 or 2.
            retain: whether to keep it for later subscribers.
            publisher: client id of the publishing client; None: the broker.
            properties: a property block of PUBLISH, without its length; an expiry interval in it begins now.
            will: the number by which the store has it as a will, with the shard of that above 56 bits; 0 = it is none.
            progress: how far a node that has ended came with its publication, as the store has it; 0 = nobody has it.

        Returns:
            The number of receivers.

        Raises:
            ValueError: the property block is not valid.
        """
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), <uint8_t>qos, retain)
        cdef PropertyScan scan
        publication.publisher = <void*>publisher
        publication.will = will & (<uint64_t>-1 >> 8)
        publication.shard = <uint8_t>(will >> 56)
        publication.divisible = will != 0
        publication.progress = progress
        if properties:
            if scan_properties(properties, len(properties), PUBLISH, &scan) or scan.alias != NULL:
                raise ValueError("not a property block of a message")
            self.set_properties(&publication, properties, len(properties), &scan)
        if is_chunk(topic, len(topic)):
            return self.publish_chunk(&publication)
        return self.publish_now_or_later(&publication)

    def clear_retained(self, bytes topic not None):
        """Remove a retained message, without a message to subscribers."""
        cdef Publication publication = publication_of(topic, len(topic), b"", 0, 0, True)
        self.retain(&publication)

    def expire_retained(self):
        """Remove the retained messages that have expired; returns their topic names."""
        cdef bytes topic = self.retained.take_expired(self.turn.clock)
        cdef list found = []
        while topic is not None:
            found.append(topic)
            self.turn.counters[EXPIRED] += 1
            if self.turn.journal.epoch and not self.turn.journal.shared:
                self.turn.journal.retained_gone(topic, len(topic))
            topic = self.retained.take_expired(self.turn.clock)
        return found

    def deliver(self, bytes batch not None):
        """Deliver the messages of another node's batch to the clients here.

        Args:
            batch: PUBLISH packets, as `flockmq._speedups.cluster` (peer, journal) writes them.

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
        cdef bint is_level_5, sent
        cdef int count = 0
        cdef Group group = None                       # that the next message is for
        cdef bint is_for_group = False
        at.p = batch
        at.end = at.p + len(batch)
        while at.p < at.end:
            packet = at.p
            if read_header(&at, &first_byte, &remaining) != 1:
                raise ValueError("a batch that can't be read")
            if first_byte == FORWARD_GROUP and at.end - at.p >= <Py_ssize_t>remaining:
                group = self.filters.by_name.get(at.p[:<Py_ssize_t>remaining])
                is_for_group = True
                at.p += remaining
                continue
            is_level_5 = first_byte >> 4 == FORWARD_5 >> 4
            if not is_level_5 and first_byte >> 4 != PUBLISH:
                raise ValueError("a batch that can't be read")
            if remaining < 2 or at.end - at.p < <Py_ssize_t>remaining:
                raise ValueError("a batch that can't be read")
            topic_length = at.p[0] << 8 | at.p[1]
            qos = first_byte >> 1 & 3
            if qos == 3 or <Py_ssize_t>remaining < 2 + topic_length + 2 * (qos > 0):
                raise ValueError("a batch that can't be read")
            publication = publication_of(
                at.p + 2, topic_length, at.p + 2 + topic_length + 2 * (qos > 0),
                <Py_ssize_t>remaining - 2 - topic_length - 2 * (qos > 0), qos, first_byte & FLAG_RETAIN)
            publication.publisher = <void*>None
            publication.forwarded = True
            if is_level_5:
                self.take_block(&publication)
            if qos == 0 and first_byte & FLAG_DUP:    # published with a higher QoS, but no receiver here has one
                publication.qos = 1
            elif first_byte == PUBLISH_QOS_0 and publication.hidden == 0:
                publication.packet = packet
                publication.packet_size = <uint32_t>(at.p + remaining - packet)
            if is_for_group:
                if group is not None:                 # else it has ended
                    sent = self.send_to_one(group, &publication, self.turn.tracer)
                    self.turn.counters[PUBLISH_SENT] += sent
                    if publication.hidden:
                        self.count_for_tenant(&publication, sent, 0)
                is_for_group = False
            else:
                self.route(&publication)
            at.p += remaining
            count += 1
        return count

    cdef int take_block(self, Publication* publication) except -1:
        """Take the property block from the front of the payload of a message from another node."""
        cdef Cursor at
        cdef PropertyScan scan
        cdef uint32_t length = 0
        at.p = publication.payload
        at.end = at.p + publication.payload_length
        if (read_varint(&at, &length) < 0 or at.end - at.p < <Py_ssize_t>length
                or scan_properties(at.p, length, PUBLISH, &scan)):
            raise ValueError("a batch that can't be read")
        publication.payload = at.p + length
        publication.payload_length = at.end - publication.payload
        return self.set_properties(publication, at.p, length, &scan)

    def record_retained(self, RetainedSearch search not None, int most):
        """Write up to `most` retained messages of the search to the journal again; False at its end."""
        cdef Message* m
        while most > 0:
            if not search.step():
                return False
            m = search.found
            if m != NULL:
                self.turn.journal.retained(m)
                most -= 1
        return True


cdef uint64_t shards_of(const Publication* publication, const Plan* plan) noexcept:
    """The shards that have the queues and groups for a message which ends a record, as bits; 0: it ends none."""
    cdef uint64_t shards = 0
    cdef Subscriber subscriber
    cdef uint32_t i
    if publication.qos == 0 or not (publication.number or publication.will):
        return 0
    for i in range(plan.count):
        subscriber = <Subscriber>plan.receivers[i].subscriber
        if plan.receivers[i].qos and (subscriber.kind == SHARED or subscriber.kind == GROUP):
            shards |= <uint64_t>1 << subscriber.shard
    return shards
