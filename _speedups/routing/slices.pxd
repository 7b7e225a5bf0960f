# The persistent sessions that get a message, in the order of a hash of their client ids. The blocks of a journal give
# it to them in this order, so that any node can go on from where another one has ended. Inline.

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy, memset

from ..base.name_hash cimport hash_of
from ..session.subscriber cimport SHARED, Plan, Receiver, Subscriber

cdef struct Place:
    Receiver receiver
    uint32_t hash              # of its client id

cdef struct Slices:
    Place* places
    uint32_t count
    Plan identifiers           # a plan with nothing but subscription identifiers, of the receivers


cdef inline int compare_places(const void* a, const void* b) noexcept nogil:
    cdef uint32_t x = (<const Place*>a).hash, y = (<const Place*>b).hash
    return -1 if x < y else x > y


cdef inline int slices_make(Slices* slices, const Plan* plan) except -1:
    """Copy the persistent sessions of a plan that get QoS 1 or 2. The caller calls `slices_free`."""
    cdef uint32_t i, identifiers_size = 0
    cdef Receiver* receiver
    cdef Place* place
    cdef bytes client_id
    memset(slices, 0, sizeof(Slices))
    for i in range(plan.count):
        receiver = &plan.receivers[i]
        if (<Subscriber>receiver.subscriber).kind == SHARED and receiver.qos:
            slices.count += 1
            identifiers_size = max(identifiers_size, receiver.identifiers_at + receiver.identifiers_size)
    slices.places = <Place*>malloc(slices.count * sizeof(Place) + identifiers_size + 1)
    if slices.places == NULL:
        raise MemoryError
    slices.identifiers.identifiers = <uint8_t*>(slices.places + slices.count)
    if identifiers_size:
        memcpy(slices.identifiers.identifiers, plan.identifiers, identifiers_size)
    place = slices.places
    for i in range(plan.count):
        receiver = &plan.receivers[i]
        if (<Subscriber>receiver.subscriber).kind == SHARED and receiver.qos:
            client_id = (<Subscriber>receiver.subscriber).client_id
            place[0] = Place(receiver[0], hash_of(client_id, len(client_id)))
            place += 1
    qsort(slices.places, slices.count, sizeof(Place), compare_places)
    return 0


cdef inline void slices_free(Slices* slices) noexcept:
    free(slices.places)
