"""The journal: durable state changes, as records packed into one block per turn of the loop.

A store keeps blocks in order, each whole or not at all. Reading all blocks, first to last, restores the state of the
node at the last commit. Every record states a value ("subscription F of session 7 has options 1"), not a difference,
so a record may be written again. Compaction writes all live state again and then deletes the earlier blocks.

Block: one byte LAYOUT, then records. Record: one byte kind, then fields, little-endian, without padding. The table
`RECORDS` has all kinds. A block of another layout is refused: another form of a record needs another LAYOUT.

A deadline is milliseconds of the store's clock (broker/coordination/expiry.py).

A message has a number as its name. It is written before the first record that refers to it, and again once a
compaction has begun (its epoch is then older than the journal's). Message numbers are names, not an order.
"""

from libc.string cimport memcpy

from ..base.buffers cimport buffer_free, buffer_reserve, buffer_size, pool_free
from ..base.tick cimport MS_PER_TICK
from .message cimport (
    Message, Publication, message_new, message_release, message_size, publication_of,
)
from .outgoing_queue cimport STORED_FLAGS

import struct

cdef enum:
    HAS_PROPERTIES = 8         # in the flags of MESSAGE
    HAS_DEADLINE = 16          # likewise
    HAS_IDENTIFIERS = 128      # in the flags of QUEUED, beside STORED_FLAGS

AS_CONFIGURED = -1             # in place of a Session Expiry Interval


class DamagedBlock(ValueError):
    """A block of the journal can't be read: its layout is not supported, or it is truncated or altered."""


