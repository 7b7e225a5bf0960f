# Memory for millions of small records: 5 bytes name a record, and no record has an allocator's header.
#
# Records are in chunks of 1 MiB, in units of 4 bytes. One that ends is in the list of its size and is used again; a
# chunk in which no record is left is given back. A record above 508 bytes has a chunk for itself. A record never moves
# unless it is resized. The first byte of a record is the arena's.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from .array cimport array_reserve

cdef enum:
    REF_SIZE = 5               # bytes of a Ref where it is stored
    UNIT = 4                   # bytes
    UNIT_BITS = 18             # of a Ref, for the unit within the chunk; the others are the chunk's number
    CHUNK_UNITS = 262144
    LEAST_UNITS = 3            # of a record: an unused one has two refs
    MOST_UNITS = 127           # of a record that shares its chunk
    UNUSED = 128               # bit of the first byte: it is in the list of its size
    LIST_HEADS = MOST_UNITS + 1
    NO_CHUNK = 0xffffffff

ctypedef uint64_t Ref          # of a record; 0: none

cdef struct Chunk:
    uint8_t* base              # NULL: the number is not in use
    uint32_t used              # units that were given out, or the next number that is not in use
    uint32_t live              # units of records

cdef struct Arena:
    Chunk* chunks
    Py_ssize_t count, capacity
    uint32_t current           # number of the chunk from which new records come, plus 1; 0: there is none
    uint32_t numbers           # first number that is not in use, plus 1; 0: none
    Ref unused[LIST_HEADS]     # the first record of so many units that is not in use
    int64_t size               # bytes of all chunks


cdef inline uint8_t* record_at(const Arena* arena, Ref ref) noexcept nogil:
    return arena.chunks[ref >> UNIT_BITS].base + (ref & (CHUNK_UNITS - 1)) * UNIT


cdef inline Ref get_ref(const uint8_t* p) noexcept nogil:
    cdef uint32_t low
    memcpy(&low, p, 4)
    return low | <Ref>p[4] << 32


cdef inline void put_ref(uint8_t* p, Ref ref) noexcept nogil:
    cdef uint32_t low = <uint32_t>ref
    memcpy(p, &low, 4)
    p[4] = <uint8_t>(ref >> 32)


cdef inline uint32_t get_number(const uint8_t* p) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, p, 4)
    return number


cdef inline void put_number(uint8_t* p, uint32_t number) noexcept nogil:
    memcpy(p, &number, 4)


