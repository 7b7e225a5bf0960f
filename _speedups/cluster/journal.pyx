"""The journal of a node in a cluster: a turn's changes for Redis, packed as one call of a function.

Sessions and the router record here as they do in the journal of a single node. A record alone has no effect: Redis
returns queue numbers, retained messages and subscriptions of persistent sessions, in one order for all nodes.

A block is two texts of MessagePack (deploy/docs/CLUSTER.md, "Commit"). `commit`: an array of messages, pushes, log,
header, targets, changes, awaiting, released, wills, releases. `acks`: an array of (client id, incarnation, queue numbers
that are done, queue numbers with PUBREC). It is separate because it must succeed when Redis has no memory left.

A message is one byte (QoS | RETAIN << 2 | LAYOUT << 4), topic length u16, little-endian, topic name, payload. A batch is
PUBLISH packets as MQTT 3.1.1 encodes them, with packet identifier 0.
"""

from libc.stdint cimport uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from _speedups.base.array cimport array_reserve
from _speedups.base.buffers cimport buffer_free, buffer_size, pool_free
from _speedups.codec.publish cimport PUBLISH_QOS_0, publish_remaining, publish_size, write_publish
from _speedups.session.journal cimport AWAITING, DONE, QUEUED, RECEIVED, RELEASED, RETAINED
from _speedups.session.message cimport Publication, message_hold, message_new, message_release, publication_of
from _speedups.session.subscriber cimport Subscriber
from _speedups.base.msgpack cimport put, put_array, put_number, put_object, put_text, put_text_head

from _speedups.base.msgpack import DamagedMessage, pack

cdef enum:
    MESSAGE_LAYOUT = 1
    MESSAGE_HEAD = 3           # bytes before the topic name


cdef int add(Items* list, uint32_t session, uint8_t kind, uint64_t number) except -1:
    if array_reserve(<void**>&list.items, list.count + 1, &list.capacity, sizeof(Item)) < 0:
        raise MemoryError
    list.items[list.count] = Item(session, kind, number)
    list.count += 1
    return 0


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


cdef Py_ssize_t message_size(const Message* m) noexcept:
    return MESSAGE_HEAD + m.topic_length + m.payload_length


cdef int write_message(uint8_t* p, const Message* m, uint8_t flags) except -1:
    p[0] = flags | MESSAGE_LAYOUT << 4
    memcpy(p + 1, &m.topic_length, 2)
    memcpy(p + MESSAGE_HEAD, m.data, m.topic_length + m.payload_length)
    return 0


cdef Message* read_message(const uint8_t* p, Py_ssize_t n) except NULL:
    """Decode a message; returns a new reference."""
    cdef Message* m
    cdef Publication publication
    cdef uint16_t topic_length
    if n < MESSAGE_HEAD or p[0] >> 4 != MESSAGE_LAYOUT:
        raise DamagedMessage("a message of a layout that this version doesn't support")
    memcpy(&topic_length, p + 1, 2)
    if topic_length > n - MESSAGE_HEAD:
        raise DamagedMessage("a message that is cut short")
    publication = publication_of(p + MESSAGE_HEAD, topic_length, p + MESSAGE_HEAD + topic_length,
                                 n - MESSAGE_HEAD - topic_length, p[0] & 3, p[0] >> 2 & 1)
    m = message_new(&publication)
    if m == NULL:
        raise MemoryError
    return m


def encode_message(bytes topic not None, bytes payload not None, int qos, bint retain):
    """Encode a message for Redis."""
    return bytes([qos | retain << 2 | MESSAGE_LAYOUT << 4]) + len(topic).to_bytes(2, "little") + topic + payload


def decode_message(bytes data not None):
    """(topic name, payload, QoS, RETAIN) of a message encoded for Redis.

    Raises:
        DamagedMessage: the bytes are not a message.
    """
    cdef const uint8_t* p = data
    cdef Message* m = read_message(p, len(data))
    try:
        return (m.data[:m.topic_length], m.data[m.topic_length:m.topic_length + <Py_ssize_t>m.payload_length], m.qos,
                bool(m.retain))
    finally:
        message_release(m)


def arrive(Session session not None, uint64_t n, bytes data not None):
    """Pass a message with queue number `n`, encoded for Redis, to its session."""
    cdef const uint8_t* p = data
    cdef Message* m = read_message(p, len(data))
    try:
        session.arrive(n, m, p[0] & 7)
    finally:
        message_release(m)


