"""The journal: durable state changes, as records packed into one block per turn of the loop.

A store keeps blocks in order, each whole or not at all. Reading all blocks, first to last, restores the state of the
node at the last commit. Every record states a value ("subscription F of session 7 has options 1"), not a difference,
so a record may be written again. Compaction writes all live state again and then deletes the earlier blocks.

Block: one byte LAYOUT or LAYOUT_5, then records. Record: one byte kind, then fields, little-endian, without padding.

======================  ==============================================================================================
MESSAGE                 id u64, QoS | RETAIN << 2 u8, topic length u16, payload length u32, topic name, payload
QUEUED                  session u64, queue number u64, message u64, QoS | RETAIN << 2 u8
DONE                    session u64, queue number u64: PUBACK or PUBCOMP received, or message dropped
RECEIVED                session u64, queue number u64: PUBREC received
AWAITING                session u64, packet identifier u64, message u64: QoS 2 message received, PUBREL awaited
RELEASED                session u64, packet identifier u64: PUBREL received
SESSION                 session u64, protocol level | connected << 7 u8, length u32, first queue number u64,
                        sent below this queue number u64, client id
SESSION_USER            session u64, 0 u8, length u32, name of the user that owns the session; empty = no user
SESSION_GONE            session u64
SUBSCRIBED              session u64, options u8, length u32, topic filter
UNSUBSCRIBED            session u64, 0 u8, length u32, topic filter
RETAINED                message u64, 0 u64
RETAINED_GONE           0 u64, 0 u8, length u32, topic name
WILL                    message u64, 0 u8, length u32, client id
WILL_GONE               0 u64, 0 u8, length u32, client id
MESSAGE_5               id u64, QoS | RETAIN << 2 | HAS_DEADLINE u8, topic length u16, payload length u32, properties
                        length u32, deadline i64, topic name, properties, payload
QUEUED_5                session u64, flags u8 as in QUEUED and RETAIN AS PUBLISHED << 3, length u32, queue number u64,
                        message u64, subscription identifiers as properties
SUBSCRIBED_5            session u64, options u8, length u32, subscription identifier u32, topic filter
SESSION_EXPIRY          session u64, 1 = as configured u8, length u32, Session Expiry Interval u32, deadline i64 (0 =
                        connected, or never)
WILL_DELAY              delay in seconds u64, 0 u8, length u32, client id; or deadline u64, 1 u8, ...
WILL_AUTHOR             bytes of the client id u64, 0 u8, length u32, client id, author (broker/auth/author.py)
CLOCK                   store's clock u64, wall clock u64
GROUP                   group u64, 0 u8, length u32, `$share/`, share name, `/` and topic filter
GROUP_GONE              group u64: nothing of it is kept
GROUP_QUEUED            group u64, place u64, message u64: no session has it, or a clean one, unacknowledged
GROUP_DONE              group u64, place u64: acknowledged, dropped, or sent to a clean session with QoS 2
GIVEN                   group u64, place u64, session u64, queue number u64: its entry, in a QUEUED before
                        this, is this message of the group. If it goes back, DONE and GROUP_QUEUED follow
GROUP_FAILED            group u64, place u64, deliveries without success << 8 | reason code of the last u64
GROUP_DECLARED          group u64, 0 u8, length u32, the settings that it is declared with; empty = it is not declared
GROUP_KEY               group u64, place u64, hash u64: of the publisher, whose messages keep their order in the group
DELAYED                 message u64, 0 u8, length u32, due i64, client id of its publisher, empty = the broker
DELAYED_GONE            message u64: it is published
======================  ==============================================================================================

Records from MESSAGE_5 on have what level 5 adds; a block without them has LAYOUT 1, which older versions read. A
deadline is milliseconds of the store's clock (broker/storage/store_clock.py).

A message has a number as its name. It is written before the first record that refers to it, and again once a
compaction has begun (its epoch is then older than the journal's). Message numbers are names, not an order.
"""

from libc.string cimport memcpy

