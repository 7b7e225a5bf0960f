# Growable memory without Python objects: byte buffers with a pool of blocks, and arrays of pointers.
#
# Owner rule: the object that holds a Buffer or a Pointers by value frees it, with buffer_free or pointers_free.
# All functions are inline: a call across modules would cost more than the work.

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from .array cimport array_reserve

cdef enum:
    BLOCK_SMALLEST = 1024      # bytes; a block of class k has BLOCK_SMALLEST << k bytes
    BLOCK_CLASSES = 8          # so pooled blocks have 1 KiB to 128 KiB
    POOL_MAX = 8388608        # bytes kept in a pool; the excess is freed

cdef struct Pool:
    uint8_t* blocks[BLOCK_CLASSES]   # lists: each free block begins with the address of the next
    Py_ssize_t kept                  # bytes in all of them

cdef struct Buffer:
    uint8_t* data              # NULL while empty: an idle connection owns no memory
    Py_ssize_t start           # first byte not yet consumed
    Py_ssize_t end             # one past the last byte written
    Py_ssize_t capacity
    uint8_t usual              # the block class that sufficed last time: no growth in steady state

cdef struct Pointers:
    void** items
    Py_ssize_t count
    Py_ssize_t capacity


cdef inline int block_class(Py_ssize_t size) noexcept nogil:
    """The smallest class whose blocks hold `size` bytes; BLOCK_CLASSES when none does."""
    cdef int k = 0
    while k < BLOCK_CLASSES and (<Py_ssize_t>BLOCK_SMALLEST << k) < size:
        k += 1
    return k


cdef inline uint8_t* block_take(Pool* pool, Py_ssize_t size, Py_ssize_t* capacity) noexcept nogil:
    """Memory for at least `size` bytes; NULL when there is none."""
    cdef int k = block_class(size)
    cdef uint8_t* block
    if k == BLOCK_CLASSES:
        capacity[0] = size + (size >> 1)
        return <uint8_t*>malloc(capacity[0])
    capacity[0] = <Py_ssize_t>BLOCK_SMALLEST << k
    block = pool.blocks[k]
    if block == NULL:
        return <uint8_t*>malloc(capacity[0])
    pool.blocks[k] = (<uint8_t**>block)[0]
    pool.kept -= capacity[0]
    return block


cdef inline void block_give(Pool* pool, uint8_t* block, Py_ssize_t capacity) noexcept nogil:
    cdef int k = block_class(capacity)
    if k == BLOCK_CLASSES or pool.kept + capacity > POOL_MAX:
        free(block)
        return
    (<uint8_t**>block)[0] = pool.blocks[k]
    pool.blocks[k] = block
    pool.kept += capacity


cdef inline void pool_free(Pool* pool) noexcept nogil:
    cdef int k
    cdef uint8_t* block
    for k in range(BLOCK_CLASSES):
        while pool.blocks[k] != NULL:
            block = pool.blocks[k]
            pool.blocks[k] = (<uint8_t**>block)[0]
            free(block)
    pool.kept = 0


cdef inline Py_ssize_t buffer_size(const Buffer* b) noexcept nogil:
    return b.end - b.start


cdef inline uint8_t* buffer_reserve_slow(Buffer* b, Pool* pool, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t size = b.end - b.start
    cdef Py_ssize_t wanted, capacity = 0
    cdef uint8_t* data
    if b.start > (b.capacity >> 1) and size + n <= b.capacity:
        memmove(b.data, b.data + b.start, size)
    else:
        wanted = size + n
        if b.data != NULL:
            wanted += size                      # grow geometrically
        elif wanted < (<Py_ssize_t>BLOCK_SMALLEST << b.usual):
            wanted = <Py_ssize_t>BLOCK_SMALLEST << b.usual
        data = block_take(pool, wanted, &capacity)
        if data == NULL:
            return NULL
        if b.data != NULL:
            memcpy(data, b.data + b.start, size)
            block_give(pool, b.data, b.capacity)
        b.data = data
        b.capacity = capacity
    b.start = 0
    b.end = size
    return b.data + size


cdef inline uint8_t* buffer_reserve(Buffer* b, Pool* pool, Py_ssize_t n) noexcept nogil:
    """Room for the next `n` bytes; the caller then adds the bytes written to `end`. NULL: out of memory."""
    if b.capacity - b.end >= n and b.data != NULL:
        return b.data + b.end
    return buffer_reserve_slow(b, pool, n)


cdef inline int buffer_append(Buffer* b, Pool* pool, const void* data, Py_ssize_t n) noexcept nogil:
    cdef uint8_t* p = buffer_reserve(b, pool, n)
    if p == NULL:
        return -1
    memcpy(p, data, n)
    b.end += n
    return 0


cdef inline void buffer_free(Buffer* b, Pool* pool) noexcept nogil:
    """Return the memory to the pool, and store the block class that was needed."""
    cdef int k
    if b.data != NULL:
        k = block_class(b.end if b.end > 0 else 1)
        b.usual = <uint8_t>(k if k < BLOCK_CLASSES else BLOCK_CLASSES - 1)
        block_give(pool, b.data, b.capacity)
        b.data = NULL
    b.start = b.end = b.capacity = 0


cdef inline int pointers_push(Pointers* p, void* item) noexcept nogil:
    if array_reserve(<void**>&p.items, p.count + 1, &p.capacity, sizeof(void*)) < 0:
        return -1
    p.items[p.count] = item
    p.count += 1
    return 0


cdef inline void pointers_free(Pointers* p) noexcept nogil:
    free(p.items)
    p.items = NULL
    p.count = p.capacity = 0