cdef class Journal:
    """Records of the block being written. Nothing is recorded before `start`, during the restore."""

    def __cinit__(self):
        self.shards = 1

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
        block = self.records.data[self.records.start:self.records.end]
        buffer_free(&self.records, &self.pool)
        self.urgent = False
        return block

    cdef Journal at(self, uint8_t shard):
        """The journal of a shard: this one."""
        return self

    cdef int set_now(self, int64_t now) except -1:
        """Set the turn's clock."""
        self.now = now
        return 0

    # With several shards only:

    cdef uint64_t new_number(self) except? 0:
        """A number for a message that awaits PUBREL; 0: it needs none."""
        return 0

    cdef int begin_publication(self, const Publication* publication, uint64_t shards) except -1:
        """The records that follow are of this publication. `shards`: that it gives to, as bits, if it ends a record."""
        return 0

    cdef int end_publication(self) except -1:
        """The publication has all of its records."""
        return 0

    @property
    def time(self):
        """The store's clock, in milliseconds."""
        return self.deadline(self.now)

    def set_time(self, int64_t milliseconds):
        """Set the store's clock."""
        self.clock_offset = milliseconds - self.now * MS_PER_TICK

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
            self.text(WILL_AUTHOR, len(client_id), names, len(names))
        if delay:
            self.text(WILL_DELAY, delay, c, len(client_id))

    def record_will_due(self, bytes client_id not None, int64_t clock):
        """Write when the will of a client is due whose connection has ended, in the time of the turn's clock."""
        cdef const uint8_t* c = client_id
        if self.epoch:
            self.text(WILL_DUE, <uint64_t>self.deadline(clock), c, len(client_id))

    def record_clock(self, uint64_t wall):
        """Write the store's clock and the wall clock, in milliseconds."""
        if self.epoch:
            self.numbers(CLOCK, <uint64_t>self.deadline(self.now), wall)

    def record_session_expiry(self, uint64_t number, interval, int64_t clock):
        """Write the Session Expiry Interval of a session in seconds, None: as configured.

        `clock` is the time of the turn's clock at which it ends; 0 = its client is connected, or never.
        """
        cdef int64_t seconds = AS_CONFIGURED if interval is None else interval
        if self.epoch:
            self.three_numbers(SESSION_EXPIRY, number, <uint64_t>seconds, <uint64_t>self.deadline(clock))

    cdef int64_t deadline(self, int64_t clock) noexcept:
        """A time of the turn's clock as milliseconds of the store's clock; 0 stays 0."""
        return clock * MS_PER_TICK + self.clock_offset if clock else 0

    def clock_of(self, int64_t deadline):
        """A deadline of the store as a time of the turn's clock, never too early; 0 stays 0, past ones are below it."""
        if deadline == 0:
            return 0
        # -1: it is over, as the clock begins at 1.
        return (deadline - self.clock_offset + MS_PER_TICK - 1) // MS_PER_TICK or -1

    def record_committed(self, bytes name not None, uint64_t number):
        """Write the number of the last transaction that was committed under a name."""
        cdef const uint8_t* text = name
        if self.epoch:
            self.text(COMMITTED, number, text, len(name))

    def record_will_gone(self, bytes client_id not None):
        """Write that the client's will was published or discarded."""
        cdef const uint8_t* c = client_id
        if self.epoch:
            self.with_text(WILL_GONE, 0, c, len(client_id))

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

    cdef int note(self, uint8_t kind) except -1:
        """Let `records` grow for a record that is kept elsewhere: other modules test its size."""
        self.room(kind, 7)
        return 0

    cdef int number(self, uint8_t kind, uint64_t a) except -1:
        memcpy(self.room(kind, 8), &a, 8)
        return 0

    cdef int numbers(self, uint8_t kind, uint64_t a, uint64_t b) except -1:
        cdef uint8_t* p = self.room(kind, 16)
        memcpy(p, &a, 8)
        memcpy(p + 8, &b, 8)
        return 0

    cdef int three_numbers(self, uint8_t kind, uint64_t a, uint64_t b, uint64_t c) except -1:
        cdef uint8_t* p = self.room(kind, 24)
        memcpy(p, &a, 8)
        memcpy(p + 8, &b, 8)
        memcpy(p + 16, &c, 8)
        return 0

    cdef uint8_t* with_text(self, uint8_t kind, Py_ssize_t head, const uint8_t* data, Py_ssize_t n) except NULL:
        """Write a record's text, the last of its fields; reserve the `head` bytes before it."""
        cdef uint8_t* p = self.room(kind, head + 4 + n)
        cdef uint32_t length = <uint32_t>n
        memcpy(p + head, &length, 4)
        memcpy(p + head + 4, data, n)
        return p

    cdef int text(self, uint8_t kind, uint64_t a, const uint8_t* data, Py_ssize_t n) except -1:
        memcpy(self.with_text(kind, 8, data, n), &a, 8)
        return 0

    cdef uint64_t message(self, Message* m) except? 0:
        """The number of the message in the store; its bytes are written to this block unless the store has them."""
        cdef uint8_t* p
        cdef uint8_t flags = m.qos | m.retain << 2
        cdef Py_ssize_t head = 15
        cdef int64_t deadline
        if m.stored_epoch == self.epoch:
            return m.stored_id
        if m.stored_id == 0:
            self.last_id += 1
            m.stored_id = self.last_id
        m.stored_epoch = self.epoch
        if m.properties_length:
            flags |= HAS_PROPERTIES
            head += 4
        if m.expires:
            flags |= HAS_DEADLINE
            head += 8
        p = self.room(MESSAGE, head + message_size(m))
        memcpy(p, &m.stored_id, 8)
        p[8] = flags
        memcpy(p + 9, &m.topic_length, 2)
        memcpy(p + 11, &m.payload_length, 4)
        if m.properties_length:
            memcpy(p + 15, &m.properties_length, 4)
        if m.expires:
            deadline = self.deadline(m.expires)
            memcpy(p + head - 8, &deadline, 8)
        memcpy(p + head, m.data, message_size(m))
        return m.stored_id

    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1:
        """Write that the message is in the session's queue, with queue number `n`, EntryFlags, and identifiers."""
        cdef uint64_t name = self.message(m)
        cdef uint32_t size = <uint32_t>length
        cdef uint8_t* p = self.room(QUEUED, 25 + (4 + length if length else 0))
        memcpy(p, &number, 8)
        memcpy(p + 8, &n, 8)
        memcpy(p + 16, &name, 8)
        p[24] = flags
        if length:
            p[24] |= HAS_IDENTIFIERS
            memcpy(p + 25, &size, 4)
            memcpy(p + 29, identifiers, length)
        return 0

    cdef int session(self, uint64_t number, uint8_t level, uint8_t connected, uint64_t first, uint64_t sent,
                     bytes client_id) except -1:
        """Write a session: all before queue number `first` is done, all before `sent` may have been sent."""
        cdef const uint8_t* name = client_id
        cdef uint8_t* p = self.with_text(SESSION, 26, name, len(client_id))
        memcpy(p, &number, 8)
        p[8] = level
        p[9] = connected
        memcpy(p + 10, &first, 8)
        memcpy(p + 18, &sent, 8)
        return 0

    cdef int subscribed(self, uint64_t number, uint8_t options, uint32_t identifier, const uint8_t* topic_filter,
                        Py_ssize_t n) except -1:
        """Write a subscription with its options and its identifier."""
        cdef uint8_t* p = self.with_text(SUBSCRIBED, 13, topic_filter, n)
        memcpy(p, &number, 8)
        p[8] = options
        memcpy(p + 9, &identifier, 4)
        return 0

    cdef int group_queued(self, uint64_t group, uint64_t place, Message* m) except -1:
        """Write that the message waits in a group, with this place."""
        return self.three_numbers(GROUP_QUEUED, group, place, self.message(m))

    cdef int group_key(self, uint64_t group, uint64_t place, uint64_t hash) except -1:
        """Write the key of a group's message."""
        return self.three_numbers(GROUP_KEY, group, place, hash)

    cdef int group_failed(self, uint64_t group, uint64_t place, uint64_t deliveries, uint8_t code) except -1:
        """Write how often a message of a group was sent without success."""
        return self.three_numbers(GROUP_FAILED, group, place, deliveries << 8 | code)

    cdef int given(self, uint64_t group, uint64_t place, uint64_t number, uint64_t n) except -1:
        """Write that the entry `n` of the session `number` is a group's message."""
        cdef uint8_t* p = self.room(GIVEN, 32)
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
        return self.number(RETAINED, self.message(m))

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        self.with_text(RETAINED_GONE, 0, topic, n)
        return 0

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m,
                      uint64_t message_number) except -1:
        """Write that a QoS 2 message from the session's client waits for PUBREL."""
        return self.three_numbers(AWAITING, number, packet_id, self.message(m))

    cdef int delayed(self, Message* m, int64_t due, uint32_t seconds, bytes publisher) except -1:
        """Write that the message waits until it is due, by the store's clock; or, in a cluster, for `seconds`."""
        cdef uint64_t name = self.message(m)
        cdef const uint8_t* client_id = publisher
        cdef uint8_t* p = self.with_text(DELAYED, 16, client_id, len(publisher))
        memcpy(p, &name, 8)
        memcpy(p + 8, &due, 8)
        return 0

    cdef int delayed_gone(self, const Message* m) except -1:
        """Write that a message that waited is published, in the block that has the publication."""
        return self.number(DELAYED_GONE, m.stored_id)

    cdef int will(self, Message* m, const uint8_t* client_id, Py_ssize_t n) except -1:
        return self.text(WILL, self.message(m), client_id, n)