from ..base.buffers cimport buffer_free, buffer_reserve, buffer_size, pool_free
from .message cimport (
    Message, Publication, message_new, message_release, message_size, publication_of,
)
from .outgoing_queue cimport RETAIN_AS_PUBLISHED

import struct

cdef enum:
    HAS_DEADLINE = 8           # in the flags of MESSAGE_5
    QUARTER = 250              # milliseconds of the turn's clock


class DamagedBlock(ValueError):
    """A block of the journal can't be read: its layout is not supported, or it is truncated or altered."""


cdef class Journal:
    """Records of the block being written. Nothing is recorded before `start`, during the restore."""

    def __cinit__(self):
        self.layout = 2

    def __dealloc__(self):
        buffer_free(&self.records, &self.pool)
        pool_free(&self.pool)

    def __len__(self):
        """Bytes of the block being written."""
        return buffer_size(&self.records)

    @property
    def durable(self):
        """Whether records are kept."""
        return self.epoch != 0

    def start(self):
        """Start recording, or begin a compaction: live messages are then written again when a record names them."""
        self.epoch += 1

    def continue_after(self, uint64_t last_id):
        """Name new messages with numbers above `last_id`, the highest that the store holds."""
        self.last_id = max(self.last_id, last_id)

    def take(self):
        """Return the block, as bytes, and begin a new one."""
        if self.has_level_5:
            self.records.data[self.records.start] = LAYOUT_5
            self.has_level_5 = False
        block = self.records.data[self.records.start:self.records.end]
        buffer_free(&self.records, &self.pool)
        self.urgent = False
        return block

    @property
    def time(self):
        """The store's clock, in milliseconds."""
        return self.deadline(self.now)

    def set_time(self, int64_t milliseconds):
        """Set the store's clock."""
        self.clock_offset = milliseconds - self.now * QUARTER

    def record_will(self, bytes client_id not None, bytes topic not None, bytes payload not None, int qos, bint retain,
                    bytes properties=b"", uint32_t delay=0, bytes author=b""):
        """Write the will of a connected client: Will Delay Interval in seconds, and its author, empty = none."""
        cdef const uint8_t* c = client_id
        cdef bytes names
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), <uint8_t>qos, retain)
        cdef Message* m
        if self.epoch == 0:
            return
        publication.properties = properties
        publication.properties_length = len(properties)
        m = message_new(&publication)
        if m == NULL:
            raise MemoryError
        try:
            self.will(m, c, len(client_id))
        finally:
            message_release(m)
        if author:
            names = client_id + author
            self.note_level_5()
            self.text(WILL_AUTHOR, len(client_id), 0, names, len(names))
        if delay:
            self.record_will_delay(client_id, delay, False)

    def record_will_due(self, bytes client_id not None, int64_t clock):
        """Write when the will of a client is due whose connection has ended, in the time of the turn's clock."""
        self.record_will_delay(client_id, self.deadline(clock), True)

    cdef int record_will_delay(self, bytes client_id, uint64_t when, bint is_deadline) except -1:
        """Write the delay of a will in seconds or, once its connection has ended, the deadline in milliseconds."""
        cdef const uint8_t* c = client_id
        if self.epoch:
            self.note_level_5()
            self.text(WILL_DELAY, when, is_deadline, c, len(client_id))
        return 0

    def record_clock(self, uint64_t wall):
        """Write the store's clock and the wall clock, in milliseconds."""
        if self.epoch:
            self.note_level_5()
            self.numbers(CLOCK, <uint64_t>self.deadline(self.now), wall)

    def record_session_expiry(self, uint64_t number, interval, int64_t clock):
        """Write the Session Expiry Interval of a session in seconds, None: as configured.

        `clock` is the time of the turn's clock at which it ends; 0 = its client is connected, or never.
        """
        cdef bytes data
        if self.epoch:
            self.note_level_5()
            data = struct.pack("<Iq", interval or 0, self.deadline(clock))
            self.text(SESSION_EXPIRY, number, interval is None, data, len(data))

    cdef int64_t deadline(self, int64_t clock) noexcept:
        """A time of the turn's clock as milliseconds of the store's clock; 0 stays 0."""
        return clock * QUARTER + self.clock_offset if clock else 0

    def clock_of(self, int64_t deadline):
        """A deadline of the store as a time of the turn's clock, never too early; 0 stays 0, past ones are below it."""
        if deadline == 0:
            return 0
        return (deadline - self.clock_offset + QUARTER - 1) // QUARTER or -1  # it is over, as the clock begins at 1

    def use_level_5(self):
        """The store has records of level 5."""
        self.uses_level_5 = True

    def record_will_gone(self, bytes client_id not None):
        """Write that the client's will was published or discarded."""
        cdef const uint8_t* c = client_id
        if self.epoch:
            self.text(WILL_GONE, 0, 0, c, len(client_id))

    cdef int note_level_5(self) except -1:
        """The record that follows is one that LAYOUT 1 doesn't have."""
        self.has_level_5 = self.uses_level_5 = True
        return 0

    cdef uint8_t* room(self, uint8_t kind, Py_ssize_t n) except NULL:
        """Reserve the `n` bytes of a record's fields; they count as written."""
        cdef bint first = buffer_size(&self.records) == 0
        cdef uint8_t* p = buffer_reserve(&self.records, &self.pool, n + 2)
        if p == NULL:
            raise MemoryError
        if first:
            p[0] = LAYOUT
            p += 1
        p[0] = kind
        if kind != DONE and kind != GROUP_DONE:
            self.urgent = True
        self.records.end += n + 1 + first
        return p + 1

    cdef int number(self, uint8_t kind, uint64_t a) except -1:
        memcpy(self.room(kind, 8), &a, 8)
        return 0

    cdef int numbers(self, uint8_t kind, uint64_t a, uint64_t b) except -1:
        cdef uint8_t* p = self.room(kind, 16)
        memcpy(p, &a, 8)
        memcpy(p + 8, &b, 8)
        return 0

    cdef int text(self, uint8_t kind, uint64_t a, uint8_t options, const uint8_t* data, Py_ssize_t n) except -1:
        cdef uint8_t* p = self.room(kind, 13 + n)
        cdef uint32_t length = <uint32_t>n
        memcpy(p, &a, 8)
        p[8] = options
        memcpy(p + 9, &length, 4)
        memcpy(p + 13, data, n)
        return 0

    cdef uint64_t message(self, Message* m) except? 0:
        """The number of the message in the store; its bytes are written to this block unless the store has them."""
        cdef uint8_t* p
        if m.stored_epoch == self.epoch:
            return m.stored_id
        if m.stored_id == 0:
            self.last_id += 1
            m.stored_id = self.last_id
        m.stored_epoch = self.epoch
        if m.properties_length or m.expires:
            return self.message_5(m)
        p = self.room(MESSAGE, 15 + m.topic_length + m.payload_length)
        memcpy(p, &m.stored_id, 8)
        p[8] = m.qos | m.retain << 2
        memcpy(p + 9, &m.topic_length, 2)
        memcpy(p + 11, &m.payload_length, 4)
        memcpy(p + 15, m.data, m.topic_length + m.payload_length)
        return m.stored_id

    cdef uint64_t message_5(self, Message* m) except? 0:
        cdef uint8_t* p
        cdef int64_t deadline = self.deadline(m.expires)
        cdef Py_ssize_t size = message_size(m)
        self.note_level_5()
        p = self.room(MESSAGE_5, 27 + size)
        memcpy(p, &m.stored_id, 8)
        p[8] = m.qos | m.retain << 2 | HAS_DEADLINE * (m.expires != 0)
        memcpy(p + 9, &m.topic_length, 2)
        memcpy(p + 11, &m.payload_length, 4)
        memcpy(p + 15, &m.properties_length, 4)
        memcpy(p + 19, &deadline, 8)
        memcpy(p + 27, m.data, size)
        return m.stored_id

    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1:
        """Write that the message is in the session's queue, with queue number `n`, EntryFlags, and identifiers."""
        cdef uint64_t name = self.message(m)
        cdef uint8_t* p
        cdef uint32_t size = <uint32_t>(16 + length)
        if length or flags & RETAIN_AS_PUBLISHED:
            self.note_level_5()
            p = self.room(QUEUED_5, 13 + size)
            memcpy(p, &number, 8)
            p[8] = flags
            memcpy(p + 9, &size, 4)
            memcpy(p + 13, &n, 8)
            memcpy(p + 21, &name, 8)
            if length:
                memcpy(p + 29, identifiers, length)
            return 0
        p = self.room(QUEUED, 25)
        memcpy(p, &number, 8)
        memcpy(p + 8, &n, 8)
        memcpy(p + 16, &name, 8)
        p[24] = flags
        return 0

    cdef int subscribed(self, uint64_t number, uint8_t options, uint32_t identifier, const uint8_t* topic_filter,
                        Py_ssize_t n) except -1:
        """Write a subscription with its options and its identifier."""
        cdef uint8_t* p
        cdef uint32_t size = <uint32_t>(4 + n)
        if identifier == 0 and options <= 2:
            return self.text(SUBSCRIBED, number, options, topic_filter, n)
        self.note_level_5()
        p = self.room(SUBSCRIBED_5, 13 + size)
        memcpy(p, &number, 8)
        p[8] = options
        memcpy(p + 9, &size, 4)
        memcpy(p + 13, &identifier, 4)
        memcpy(p + 17, topic_filter, n)
        return 0

    cdef int group_queued(self, uint64_t group, uint64_t place, Message* m) except -1:
        """Write that the message waits in a group, with this place."""
        return self.of_group(GROUP_QUEUED, group, place, self.message(m))

    cdef int group_key(self, uint64_t group, uint64_t place, uint64_t hash) except -1:
        """Write the key of a group's message."""
        return self.of_group(GROUP_KEY, group, place, hash)

    cdef int group_failed(self, uint64_t group, uint64_t place, uint64_t deliveries, uint8_t code) except -1:
        """Write how often a message of a group was sent without success."""
        return self.of_group(GROUP_FAILED, group, place, deliveries << 8 | code)

    cdef int of_group(self, uint8_t kind, uint64_t group, uint64_t place, uint64_t value) except -1:
        """Write a record about the message with this place in a group."""
        cdef uint8_t* p
        self.note_level_5()
        p = self.room(kind, 24)
        memcpy(p, &group, 8)
        memcpy(p + 8, &place, 8)
        memcpy(p + 16, &value, 8)
        return 0

    cdef int given(self, uint64_t group, uint64_t place, uint64_t number, uint64_t n) except -1:
        """Write that the entry `n` of the session `number` is a group's message."""
        cdef uint8_t* p
        self.note_level_5()
        p = self.room(GIVEN, 32)
        memcpy(p, &group, 8)
        memcpy(p + 8, &place, 8)
        memcpy(p + 16, &number, 8)
        memcpy(p + 24, &n, 8)
        return 0

    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n, uint32_t size) except -1:
        """Write DONE or RECEIVED of a queue number, or RELEASED of a packet identifier. `size`: of a done Entry."""
        return self.numbers(kind, number, n)

    cdef int progress(self, object session, uint16_t packet_id, uint64_t will, Message* m, uint32_t hash) except -1:
        """Write how far the publication of a message has come in this block. A journal with `most_pushes` has this.

        Args:
            session: its publisher.
            packet_id, will: as in Publication; both 0 = nobody needs the record, since its publisher would repeat it.
            hash: the persistent sessions whose client ids have one below this have it, and all other receivers.
        """
        raise NotImplementedError

    cdef int forward(self, object peer, Message* m) except -1:
        """Send the message to another node."""
        raise NotImplementedError

    cdef int logged(self, Py_ssize_t size) except -1:
        """Note that a message to be acknowledged is in the message log, with about `size` bytes."""
        raise NotImplementedError

    cdef int retained(self, Message* m) except -1:
        return self.numbers(RETAINED, self.message(m), 0)

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        return self.text(RETAINED_GONE, 0, 0, topic, n)

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m) except -1:
        """Write that a QoS 2 message from the session's client waits for PUBREL."""
        cdef uint64_t name = self.message(m), wide = packet_id
        cdef uint8_t* p = self.room(AWAITING, 24)
        memcpy(p, &number, 8)
        memcpy(p + 8, &wide, 8)
        memcpy(p + 16, &name, 8)
        return 0

    cdef int delayed(self, Message* m, int64_t due, uint32_t seconds, bytes publisher) except -1:
        """Write that the message waits until it is due, by the store's clock; or, in a cluster, for `seconds`."""
        cdef uint64_t name = self.message(m)
        cdef const uint8_t* client_id = publisher
        cdef Py_ssize_t n = len(publisher)
        cdef uint32_t length = <uint32_t>(8 + n)
        cdef uint8_t* p
        self.note_level_5()
        p = self.room(DELAYED, 13 + length)
        memcpy(p, &name, 8)
        p[8] = 0
        memcpy(p + 9, &length, 4)
        memcpy(p + 13, &due, 8)
        memcpy(p + 21, client_id, n)
        return 0

    cdef int delayed_gone(self, const Message* m) except -1:
        """Write that a message that waited is published, in the block that has the publication."""
        self.note_level_5()
        return self.number(DELAYED_GONE, m.stored_id)

    cdef int will(self, Message* m, const uint8_t* client_id, Py_ssize_t n) except -1:
        cdef uint64_t name = self.message(m)
        return self.text(WILL, name, 0, client_id, n)


