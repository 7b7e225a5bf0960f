"""Messages and entries of queues as Redis has them: encoding and decoding.

The first half of each first byte is a kind. A message is one byte (QoS | RETAIN << 2 | 1 << 4), topic length u16,
little-endian, topic name, payload. A message with properties or an expiry is one byte (QoS | RETAIN << 2 | HAS_DEADLINE
| 2 << 4), topic length u16, properties length u32, [deadline u64 in milliseconds of the cluster's clock], topic name,
properties, payload. In a queue there may be one byte (OF_SHARE | AS_PUBLISHED | HAS_IDENTIFIERS | FOREIGN_SHARE | 3 << 4),
[place u64, length u16, group], [length u16, identifiers as properties] before it. A message of a group with an order
has a key before it: one byte (ELSEWHERE | 5 << 4), hash u32, number of the assignment as a double. A message that was
sent without success has failures before it: one byte (4 << 4), deliveries u16, reason code of the last u8. A message
that awaits PUBREL, or a will, whose publication is under way has its progress before it: one byte (6 << 4), u32.
"""

from libc.string cimport memcpy

from ..base.name_hash cimport hash_of
from ..session.message cimport message_size, publication_of

from ..base.msgpack import DamagedMessage

import struct


cdef Py_ssize_t stored_size(const Message* m) noexcept:
    """Bytes of the message as Redis has it."""
    if m.properties_length == 0 and m.expires == 0:
        return PLAIN_HEAD + message_size(m)
    return RICH_HEAD + (DEADLINE_SIZE if m.expires else 0) + message_size(m)


cdef int write_message(uint8_t* p, const Message* m, uint8_t flags, int64_t deadline) except -1:
    memcpy(p + 1, &m.topic_length, 2)
    if m.properties_length == 0 and m.expires == 0:
        p[0] = flags | PLAIN_KIND << 4
        memcpy(p + PLAIN_HEAD, m.data, message_size(m))
        return 0
    p[0] = flags | (HAS_DEADLINE if deadline else 0) | RICH_KIND << 4
    memcpy(p + 3, &m.properties_length, 4)
    p += RICH_HEAD
    if deadline:
        memcpy(p, &deadline, DEADLINE_SIZE)
        p += DEADLINE_SIZE
    memcpy(p, m.data, message_size(m))
    return 0


cdef Publication read_message(const uint8_t* p, Py_ssize_t n, int64_t* deadline) except *:
    """Decode a message; the publication borrows from the bytes. `deadline`: 0 = it does not expire."""
    cdef Publication publication
    cdef uint16_t topic_length
    cdef uint32_t properties_length = 0
    cdef Py_ssize_t head = PLAIN_HEAD
    deadline[0] = 0
    if n < PLAIN_HEAD or p[0] >> 4 not in (PLAIN_KIND, RICH_KIND):
        raise DamagedMessage("a message of an unknown kind")
    memcpy(&topic_length, p + 1, 2)
    if p[0] >> 4 == RICH_KIND:
        head = RICH_HEAD + (DEADLINE_SIZE if p[0] & HAS_DEADLINE else 0)
        if n < head:
            raise DamagedMessage("a message that is cut short")
        memcpy(&properties_length, p + 3, 4)
        if p[0] & HAS_DEADLINE:
            memcpy(deadline, p + RICH_HEAD, DEADLINE_SIZE)
    if <Py_ssize_t>topic_length + properties_length > n - head:
        raise DamagedMessage("a message that is cut short")
    p += head
    publication = publication_of(p, topic_length, p + topic_length + properties_length,
                                 n - head - topic_length - properties_length, (p - head)[0] & 3, (p - head)[0] >> 2 & 1)
    publication.properties = p + topic_length
    publication.properties_length = properties_length
    return publication


cdef Heads read_heads(const uint8_t* p, Py_ssize_t n) noexcept:
    """Decode what stands before a message of a group."""
    cdef Heads heads = Heads(0, -1, 0, False, 0)
    cdef uint32_t key
    cdef double number
    cdef uint16_t deliveries
    if n >= KEY_SIZE and p[0] >> 4 == KEY_KIND:
        memcpy(&key, p + 1, 4)
        memcpy(&number, p + 5, 8)
        heads.key, heads.number, heads.elsewhere = key, <uint64_t>number, p[0] & ELSEWHERE
        heads.size = KEY_SIZE
    if n - heads.size >= FAILED_SIZE and p[heads.size] >> 4 == FAILED_KIND:
        memcpy(&deliveries, p + heads.size + 1, 2)
        heads.failures = <uint64_t>deliveries << 8 | p[heads.size + 3]
        heads.size += FAILED_SIZE
    return heads


def encode_message(bytes topic not None, bytes payload not None, int qos, bint retain, bytes properties=b"",
                   uint64_t deadline=0):
    """Encode a message for Redis. `deadline`: in milliseconds of the cluster's clock; 0 = it does not expire."""
    cdef bytes head = len(topic).to_bytes(2, "little")
    cdef int flags = qos | retain << 2
    if not properties and not deadline:
        return bytes([flags | PLAIN_KIND << 4]) + head + topic + payload
    head += len(properties).to_bytes(4, "little")
    if deadline:
        flags |= HAS_DEADLINE
        head += struct.pack("<Q", deadline)
    return bytes([flags | RICH_KIND << 4]) + head + topic + properties + payload


