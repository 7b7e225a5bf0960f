# A hash table of 8 bytes an entry, in segments that grow one by one: no growth takes long, and a walk has 4096 steps.
#
# The first 12 bits of a hash choose the segment, and the next 24 stand in the entry beside the Ref of a record. A
# segment is in the order of these bits, with gaps: an entry is at the place that its bits give it in the segment's
# room, or as soon after it as the order allows. So a segment grows without reading a record, and a search for a name
# that is not there ends at the first larger bits. Entries with the same bits are told apart by the caller, who compares
# the names.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from .arena cimport Ref

cdef extern from *:
    """
    static CYTHON_INLINE uint64_t fold_product(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t fold_product(uint64_t a, uint64_t b) noexcept nogil
    void __builtin_prefetch(const void* p) noexcept nogil

cdef enum:
    SEGMENTS = 4096
    SEGMENT_SHIFT = 52         # of a hash
    BITS_SHIFT = 28            # of a hash, for the bits in the entry
    BITS = 24
    REF_BITS = 40              # of an entry: its Ref; above are the bits of the hash
    ROOM_FIRST = 7             # places of a segment
    TAIL = 8                   # places behind the room, for entries that are pushed on; one more is always empty

cdef struct Segment:
    uint64_t* entries          # 0: empty
    uint32_t count
    uint32_t room

cdef struct Table:
    Segment* segments
    uint64_t count             # entries
    int64_t size               # bytes


cdef inline uint64_t text_hash(const uint8_t* p, Py_ssize_t n, uint64_t seed) noexcept nogil:
    """Eight bytes at a time. Without the seed, nobody can find names that share a place."""
    cdef uint64_t h = seed ^ <uint64_t>n, w
    while n >= 8:
        memcpy(&w, p, 8)
        h = fold_product(h ^ w, 0x9FB21C651E98DF25u ^ seed)
        p += 8
        n -= 8
    w = 0
    memcpy(&w, p, n)
    h = fold_product(h ^ w, 0x9FB21C651E98DF25u ^ seed)
    return fold_product(h, 0x9E3779B97F4A7C15u)


cdef inline Segment* segment_of(const Table* table, uint64_t h) noexcept nogil:
    return &table.segments[h >> SEGMENT_SHIFT]


cdef inline uint32_t bits_of(uint64_t h) noexcept nogil:
    return <uint32_t>(h >> BITS_SHIFT) & ((1 << BITS) - 1)


cdef inline uint32_t home_of(const Segment* segment, uint32_t bits) noexcept nogil:
    return <uint32_t>(<uint64_t>bits * segment.room >> BITS)


cdef inline uint64_t* first_entry(const Segment* segment, uint32_t bits) noexcept nogil:
    """Where an entry with these bits is, or another before it."""
    return segment.entries + home_of(segment, bits)


cdef inline uint64_t* entry_from(uint64_t* entry, uint32_t bits) noexcept nogil:
    """The first entry with these bits from here on, or NULL."""
    while entry[0] and entry[0] >> REF_BITS < bits:
        entry += 1
    return entry if entry[0] and entry[0] >> REF_BITS == bits else NULL


cdef inline void fetch(const Table* table, uint64_t h) noexcept nogil:
    """Begin to fetch the memory that a search for a hash reads."""
    cdef Segment* segment = segment_of(table, h)
    cdef uint64_t* entry
    if segment.entries != NULL:
        entry = first_entry(segment, bits_of(h))
        __builtin_prefetch(entry)
        __builtin_prefetch(entry + 7)


cdef inline Ref ref_of(uint64_t entry) noexcept nogil:
    return entry & ((<uint64_t>1 << REF_BITS) - 1)


cdef inline int segment_resize(Table* table, Segment* segment, uint32_t room) noexcept:
    """Another room for its entries. -1: out of memory, and nothing has changed."""
    cdef Segment made
    cdef uint32_t i, at, last
    cdef bint fits = False
    while not fits:
        made = Segment(<uint64_t*>calloc(room + TAIL + 1, sizeof(uint64_t)), segment.count, room)
        if made.entries == NULL:
            return -1
        last = 0
        fits = True
        for i in range(segment.room + TAIL if segment.entries != NULL else 0):
            if segment.entries[i]:
                at = max(home_of(&made, <uint32_t>(segment.entries[i] >> REF_BITS)), last)
                if at >= room + TAIL:
                    fits = False
                    free(made.entries)
                    room += room // 8 + 1
                    break
                made.entries[at] = segment.entries[i]
                last = at + 1
    if segment.entries != NULL:
        table.size -= (segment.room + TAIL + 1) * <int64_t>sizeof(uint64_t)
        free(segment.entries)
    table.size += (room + TAIL + 1) * <int64_t>sizeof(uint64_t)
    segment[0] = made
    return 0


cdef inline int table_add(Table* table, uint64_t h, Ref ref) noexcept:
    """Add an entry. -1: out of memory, and nothing has changed."""
    cdef Segment* segment = segment_of(table, h)
    cdef uint32_t bits = bits_of(h)
    cdef uint64_t* at
    cdef uint64_t* gap
    if segment.entries == NULL and segment_resize(table, segment, ROOM_FIRST) < 0:
        return -1
    if (segment.count + 1) * 8 > <uint64_t>segment.room * 7:
        if segment_resize(table, segment, segment.room + segment.room // 8 + 1) < 0:
            return -1
    while True:
        at = first_entry(segment, bits)
        while at[0] and at[0] >> REF_BITS <= bits:
            at += 1
        gap = at
        while gap[0]:
            gap += 1
        if gap < segment.entries + segment.room + TAIL:
            break
        if segment_resize(table, segment, segment.room + segment.room // 8 + 1) < 0:
            return -1
    memmove(at + 1, at, (gap - at) * sizeof(uint64_t))
    at[0] = <uint64_t>bits << REF_BITS | ref
    segment.count += 1
    table.count += 1
    return 0


cdef inline void table_remove(Table* table, uint64_t h, Ref ref) noexcept:
    """Remove the entry of a record."""
    cdef Segment* segment = segment_of(table, h)
    cdef uint64_t* at = first_entry(segment, bits_of(h))
    while ref_of(at[0]) != ref:
        at += 1
    while at[1] and home_of(segment, <uint32_t>(at[1] >> REF_BITS)) <= <uint32_t>(at - segment.entries):
        at[0] = at[1]
        at += 1
    at[0] = 0
    segment.count -= 1
    table.count -= 1
    if segment.count == 0:
        free(segment.entries)
        table.size -= (segment.room + TAIL + 1) * <int64_t>sizeof(uint64_t)
        segment[0] = Segment(NULL, 0, 0)
    elif segment.room > 2 * ROOM_FIRST and segment.count < segment.room // 2:
        segment_resize(table, segment, segment.count + segment.count // 4 + 1)


cdef inline int table_init(Table* table) noexcept:
    """-1: out of memory."""
    table.segments = <Segment*>calloc(SEGMENTS, sizeof(Segment))
    table.size = SEGMENTS * sizeof(Segment)
    return 0 if table.segments != NULL else -1


cdef inline void table_free(Table* table) noexcept:
    cdef int i
    if table.segments != NULL:
        for i in range(SEGMENTS):
            free(table.segments[i].entries)
    free(table.segments)
