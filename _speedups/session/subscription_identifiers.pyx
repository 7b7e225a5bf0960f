"""Sets of subscription identifiers, as encoded properties: an entry of a session's queue has the number of its set."""

from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from .outgoing_queue cimport OF_GROUP, Entry, OutgoingQueue, queue_entry

cdef enum:
    IDENTIFIER_SETS_MAX = 4096 # sets of subscription identifiers in a queue; past it messages get none


cdef uint16_t identifier_set(OutgoingQueue* queue, uint64_t tail, const uint8_t* identifiers, Py_ssize_t n) except? 0:
    """The number of a set of subscription identifiers, as encoded properties; 0: there are too many sets.

    `queue`: with memory; `tail`: the queue number after its last entry.
    """
    cdef bytes wanted = identifiers[:n]
    cdef list sets
    if queue.head == tail:
        forget_identifier_sets(queue)
    if queue.identifier_sets == NULL:
        sets = [b""]
        Py_INCREF(sets)
        queue.identifier_sets = <PyObject*>sets
    sets = <list>queue.identifier_sets
    if wanted in sets:
        return <uint16_t>sets.index(wanted)
    if len(sets) >= IDENTIFIER_SETS_MAX:
        sets = used_identifier_sets(queue, tail)
        if len(sets) >= IDENTIFIER_SETS_MAX:
            return 0
    sets.append(wanted)
    return <uint16_t>(len(sets) - 1)


cdef int forget_identifier_sets(OutgoingQueue* queue) except -1:
    """The queue is empty."""
    Py_XDECREF(queue.identifier_sets)
    queue.identifier_sets = NULL
    return 0


cdef list used_identifier_sets(OutgoingQueue* queue, uint64_t tail):
    """Keep only the sets that entries of the queue have, with new numbers."""
    cdef list sets = <list>queue.identifier_sets, used = [b""]
    cdef dict numbers = {0: 0}
    cdef uint64_t n
    cdef Entry* e
    for n in range(queue.head, tail):
        e = queue_entry(queue, n)
        if e.message != NULL and e.identifiers and not e.flags & OF_GROUP:
            if e.identifiers not in numbers:
                numbers[e.identifiers] = len(used)
                used.append(sets[e.identifiers])
            e.identifiers = <uint16_t>numbers[e.identifiers]
    sets[:] = used
    return sets
