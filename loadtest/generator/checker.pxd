# The check of sequence numbers: which messages of a publisher a subscriber lost, got twice, or out of order.

from libc.stdint cimport uint64_t
from libc.string cimport memset

cdef enum:
    WORDS = 16
    WINDOW = WORDS * 64         # sequence numbers; within this distance a duplicate differs from a late message

cdef enum:
    IN_ORDER = 0
    REORDERED = 1               # arrived for the first time, but after a later one
    DUPLICATE = 2
    STALE = 3                   # more than WINDOW behind: late or duplicate, undecidable

cdef struct Stream:
    uint64_t highest            # the highest sequence number seen; they start at 1, so 0 means none
    uint64_t[WORDS] seen        # one bit for each of the WINDOW numbers up to `highest`, at number % WINDOW


cdef inline int observe(Stream* stream, uint64_t sequence) noexcept nogil:
    """Record a received sequence number; returns one of the four results."""
    cdef uint64_t bit = <uint64_t>1 << (sequence & 63)
    cdef uint64_t word = (sequence & (WINDOW - 1)) >> 6
    cdef uint64_t number
    if sequence > stream.highest:
        if sequence - stream.highest >= WINDOW:
            memset(stream.seen, 0, sizeof(stream.seen))
        else:  # the numbers between are unseen: their bits belong to numbers WINDOW before
            for number in range(stream.highest + 1, sequence):
                stream.seen[(number & (WINDOW - 1)) >> 6] &= ~(<uint64_t>1 << (number & 63))
        stream.seen[word] |= bit
        stream.highest = sequence
        return IN_ORDER
    if stream.highest - sequence >= WINDOW:
        return STALE
    if stream.seen[word] & bit:
        return DUPLICATE
    stream.seen[word] |= bit
    return REORDERED