cdef int need(const uint8_t* p, const uint8_t* end, Py_ssize_t n) except -1:
    if end - p < n:
        raise DamagedBlock("a record is cut short")
    return 0


def records(bytes block not None):
    """The records of a block as a list of tuples: the name of the kind, then its fields as in the table above.

    MESSAGE and MESSAGE_5: ("MESSAGE", id, qos, retain, topic, payload, properties, deadline). QUEUED and QUEUED_5:
    ("QUEUED", session, n, message, flags, identifiers). SUBSCRIBED and SUBSCRIBED_5: ("SUBSCRIBED", session, options,
    topic filter, identifier). SESSION: (name, session, level, connected, first queue number, sent below, client id).
    DELAYED: (name, message, due, publisher). Texts are bytes.

    Raises:
        DamagedBlock: another layout, or the bytes are not those of a journal.
    """
    cdef const uint8_t* p = block
    cdef const uint8_t* end = p + len(block)
    cdef uint8_t kind, flags
    cdef uint16_t topic_length
    cdef uint32_t length, properties_length, identifier
    cdef uint64_t a, b, c, d
    cdef int64_t deadline
    cdef Py_ssize_t size
    cdef list found = []
    need(p, end, 1)
    if p[0] not in (LAYOUT, LAYOUT_5):
        raise DamagedBlock(f"journal layout {p[0]} is not supported (this version supports {LAYOUT} and {LAYOUT_5})")
    p += 1
    while p < end:
        kind = p[0]
        p += 1
        need(p, end, 8)
        memcpy(&a, p, 8)
        if kind == MESSAGE:
            need(p, end, 15)
            flags = p[8]
            memcpy(&topic_length, p + 9, 2)
            memcpy(&length, p + 11, 4)
            p += 15
            need(p, end, <Py_ssize_t>topic_length + length)
            found.append(("MESSAGE", a, flags & 3, flags >> 2, p[:topic_length],
                          p[topic_length:topic_length + <Py_ssize_t>length], b"", 0))
            p += topic_length + <Py_ssize_t>length
        elif kind == MESSAGE_5:
            need(p, end, 27)
            flags = p[8]
            memcpy(&topic_length, p + 9, 2)
            memcpy(&length, p + 11, 4)
            memcpy(&properties_length, p + 15, 4)
            memcpy(&deadline, p + 19, 8)
            p += 27
            size = <Py_ssize_t>topic_length + properties_length
            need(p, end, size + length)
            found.append(("MESSAGE", a, flags & 3, flags >> 2 & 1, p[:topic_length], p[size:size + <Py_ssize_t>length],
                          p[topic_length:size], deadline if flags & HAS_DEADLINE else 0))
            p += size + length
        elif kind == QUEUED:
            need(p, end, 25)
            memcpy(&b, p + 8, 8)
            memcpy(&c, p + 16, 8)
            found.append(("QUEUED", a, b, c, p[24], b""))
            p += 25
        elif kind in (AWAITING, GROUP_QUEUED, GROUP_FAILED, GROUP_KEY):
            need(p, end, 24)
            memcpy(&b, p + 8, 8)
            memcpy(&c, p + 16, 8)
            found.append((NAMES[kind], a, b, c))
            p += 24
        elif kind == GIVEN:
            need(p, end, 32)
            memcpy(&b, p + 8, 8)
            memcpy(&c, p + 16, 8)
            memcpy(&d, p + 24, 8)
            found.append(("GIVEN", a, b, c, d))
            p += 32
        elif kind in (DONE, RECEIVED, RELEASED, RETAINED, CLOCK, GROUP_DONE):
            need(p, end, 16)
            memcpy(&b, p + 8, 8)
            found.append((NAMES[kind], a, b))
            p += 16
        elif kind in (SESSION_GONE, GROUP_GONE, DELAYED_GONE):
            found.append((NAMES[kind], a))
            p += 8
        elif kind in TEXTS:
            need(p, end, 13)
            flags = p[8]
            memcpy(&length, p + 9, 4)
            p += 13
            need(p, end, length)
            if kind == SESSION:
                need(p, p + length, 16)
                memcpy(&b, p, 8)
                memcpy(&c, p + 8, 8)
                found.append(("SESSION", a, flags & 0x7F, flags >> 7, b, c, p[16:<Py_ssize_t>length]))
            elif kind == QUEUED_5:
                need(p, p + length, 16)
                memcpy(&b, p, 8)
                memcpy(&c, p + 8, 8)
                found.append(("QUEUED", a, b, c, flags, p[16:<Py_ssize_t>length]))
            elif kind == SUBSCRIBED:
                found.append(("SUBSCRIBED", a, flags, p[:<Py_ssize_t>length], 0))
            elif kind == SUBSCRIBED_5:
                need(p, p + length, 4)
                memcpy(&identifier, p, 4)
                found.append(("SUBSCRIBED", a, flags, p[4:<Py_ssize_t>length], identifier))
            elif kind == SESSION_EXPIRY:
                need(p, p + length, 12)
                memcpy(&identifier, p, 4)
                memcpy(&deadline, p + 4, 8)
                found.append(("SESSION_EXPIRY", a, None if flags else identifier, deadline))
            elif kind == DELAYED:
                need(p, p + length, 8)
                memcpy(&deadline, p, 8)
                found.append(("DELAYED", a, deadline, p[8:<Py_ssize_t>length]))
            else:
                found.append((NAMES[kind], a, flags, p[:<Py_ssize_t>length]))
            p += length
        else:
            raise DamagedBlock(f"record kind {kind} is not supported")
    return found


