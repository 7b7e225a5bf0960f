"""The message log: the messages that a node accepts from clients, as blocks of columns, readable as Arrow arrays.

The log is a subscriber with the filters of the logged topics, so delivery plans contain it and need no extra matching.
A message is one row of fixed size, its payload, and its properties if it has some. Client ids and topic names are
written once per block, found by marks on the session and on the delivery plan. The layout is in
deploy/docs/internals/log.md.

Messages of QoS 1 and 2 belong to the block that the turn's commit takes (`take_block`), since they are acknowledged
only when they are logged. Blocks of QoS 0 alone are passed to `write` when they are full or a moment old. Both get
their ids here, in the order in which they must be stored.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from ..base.buffers cimport buffer_append, buffer_free, buffer_reserve, buffer_size, pool_free
from ..session.journal cimport BLOCK_MAX
from ..codec.publish cimport EXPIRY_SIZE, write_expiry
from ..session.message cimport Publication, seconds_left
from ..session.subscriber cimport LOG, Plan, Receiver, Subscriber
from ..session.counters cimport LOGGED, NOT_LOGGED
from ..session.turn cimport Turn

cdef enum:
    ROWS_ENOUGH = 2048         # rows, or ...
    BYTES_ENOUGH = 262144      # ... bytes of payloads and properties, that make a block full at the end of a turn
    BYTES_MAX = 1048576        # bytes of payloads and properties that make it full at once

cdef int64_t microseconds() noexcept:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000000 + t.tv_nsec // 1000


cdef inline uint8_t* put_ends(uint8_t* p, const void* ends, Py_ssize_t count) noexcept:
    """Write a column: 0, then `count` ends."""
    memset(p, 0, 4)
    if count:
        memcpy(p + 4, ends, count * 4)
    if count % 2 == 0:
        memset(p + 4 + count * 4, 0, 4)
    return p + padded(4 + count * 4)


cdef inline uint8_t* put_bytes(uint8_t* p, const void* data, Py_ssize_t n) noexcept:
    """Write a column of bytes."""
    if n:
        memcpy(p, data, n)
    memset(p + n, 0, padded(n) - n)
    return p + padded(n)


cdef class MessageLog(Subscriber):
    """The log of a node.

    Args:
        turn: the node's turn.
        write: called with the id of an entry and its block, for blocks that no commit takes.
        wait: called at the first message of a block; `close` should be called a moment later.
    """

    def __init__(self, Turn turn not None, write, wait):
        self.turn = turn
        self.client_id = b""
        self.kind = LOG
        self.write = write
        self.wait = wait
        self.clients = []
        self.blocks = 1

    def __dealloc__(self):
        self.free_columns()
        pool_free(&self.pool)

    cdef void free_columns(self) noexcept:
        """Forget the messages of the block being filled."""
        buffer_free(&self.rows, &self.pool)
        buffer_free(&self.payloads, &self.pool)
        buffer_free(&self.topics, &self.pool)
        buffer_free(&self.topic_ends, &self.pool)
        buffer_free(&self.properties, &self.pool)
        buffer_free(&self.property_ends, &self.pool)

    def continue_after(self, *, int64_t ms, uint64_t size, uint64_t rows, uint64_t lacking):
        """Go on with a log that has entries: time in the id of the last one, bytes, rows, messages that it lacks."""
        self.last = max(self.last, ms * 1000 + 999)
        self.bytes_before = size
        self.rows_before = rows
        self.lacking = lacking

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        """Log a message of a client, if this node accepted it. The log is not counted as a receiver."""
        if publication.forwarded or publication.publisher == NULL or publication.publisher == <void*>None:
            return 0
        return self.append(publication, plan)

    cdef int append(self, const Publication* publication, Plan* plan) except -1:
        cdef Row* row
        cdef bint needed = publication.qos != 0
        if not needed and self.suspended:
            self.lacking += 1
            self.turn.counters[NOT_LOGGED] += 1
            return 0
        if self.now == 0:
            self.turn.schedule_send(self)                  # at the end of the turn
            self.now = self.last = max(microseconds(), self.last)
        row = <Row*>buffer_reserve(&self.rows, &self.pool, sizeof(Row))
        if row == NULL or buffer_append(
                &self.payloads, &self.pool, publication.payload, publication.payload_length) < 0:
            raise MemoryError
        row.accepted = self.now
        row.client = self.client(<object>publication.publisher)
        row.topic = self.topic(plan, publication.topic, publication.topic_length)
        row.payload_end = <int32_t>buffer_size(&self.payloads)
        row.flags = publication.qos | publication.retain << 2 | publication.dup
        if publication.properties_length or publication.expires or buffer_size(&self.property_ends):
            self.append_properties(publication)
        self.rows.end += sizeof(Row)
        self.turn.counters[LOGGED] += 1
        if needed:
            self.required = True
            return self.turn.journal.logged(
                publication.topic_length + publication.properties_length + publication.payload_length)
        if self.content_size() > BYTES_MAX:
            if not self.required:
                self.close()
            elif self.content_size() > BLOCK_MAX:
                self.turn.seal()                  # the commit takes it now: a turn may hold more than Redis accepts
        return 0

    cdef int append_properties(self, const Publication* publication) except -1:
        """Append the properties of the next row. Rows before the first with properties have none."""
        cdef Py_ssize_t rows = buffer_size(&self.rows) // <Py_ssize_t>sizeof(Row)
        cdef Py_ssize_t missing = (rows + 1) * 4 - buffer_size(&self.property_ends)
        cdef uint8_t* ends = buffer_reserve(&self.property_ends, &self.pool, missing)
        cdef uint8_t* p = buffer_reserve(&self.properties, &self.pool, EXPIRY_SIZE)
        cdef int32_t end
        if ends == NULL or p == NULL:
            raise MemoryError
        if publication.expires:
            write_expiry(p, seconds_left(publication.expires, self.turn.clock))
            self.properties.end += EXPIRY_SIZE
        if publication.properties_length and buffer_append(
                &self.properties, &self.pool, publication.properties, publication.properties_length) < 0:
            raise MemoryError
        end = <int32_t>buffer_size(&self.properties)
        memset(ends, 0, missing - 4)
        memcpy(ends + missing - 4, &end, 4)
        self.property_ends.end += <uint32_t>missing
        return 0

    cdef Py_ssize_t content_size(self) noexcept:
        """Bytes of payloads and properties in the block."""
        return buffer_size(&self.payloads) + buffer_size(&self.properties)

    cdef int32_t client(self, object publisher) except -1:
        """The place of a client id in the block."""
        cdef Subscriber session
        if isinstance(publisher, Subscriber):
            session = <Subscriber>publisher
            if (session.log_index >= <uint32_t>len(self.clients)
                    or self.clients[session.log_index] is not session.client_id):
                session.log_index = <uint32_t>len(self.clients)
                self.clients.append(session.client_id)
            return <int32_t>session.log_index
        self.clients.append(publisher)
        return <int32_t>len(self.clients) - 1

    cdef int32_t topic(self, Plan* plan, const uint8_t* topic, Py_ssize_t n) except -1:
        """The place of a topic name in the block."""
        cdef int32_t end
        if plan.log_block != self.blocks:
            if buffer_append(&self.topics, &self.pool, topic, n) < 0:
                raise MemoryError
            end = <int32_t>buffer_size(&self.topics)
            if buffer_append(&self.topic_ends, &self.pool, &end, sizeof(end)) < 0:
                raise MemoryError
            plan.log_block = self.blocks
            plan.log_index = <uint32_t>(buffer_size(&self.topic_ends) // sizeof(end)) - 1
        return <int32_t>plan.log_index

    cdef int send_pending(self) except -1:
        """At the end of a turn, write a full block, or request `close`."""
        self.now = 0
        if self.required or buffer_size(&self.rows) == 0:
            return 0                              # the commit takes it
        if (buffer_size(&self.rows) >= ROWS_ENOUGH * <Py_ssize_t>sizeof(Row)
                or self.content_size() >= BYTES_ENOUGH):
            self.close()
        elif not self.waiting:
            self.waiting = True
            self.wait()
        return 0

    def close(self):
        """Write the block, unless a commit will take it."""
        self.waiting = False
        if buffer_size(&self.rows) and not self.required:
            self.write(*self.take_block())

    cdef tuple take_block(self):
        """Return (id of the entry, block), and begin a new block."""
        cdef Py_ssize_t rows = buffer_size(&self.rows) // <Py_ssize_t>sizeof(Row)
        cdef Py_ssize_t topics = buffer_size(&self.topic_ends) // 4
        cdef bint properties = buffer_size(&self.property_ends) > 0
        cdef Py_ssize_t i, size, total = 0
        cdef const Row* row = <const Row*>(self.rows.data + self.rows.start)
        cdef uint8_t* p
        cdef int64_t* accepted
        cdef int32_t* client
        cdef int32_t* topic
        cdef int32_t* payload_end
        cdef int32_t end
        cdef uint8_t* flags
        names = b"".join(self.clients)
        size = (HEADER + rows * 8 + padded(rows * 4) * 2 + padded((rows + 1) * 4) + padded((len(self.clients) + 1) * 4)
                + padded((topics + 1) * 4) + padded(rows) + padded(len(names)) + padded(buffer_size(&self.topics))
                + padded(buffer_size(&self.payloads)))
        if properties:
            size += padded((rows + 1) * 4) + padded(buffer_size(&self.properties))
        block = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t*>PyBytes_AS_STRING(block)
        self.put_header(p, <uint32_t>rows, <uint32_t>topics, properties)
        accepted = <int64_t*>(p + HEADER)
        client = <int32_t*>(accepted + rows)
        topic = <int32_t*>(<uint8_t*>client + padded(rows * 4))
        payload_end = <int32_t*>(<uint8_t*>topic + padded(rows * 4))
        client[padded(rows * 4) // 4 - 1] = 0     # the padding, if any
        topic[padded(rows * 4) // 4 - 1] = 0
        payload_end[padded((rows + 1) * 4) // 4 - 1] = 0
        payload_end[0] = 0
        p = <uint8_t*>payload_end + padded((rows + 1) * 4)
        memset(p, 0, 4)
        for i in range(len(self.clients)):
            total += len(<bytes>self.clients[i])
            end = <int32_t>total
            memcpy(p + 4 + i * 4, &end, 4)
        if len(self.clients) % 2 == 0:
            memset(p + 4 + len(self.clients) * 4, 0, 4)
        p += padded((len(self.clients) + 1) * 4)
        p = put_ends(p, self.topic_ends.data + self.topic_ends.start, topics)
        flags = p
        memset(p + rows, 0, padded(rows) - rows)
        for i in range(rows):
            accepted[i] = row[i].accepted
            client[i] = row[i].client
            topic[i] = row[i].topic
            payload_end[i + 1] = row[i].payload_end
            flags[i] = row[i].flags
        p = put_bytes(p + padded(rows), PyBytes_AS_STRING(names), len(names))
        p = put_bytes(p, self.topics.data + self.topics.start, buffer_size(&self.topics))
        p = put_bytes(p, self.payloads.data + self.payloads.start, buffer_size(&self.payloads))
        if properties:
            p = put_ends(p, self.property_ends.data + self.property_ends.start, rows)
            put_bytes(p, self.properties.data + self.properties.start, buffer_size(&self.properties))
        return self.next_entry(rows, block)

    cdef object put_header(self, uint8_t* p, uint32_t rows, uint32_t topics, bint properties):
        cdef uint32_t clients = <uint32_t>len(self.clients)
        memset(p, 0, HEADER)
        p[0] = c"F"
        p[1] = c"Q"
        p[2] = LAYOUT
        p[3] = HAS_PROPERTIES * properties
        memcpy(p + 4, &rows, 4)
        memcpy(p + 8, &self.rows_before, 8)
        memcpy(p + 16, &self.bytes_before, 8)
        memcpy(p + 24, &self.lacking, 8)
        memcpy(p + 32, &clients, 4)
        memcpy(p + 36, &topics, 4)

    cdef tuple next_entry(self, Py_ssize_t rows, bytes block):
        self.free_columns()
        self.clients = []
        self.blocks += 1
        self.required = False
        self.rows_before += rows
        self.bytes_before += len(block)
        self.last = max(microseconds(), self.last)
        return b"%d-%d" % (self.last // 1000, self.bytes_before), block