# A record is a row: name, kind, head of the types Q, q, I and B as for `struct`, and whether a text follows, with its
# length u32 before it. The comment names the fields.
RECORDS = (
    # Number of the message, QoS | RETAIN << 2 and flags, length of the topic name, length of the payload; length of the
    # properties u32 with HAS_PROPERTIES, deadline i64 with HAS_DEADLINE; topic name, properties, payload.
    ("MESSAGE", MESSAGE, "QBHI", False),
    # Session, queue number, message, STORED_FLAGS; with HAS_IDENTIFIERS a text: subscription identifiers as properties.
    ("QUEUED", QUEUED, "QQQB", False),
    # Session, queue number: PUBACK or PUBCOMP received, or message dropped.
    ("DONE", DONE, "QQ", False),
    # Session, queue number: PUBREC received.
    ("RECEIVED", RECEIVED, "QQ", False),
    # Session, packet identifier, message: QoS 2 message received, PUBREL awaited.
    ("AWAITING", AWAITING, "QQQ", False),
    # Session, packet identifier: PUBREL received.
    ("RELEASED", RELEASED, "QQ", False),
    # Session, protocol level, connected, first queue number, sent below this queue number; client id.
    ("SESSION", SESSION, "QBBQQ", True),
    # Session; name of the user that owns the session, empty = no user.
    ("SESSION_USER", SESSION_USER, "Q", True),
    # Session, Session Expiry Interval or AS_CONFIGURED, deadline: 0 = connected, or never.
    ("SESSION_EXPIRY", SESSION_EXPIRY, "Qqq", False),
    # Session.
    ("SESSION_GONE", SESSION_GONE, "Q", False),
    # Session, options, subscription identifier: 0 = none; topic filter.
    ("SUBSCRIBED", SUBSCRIBED, "QBI", True),
    # Session; topic filter.
    ("UNSUBSCRIBED", UNSUBSCRIBED, "Q", True),
    # Message.
    ("RETAINED", RETAINED, "Q", False),
    # Topic name.
    ("RETAINED_GONE", RETAINED_GONE, "", True),
    # Message; client id.
    ("WILL", WILL, "Q", True),
    # Bytes of the client id; client id and author (broker/auth/author.py).
    ("WILL_AUTHOR", WILL_AUTHOR, "Q", True),
    # Delay in seconds; client id.
    ("WILL_DELAY", WILL_DELAY, "Q", True),
    # Deadline of the will of an ended connection; client id.
    ("WILL_DUE", WILL_DUE, "Q", True),
    # Client id.
    ("WILL_GONE", WILL_GONE, "", True),
    # The store's clock, wall clock.
    ("CLOCK", CLOCK, "QQ", False),
    # Group; `$share/`, share name, `/` and topic filter.
    ("GROUP", GROUP, "Q", True),
    # Group; the settings that it is declared with, empty = it is not declared.
    ("GROUP_DECLARED", GROUP_DECLARED, "Q", True),
    # Group: nothing of it is kept.
    ("GROUP_GONE", GROUP_GONE, "Q", False),
    # Group, place, message: no session has it, or a clean one, unacknowledged.
    ("GROUP_QUEUED", GROUP_QUEUED, "QQQ", False),
    # Group, place: acknowledged, dropped, or sent to a clean session with QoS 2.
    ("GROUP_DONE", GROUP_DONE, "QQ", False),
    # Group, place, deliveries without success << 8 | reason code of the last.
    ("GROUP_FAILED", GROUP_FAILED, "QQQ", False),
    # Group, place, hash of the publisher, whose messages keep their order in the group.
    ("GROUP_KEY", GROUP_KEY, "QQQ", False),
    # Group, place, session, queue number: its entry, in a QUEUED before this, is this message of the group. If it goes
    # back, DONE and GROUP_QUEUED follow.
    ("GIVEN", GIVEN, "QQQQ", False),
    # Message, due; client id of its publisher, empty = the broker.
    ("DELAYED", DELAYED, "Qq", True),
    # Message: it is published.
    ("DELAYED_GONE", DELAYED_GONE, "Q", False),
    # Number of the last transaction that was committed under a name; the name.
    ("COMMITTED", COMMITTED, "Q", True),
)
BY_KIND = {kind: (name, head.encode(), struct.calcsize(f"<{head}"), text) for name, kind, head, text in RECORDS}
BY_NAME = {name: (kind, struct.Struct(f"<{head}I" if text else f"<{head}"), text) for name, kind, head, text in RECORDS}


