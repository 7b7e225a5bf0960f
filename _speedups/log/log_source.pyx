"""Blocks of the message log as a source of messages for one session: the reading end of a stream.

A session pulls one message at a time, when it has room. Rows are selected and sent without a Python object, but for the
match of each topic name of a block. The layout of blocks is in deploy/docs/internals/log.md.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy
from libc.time cimport time_t, tm

from ..base.cursor cimport write_u16, write_varint
from .message_log cimport HAS_PROPERTIES, HEADER, LAYOUT, padded
from ..codec.publish cimport (
    EXPIRY_SIZE, FLAG_RETAIN, MESSAGE_EXPIRY_INTERVAL, PUBLISH_QOS_0, SUBSCRIPTION_IDENTIFIER,
)
from ..routing.plans cimport KEEPS_RETAIN, MAXIMUM_QOS
from ..session.counters cimport EXPIRED
from ..session.message cimport (
    Message, Publication, expiry_after, message_new, message_release, message_size, publication_of,
)
from ..session.outgoing_queue cimport RETAIN_AS_PUBLISHED
from ..session.session cimport NO_ROOM, SOURCE_ENDED, SOURCE_GOES_ON, MessageSource, Session
from ..session.turn cimport Turn

cdef extern from "time.h" nogil:
    tm* gmtime_r(const time_t* seconds, tm* parts)

cdef enum:
    QOS = 3                    # bits of a row's flags
    RETAIN = 4
    ROWS_AT_A_TIME = 4096      # that one pull passes over
    USER_PROPERTY = 0x26       # identifier of the property
    TIME_SIZE = 27             # bytes of a time such as 2026-11-22T10:00:00.123456Z
    EXTRA_MAX = 512            # bytes of the user properties that a stream adds

cdef struct Block:
    int64_t rows
    const int64_t* accepted
    const int32_t* topic
    const int32_t* payload_ends
    const int32_t* topic_ends
    const int32_t* property_ends       # NULL: no message has properties
    const uint8_t* flags
    const uint8_t* topics
    const uint8_t* payloads
    const uint8_t* properties


class DamagedLog(ValueError):
    """A block of the log violates the layout."""


cdef bint rises(const int32_t* ends, int64_t count) noexcept:
    """Whether a column is 0 and then ends that never fall."""
    cdef int64_t i
    if ends[0] != 0:
        return False
    for i in range(count):
        if ends[i + 1] < ends[i]:
            return False
    return True


cdef class LogSource(MessageSource):
    """The messages of some blocks that match a stream.

    Args:
        turn: of the node.
        blocks: that `check` has accepted: a list of (block, rows to pass over, place, bytes missing before it). `place`
            is the position of its messages as clients get it, but for the number of the row, which follows.
        selection: whether a topic name, as bytes, matches; microseconds since 1970: earlier messages are passed over.
        now: the present in microseconds since 1970, for messages that expire.
        options: of the subscription: the granted QoS, and whether RETAIN is as published.
        identifier: of the subscription; 0 = none.
        on_progress: called before the records of the messages that were pulled are sealed in a block.
        on_end: called when all blocks have been pulled.

    Attributes:
        index, row: of the next message; all blocks before `index` are done, and `row` rows of this one.
        sent: messages given to the session so far.
    """

    cdef Turn turn
    cdef list blocks
    cdef object wanted, on_progress, on_end
    cdef int64_t since, now
    cdef uint8_t qos
    cdef bint keeps_retain, is_open, is_noted, is_cancelled
    cdef bytes identifiers, topic_selected
    cdef Block block
    cdef readonly Py_ssize_t index
    cdef readonly int64_t row, sent
    cdef int64_t missed                # bytes missing before the next message, as its user property says

    def __init__(self, Turn turn not None, list blocks not None, tuple selection not None, *, int64_t now,
                 int options, uint32_t identifier, on_progress, on_end):
        cdef uint8_t data[5]
        self.turn = turn
        self.blocks = blocks
        self.wanted, self.since = selection
        self.now = now
        self.qos = options & MAXIMUM_QOS
        self.keeps_retain = options & KEEPS_RETAIN != 0
        self.on_progress = on_progress
        self.on_end = on_end
        self.identifiers = b""
        if identifier:
            data[0] = SUBSCRIPTION_IDENTIFIER
            self.identifiers = data[:1 + write_varint(data + 1, identifier)]

    def cancel(self):
        """End the source: nothing more is pulled from it, and `on_end` is not called."""
        self.is_cancelled = True

    cdef int open(self) except -1:
        """Begin the block `index`."""
        cdef bytes data = self.blocks[self.index][0]
        cdef Block* block = &self.block
        cdef bytearray selected = bytearray()
        cdef int32_t i, topics
        find_columns(data, block)
        memcpy(&topics, PyBytes_AS_STRING(data) + 36, 4)
        for i in range(topics):
            selected.append(bool(self.wanted(
                block.topics[block.topic_ends[i]:block.topic_ends[i + 1]])))
        self.topic_selected = bytes(selected)
        self.row = self.blocks[self.index][1]
        self.missed += self.blocks[self.index][3]
        self.is_open = True
        return 0

    cdef int pull(self, Session session) except -1:
        cdef int passed = 0
        cdef int result
        cdef const uint8_t* selected
        while not self.is_cancelled:
            if self.index == len(self.blocks):
                self.is_cancelled = True
                self.on_end()
                break
            if not self.is_open:
                self.open()
            selected = <const uint8_t*>PyBytes_AS_STRING(self.topic_selected)
            while self.row < self.block.rows:
                if selected[self.block.topic[self.row]] and self.block.accepted[self.row] >= self.since:
                    if session.persistent and not self.is_noted:
                        self.is_noted = True
                        self.turn.before_seal(self.note)
                    result = self.give(session, self.row)
                    if result == SOURCE_GOES_ON:
                        self.row += 1
                    return result
                self.row += 1
                passed += 1
                if passed == ROWS_AT_A_TIME:
                    return SOURCE_GOES_ON
            self.index += 1
            self.row = 0
            self.is_open = False
        return SOURCE_ENDED

    def note(self):
        """Called before the block with the pulled messages is sealed."""
        self.is_noted = False
        self.on_progress()

    cdef int give(self, Session session, int64_t i) except -1:
        """Send a message, or enqueue it; a value of Pulled."""
        cdef const Block* block = &self.block
        cdef int32_t topic = block.topic[i]
        cdef uint8_t flags = block.flags[i]
        cdef uint8_t qos = min(flags & QOS, self.qos)
        cdef bint retain = self.keeps_retain and flags & RETAIN
        cdef const uint8_t* identifiers = self.identifiers
        cdef bytes properties = b""
        cdef Publication publication = publication_of(
            block.topics + block.topic_ends[topic], block.topic_ends[topic + 1] - block.topic_ends[topic],
            block.payloads + block.payload_ends[i], block.payload_ends[i + 1] - block.payload_ends[i], flags & QOS,
            flags & RETAIN)
        cdef Message* m
        if block.property_ends != NULL:
            publication.properties = block.properties + block.property_ends[i]
            publication.properties_length = block.property_ends[i + 1] - block.property_ends[i]
            if not self.take_expiry(&publication, block.accepted[i]):
                self.turn.counters[EXPIRED] += 1
                return SOURCE_GOES_ON
        if session.outlet.level == 5:
            properties = self.with_origin(&publication, i)
            publication.properties = properties
            publication.properties_length = len(properties)
        m = message_new(&publication)
        if m == NULL:
            raise MemoryError
        try:
            if session.may_not_read(m, qos == 0):
                return SOURCE_GOES_ON
            if qos and session.queue.queued and (
                    session.queue.queued_bytes + <uint64_t>message_size(m) > session.turn.limits.max_queued_bytes):
                return NO_ROOM                        # the policy of a full queue would drop it
            self.sent += 1
            self.missed = 0
            if qos:
                session.enqueue(m, qos | (RETAIN_AS_PUBLISHED if retain else 0), identifiers, len(self.identifiers))
            elif session.put_publish(m, PUBLISH_QOS_0 | (FLAG_RETAIN if retain else 0), 0, self.identifiers):
                session.trace("sent", m, 0, "from the log")
        finally:
            message_release(m)
        return SOURCE_GOES_ON

    cdef bint take_expiry(self, Publication* publication, int64_t accepted) noexcept:
        """Take the expiry interval, which comes first, from the properties; False: the message has expired."""
        cdef const uint8_t* p = publication.properties
        cdef int64_t left
        if publication.properties_length < EXPIRY_SIZE or p[0] != MESSAGE_EXPIRY_INTERVAL:
            return True
        publication.properties += EXPIRY_SIZE
        publication.properties_length -= EXPIRY_SIZE
        left = (<int64_t>p[1] << 24 | p[2] << 16 | p[3] << 8 | p[4]) - (self.now - accepted) // 1000000
        if left <= 0:
            return False
        publication.expires = expiry_after(<uint32_t>left, self.turn.clock)
        return True

    cdef bytes with_origin(self, const Publication* publication, int64_t i):
        """The properties, and as user properties the time and the position of the message in the log."""
        cdef uint8_t extra[EXTRA_MAX]
        cdef char text[256]
        cdef bytes place = self.blocks[self.index][2]
        cdef int n = 0
        cdef Py_ssize_t length = publication.properties_length
        cdef bytes properties
        write_time(text, self.block.accepted[i])
        n += put_user_property(extra, b"flockmq-time", text, TIME_SIZE)
        n += put_user_property(extra + n, b"flockmq-position", text,
                               min(snprintf(text, sizeof(text), b"%s%u", PyBytes_AS_STRING(place),
                                            <unsigned int>(i + 1)), 255))
        if self.missed:
            n += put_user_property(extra + n, b"flockmq-missed", text,
                                   snprintf(text, sizeof(text), b"%lld", <long long>self.missed))
        properties = PyBytes_FromStringAndSize(NULL, length + n)
        if length:
            memcpy(PyBytes_AS_STRING(properties), publication.properties, length)
        memcpy(PyBytes_AS_STRING(properties) + length, extra, n)
        return properties


cdef int put_user_property(uint8_t* p, bytes name, const char* value, int size) noexcept:
    """Write a user property; returns its size."""
    cdef int length = <int>len(name)
    p[0] = USER_PROPERTY
    write_u16(p + 1, <uint16_t>length)
    memcpy(p + 3, PyBytes_AS_STRING(name), length)
    write_u16(p + 3 + length, <uint16_t>size)
    memcpy(p + 5 + length, value, size)
    return 5 + length + size


cdef void write_time(char* text, int64_t microseconds) noexcept:
    """Write a time as ISO 8601, UTC."""
    cdef time_t seconds = <time_t>(microseconds // 1000000)
    cdef tm parts
    gmtime_r(&seconds, &parts)
    snprintf(text, 64, b"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
             parts.tm_hour, parts.tm_min, parts.tm_sec, <int>(microseconds % 1000000))


cdef int find_columns(bytes data, Block* block) except -1:
    """Find the columns of a block, as far as a stream needs them.

    Raises:
        DamagedLog: a column would end beyond the block, or its content contradicts the header.
    """
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef int64_t size = len(data), at = HEADER, i
    cdef uint32_t rows, clients, topics
    cdef const int32_t* client_ends
    if size < HEADER or p[0] != c"F" or p[1] != c"Q" or p[2] != LAYOUT or p[3] & ~HAS_PROPERTIES:
        raise DamagedLog("not a block of layout 1")
    memcpy(&rows, p + 4, 4)
    memcpy(&clients, p + 32, 4)
    memcpy(&topics, p + 36, 4)
    block.rows = rows
    block.accepted = <const int64_t*>(p + at)
    at += 8 * <int64_t>rows
    at += padded(4 * <int64_t>rows)                       # client
    block.topic = <const int32_t*>(p + at)
    at += padded(4 * <int64_t>rows)
    block.payload_ends = <const int32_t*>(p + at)
    at += padded(4 * (<int64_t>rows + 1))
    client_ends = <const int32_t*>(p + at)
    at += padded(4 * (<int64_t>clients + 1))
    block.topic_ends = <const int32_t*>(p + at)
    at += padded(4 * (<int64_t>topics + 1))
    block.flags = p + at
    at += padded(rows)
    if at > size or not (rises(client_ends, clients) and rises(block.topic_ends, topics)
                         and rises(block.payload_ends, rows)):
        raise DamagedLog("a block is cut short or damaged")
    at += padded(client_ends[clients])
    block.topics = p + at
    at += padded(block.topic_ends[topics])
    block.payloads = p + at
    at += padded(block.payload_ends[rows])
    block.property_ends = NULL
    if p[3] & HAS_PROPERTIES:
        block.property_ends = <const int32_t*>(p + at)
        at += padded(4 * (<int64_t>rows + 1))
        if at > size or not rises(block.property_ends, rows):
            raise DamagedLog("a block is cut short or damaged")
        block.properties = p + at
        at += padded(block.property_ends[rows])
    if at != size:
        raise DamagedLog("a block is cut short or damaged")
    for i in range(rows):
        if not 0 <= block.topic[i] < <int64_t>topics or block.flags[i] & QOS == 3:
            raise DamagedLog("a block names a topic that it does not have, or QoS 3")
    return 0


cpdef int check(bytes data) except -1:
    """Check a block. Raises DamagedLog."""
    cdef Block block
    return find_columns(data, &block)