def block_of(list found not None):
    """The block of these records, tuples as `records` returns them: its inverse."""
    cdef list parts = [b""]
    cdef bint is_level_5 = False
    for name, *fields in found:
        kind, data = encoded(name, fields)
        is_level_5 = is_level_5 or kind in KINDS_5
        parts += (bytes([kind]), data)
    parts[0] = bytes([LAYOUT_5 if is_level_5 else LAYOUT])
    return b"".join(parts)


cdef tuple encoded(str name, list fields):
    """The kind of a record, and its bytes."""
    if name == "MESSAGE":
        number, qos, retain, topic, payload, properties, deadline = fields
        flags = qos | retain << 2
        if properties or deadline:
            head = struct.pack("<QBHIIq", number, flags | HAS_DEADLINE * (deadline != 0), len(topic), len(payload),
                               len(properties), deadline)
            return MESSAGE_5, head + topic + properties + payload
        return MESSAGE, struct.pack("<QBHI", number, flags, len(topic), len(payload)) + topic + payload
    if name == "QUEUED":
        session, n, message, flags, identifiers = fields
        if identifiers or flags & RETAIN_AS_PUBLISHED:
            return QUEUED_5, with_text(session, flags, struct.pack("<QQ", n, message) + identifiers)
        return QUEUED, struct.pack("<QQQB", session, n, message, flags)
    if name == "SUBSCRIBED":
        session, options, topic_filter, identifier = fields
        if identifier or options > 2:
            return SUBSCRIBED_5, with_text(session, options, struct.pack("<I", identifier) + topic_filter)
        return SUBSCRIBED, with_text(session, options, topic_filter)
    if name == "SESSION":
        session, level, connected, first, sent, client_id = fields
        return SESSION, with_text(session, level | connected << 7, struct.pack("<QQ", first, sent) + client_id)
    if name == "SESSION_EXPIRY":
        session, interval, deadline = fields
        return SESSION_EXPIRY, with_text(session, interval is None, struct.pack("<Iq", interval or 0, deadline))
    if name == "DELAYED":
        message, due, publisher = fields
        return DELAYED, with_text(message, 0, struct.pack("<q", due) + publisher)
    kind = KINDS[name]
    if kind in TEXTS:
        return kind, with_text(fields[0], fields[1], fields[2])
    if kind == RETAINED:
        fields = [fields[0], 0]
    return kind, struct.pack(f"<{len(fields)}Q", *fields)