cdef int need(const uint8_t* p, const uint8_t* end, Py_ssize_t n) except -1:
    if end - p < n:
        raise DamagedBlock("a record is cut short")
    return 0


def records(bytes block not None):
    """The records of a block as tuples: the name of the kind, then the fields as in `RECORDS`, texts as bytes.

    Two kinds have their own fields: ("MESSAGE", number, QoS, RETAIN, topic name, payload, properties, deadline) and
    ("QUEUED", session, queue number, message, flags, identifiers).

    Raises:
        DamagedBlock: another layout, or the bytes are no journal.
    """
    cdef const uint8_t* begin = block
    cdef const uint8_t* p = begin + 1
    cdef const uint8_t* end = begin + len(block)
    cdef list found = []
    need(begin, end, 1)
    if begin[0] != LAYOUT:
        raise DamagedBlock(f"journal layout {begin[0]} is not supported, only layout {LAYOUT}")
    while p < end:
        if p[0] == MESSAGE:
            p = read_message(p + 1, end, found)
        elif p[0] == QUEUED:
            p = read_queued(p + 1, end, found)
        else:
            p = read_row(p, end, found)
    return found


cdef const uint8_t* read_message(const uint8_t* p, const uint8_t* end, list found) except NULL:
    cdef uint8_t flags
    cdef uint16_t topic_length
    cdef uint32_t length, properties_length = 0
    cdef uint64_t number
    cdef int64_t deadline = 0
    cdef Py_ssize_t size
    need(p, end, 15)
    memcpy(&number, p, 8)
    flags = p[8]
    memcpy(&topic_length, p + 9, 2)
    memcpy(&length, p + 11, 4)
    p += 15
    if flags & HAS_PROPERTIES:
        need(p, end, 4)
        memcpy(&properties_length, p, 4)
        p += 4
    if flags & HAS_DEADLINE:
        need(p, end, 8)
        memcpy(&deadline, p, 8)
        p += 8
    size = <Py_ssize_t>topic_length + properties_length
    need(p, end, size + length)
    found.append(("MESSAGE", number, flags & 3, flags >> 2 & 1, p[:topic_length], p[size:size + <Py_ssize_t>length],
                  p[topic_length:size], deadline))
    return p + size + length