cdef class Block:
    """A turn's changes, to be sent to Redis."""

    def __len__(self):
        return len(self.commit) + len(self.acks) + (len(self.entry[1]) if self.entry is not None else 0)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.message_count):
            message_release(self.messages[i].message)
        free(self.messages)
        free(self.pushes.items)

    def numbered(self, list reply not None):
        """Redis has the block: sessions whose clients are here get their messages.

        Args:
            reply: first queue number and count for each session in turn; number 0 for sessions of other nodes.
        """
        cdef Py_ssize_t i = 0, j, number = 0
        cdef uint64_t first, count
        cdef Session session
        cdef Queued* queued
        for item in self.sessions:
            session = item
            first = reply[number]
            count = reply[number + 1]
            number += 2
            j = i
            while j < self.pushes.count and self.pushes.items[j].session == self.pushes.items[i].session:
                if first and <uint64_t>(j - i) < count:
                    queued = &self.messages[self.pushes.items[j].number]
                    session.arrive(first + (j - i), queued.message, queued.flags)
                session.pending -= session.pending > 0
                j += 1
            i = j

    def unnumbered(self):
        """Redis has the block, but its reply was lost: the caller must read the queues. Returns the sessions."""
        cdef Session session
        cdef Py_ssize_t i
        for item in self.sessions:
            session = item
            session.pending = 0
        return self.sessions


