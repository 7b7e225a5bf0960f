"""The generator's check of sequence numbers, for tests: the same inlined function, one number at a time."""

from libc.stdint cimport uint64_t
from libc.string cimport memset

from loadtest.generator.checker cimport DUPLICATE, IN_ORDER, REORDERED, STALE, Stream, observe


def check_sequence(numbers, uint64_t sent):
    """Judge `numbers`, as received from one publisher that sent 1 to `sent`; return counts by name.

    `received` counts first arrivals, `lost` is `sent` less those. A number too far behind to tell whether it is
    late or a duplicate counts as `reordered` and as received.
    """
    cdef Stream stream
    cdef int verdict
    cdef uint64_t received = 0, duplicates = 0, reordered = 0
    memset(&stream, 0, sizeof(stream))
    for number in numbers:
        verdict = observe(&stream, number)
        if verdict == DUPLICATE:
            duplicates += 1
            continue
        received += 1
        if verdict != IN_ORDER:
            reordered += 1
    return {
        "received": received,
        "lost": sent - received if sent > received else 0,
        "duplicates": duplicates,
        "reordered": reordered,
    }