cdef bytes with_text(uint64_t number, uint8_t flags, bytes text):
    """The fields of a record with a text: a number, flags, length, text."""
    return struct.pack("<QBI", number, flags, len(text)) + text


NAMES = {
    MESSAGE: "MESSAGE", QUEUED: "QUEUED", DONE: "DONE", RECEIVED: "RECEIVED", AWAITING: "AWAITING",
    RELEASED: "RELEASED", SESSION: "SESSION", SESSION_GONE: "SESSION_GONE", SUBSCRIBED: "SUBSCRIBED",
    UNSUBSCRIBED: "UNSUBSCRIBED", RETAINED: "RETAINED", RETAINED_GONE: "RETAINED_GONE", WILL: "WILL",
    WILL_GONE: "WILL_GONE", SESSION_USER: "SESSION_USER", WILL_DELAY: "WILL_DELAY", WILL_AUTHOR: "WILL_AUTHOR",
    CLOCK: "CLOCK",
    GROUP: "GROUP", GROUP_GONE: "GROUP_GONE", GROUP_QUEUED: "GROUP_QUEUED", GROUP_DONE: "GROUP_DONE", GIVEN: "GIVEN",
    GROUP_FAILED: "GROUP_FAILED",
    GROUP_DECLARED: "GROUP_DECLARED",
    GROUP_KEY: "GROUP_KEY",
    DELAYED: "DELAYED", DELAYED_GONE: "DELAYED_GONE",
}
TEXTS = {
    SESSION, SUBSCRIBED, UNSUBSCRIBED, RETAINED_GONE, WILL, WILL_GONE, SESSION_USER, QUEUED_5, SUBSCRIBED_5,
    SESSION_EXPIRY, WILL_DELAY, WILL_AUTHOR, GROUP, GROUP_DECLARED, DELAYED,
}
KINDS = {name: kind for kind, name in NAMES.items()}
KINDS_5 = {
    MESSAGE_5, QUEUED_5, SUBSCRIBED_5, SESSION_EXPIRY, WILL_DELAY, WILL_AUTHOR, CLOCK, GROUP, GROUP_GONE, GROUP_QUEUED,
    GROUP_DONE, GIVEN,
    GROUP_FAILED, GROUP_DECLARED, GROUP_KEY, DELAYED, DELAYED_GONE,
}
