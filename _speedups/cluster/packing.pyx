"""The parts of a block as Redis has them: texts of MessagePack (deploy/docs/CLUSTER.md, "A turn becomes a commit").

A batch is a sequence of packets: PUBLISH as MQTT 3.1.1 encodes it, with packet identifier 0; or, for a message with
properties or an expiry, PUBLISH as MQTT 5.0 encodes it, with packet type 0.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ..base.buffers cimport Buffer, Pool, buffer_free
from ..base.msgpack cimport put, put_array, put_number, put_object, put_text, put_text_head
from .commit_block cimport Forward, Item, Items, Queued
from .message_codec cimport (
    AS_PUBLISHED, ENTRY_KIND, FOREIGN_SHARE, HAS_IDENTIFIERS, OF_SHARE, stored_size, write_message,
)
from ..codec.publish cimport (
    FLAG_RETAIN, FORWARD_5, PUBLISH_QOS_0, properties_size, publish_remaining, publish_size, write_properties,
    write_publish,
)
from ..session.journal cimport AWAITING, DONE, RECEIVED, Journal
from ..session.message cimport Message, message_payload, message_properties, seconds_left
from ..session.outgoing_queue cimport QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE
from ..session.session cimport Session
from ..session.subscriber cimport Subscriber

import struct

cdef enum:
    ACKS_MAX = 1000            # acknowledgements in a call, of several sessions: Redis executes nothing else


cdef int sort_by_session(Items* list, Py_ssize_t sessions, Py_ssize_t** counts) except -1:
    """Group the items by session, in order of arrival. The caller frees `counts`, one per session."""
    cdef Py_ssize_t* count = <Py_ssize_t*>calloc(sessions + 1, sizeof(Py_ssize_t))
    cdef Py_ssize_t* place = <Py_ssize_t*>malloc((sessions + 1) * sizeof(Py_ssize_t))
    cdef Item* sorted = <Item*>malloc((list.count + 1) * sizeof(Item))
    cdef Py_ssize_t i, total = 0
    if count == NULL or place == NULL or sorted == NULL:
        free(count)
        free(place)
        free(sorted)
        raise MemoryError
    for i in range(list.count):
        count[list.items[i].session] += 1
    for i in range(sessions):
        place[i] = total
        total += count[i]
    for i in range(list.count):
        sorted[place[list.items[i].session]] = list.items[i]
        place[list.items[i].session] += 1
    free(place)
    free(list.items)
    list.items = sorted
    list.capacity = list.count + 1
    counts[0] = count
    return 0


cdef list pack_messages(const Queued* messages, Py_ssize_t count, dict identifiers_of, dict of_groups, dict heads_of,
                        Journal clock, Py_ssize_t* total):
    """The messages as Redis has them, each its own text.

    Args:
        identifiers_of, of_groups, heads_of: of the journal, by place of the message.
        clock: returns the deadline of a message.
        total: gets the bytes of the texts.
    """
    cdef Py_ssize_t i, head
    cdef const Queued* queued
    cdef bytes identifiers, share, heads, text
    cdef list texts = []
    cdef uint16_t length
    cdef uint8_t* p
    for i in range(count):
        queued = &messages[i]
        identifiers = identifiers_of.get(i, b"") if identifiers_of else b""
        length = <uint16_t>len(identifiers)
        head = 0
        share = b""
        hand_over = None
        heads = heads_of.get(i, b"") if heads_of else b""
        if of_groups and i in of_groups:
            group, place, _, hand_over = of_groups[i]
            share = struct.pack("<QH", place, len(group)) + group
        if queued.flags & RETAIN_AS_PUBLISHED or length or share:
            head = 1 + len(share) + (2 + length if length else 0)
        text = PyBytes_FromStringAndSize(NULL, head + len(heads) + stored_size(queued.message))
        p = <uint8_t*>PyBytes_AS_STRING(text)
        if head:
            p[0] = (ENTRY_KIND << 4 | (AS_PUBLISHED if queued.flags & RETAIN_AS_PUBLISHED else 0)
                    | (HAS_IDENTIFIERS if length else 0) | (OF_SHARE if share else 0)
                    | (FOREIGN_SHARE if hand_over is not None else 0))
            memcpy(p + 1, <const uint8_t*>share, len(share))
            if length:
                memcpy(p + 1 + len(share), &length, 2)
                memcpy(p + 3 + len(share), <const uint8_t*>identifiers, length)
        memcpy(p + head, <const uint8_t*>heads, len(heads))
        write_message(p + head + len(heads), queued.message, queued.flags & (QOS | RETAINED_MESSAGE),
                      clock.deadline(queued.message.expires))
        texts.append(text)
        total[0] += len(text)
    return texts


cdef list pack_pushes(Buffer* b, Pool* pool, Items* pushes, list sessions, dict numbers, dict numbered):
    """[client id, incarnation, places of messages ...] for each session. Returns these sessions in order.

    Args:
        numbers: place of a session -> number of the publication that it gets.
        numbered: number -> its Numbered, which gets the places of its pushes, from 1.
    """
    cdef Py_ssize_t* counts = NULL
    cdef Py_ssize_t i, j, total = 0, used = 0
    cdef Session session
    cdef list found = []
    cdef bytes client_id
    if pushes.count == 0:
        put_array(b, pool, 0)
        return found
    sort_by_session(pushes, len(sessions), &counts)
    try:
        for i in range(len(sessions)):
            used += counts[i] > 0
        put_array(b, pool, used)
        for i in range(len(sessions)):
            if counts[i] == 0:
                continue
            session = sessions[i]
            found.append(session)
            if numbers and i in numbers:
                numbered[numbers[i]].pushes.append(len(found))
            client_id = session.client_id
            put_array(b, pool, 2 + counts[i])
            put_text(b, pool, client_id, len(client_id))
            put_number(b, pool, session.session_id)
            for j in range(total, total + counts[i]):
                put_number(b, pool, pushes.items[j].number + FIRST_MESSAGE)
            total += counts[i]
    finally:
        free(counts)
    return found


cdef uint32_t remaining_of(const Message* m) noexcept:
    """The Remaining Length of the packet of a batch."""
    cdef uint32_t remaining = publish_remaining(m.topic_length, m.payload_length, m.qos)
    if m.properties_length or m.expires:
        remaining += <uint32_t>properties_size(m.expires != 0, 0, 0, m.properties_length)
    return remaining


cdef Py_ssize_t packet_size(const Message* m) noexcept:
    return publish_size(remaining_of(m))


cdef int write_packet(uint8_t* p, const Message* m, int64_t clock) except -1:
    """Write a PUBLISH with its original QoS, 1 or 2, and packet identifier 0."""
    cdef bint is_level_5 = m.properties_length or m.expires
    cdef uint8_t first_byte = (FORWARD_5 if is_level_5 else PUBLISH_QOS_0) | m.qos << 1
    if m.retain:
        first_byte |= FLAG_RETAIN
    p = write_publish(p, first_byte, remaining_of(m), m.data, m.topic_length, 0, message_payload(m), m.payload_length)
    if is_level_5:
        write_properties(p, m.expires != 0, seconds_left(m.expires, clock), 0, NULL, 0, message_properties(m),
                         m.properties_length)
    return 0


cdef bytes pack_log(Buffer* b, Pool* pool, const Forward* forwards, Py_ssize_t count, list sessions, bytes header,
                    int64_t clock):
    """The header of batches, and [peer, its batch; empty = the batch of the log].

    Returns the batch of the log, after its header. It is no part of the text: it takes Redis much longer to get a text
    out of another one than to have it as an argument.
    """
    cdef Py_ssize_t i, size = 0
    cdef Message* m
    cdef Message* last
    cdef bytes batch
    cdef uint8_t* p
    cdef list peers = []
    if count == 0:
        put_text_head(b, pool, 0)
        put_array(b, pool, 0)
        return b""
    last = NULL
    for i in range(count):       # the peers of a message follow each other
        m = forwards[i].message
        if m != last:
            size += packet_size(m)
        last = m
        if sessions[forwards[i].peer] not in peers:
            peers.append(sessions[forwards[i].peer])
    batch = PyBytes_FromStringAndSize(NULL, len(header) + size)
    p = <uint8_t*>PyBytes_AS_STRING(batch)
    memcpy(p, <const uint8_t*>header, len(header))
    p += len(header)
    last = NULL
    for i in range(count):
        m = forwards[i].message
        if m != last:
            write_packet(p, m, clock)
            p += packet_size(m)
        last = m
    put_object(b, pool, header)
    put_array(b, pool, len(peers))
    for peer in peers:
        size = 0
        for i in range(count):
            if sessions[forwards[i].peer] is peer:      # it may have several places
                size += packet_size(forwards[i].message)
        put_array(b, pool, 2)
        put_object(b, pool, (<Subscriber>peer).client_id)
        if size == len(batch) - len(header):
            put_text_head(b, pool, 0)
            continue
        put_text_head(b, pool, size)
        for i in range(count):
            if sessions[forwards[i].peer] is peer:
                m = forwards[i].message
                write_packet(put(b, pool, packet_size(m)), m, clock)
    return batch


cdef int pack_handshakes(Buffer* b, Pool* pool, const Items* handshakes, uint8_t kind, list sessions,
                         tuple half_published, list message_numbers) except -1:
    """[client id, incarnation, packet identifier, place of the message, progress], the last two for AWAITING only.

    Only the last one of AWAITING has progress: a block is sealed after one is noted. With several shards the number of
    the message follows, as 8 bytes.
    """
    cdef Py_ssize_t i, count = half_published is not None, awaited = 0
    cdef const Item* item
    cdef Session session
    cdef bytes client_id
    for i in range(handshakes.count):
        count += handshakes.items[i].kind == kind
    put_array(b, pool, count)
    for i in range(handshakes.count):
        item = &handshakes.items[i]
        if item.kind != kind:
            continue
        session = sessions[item.session]
        client_id = session.client_id
        put_array(b, pool, 3 if kind != AWAITING else 5 if message_numbers is None else 6)
        put_text(b, pool, client_id, len(client_id))
        put_number(b, pool, session.session_id)
        put_number(b, pool, item.number & 0xFFFF)
        if kind == AWAITING:
            put_number(b, pool, (item.number >> 16) + FIRST_MESSAGE)
            put_number(b, pool, 0)
            if message_numbers is not None:
                put_object(b, pool, struct.pack("<Q", message_numbers[awaited]))
                awaited += 1
    if half_published is not None:
        put_object(b, pool, half_published)
    return 0


cdef bint in_order(const Item* items, Py_ssize_t count) noexcept:
    """Whether the entries are done, and follow each other."""
    cdef Py_ssize_t i
    for i in range(count):
        if items[i].kind != DONE or items[i].number != items[0].number + i:
            return False
    return True


cdef uint64_t size_of(const Item* items, Py_ssize_t count) noexcept:
    """The bytes of those that are done."""
    cdef uint64_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        size += items[i].size if items[i].kind == DONE else 0
    return size


cdef bytes pack_acks_of(Pool* pool, list sessions, Py_ssize_t first, Py_ssize_t end, Py_ssize_t used,
                        const Py_ssize_t* counts, const Item* items):
    """The text for some sessions of the block, `used` of which have items; `items` are theirs, in order."""
    cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
    cdef Py_ssize_t i, j, received, ordered = 0
    cdef const Item* item = items
    cdef uint64_t size
    cdef Session session
    cdef bytes client_id
    try:
        for i in range(first, end):
            ordered += counts[i] > 0 and in_order(item, counts[i])
            item += counts[i]
        put_array(&b, pool, 2)
        put_array(&b, pool, 5 * ordered)
        item = items
        for i in range(first, end):
            if counts[i] > 0 and in_order(item, counts[i]):
                session = sessions[i]
                client_id = session.client_id
                put_text(&b, pool, client_id, len(client_id))
                put_number(&b, pool, session.session_id)
                put_number(&b, pool, item.number)
                put_number(&b, pool, counts[i])
                put_number(&b, pool, size_of(item, counts[i]))
            item += counts[i]
        put_array(&b, pool, used - ordered)
        for i in range(first, end):
            if counts[i] == 0 or in_order(items, counts[i]):
                items += counts[i]
                continue
            session = sessions[i]
            client_id = session.client_id
            received, size = 0, size_of(items, counts[i])
            for j in range(counts[i]):
                received += items[j].kind == RECEIVED
            put_array(&b, pool, 5)
            put_text(&b, pool, client_id, len(client_id))
            put_number(&b, pool, session.session_id)
            put_array(&b, pool, counts[i] - received)
            for j in range(counts[i]):
                if items[j].kind == DONE:
                    put_number(&b, pool, items[j].number)
            put_array(&b, pool, 2 * received)
            for j in range(counts[i]):
                if items[j].kind == RECEIVED:
                    put_number(&b, pool, items[j].number)
                    put_number(&b, pool, items[j].size)
            put_number(&b, pool, size)
            items += counts[i]
        return b.data[b.start:b.end]
    finally:
        buffer_free(&b, pool)


cdef list pack_acks(Pool* pool, Items* acks, list sessions):
    """Texts with the acknowledgements of clients: `ACKS` in cluster/redis/calls.py. Redis frees so many bytes."""
    cdef Py_ssize_t* counts = NULL
    cdef Py_ssize_t first = 0, end, done = 0, used, size
    cdef list texts = []
    if acks.count == 0:
        return texts
    sort_by_session(acks, len(sessions), &counts)
    try:
        while done < acks.count:
            end, used, size = first, 0, 0
            while end < len(sessions) and size < ACKS_MAX:
                used += counts[end] > 0
                size += counts[end]
                end += 1
            texts.append(pack_acks_of(pool, sessions, first, end, used, counts, acks.items + done))
            first = end
            done += size
        return texts
    finally:
        free(counts)