def decode_message(bytes data not None):
    """(topic name, payload, QoS, RETAIN, property block, deadline or 0) of a message encoded for Redis.

    Raises:
        DamagedMessage: the bytes are not a message.
    """
    cdef int64_t deadline
    cdef Publication m = read_message(data, len(data), &deadline)
    return (m.topic[:m.topic_length], m.payload[:m.payload_length], m.qos, bool(m.retain),
            m.properties[:m.properties_length], deadline)


def split_heads(bytes data not None):
    """(number, progress, message) of a message that awaits PUBREL, as Redis has it.

    The number is 0 if there is one shard, the progress if no receiver has the message yet.
    """
    if len(data) >= NUMBER_SIZE and data[0] >> 4 == NUMBER_KIND:
        return int.from_bytes(data[1:NUMBER_SIZE], "little"), 0, data[NUMBER_SIZE:]
    if len(data) < PROGRESS_SIZE or data[0] >> 4 != PROGRESS_KIND:
        return 0, 0, data
    return 0, int.from_bytes(data[1:PROGRESS_SIZE], "little"), data[PROGRESS_SIZE:]


cdef Opened open_entry(const uint8_t* p, Py_ssize_t size) except *:
    """Decode the heads of a message in an entry of a queue or of a group; the result borrows from the bytes."""
    cdef Opened entry
    entry.flags = 0
    entry.place = entry.group_length = entry.identifiers_length = 0
    entry.group = entry.identifiers = p
    if size and p[0] >> 4 == ENTRY_KIND:
        entry.flags = p[0]
        p += 1
        size -= 1
        if entry.flags & OF_SHARE:
            if size >= 10:
                memcpy(&entry.place, p, 8)
                memcpy(&entry.group_length, p + 8, 2)
            if size < 10 + entry.group_length:
                raise DamagedMessage("an entry of a queue that is cut short")
            entry.group = p + 10
            p += 10 + entry.group_length
            size -= 10 + entry.group_length
        if entry.flags & HAS_IDENTIFIERS:
            if size >= 2:
                memcpy(&entry.identifiers_length, p, 2)
            if size < 2 + entry.identifiers_length:
                raise DamagedMessage("an entry of a queue that is cut short")
            entry.identifiers = p + 2
            p += 2 + entry.identifiers_length
            size -= 2 + entry.identifiers_length
    entry.heads = read_heads(p, size)
    entry.message = p + entry.heads.size
    entry.size = size - entry.heads.size
    return entry


def decode_entry(bytes data not None):
    """An entry of a queue, or a message that waits in a group, as Redis has it.

    Returns:
        The message as bytes, whether level 5 gets its RETAIN, identifiers of subscriptions as properties, group (empty:
        none), place in it, hash of the key (-1: none), deliveries without success << 8 | reason code of the last.

    Raises:
        DamagedMessage: the bytes are no entry.
    """
    cdef Opened entry = open_entry(data, len(data))
    return (entry.message[:entry.size], bool(entry.flags & AS_PUBLISHED), entry.identifiers[:entry.identifiers_length],
            entry.group[:entry.group_length], entry.place, entry.heads.key, entry.heads.failures)


def encode_entry(bytes message not None, bint as_published=False, bytes identifiers=b"", bytes group=b"",
                 uint64_t place=0, int64_t key=-1, uint64_t failures=0, bint foreign=False):
    """The inverse of `decode_entry`. `foreign`: another shard has the group."""
    cdef bytes head = b"" if key < 0 else pack_key(<uint32_t>key, 0)
    cdef uint8_t flags = (AS_PUBLISHED if as_published else 0) | (HAS_IDENTIFIERS if identifiers else 0) | (
        OF_SHARE if group else 0) | (FOREIGN_SHARE if foreign else 0)
    if failures:
        head += pack_failures((failures >> 8, failures & 255))
    if identifiers:
        head = struct.pack("<H", len(identifiers)) + identifiers + head
    if group:
        head = struct.pack("<QH", place, len(group)) + group + head
    if flags:
        head = bytes([ENTRY_KIND << 4 | flags]) + head
    return head + message


def topic_key(bytes topic not None):
    """The hash of the key that a message to this topic name has in a group with the strategy `topic`."""
    return hash_of(topic, len(topic))


cdef bytes pack_failures(tuple failures):
    """The failures of a message, to stand before it. None: there are none."""
    if failures is None:
        return b""
    return struct.pack("<BHB", FAILED_KIND << 4, min(failures[0], 65535), failures[1])


cdef bytes pack_key(uint32_t key, uint64_t number):
    """The key of a message, to stand before it. `number`: of its assignment; 0: it has none yet."""
    return struct.pack("<BId", KEY_KIND << 4, key, number)