cdef class ClusterJournal(Journal):
    """Records changes for Redis.

    Args:
        header: called without arguments, returns the bytes before the batch of the block.
    """

    def __init__(self, header):
        self.header = header
        self.shared = True
        self.epoch = 1
        self.begin()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.message_count):
            message_release(self.messages[i].message)
        for i in range(self.forward_count):
            message_release(self.forwards[i].message)
        free(self.messages)
        free(self.forwards)
        free(self.pushes.items)
        free(self.acks.items)
        free(self.handshakes.items)
        pool_free(&self.packing)

    cdef object begin(self):
        self.block += 1
        self.sessions = []
        self.changes = []
        self.wills = []
        self.releases = []

    def start(self):
        """Start recording. There is no compaction: nothing is written again."""

    # ---- records ----

    def attach(self, MessageLog log not None):
        """Commit the blocks of this log together with those of the journal."""
        self.log = log

    def change(self, tuple record not None):
        """Record a replicated change for all nodes; cluster/replication/changes.py lists the kinds."""
        self.changes.append(record)
        self.note(RETAINED)

    def will_settled(self, uint64_t epoch):
        """Record that the will of the connection with this epoch is published in this block, or discarded."""
        self.wills.append(epoch)
        self.note(RETAINED)

    def release(self, bytes client_id not None, uint64_t epoch, uint64_t sent):
        """Record that a connection has ended and that this node releases the session."""
        self.releases.append((client_id, epoch, sent))
        self.note(RETAINED)

    cdef int note(self, uint8_t kind) except -1:
        """Note a record: `records` grows, because other modules test its size."""
        self.room(kind, 7)
        return 0

    cdef uint32_t index(self, Subscriber session) except? 0:
        if session.block != self.block:
            session.block = self.block
            session.block_index = <uint32_t>len(self.sessions)
            self.sessions.append(session)
        return session.block_index

    cdef uint64_t place(self, Message* m, uint8_t flags) except? 0:
        """The place of the message in the block, shared by all its queues with this QoS (1 or 2)."""
        cdef int shift = 32 if flags == 2 else 0
        if m.stored_epoch != <uint32_t>self.block:
            m.stored_epoch = <uint32_t>self.block
            m.stored_id = 0
        if flags <= 2 and m.stored_id >> shift & 0xFFFFFFFF:
            return (m.stored_id >> shift & 0xFFFFFFFF) - 1
        if array_reserve(<void**>&self.messages, self.message_count + 1, &self.message_capacity, sizeof(Queued)) < 0:
            raise MemoryError
        self.messages[self.message_count] = Queued(message_hold(m), flags)
        self.weight += message_size(m)
        self.message_count += 1
        if flags <= 2:
            m.stored_id |= <uint64_t>self.message_count << shift
        return self.message_count - 1

    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1:
        add(&self.pushes, self.index(<Subscriber>session), QUEUED, self.place(m, flags))
        return self.note(QUEUED)

    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n) except -1:
        add(&self.handshakes if kind == RELEASED else &self.acks, self.index(<Subscriber>session), kind, n)
        return self.note(kind)

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m) except -1:
        cdef uint64_t place = self.place(m, 2 | m.retain << 2)
        add(&self.handshakes, self.index(<Subscriber>session), AWAITING, place << 16 | packet_id)
        return self.note(AWAITING)

    cdef int retained(self, Message* m) except -1:
        value = encode_message(m.data[:m.topic_length], m.data[m.topic_length:m.topic_length + <Py_ssize_t>m.payload_length],
                               m.qos, True)
        self.change(("retained", m.data[:m.topic_length], value))
        return 0

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        self.change(("retained", topic[:n], b""))
        return 0

    cdef int forward(self, object peer, Message* m) except -1:
        if array_reserve(<void**>&self.forwards, self.forward_count + 1, &self.forward_capacity, sizeof(Forward)) < 0:
            raise MemoryError
        self.forwards[self.forward_count] = Forward(self.index(<Subscriber>peer), message_hold(m))
        self.forward_count += 1
        self.weight += message_size(m)
        return self.note(QUEUED)

    cdef int logged(self, Py_ssize_t size) except -1:
        self.weight += size
        return self.note(QUEUED)

    # ---- the block ----

    def take(self):
        """Return the block, and begin a new one."""
        cdef Block block = Block()
        cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
        cdef Py_ssize_t i
        block.acks = self.pack_acks() if self.acks.count else b""
        block.commit = b""
        block.changes = self.changes
        block.sessions = []
        if self.log is not None and self.log.required:
            block.entry = self.log.take_block()
        if (self.pushes.count or self.handshakes.count or self.forward_count or self.changes or self.wills
                or self.releases):
            try:
                put_array(&b, &self.packing, 10)
                self.pack_messages(&b)
                block.sessions = self.pack_pushes(&b)
                self.pack_log(&b, block)
                put_object(&b, &self.packing, pack_changes(self.changes))
                self.pack_handshakes(&b, AWAITING)
                self.pack_handshakes(&b, RELEASED)
                put_object(&b, &self.packing, self.wills)
                put_object(&b, &self.packing, self.releases)
                block.commit = b.data[b.start:b.end]
            finally:
                buffer_free(&b, &self.packing)
        block.messages = self.messages
        block.message_count = self.message_count
        block.pushes = self.pushes
        self.messages = NULL
        self.message_count = self.message_capacity = 0
        self.pushes = Items(NULL, 0, 0)
        for i in range(self.forward_count):
            message_release(self.forwards[i].message)
        self.forward_count = 0
        self.acks.count = self.handshakes.count = 0
        buffer_free(&self.records, &self.pool)
        self.urgent = False
        self.weight = 0
        self.begin()
        return block

    cdef int pack_messages(self, Buffer* b) except -1:
        cdef Py_ssize_t i, size
        put_array(b, &self.packing, self.message_count)
        for i in range(self.message_count):
            size = message_size(self.messages[i].message)
            put_text_head(b, &self.packing, size)
            write_message(put(b, &self.packing, size), self.messages[i].message, self.messages[i].flags)
        return 0

    cdef list pack_pushes(self, Buffer* b):
        """[client id, incarnation, places from 1 on ...] for each session."""
        cdef Py_ssize_t* counts = NULL
        cdef Py_ssize_t i, j, total = 0, used = 0
        cdef Session session
        cdef list found = []
        cdef bytes client_id
        if self.pushes.count == 0:
            put_array(b, &self.packing, 0)
            return found
        sort_by_session(&self.pushes, len(self.sessions), &counts)
        try:
            for i in range(len(self.sessions)):
                used += counts[i] > 0
            put_array(b, &self.packing, used)
            for i in range(len(self.sessions)):
                if counts[i] == 0:
                    continue
                session = self.sessions[i]
                found.append(session)
                client_id = session.client_id
                put_array(b, &self.packing, 2 + counts[i])
                put_text(b, &self.packing, client_id, len(client_id))
                put_number(b, &self.packing, session.session_id)
                for j in range(total, total + counts[i]):
                    put_number(b, &self.packing, self.pushes.items[j].number + 1)
                total += counts[i]
        finally:
            free(counts)
        return found

    cdef int pack_log(self, Buffer* b, Block block) except -1:
        """The batch for the log, the header for a peer, and [peer, its batch; empty = the batch of the log]."""
        cdef Py_ssize_t i, k, size = 0
        cdef Message* m
        cdef Message* last
        cdef list peers = []
        if self.forward_count == 0:
            put_text_head(b, &self.packing, 0)
            put_text_head(b, &self.packing, 0)
            put_array(b, &self.packing, 0)
            return 0
        last = NULL
        for i in range(self.forward_count):       # the peers of a message follow each other
            m = self.forwards[i].message
            if m != last:
                size += packet_size(m)
            last = m
            if self.sessions[self.forwards[i].peer] not in peers:
                peers.append(self.sessions[self.forwards[i].peer])
        put_text_head(b, &self.packing, size)
        last = NULL
        for i in range(self.forward_count):
            m = self.forwards[i].message
            if m != last:
                write_packet(put(b, &self.packing, packet_size(m)), m)
            last = m
        block.log_size = size
        put_object(b, &self.packing, self.header())
        put_array(b, &self.packing, len(peers))
        for peer in peers:
            k = (<Subscriber>peer).block_index
            size = 0
            for i in range(self.forward_count):
                if self.forwards[i].peer == k:
                    size += packet_size(self.forwards[i].message)
            put_array(b, &self.packing, 2)
            put_object(b, &self.packing, (<Subscriber>peer).client_id)
            if size == block.log_size:
                put_text_head(b, &self.packing, 0)
                continue
            put_text_head(b, &self.packing, size)
            for i in range(self.forward_count):
                if self.forwards[i].peer == k:
                    m = self.forwards[i].message
                    write_packet(put(b, &self.packing, packet_size(m)), m)
        return 0

    cdef int pack_handshakes(self, Buffer* b, uint8_t kind) except -1:
        """[client id, incarnation, packet identifier, place of the message from 1 on], the last for AWAITING only."""
        cdef Py_ssize_t i, count = 0
        cdef Item* item
        cdef Session session
        cdef bytes client_id
        for i in range(self.handshakes.count):
            count += self.handshakes.items[i].kind == kind
        put_array(b, &self.packing, count)
        for i in range(self.handshakes.count):
            item = &self.handshakes.items[i]
            if item.kind != kind:
                continue
            session = self.sessions[item.session]
            client_id = session.client_id
            put_array(b, &self.packing, 4 if kind == AWAITING else 3)
            put_text(b, &self.packing, client_id, len(client_id))
            put_number(b, &self.packing, session.session_id)
            put_number(b, &self.packing, item.number & 0xFFFF)
            if kind == AWAITING:
                put_number(b, &self.packing, (item.number >> 16) + 1)
        return 0

    cdef bytes pack_acks(self):
        cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
        cdef Py_ssize_t* counts = NULL
        cdef Py_ssize_t i, j, total = 0, used = 0, received
        cdef Session session
        cdef bytes client_id
        sort_by_session(&self.acks, len(self.sessions), &counts)
        try:
            for i in range(len(self.sessions)):
                used += counts[i] > 0
            put_array(&b, &self.packing, used)
            for i in range(len(self.sessions)):
                if counts[i] == 0:
                    continue
                session = self.sessions[i]
                client_id = session.client_id
                received = 0
                for j in range(total, total + counts[i]):
                    received += self.acks.items[j].kind == RECEIVED
                put_array(&b, &self.packing, 4)
                put_text(&b, &self.packing, client_id, len(client_id))
                put_number(&b, &self.packing, session.session_id)
                put_array(&b, &self.packing, counts[i] - received)
                for j in range(total, total + counts[i]):
                    if self.acks.items[j].kind == DONE:
                        put_number(&b, &self.packing, self.acks.items[j].number)
                put_array(&b, &self.packing, received)
                for j in range(total, total + counts[i]):
                    if self.acks.items[j].kind == RECEIVED:
                        put_number(&b, &self.packing, self.acks.items[j].number)
                total += counts[i]
            return b.data[b.start:b.end]
        finally:
            free(counts)
            buffer_free(&b, &self.packing)


cdef Py_ssize_t packet_size(const Message* m) noexcept:
    return publish_size(publish_remaining(m.topic_length, m.payload_length, m.qos))


cdef int write_packet(uint8_t* p, const Message* m) except -1:
    """Write a PUBLISH with its original QoS, 1 or 2, and packet identifier 0."""
    write_publish(p, PUBLISH_QOS_0 | m.qos << 1, publish_remaining(m.topic_length, m.payload_length, m.qos), m.data,
                  m.topic_length, 0, m.data + m.topic_length, m.payload_length)
    return 0


def pack_changes(list changes not None):
    """The changes of a block, encoded for all nodes; empty if there are none."""
    return pack(changes) if changes else b""
