"""One direction of a link: the packets of one broker, as the other broker gets them.

A link is a client of two brokers, and keeps no message. PUBLISH keeps its packet identifier and goes on under the other
topic name; so do PUBACK, PUBREC, PUBREL and PUBCOMP, back and forth. The state of each message is in the sessions of
the two brokers: each sends again what the other has not acknowledged, so QoS 2 is exactly once from end to end.

This end (`source`) and the other (`target`) may speak different levels: properties and reason codes are left out for
levels 3 and 4. A message that may not go on is acknowledged here, in the place of the target.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ..base.buffers cimport (
    Buffer, Pool, buffer_append, buffer_free, buffer_reserve, buffer_size, pool_free,
)
from ..base.cursor cimport (
    Cursor, read_field, read_header, read_u16, read_varint, varint_size, write_u16, write_varint,
)
from ..codec.decode cimport decode_body
from ..codec.publish cimport FLAG_RETAIN, is_reserved
from ..codec.tables cimport CODE_QUOTA_EXCEEDED, CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from ..codec.topics cimport TOPIC_BYTES_MAX, check_topic_name, holds_control_character, match_topic

from ..codec.errors import MalformedPacket
from .link_ends import LinkMarks

cdef enum:
    REFUSED = 0x80             # reason codes from this one on are refusals
    USER_PROPERTY = 0x26       # identifier of the property
    ECHOES_MAX = 65_536        # messages that are remembered between two calls of `forget`


class QuotaExceeded(Exception):
    """The source has refused a message for its quota, and may take it later. The sender must not get the refusal."""


cdef class TopicRule:
    """Topics that may pass, and their names at the target.

    Args:
        topic_filter: of the names at the source.
        removed: the prefix of these names that is replaced ...
        added: ... by this one.
    """
    cdef readonly bytes topic_filter
    cdef readonly bytes removed
    cdef readonly bytes added

    def __init__(self, bytes topic_filter not None, bytes removed not None, bytes added not None):
        self.topic_filter = topic_filter
        self.removed = removed
        self.added = added


cdef class Echoes:
    """Messages that a broker may send back: it knows neither No Local nor links. Counts of (topic name, payload)."""
    cdef dict sent
    cdef dict before

    def __init__(self):
        self.sent = {}
        self.before = {}

    def note(self, object message not None):
        """The message was sent."""
        if len(self.sent) >= ECHOES_MAX:
            self.forget()
        self.sent[message] = self.sent.get(message, 0) + 1

    def take(self, object message not None):
        """The message has arrived: whether it is one that was sent. Each is taken once."""
        cdef dict known
        for known in (self.before, self.sent):
            count = known.get(message)
            if count is not None:
                if count == 1:
                    del known[message]
                else:
                    known[message] = count - 1
                return True
        return False

    def forget(self):
        """Forget what was sent before the last call."""
        self.before = self.sent
        self.sent = {}


cdef object NO_MARKS = LinkMarks()

# The parts of a PUBLISH that goes on to the target.
cdef struct Parts:
    uint8_t first_byte
    uint16_t packet_id
    const uint8_t* topic
    Py_ssize_t topic_length
    const uint8_t* properties
    Py_ssize_t properties_length
    const uint8_t* payload
    Py_ssize_t payload_length


cdef class LinkRelay:
    """One direction of a link.

    Args:
        source, target: the LinkSource and the LinkTarget.
        rules: the TopicRules of the topics that may pass; the first that matches decides.
        marks: the LinkMarks.
        lowered: packet identifiers of messages that cross with QoS 1 instead of 2; both directions of a link have it.
        to_remember: notes what is sent; `remembered`: knows what the source may send back. None: no echoes occur.

    Attributes:
        relayed, relayed_bytes: messages that went on, and bytes of their packets.
        unmatched, invalid, too_large, looped, echoed: messages that ended here: no rule is for their topic; their name
            is invalid at the target; larger than it takes; they have been there; the source has sent them back.
        refused: messages of QoS 1 and 2 that the source has refused, with a reason code.
        last_refusal: its last reason code.
    """
    cdef Buffer incoming
    cdef Buffer out
    cdef Buffer replies
    cdef Pool pool
    cdef list rules
    cdef int source_level
    cdef int target_level
    cdef uint32_t max_packet_size
    cdef uint32_t target_max_packet_size
    cdef int max_topic_levels
    cdef bint control_characters
    cdef bint retain_available
    cdef uint8_t maximum_qos
    cdef set lowered
    cdef bytes mark
    cdef list refused_marks
    cdef Echoes to_remember
    cdef Echoes remembered
    cdef bytes notices
    cdef bint keeps_refused
    cdef set ended             # packet identifiers of QoS 2 messages that ended here, until PUBREL
    cdef bint held             # after CONNACK, until `begin`
    cdef set released          # of messages that `release` has released, until PUBCOMP
    cdef readonly uint64_t relayed
    cdef readonly uint64_t relayed_bytes
    cdef readonly uint64_t unmatched
    cdef readonly uint64_t invalid
    cdef readonly uint64_t too_large
    cdef readonly uint64_t looped
    cdef readonly uint64_t echoed
    cdef readonly uint64_t refused
    cdef readonly int last_refusal

    def __init__(self, source not None, target not None, rules not None, *, marks=NO_MARKS, set lowered=None,
                 Echoes to_remember=None, Echoes remembered=None):
        self.source_level = source.level
        self.target_level = target.level
        self.rules = list(rules)
        self.max_packet_size = source.max_packet_size
        self.target_max_packet_size = target.max_packet_size
        self.max_topic_levels = target.max_topic_levels
        self.control_characters = target.control_characters
        self.retain_available = target.retain_available
        self.maximum_qos = target.maximum_qos
        self.lowered = lowered if lowered is not None else set()
        self.mark = user_property(marks.added) if marks.added is not None and target.level == 5 else b""
        self.refused_marks = [user_property(each) for each in marks.refused] if source.level == 5 else []
        self.to_remember = to_remember
        self.remembered = remembered
        self.notices = source.notices
        self.keeps_refused = source.keeps_refused
        self.ended = set()
        self.released = set()

    def __dealloc__(self):
        buffer_free(&self.incoming, &self.pool)
        buffer_free(&self.out, &self.pool)
        buffer_free(&self.replies, &self.pool)
        pool_free(&self.pool)

    def feed(self, bytes data not None):
        """Take bytes of the source.

        After CONNACK the rest waits for `begin`, since it has the limits of the source.

        Returns:
            The packets that are not for the target, such as SUBACK.

        Raises:
            MalformedPacket: the bytes are no packets.
            QuotaExceeded: only with `keeps_refused`; the packets before it are there to be taken.
        """
        cdef list others = []
        cdef Cursor at
        cdef const uint8_t* packet
        cdef uint8_t first_byte = 0
        cdef uint32_t remaining = 0
        cdef int found
        if buffer_append(&self.incoming, &self.pool, <const uint8_t*>data, len(data)) < 0:
            raise MemoryError
        while not self.held:
            packet = self.incoming.data + self.incoming.start
            at.p = packet
            at.end = packet + buffer_size(&self.incoming)
            found = read_header(&at, &first_byte, &remaining)
            if found == 0:
                break
            if found < 0 or remaining + (at.p - packet) > self.max_packet_size:
                raise MalformedPacket("a packet that is too large")
            if at.end - at.p < <Py_ssize_t>remaining:
                break
            at.end = at.p + remaining
            self.incoming.start += at.end - packet
            if first_byte >> 4 == PUBLISH and not self.is_notice(&at):
                self.relay_publish(first_byte, &at)
            elif PUBACK <= first_byte >> 4 <= PUBCOMP:
                self.relay_acknowledgement(first_byte >> 4, &at)
            else:
                others.append(decode_body(first_byte, at.p, remaining, self.source_level))
                self.held = first_byte >> 4 == CONNACK
        if buffer_size(&self.incoming) == 0:
            buffer_free(&self.incoming, &self.pool)
        return others

    cdef bint is_notice(self, const Cursor* at) noexcept:
        """Whether the PUBLISH is for the link itself."""
        cdef Py_ssize_t n = len(self.notices)
        return (n > 0 and at.end - at.p >= 2 + n and (at.p[0] << 8 | at.p[1]) == n
                and memcmp(at.p + 2, <const uint8_t*>self.notices, n) == 0)

    def begin(self, *marks):
        """CONNACK was read: go on with the bytes that follow; as `feed`.

        Args:
            marks: more user properties that messages get.
        """
        self.held = False
        if self.target_level == 5:
            self.mark += b"".join([user_property(mark) for mark in marks])
        return self.feed(b"")

    def take_output(self):
        """The bytes for the target."""
        return taken(&self.out, &self.pool)

    def take_replies(self):
        """The bytes for the source: acknowledgements of messages that ended here."""
        return taken(&self.replies, &self.pool)

    def release(self, packet_ids not None):
        """Let the source publish QoS 2 messages that it holds: the target has forgotten them, and sends no PUBREL."""
        for packet_id in packet_ids:
            self.released.add(packet_id)
            self.reply(PUBREL << 4 | 2, packet_id)

    cdef int relay_publish(self, uint8_t first_byte, Cursor* at) except -1:
        cdef uint8_t qos = first_byte >> 1 & 3
        cdef const uint8_t* topic = NULL
        cdef Py_ssize_t topic_length = 0
        cdef uint32_t properties_length = 0
        cdef uint16_t packet_id = 0
        cdef Parts parts
        cdef TopicRule rule
        if read_field(at, &topic, &topic_length) < 0 or (qos and read_u16(at, &packet_id) < 0) or qos == 3:
            raise MalformedPacket("a PUBLISH that is too short, or of QoS 3")
        if self.source_level == 5 and (read_varint(at, &properties_length) < 0
                                       or at.end - at.p < <Py_ssize_t>properties_length):
            raise MalformedPacket("a PUBLISH whose properties end too late")
        parts.properties = at.p
        at.p += properties_length
        if properties_length and self.was_there(parts.properties, properties_length):
            self.looped += 1
            return self.end(qos, packet_id)
        if self.remembered is not None and self.remembered.take(
                (topic[:topic_length], at.p[:at.end - at.p])):
            self.echoed += 1
            return self.end(qos, packet_id)
        for rule in self.rules:
            if match_topic(<const uint8_t*>rule.topic_filter, len(rule.topic_filter), topic, topic_length) and (
                    topic_length >= len(rule.removed)):          # else `a`, which matches `a/#`
                break
        else:
            self.unmatched += 1
            return self.end(qos, packet_id)
        parts.first_byte = first_byte if self.retain_available else first_byte & ~FLAG_RETAIN
        parts.packet_id = packet_id
        parts.topic, parts.topic_length = topic, topic_length
        parts.properties_length = properties_length if self.target_level == 5 else 0
        parts.payload, parts.payload_length = at.p, at.end - at.p
        return self.write_publish(rule, &parts)

    cdef bint was_there(self, const uint8_t* properties, Py_ssize_t n) except -1:
        """Whether a message with these properties has been at the target."""
        cdef bytes mark
        for mark in self.refused_marks:
            if contains(properties, n, mark):
                return True
        return False

    cdef int write_publish(self, TopicRule rule, const Parts* parts) except -1:
        cdef uint8_t first_byte = parts.first_byte
        cdef uint16_t packet_id = parts.packet_id
        cdef uint8_t qos = first_byte >> 1 & 3, target_qos = min(qos, self.maximum_qos)
        cdef Py_ssize_t added = len(rule.added), kept = parts.topic_length - len(rule.removed)
        cdef Py_ssize_t block = parts.properties_length + len(self.mark)
        cdef Py_ssize_t remaining = 2 + added + kept + 2 * (target_qos > 0) + parts.payload_length
        cdef uint8_t* start
        cdef uint8_t* p
        cdef uint8_t* name
        if self.target_level == 5:
            remaining += varint_size(<uint32_t>block) + block
        if added + kept > TOPIC_BYTES_MAX or 5 + remaining > <Py_ssize_t>self.target_max_packet_size:
            self.too_large += 1
            return self.end(qos, packet_id)
        start = p = buffer_reserve(&self.out, &self.pool, 5 + remaining)
        if p == NULL:
            raise MemoryError
        p[0] = first_byte if target_qos == qos else PUBLISH << 4 | first_byte & FLAG_RETAIN | target_qos << 1
        p += 1
        p += write_varint(p, <uint32_t>remaining)
        write_u16(p, <uint16_t>(added + kept))
        name = p + 2
        memcpy(name, <const uint8_t*>rule.added, added)
        memcpy(name + added, parts.topic + len(rule.removed), kept)
        if check_topic_name(name, added + kept, 5, self.max_topic_levels) or is_reserved(name, added + kept) or (
                not self.control_characters and holds_control_character(name, added + kept)):
            self.invalid += 1
            return self.end(qos, packet_id)
        p = name + added + kept
        if target_qos:
            write_u16(p, packet_id)
            p += 2
        if self.target_level == 5:
            p += write_varint(p, <uint32_t>block)
            memcpy(p, parts.properties, parts.properties_length)
            memcpy(p + parts.properties_length, <const uint8_t*>self.mark, len(self.mark))
            p += block
        memcpy(p, parts.payload, parts.payload_length)
        if self.to_remember is not None:
            self.to_remember.note((name[:added + kept], parts.payload[:parts.payload_length]))
        self.out.end += p + parts.payload_length - start
        self.relayed += 1
        self.relayed_bytes += p + parts.payload_length - start
        if target_qos == qos:
            return 0
        if target_qos == 1:
            self.lowered.add(packet_id)
            return 0
        return self.end(qos, packet_id)

    cdef int end(self, uint8_t qos, uint16_t packet_id) except -1:
        """A message ends here: acknowledge it."""
        if qos == 1:
            return self.reply(PUBACK << 4, packet_id)
        if qos == 2:
            self.ended.add(packet_id)
            return self.reply(PUBREC << 4, packet_id)
        return 0

    cdef int reply(self, uint8_t first_byte, uint16_t packet_id) except -1:
        return write_acknowledgement(&self.replies, &self.pool, first_byte, packet_id, 0)

    cdef int relay_acknowledgement(self, int kind, Cursor* at) except -1:
        cdef uint16_t packet_id = 0
        cdef uint8_t code = 0
        if read_u16(at, &packet_id) < 0:
            raise MalformedPacket("an acknowledgement that is too short")
        if at.p < at.end:
            code = at.p[0]
        if kind == PUBREL and (packet_id in self.ended or self.maximum_qos < 2):
            self.ended.discard(packet_id)
            return self.reply(PUBCOMP << 4, packet_id)
        if kind == PUBCOMP and packet_id in self.released:
            self.released.remove(packet_id)
            return 0
        if code == CODE_QUOTA_EXCEEDED and self.keeps_refused:
            raise QuotaExceeded
        if code >= REFUSED and (kind == PUBACK or kind == PUBREC):
            self.refused += 1
            self.last_refusal = code
        if kind == PUBACK and packet_id in self.lowered:
            self.lowered.remove(packet_id)
            kind = PUBREC
        # A target below level 5 has to send PUBREL after PUBREC, also if the message was refused; this is harmless.
        return write_acknowledgement(&self.out, &self.pool, <uint8_t>(kind << 4 | (2 if kind == PUBREL else 0)),
                                     packet_id, code if self.target_level == 5 else 0)


cdef int write_acknowledgement(Buffer* to, Pool* pool, uint8_t first_byte, uint16_t packet_id, uint8_t code) except -1:
    cdef uint8_t* p = buffer_reserve(to, pool, 5)
    if p == NULL:
        raise MemoryError
    p[0] = first_byte
    p[1] = 3 if code else 2
    write_u16(p + 2, packet_id)
    p[4] = code
    to.end += 2 + p[1]
    return 0


cdef bytes user_property(tuple pair):
    """A user property as it is encoded."""
    name, value = pair
    return bytes([USER_PROPERTY]) + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


cdef bint contains(const uint8_t* block, Py_ssize_t n, bytes part):
    """Whether a property block has these bytes."""
    cdef const uint8_t* wanted = <const uint8_t*>part
    cdef Py_ssize_t i, length = len(part)
    for i in range(n - length + 1):
        if block[i] == wanted[0] and memcmp(block + i, wanted, length) == 0:
            return True
    return False


cdef bytes taken(Buffer* from_, Pool* pool):
    """The bytes of a buffer, which is empty then."""
    cdef bytes found = from_.data[from_.start:from_.end] if buffer_size(from_) else b""
    buffer_free(from_, pool)
    return found
