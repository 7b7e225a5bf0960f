"""The check of sequence numbers, one number at a time, for tests: `checker.pxd` has the function."""

from libc.stdint cimport uint64_t
from libc.string cimport memset

from .checker cimport DUPLICATE, IN_ORDER, REORDERED, STALE, Stream, observe


def check_sequence(numbers, uint64_t sent):
    """Check `numbers`, as received from one publisher that sent 1 to `sent`; return counts by name.

    `received` counts first arrivals, `lost` is `sent` minus those. A number more than the window behind is late or a
    duplicate; it counts as `reordered` and as received.
    """
    cdef Stream stream
    cdef int result
    cdef uint64_t received = 0, duplicates = 0, reordered = 0
    memset(&stream, 0, sizeof(stream))
    for number in numbers:
        result = observe(&stream, number)
        if result == DUPLICATE:
            duplicates += 1
            continue
        received += 1
        if result != IN_ORDER:
            reordered += 1
    return {
        "received": received,
        "lost": sent - received if sent > received else 0,
        "duplicates": duplicates,
        "reordered": reordered,
    }
