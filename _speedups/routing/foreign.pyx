"""Sessions that are at other nodes, as compact records: client id, incarnation and topic filters; and routes of nodes.

A topic name is matched by the shapes of the filters that are there: for each shape that fits it, the filter of that
shape which matches is written, hashed and looked up. So the time depends on the number of shapes, not of filters. Names
are always compared: nothing is matched by a hash alone.

A session has the Refs of its filters, and its position at each; a filter has the Refs of its sessions, behind the nodes
that have a route for it. So removing either side takes the same time, whatever number of sessions shares a filter.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from ..base.arena cimport (
    REF_SIZE, Ref, arena_free, get_number, get_ref, items_at, items_release, items_reserve, put_number,
    put_ref, record_at, record_free, record_new,
)
from ..base.array cimport array_reserve
from ..base.segments cimport SEGMENTS as SEGMENT_COUNT
from ..base.segments cimport (
    TAIL, Segment, Table, __builtin_prefetch, bits_of, entry_from, fetch, first_entry, ref_of, segment_of, table_add,
    table_free, table_init, table_remove, text_hash,
)
from ..codec.tenants cimport TENANT_LEVELS, begins_tenant

cdef extern from *:
    int __builtin_ctzll(uint64_t n) noexcept nogil

import secrets

SEGMENTS = SEGMENT_COUNT

# Records, without the byte of the arena at their front.
cdef enum:
    # A session: length of the client id, 2 bytes; number of its filters, 2; incarnation, 6; its filters; the client id.
    ID_LENGTH = 1
    ENTRIES = 3
    INCARNATION = 5
    ENTRY_PLACE = 11
    SESSION_SIZE = 20
    ENTRY_SIZE = 9             # a filter, and the position of the session there
    ENTRIES_WITHIN = 1
    ENTRIES_MAX = 65535
    INCARNATION_BITS = 48
    # A filter: its length, 2 bytes; number of sessions and nodes, 4; of the nodes, 2; these; the text.
    TEXT_LENGTH = 1
    HOLDERS = 3
    ROUTES = 7
    HOLDER_PLACE = 9
    FILTER_SIZE = 21
    HOLDER_SIZE = 6            # a session or the number of a node, and options
    HOLDERS_WITHIN = 2
    NODES_MAX = 65536


cdef inline uint16_t get_short(const uint8_t* p) noexcept:
    return p[0] | <uint16_t>(p[1] << 8)


cdef inline void put_short(uint8_t* p, uint32_t n) noexcept:
    p[0] = <uint8_t>n
    p[1] = <uint8_t>(n >> 8)


cdef inline bytes text_at(const uint8_t* record):
    return PyBytes_FromStringAndSize(<const char*>record + FILTER_SIZE, get_short(record + TEXT_LENGTH))


cdef list refs_in(const Table* table, int segment):
    """The records of a segment, before any of them changes."""
    cdef Segment* s
    cdef uint32_t i
    cdef list found = []
    if not 0 <= segment < SEGMENT_COUNT:
        raise IndexError(segment)
    s = &table.segments[segment]
    for i in range(s.room + TAIL if s.entries != NULL else 0):
        if s.entries[i]:
            found.append(ref_of(s.entries[i]))
    return found


cdef bint parse_shape(const uint8_t* text, Py_ssize_t n, Shape* shape) noexcept:
    """The shape of a valid topic filter. False: it has too many levels."""
    cdef const uint8_t* end = text + n
    cdef const uint8_t* slash
    shape[0] = Shape(0, 0, 0, 0)
    while True:
        if text < end and text[0] == c'#':
            shape.below = True
            return True
        if shape.levels == SHAPE_LEVELS:
            return False
        if text < end and text[0] == c'+':
            shape.plus |= <uint64_t>1 << shape.levels
        shape.levels += 1
        slash = <const uint8_t*>memchr(text, c'/', end - text)
        if slash == NULL:
            return True
        text = slash + 1


cdef inline bint is_wild_at(const Shape* shape, int level) noexcept:
    """Whether the filters of a shape have a wildcard at this level; a '#' at an earlier one does not count."""
    return shape.plus >> level & 1 if level < shape.levels else shape.below and level == shape.levels


@cython.final
cdef class ForeignTable:
    """Foreign sessions by client id, and topic filters with their sessions and nodes."""

    def __cinit__(self):
        self.seed = secrets.randbits(64)
        self.swept = SEGMENT_COUNT
        if table_init(&self.by_client_id) < 0 or table_init(&self.by_filter) < 0:
            raise MemoryError

    def __dealloc__(self):
        arena_free(&self.arena)
        table_free(&self.by_client_id)
        table_free(&self.by_filter)
        free(self.matches)
        free(self.texts)

    @property
    def sessions(self):
        """The number of sessions."""
        return self.by_client_id.count

    @property
    def filters(self):
        """The number of topic filters."""
        return self.by_filter.count

    @property
    def size(self):
        """Bytes of memory."""
        return self.arena.size + self.by_client_id.size + self.by_filter.size

    # ---- sessions ----

    cpdef int add(self, bytes client_id, uint64_t incarnation) except -1:
        """Add a session without filters; there must be none with this client id."""
        cdef Py_ssize_t n = len(client_id)
        cdef uint64_t h = text_hash(client_id, n, self.seed)
        if self.find_session(client_id, n, h):
            raise ValueError(client_id)
        self.new_session(client_id, n, h, incarnation)

    cdef Ref new_session(self, const uint8_t* client_id, Py_ssize_t n, uint64_t h, uint64_t incarnation) except 0:
        """As `add`; returns the session. `h` is the hash of the client id."""
        cdef Ref ref
        cdef uint8_t* p
        if incarnation >> INCARNATION_BITS:
            raise OverflowError(incarnation)
        ref = record_new(&self.arena, SESSION_SIZE + n)
        if not ref:
            raise MemoryError
        if table_add(&self.by_client_id, h, ref) < 0:
            record_free(&self.arena, ref, SESSION_SIZE + n)
            raise MemoryError
        p = record_at(&self.arena, ref)
        put_short(p + ID_LENGTH, <uint32_t>n)
        put_short(p + ENTRIES, 0)
        put_number(p + INCARNATION, <uint32_t>incarnation)
        put_short(p + INCARNATION + 4, <uint32_t>(incarnation >> 32))
        memcpy(p + SESSION_SIZE, client_id, n)
        return ref

    cpdef bint remove(self, bytes client_id) except -1:
        """Remove a session with its filters. False: there is none."""
        cdef Py_ssize_t n = len(client_id)
        cdef uint64_t h = text_hash(client_id, n, self.seed)
        cdef Ref ref = self.find_session(client_id, n, h)
        cdef uint32_t count
        if not ref:
            return False
        count = get_short(record_at(&self.arena, ref) + ENTRIES)
        while count:
            count -= 1
            self.remove_entry(ref, count)
        table_remove(&self.by_client_id, h, ref)
        record_free(&self.arena, ref, SESSION_SIZE + n)
        return True

    cpdef object incarnation_of(self, bytes client_id):
        """The incarnation of a session; None: there is none with this client id."""
        cdef Ref ref = self.session_of(client_id)
        return self.incarnation_at(ref) if ref else None

    cpdef bint has_room(self, bytes topic_filter) noexcept:
        """Whether the table can have a filter: it has not too many levels, and its shape is not one too many."""
        cdef Shape shape
        return parse_shape(topic_filter, len(topic_filter), &shape) and (
            self.shape_of(&shape) != NULL or self.shape_count < SHAPES_MAX)

    cpdef bint subscribe(self, bytes client_id, bytes topic_filter, uint8_t options) except -1:
        """Add a filter of a session, or replace its options (maximum QoS, Retain As Published).

        Returns:
            True if the filter is new for the session.

        Raises:
            KeyError: there is no such session.
            ValueError: there is no room for the filter.
        """
        cdef uint64_t h = text_hash(topic_filter, len(topic_filter), self.seed)
        cdef Ref session
        fetch(&self.by_filter, h)
        session = self.session_of(client_id)
        if not session:
            raise KeyError(client_id)
        return self.subscribe_session(session, topic_filter, h, options)

    cdef bint subscribe_session(self, Ref session, bytes topic_filter, uint64_t h, uint8_t options) except -1:
        """As `subscribe`; `h` is the hash of the filter."""
        cdef Ref ref = self.make_filter(topic_filter, len(topic_filter), h)
        cdef uint8_t* p
        cdef uint8_t* item
        cdef uint32_t count
        cdef Py_ssize_t index
        index = self.entry_of(session, ref)
        p = record_at(&self.arena, session)
        count = get_short(p + ENTRIES)
        if index >= 0:
            item = items_at(&self.arena, p + ENTRY_PLACE, count, ENTRIES_WITHIN) + index * ENTRY_SIZE
            index = get_number(item + REF_SIZE)
            p = record_at(&self.arena, ref)
            item = items_at(&self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN)
            item[index * HOLDER_SIZE + REF_SIZE] = options
            return False
        try:
            if count == ENTRIES_MAX:
                raise ValueError(topic_filter)
            if items_reserve(&self.arena, p + ENTRY_PLACE, count, ENTRIES_WITHIN, ENTRY_SIZE) < 0:
                raise MemoryError
            put_short(p + ENTRIES, count + 1)
            item = items_at(&self.arena, p + ENTRY_PLACE, count + 1, ENTRIES_WITHIN) + count * ENTRY_SIZE
            put_ref(item, ref)
            try:
                self.add_holder(ref, session, options)
            except MemoryError:
                put_short(p + ENTRIES, count)
                items_release(&self.arena, p + ENTRY_PLACE, count, ENTRIES_WITHIN, ENTRY_SIZE)
                raise
        except (MemoryError, ValueError):
            self.end_filter(ref)
            raise
        self.subscriptions += 1
        return True

    cpdef bint unsubscribe(self, bytes client_id, bytes topic_filter) except -1:
        """Remove a filter of a session. False: it has none."""
        cdef Py_ssize_t n = len(topic_filter), index
        cdef uint64_t h = text_hash(topic_filter, n, self.seed)
        cdef Ref session, ref
        fetch(&self.by_filter, h)
        session = self.session_of(client_id)
        ref = self.find_filter(topic_filter, n, h)
        index = self.entry_of(session, ref) if session and ref else -1
        if index < 0:
            return False
        self.remove_entry(session, <uint32_t>index)
        return True

    cpdef list subscriptions_of(self, bytes client_id):
        """The filters of a session and their options. Raises KeyError: there is none with this client id."""
        cdef Ref session = self.session_of(client_id)
        if not session:
            raise KeyError(client_id)
        return self.filters_of(session)

    cdef bytes client_id_at(self, Ref session):
        cdef const uint8_t* p = record_at(&self.arena, session)
        return PyBytes_FromStringAndSize(<const char*>p + SESSION_SIZE, get_short(p + ID_LENGTH))

    cdef uint64_t incarnation_at(self, Ref session) noexcept:
        cdef const uint8_t* p = record_at(&self.arena, session) + INCARNATION
        return get_number(p) | <uint64_t>get_short(p + 4) << 32

    cdef uint32_t held_by(self, Ref session) noexcept:
        """The number of its filters."""
        return get_short(record_at(&self.arena, session) + ENTRIES)

    cdef Ref session_of(self, bytes client_id) noexcept:
        """The session with this client id, or 0."""
        return self.find_session(client_id, len(client_id), text_hash(client_id, len(client_id), self.seed))

    cdef Ref find_session(self, const uint8_t* client_id, Py_ssize_t n, uint64_t h) noexcept:
        """As `session_of`; `h` is the hash of the client id."""
        cdef Segment* segment = segment_of(&self.by_client_id, h)
        cdef uint64_t* entry
        cdef const uint8_t* p
        if segment.entries == NULL:
            return 0
        entry = entry_from(first_entry(segment, bits_of(h)), bits_of(h))
        while entry != NULL:
            p = record_at(&self.arena, ref_of(entry[0]))
            if get_short(p + ID_LENGTH) == n and memcmp(p + SESSION_SIZE, client_id, n) == 0:
                return ref_of(entry[0])
            entry = entry_from(entry + 1, bits_of(h))
        return 0

    cdef Py_ssize_t entry_of(self, Ref session, Ref ref) noexcept:
        """The index of a filter in the session, or -1."""
        cdef uint8_t* p = record_at(&self.arena, session)
        cdef uint32_t i, count = get_short(p + ENTRIES)
        cdef uint8_t* items = items_at(&self.arena, p + ENTRY_PLACE, count, ENTRIES_WITHIN)
        for i in range(count):
            if get_ref(items + i * ENTRY_SIZE) == ref:
                return i
        return -1

    cdef int remove_entry(self, Ref session, uint32_t index) except -1:
        """Remove a filter of a session on both sides; the last of the session's filters moves into the gap."""
        cdef uint8_t* p = record_at(&self.arena, session)
        cdef uint32_t last = <uint32_t>get_short(p + ENTRIES) - 1
        cdef uint8_t* items = items_at(&self.arena, p + ENTRY_PLACE, last + 1, ENTRIES_WITHIN)
        cdef Ref ref = get_ref(items + index * ENTRY_SIZE)
        cdef uint32_t position = get_number(items + index * ENTRY_SIZE + REF_SIZE)
        if index != last:
            memcpy(items + index * ENTRY_SIZE, items + last * ENTRY_SIZE, ENTRY_SIZE)
        put_short(p + ENTRIES, last)
        items_release(&self.arena, p + ENTRY_PLACE, last, ENTRIES_WITHIN, ENTRY_SIZE)
        self.subscriptions -= 1
        return self.remove_holder(ref, position)

    # ---- routes ----

    cpdef bint route(self, uint32_t node, bytes topic_filter, uint8_t options) except -1:
        """Add a route of a node, or replace its options.

        Args:
            node: its number, below 65 536.
            topic_filter: clients of the node have it.
            options: below 128.

        Returns:
            True if the filter is new for the node.

        Raises:
            ValueError: there is no room for the filter, or the node has ended.
        """
        cdef Py_ssize_t position, n = len(topic_filter)
        cdef Ref ref
        cdef uint8_t* p
        if node >= NODES_MAX or self.is_ended(node):
            raise ValueError(node)
        ref = self.make_filter(topic_filter, n, text_hash(topic_filter, n, self.seed))
        position = self.route_of(ref, node)
        if position >= 0:
            p = record_at(&self.arena, ref)
            p = items_at(&self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN)
            p[position * HOLDER_SIZE + REF_SIZE] = options | ROUTE
            return False
        try:
            self.add_holder(ref, node, options | ROUTE)
        except MemoryError:
            self.end_filter(ref)
            raise
        self.routes += 1
        return True

    cpdef bint unroute(self, uint32_t node, bytes topic_filter) except -1:
        """Remove a route of a node. False: it has none."""
        cdef Py_ssize_t n = len(topic_filter)
        cdef Ref ref = self.find_filter(topic_filter, n, text_hash(topic_filter, n, self.seed))
        cdef Py_ssize_t position = self.route_of(ref, node) if ref and not self.is_ended(node) else -1
        if position < 0:
            return False
        self.remove_holder(ref, <uint32_t>position)
        self.routes -= 1
        return True

    def end_node(self, uint32_t node):
        """A node's routes match nothing from now on; `remove_ended` removes them."""
        if node >= NODES_MAX:
            raise ValueError(node)
        self.ended[node >> 3] |= <uint8_t>(1 << (node & 7))
        self.swept = 0

    def remove_ended(self):
        """Remove the routes of nodes that have ended from one segment; to be called until it returns False."""
        cdef uint32_t i, position
        cdef Ref ref
        cdef uint8_t* p
        cdef uint8_t* items
        if self.swept == SEGMENT_COUNT:
            return False
        for ref in refs_in(&self.by_filter, self.swept):
            p = record_at(&self.arena, ref)
            position = get_short(p + ROUTES)
            while position:
                position -= 1
                items = items_at(&self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN)
                if self.is_ended(<uint32_t>get_ref(items + position * HOLDER_SIZE)):
                    self.routes -= 1
                    if self.remove_holder(ref, position):
                        break                              # the filter has ended
        self.swept += 1
        if self.swept < SEGMENT_COUNT:
            return True
        for i in range(sizeof(self.ended)):
            self.ended[i] = 0
        return False

    cdef bint is_ended(self, uint32_t node) noexcept:
        return node < NODES_MAX and self.ended[node >> 3] >> (node & 7) & 1

    cdef Py_ssize_t route_of(self, Ref ref, uint32_t node) noexcept:
        """The position of a node among the holders of a filter, or -1."""
        cdef uint8_t* p = record_at(&self.arena, ref)
        cdef uint8_t* items = items_at(&self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN)
        cdef uint32_t i
        for i in range(get_short(p + ROUTES)):
            if get_ref(items + i * HOLDER_SIZE) == node:
                return i
        return -1

    # ---- filters ----

    cdef Ref find_filter(self, const uint8_t* text, Py_ssize_t n, uint64_t h) noexcept:
        """The record of a filter, or 0."""
        cdef Segment* segment = segment_of(&self.by_filter, h)
        cdef uint64_t* entry
        if segment.entries == NULL:
            return 0
        entry = entry_from(first_entry(segment, bits_of(h)), bits_of(h))
        while entry != NULL and not self.is_filter(ref_of(entry[0]), text, n):
            entry = entry_from(entry + 1, bits_of(h))
        return ref_of(entry[0]) if entry != NULL else 0

    cdef bint is_filter(self, Ref ref, const uint8_t* text, Py_ssize_t n) noexcept:
        cdef const uint8_t* p = record_at(&self.arena, ref)
        return get_short(p + TEXT_LENGTH) == n and memcmp(p + FILTER_SIZE, text, n) == 0

    cdef Shape* shape_of(self, const Shape* shape) noexcept:
        """The shape that is the same, or NULL."""
        cdef uint32_t i
        for i in range(self.shape_count):
            if (self.shapes[i].plus == shape.plus and self.shapes[i].levels == shape.levels
                    and self.shapes[i].below == shape.below):
                return &self.shapes[i]
        return NULL

    cdef Ref make_filter(self, const uint8_t* text, Py_ssize_t n, uint64_t h) except 0:
        """The record of a filter with this hash, made if it is missing. A holder must follow, or `end_filter`."""
        cdef Ref ref = self.find_filter(text, n, h)
        cdef Shape shape
        cdef Shape* known
        cdef uint8_t* p
        if ref:
            return ref
        if not parse_shape(text, n, &shape):
            raise ValueError(text[:n])
        known = self.shape_of(&shape)
        if known == NULL and self.shape_count == SHAPES_MAX:
            raise ValueError(text[:n])
        ref = record_new(&self.arena, FILTER_SIZE + n)
        if not ref:
            raise MemoryError
        if table_add(&self.by_filter, h, ref) < 0:
            record_free(&self.arena, ref, FILTER_SIZE + n)
            raise MemoryError
        if known == NULL:
            known = &self.shapes[self.shape_count]
            known[0] = shape
            self.shape_count += 1
        known.count += 1
        p = record_at(&self.arena, ref)
        put_short(p + TEXT_LENGTH, <uint32_t>n)
        put_number(p + HOLDERS, 0)
        put_short(p + ROUTES, 0)
        memcpy(p + FILTER_SIZE, text, n)
        return ref

    cdef int end_filter(self, Ref ref) except -1:
        """Remove a filter if it has no holder. Returns whether it had none."""
        cdef uint8_t* p = record_at(&self.arena, ref)
        cdef Py_ssize_t n = get_short(p + TEXT_LENGTH)
        cdef Shape shape
        cdef Shape* known
        if get_number(p + HOLDERS):
            return False
        parse_shape(p + FILTER_SIZE, n, &shape)
        known = self.shape_of(&shape)
        known.count -= 1
        if known.count == 0:
            self.shape_count -= 1
            known[0] = self.shapes[self.shape_count]
        table_remove(&self.by_filter, text_hash(p + FILTER_SIZE, n, self.seed), ref)
        record_free(&self.arena, ref, FILTER_SIZE + n)
        return True

    cdef int add_holder(self, Ref ref, uint64_t holder, uint8_t options) except -1:
        """Add a session at the end, or a node behind the other nodes."""
        cdef uint8_t* p = record_at(&self.arena, ref)
        cdef uint32_t position = get_number(p + HOLDERS), routes = get_short(p + ROUTES)
        cdef uint8_t* items
        if items_reserve(&self.arena, p + HOLDER_PLACE, position, HOLDERS_WITHIN, HOLDER_SIZE) < 0:
            raise MemoryError
        put_number(p + HOLDERS, position + 1)
        items = items_at(&self.arena, p + HOLDER_PLACE, position + 1, HOLDERS_WITHIN)
        if options & ROUTE:
            put_short(p + ROUTES, routes + 1)
            if position != routes:
                self.move_holder(ref, items, routes, position)
            position = routes
        put_ref(items + position * HOLDER_SIZE, holder)
        items[position * HOLDER_SIZE + REF_SIZE] = options
        if not options & ROUTE:
            self.note_position(holder, ref, position)
        return 0

    cdef int move_holder(self, Ref ref, uint8_t* items, uint32_t position, uint32_t to) noexcept:
        """Move a holder of a filter to another position, which its session notes."""
        cdef uint8_t* item = items + to * HOLDER_SIZE
        memcpy(item, items + position * HOLDER_SIZE, HOLDER_SIZE)
        if not item[REF_SIZE] & ROUTE:
            self.note_position(get_ref(item), ref, to)
        return 0

    cdef int note_position(self, Ref session, Ref ref, uint32_t position) noexcept:
        """A session has another position at its filter."""
        cdef uint8_t* p = record_at(&self.arena, session)
        cdef uint8_t* items = items_at(&self.arena, p + ENTRY_PLACE, get_short(p + ENTRIES), ENTRIES_WITHIN)
        put_number(items + self.entry_of(session, ref) * ENTRY_SIZE + REF_SIZE, position)
        return 0

    cdef int remove_holder(self, Ref ref, uint32_t position) except -1:
        """Remove a holder; the last one moves into the gap. Returns whether the filter has ended with it."""
        cdef uint8_t* p = record_at(&self.arena, ref)
        cdef uint32_t last = get_number(p + HOLDERS) - 1, routes = get_short(p + ROUTES)
        cdef uint8_t* items = items_at(&self.arena, p + HOLDER_PLACE, last + 1, HOLDERS_WITHIN)
        if position < routes:
            routes -= 1
            put_short(p + ROUTES, routes)
            if position != routes:
                self.move_holder(ref, items, routes, position)
            position = routes
        if position != last:
            self.move_holder(ref, items, last, position)
        put_number(p + HOLDERS, last)
        items_release(&self.arena, p + HOLDER_PLACE, last, HOLDERS_WITHIN, HOLDER_SIZE)
        return self.end_filter(ref)

    # ---- matching ----

    def match(self, bytes topic not None):
        """The sessions and nodes that have a filter which matches a topic name.

        Returns:
            A list of (client id, incarnation, options), and a list of (node, options). One with several matching
            filters is there several times.
        """
        cdef Py_ssize_t i
        cdef Ref holder
        cdef list sessions = [], routes = []
        self.find_matches(topic, len(topic))
        for i in range(self.match_count):
            holder = self.matches[i].holder
            if self.matches[i].options & ROUTE:
                routes.append((holder, self.matches[i].options & ~ROUTE))
            else:
                sessions.append((self.client_id_at(holder), self.incarnation_at(holder), self.matches[i].options))
        return sessions, routes

    cdef int find_matches(self, const uint8_t* topic, Py_ssize_t n) except -1:
        """Write the holders of all filters that match a topic name to `matches`."""
        cdef uint32_t starts[SHAPE_LEVELS + 2]         # of the levels; one more is behind the last
        cdef Probe probes[PROBES]
        cdef const uint8_t* slash
        cdef Shape* shape
        cdef uint8_t* to
        cdef uint32_t i
        cdef int levels = 0, count = 0, hidden = -1
        cdef bint is_long = False                      # it has more levels than a shape
        self.match_count = 0
        starts[0] = 0
        while True:
            slash = <const uint8_t*>memchr(topic + starts[levels], c'/', n - starts[levels])
            levels += 1
            starts[levels] = <uint32_t>((slash - topic if slash != NULL else n) + 1)
            if slash == NULL:
                break
            if levels == SHAPE_LEVELS:
                is_long = True
                break
        if n and topic[0] == c'$':
            hidden = 0
            if (begins_tenant(topic, n) and levels > TENANT_LEVELS and starts[TENANT_LEVELS] < n
                    and topic[starts[TENANT_LEVELS]] == c'$'):
                hidden = TENANT_LEVELS
        if array_reserve(<void**>&self.texts, PROBES * (n + SHAPE_LEVELS + 2), &self.texts_capacity, 1) < 0:
            raise MemoryError                          # '+' is longer than an empty level
        to = self.texts
        for i in range(self.shape_count):
            shape = &self.shapes[i]
            if shape.levels > levels or (not shape.below and (is_long or shape.levels != levels)):
                continue
            # Wildcards at the first level don't match topics that begin with $ [MQTT-4.7.2-1].
            if hidden >= 0 and (is_wild_at(shape, 0) or (hidden and is_wild_at(shape, hidden))):
                continue
            probes[count].text = to
            to = write_filter(to, shape, topic, starts)
            probes[count].length = <uint32_t>(to - probes[count].text)
            count += 1
            if count == PROBES:
                self.look_up(probes, count)
                count = 0
                to = self.texts
        return self.look_up(probes, count)

    cdef int look_up(self, Probe* probes, int count) except -1:
        """Look up some filters at once: each step fetches the memory that the next one reads."""
        cdef Probe* probe
        cdef Segment* segment
        cdef int i
        for i in range(count):
            probe = &probes[i]
            probe.hash = text_hash(probe.text, probe.length, self.seed)
            fetch(&self.by_filter, probe.hash)
        for i in range(count):
            probe = &probes[i]
            segment = segment_of(&self.by_filter, probe.hash)
            probe.entry = NULL
            if segment.entries != NULL:
                probe.entry = entry_from(first_entry(segment, bits_of(probe.hash)), bits_of(probe.hash))
                if probe.entry != NULL:
                    __builtin_prefetch(record_at(&self.arena, ref_of(probe.entry[0])))
        for i in range(count):
            probe = &probes[i]
            while probe.entry != NULL:
                if self.is_filter(ref_of(probe.entry[0]), probe.text, probe.length):
                    self.collect(ref_of(probe.entry[0]))
                    break
                probe.entry = entry_from(probe.entry + 1, bits_of(probe.hash))
        return 0

    cdef int collect(self, Ref ref) except -1:
        """Add the holders of a filter to the matches."""
        cdef uint8_t* p = record_at(&self.arena, ref)
        cdef uint32_t i, count = get_number(p + HOLDERS), routes = get_short(p + ROUTES)
        cdef uint8_t* items = items_at(&self.arena, p + HOLDER_PLACE, count, HOLDERS_WITHIN)
        cdef bint some_ended = self.swept < SEGMENT_COUNT
        if array_reserve(<void**>&self.matches, self.match_count + count, &self.match_capacity, sizeof(Match)) < 0:
            raise MemoryError
        for i in range(count):
            if i < routes and some_ended and self.is_ended(<uint32_t>get_ref(items)):
                items += HOLDER_SIZE
                continue
            self.matches[self.match_count] = Match(get_ref(items), items[REF_SIZE])
            if i >= routes:
                __builtin_prefetch(record_at(&self.arena, self.matches[self.match_count].holder))
            self.match_count += 1
            items += HOLDER_SIZE
        return 0

    # ---- walks, a segment a step: a record that is there all the time is found once ----

    def sessions_in(self, int segment):
        """The sessions of a segment (0 to SEGMENTS - 1): a list of (client id, incarnation, [(filter, options)])."""
        return [self.described(ref) for ref in refs_in(&self.by_client_id, segment)]

    cdef tuple described(self, Ref session):
        return self.client_id_at(session), self.incarnation_at(session), self.filters_of(session)

    cdef list filters_of(self, Ref session):
        cdef uint8_t* p = record_at(&self.arena, session)
        cdef uint32_t i, position, count = get_short(p + ENTRIES)
        cdef uint8_t* items = items_at(&self.arena, p + ENTRY_PLACE, count, ENTRIES_WITHIN)
        cdef list found = []
        for i in range(count):
            position = get_number(items + i * ENTRY_SIZE + REF_SIZE)
            p = record_at(&self.arena, get_ref(items + i * ENTRY_SIZE))
            found.append((text_at(p), items_at(
                &self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN,
            )[position * HOLDER_SIZE + REF_SIZE]))
        return found

    def routes_in(self, int segment):
        """The routes to filters of a segment, of nodes that have not ended: a list of (filter, node, options)."""
        cdef uint32_t k, node
        cdef uint8_t* p
        cdef uint8_t* items
        cdef Ref ref
        cdef list found = []
        for ref in refs_in(&self.by_filter, segment):
            p = record_at(&self.arena, ref)
            items = items_at(&self.arena, p + HOLDER_PLACE, get_number(p + HOLDERS), HOLDERS_WITHIN)
            for k in range(get_short(p + ROUTES)):
                node = <uint32_t>get_ref(items + k * HOLDER_SIZE)
                if not self.is_ended(node):
                    found.append((text_at(p), node, items[k * HOLDER_SIZE + REF_SIZE] & ~ROUTE))
        return found


cdef inline uint8_t* write_filter(uint8_t* to, const Shape* shape, const uint8_t* topic,
                                  const uint32_t* starts) noexcept:
    """Write the filter of a shape that matches a topic name. Returns its end."""
    cdef uint32_t at = 0, end
    cdef uint64_t plus = shape.plus
    cdef int level
    while plus:
        level = __builtin_ctzll(plus)
        plus &= plus - 1
        memcpy(to, topic + at, starts[level] - at)
        to += starts[level] - at
        to[0] = c'+'
        to += 1
        at = starts[level + 1] - 1                     # of the slash
    if shape.levels:
        end = starts[shape.levels] - 1
        memcpy(to, topic + at, end - at)
        to += end - at
        if shape.below:
            to[0] = c'/'
            to += 1
    if shape.below:
        to[0] = c'#'
        to += 1
    return to