cdef const uint8_t* read_queued(const uint8_t* p, const uint8_t* end, list found) except NULL:
    cdef uint64_t session, n, message
    cdef uint32_t length = 0
    cdef uint8_t flags
    need(p, end, 25)
    memcpy(&session, p, 8)
    memcpy(&n, p + 8, 8)
    memcpy(&message, p + 16, 8)
    flags = p[24]
    p += 25
    if flags & HAS_IDENTIFIERS:
        need(p, end, 4)
        memcpy(&length, p, 4)
        p += 4
        need(p, end, length)
    found.append(("QUEUED", session, n, message, flags & STORED_FLAGS, p[:<Py_ssize_t>length]))
    return p + length


cdef const uint8_t* read_row(const uint8_t* p, const uint8_t* end, list found) except NULL:
    """Read a record as its row says. The types are walked here: `struct` would take three times as long."""
    cdef uint64_t u64
    cdef int64_t i64
    cdef uint32_t u32
    cdef bytes head
    cdef Py_ssize_t size
    cdef bint has_text
    cdef list fields
    cdef uint8_t letter
    row = BY_KIND.get(p[0])
    if row is None:
        raise DamagedBlock(f"record kind {p[0]} is not supported")
    name, head, size, has_text = row
    p += 1
    need(p, end, size)
    fields = [name]
    for letter in head:
        if letter == c"Q":
            memcpy(&u64, p, 8)
            fields.append(u64)
            p += 8
        elif letter == c"q":
            memcpy(&i64, p, 8)
            fields.append(i64)
            p += 8
        elif letter == c"I":
            memcpy(&u32, p, 4)
            fields.append(u32)
            p += 4
        else:
            fields.append(p[0])
            p += 1
    if has_text:
        need(p, end, 4)
        memcpy(&u32, p, 4)
        p += 4
        need(p, end, u32)
        fields.append(p[:<Py_ssize_t>u32])
        p += u32
    found.append(tuple(fields))
    return p


def block_of(list found not None):
    """The block of these records, tuples as `records` returns them: its inverse."""
    parts = [bytes([LAYOUT])]
    for name, *fields in found:
        kind, head, has_text = BY_NAME[name]
        parts += bytes([kind]), *encoded(kind, head, has_text, fields)
    return b"".join(parts)


cdef tuple encoded(int kind, head, bint has_text, list fields):
    """The head of a record, and all that follows."""
    if kind == MESSAGE:
        number, qos, retain, topic, payload, properties, deadline = fields
        flags = qos | retain << 2 | (HAS_PROPERTIES if properties else 0) | (HAS_DEADLINE if deadline else 0)
        lengths = struct.pack("<I", len(properties)) if properties else b""
        due = struct.pack("<q", deadline) if deadline else b""
        return head.pack(number, flags, len(topic), len(payload)), lengths, due, topic, properties, payload
    if kind == QUEUED:
        session, n, message, flags, identifiers = fields
        if not identifiers:
            return (head.pack(session, n, message, flags),)
        return head.pack(session, n, message, flags | HAS_IDENTIFIERS), struct.pack("<I", len(identifiers)), identifiers
    if has_text:
        *numbers, text = fields
        return head.pack(*numbers, len(text)), text
    return (head.pack(*fields),)