cdef inline uint32_t units_of(Py_ssize_t size) noexcept nogil:
    return <uint32_t>max((size + UNIT - 1) // UNIT, <Py_ssize_t>LEAST_UNITS)


# ---- unused records: a list for each size ----

cdef inline void list_put(Arena* arena, Ref ref, uint32_t units) noexcept:
    cdef uint8_t* p = record_at(arena, ref)
    p[0] = <uint8_t>(UNUSED | units)
    put_ref(p + 1, arena.unused[units])
    put_ref(p + 1 + REF_SIZE, 0)
    if arena.unused[units]:
        put_ref(record_at(arena, arena.unused[units]) + 1 + REF_SIZE, ref)
    arena.unused[units] = ref


cdef inline void list_take(Arena* arena, Ref ref, uint32_t units) noexcept:
    cdef uint8_t* p = record_at(arena, ref)
    cdef Ref following = get_ref(p + 1), previous = get_ref(p + 1 + REF_SIZE)
    if following:
        put_ref(record_at(arena, following) + 1 + REF_SIZE, previous)
    if previous:
        put_ref(record_at(arena, previous) + 1, following)
    else:
        arena.unused[units] = following


# ---- chunks ----

cdef inline uint32_t chunk_new(Arena* arena, Py_ssize_t size) noexcept:
    """The number of a new chunk; NO_CHUNK: out of memory."""
    cdef uint32_t number = arena.numbers - 1
    cdef uint8_t* base = <uint8_t*>malloc(size)
    if base == NULL:
        return NO_CHUNK
    if not arena.numbers:
        number = <uint32_t>arena.count
        if array_reserve(<void**>&arena.chunks, arena.count + 1, &arena.capacity, sizeof(Chunk)) < 0:
            free(base)
            return NO_CHUNK
        arena.count += 1
    else:
        arena.numbers = arena.chunks[number].used
    arena.chunks[number] = Chunk(base, 1, 0)           # no record has unit 0 of the first chunk: that is no Ref
    arena.size += size
    return number


cdef inline void chunk_free(Arena* arena, uint32_t number, Py_ssize_t size) noexcept:
    cdef Chunk* chunk = &arena.chunks[number]
    free(chunk.base)
    arena.size -= size
    chunk.base = NULL
    chunk.used = arena.numbers
    arena.numbers = number + 1


cdef inline void chunk_end(Arena* arena, uint32_t number) noexcept:
    """Give a chunk back in which all records are unused."""
    cdef Chunk* chunk = &arena.chunks[number]
    cdef uint32_t unit = 1, units
    while unit < chunk.used:
        units = chunk.base[unit * UNIT] & MOST_UNITS
        list_take(arena, <Ref>number << UNIT_BITS | unit, units)
        unit += units
    chunk_free(arena, number, CHUNK_UNITS * UNIT)


cdef inline bint next_chunk(Arena* arena) noexcept:
    """Begin another chunk; the rest of the one before is a record that is unused."""
    cdef uint32_t number = chunk_new(arena, CHUNK_UNITS * UNIT), before = arena.current - 1
    cdef Chunk* chunk
    cdef uint32_t rest
    if number == NO_CHUNK:
        return False
    arena.current = number + 1
    if before != NO_CHUNK:
        chunk = &arena.chunks[before]
        rest = CHUNK_UNITS - chunk.used
        if rest >= LEAST_UNITS:
            list_put(arena, <Ref>before << UNIT_BITS | chunk.used, rest)
            chunk.used = CHUNK_UNITS
        if chunk.live == 0:
            chunk_end(arena, before)
    return True


# ---- records ----

cdef inline Ref record_new(Arena* arena, Py_ssize_t size) noexcept:
    """A record of so many bytes. 0: out of memory."""
    cdef uint32_t units = units_of(size), number
    cdef Chunk* chunk
    cdef Ref ref
    if units > MOST_UNITS:
        number = chunk_new(arena, size + UNIT)
        return 0 if number == NO_CHUNK else <Ref>number << UNIT_BITS | 1
    ref = arena.unused[units]
    if ref:
        list_take(arena, ref, units)
    else:
        if not arena.current or arena.chunks[arena.current - 1].used + units > CHUNK_UNITS:
            if not next_chunk(arena):
                return 0
        chunk = &arena.chunks[arena.current - 1]
        ref = <Ref>(arena.current - 1) << UNIT_BITS | chunk.used
        chunk.used += units
    arena.chunks[ref >> UNIT_BITS].live += units
    record_at(arena, ref)[0] = <uint8_t>units
    return ref


cdef inline void record_free(Arena* arena, Ref ref, Py_ssize_t size) noexcept:
    """Free a record of so many bytes."""
    cdef uint32_t units = units_of(size), number = <uint32_t>(ref >> UNIT_BITS)
    cdef Chunk* chunk = &arena.chunks[number]
    if units > MOST_UNITS:
        chunk_free(arena, number, size + UNIT)
        return
    list_put(arena, ref, units)
    chunk.live -= units
    if chunk.live == 0 and number + 1 != arena.current:
        chunk_end(arena, number)


cdef inline Ref record_resize(Arena* arena, Ref ref, Py_ssize_t before, Py_ssize_t size) noexcept:
    """The record with another size, perhaps elsewhere. 0: out of memory, and nothing has changed."""
    cdef Chunk* chunk = &arena.chunks[ref >> UNIT_BITS]
    cdef uint8_t* base
    cdef Ref other
    if units_of(before) > MOST_UNITS and units_of(size) > MOST_UNITS:
        base = <uint8_t*>realloc(chunk.base, size + UNIT)
        if base == NULL:
            return 0
        chunk.base = base
        arena.size += size - before
        return ref
    other = record_new(arena, size)
    if other:
        memcpy(record_at(arena, other) + 1, record_at(arena, ref) + 1, min(before, size) - 1)
        record_free(arena, ref, before)
    return other


cdef inline void arena_free(Arena* arena) noexcept:
    cdef Py_ssize_t i
    for i in range(arena.count):
        free(arena.chunks[i].base)
    free(arena.chunks)


# ---- items: the first few within another record, more of them in a record of their own ----

# Where items are: `within` of them, or the Ref of a record and its room in items.
cdef enum:
    ITEMS_SIZE = 9             # bytes that the place of items has at least


cdef inline uint8_t* items_at(const Arena* arena, uint8_t* place, uint32_t count, uint32_t within) noexcept nogil:
    return place if count <= within else record_at(arena, get_ref(place)) + 1


cdef inline Py_ssize_t items_bytes(uint32_t room, Py_ssize_t item) noexcept nogil:
    return 1 + <Py_ssize_t>room * item


cdef inline int items_reserve(Arena* arena, uint8_t* place, uint32_t count, uint32_t within, Py_ssize_t item) noexcept:
    """Room for one more item of `item` bytes after `count`. -1: out of memory, and nothing has changed."""
    cdef uint32_t room, before
    cdef Ref ref
    if count < within:
        return 0
    if count == within:
        room = within + 2
        ref = record_new(arena, items_bytes(room, item))
        if not ref:
            return -1
        memcpy(record_at(arena, ref) + 1, place, within * item)
    else:
        before = get_number(place + REF_SIZE)
        if count < before:
            return 0
        room = before + max(before // 4, <uint32_t>2)
        ref = record_resize(arena, get_ref(place), items_bytes(before, item), items_bytes(room, item))
        if not ref:
            return -1
    put_ref(place, ref)
    put_number(place + REF_SIZE, room)
    return 0


cdef inline void items_release(Arena* arena, uint8_t* place, uint32_t count, uint32_t within, Py_ssize_t item) noexcept:
    """There are `count` items left, after one was removed: give back room that is needed no more."""
    cdef uint32_t room, before
    cdef Ref ref
    if count < within:
        return
    ref = get_ref(place)
    before = get_number(place + REF_SIZE)
    if count == within:
        memcpy(place, record_at(arena, ref) + 1, within * item)
        record_free(arena, ref, items_bytes(before, item))
    elif count < before // 2:
        room = count + max(count // 4, <uint32_t>2)
        if room < before:
            ref = record_resize(arena, ref, items_bytes(before, item), items_bytes(room, item))
            if ref:
                put_ref(place, ref)
                put_number(place + REF_SIZE, room)
