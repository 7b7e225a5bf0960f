# QoS 2 messages that a client has sent and not released: PUBREC sent, PUBREL awaited. Inline.

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from .message cimport Message, message_release, message_size

cdef enum:
    FIRST_SIZE = 8             # places of the first table

cdef struct Awaiting:
    Message* message           # owns a reference; NULL = an empty place
    uint16_t packet_id
    uint32_t progress          # of its publication, if a node that has ended began that: see Publication
    uint64_t number            # likewise

# A table by packet identifier, open addressing, at most half full. A session without such messages has none: NULL.
cdef struct IncomingQos2:
    uint64_t bytes             # of topic names, properties and payloads
    uint32_t count
    uint32_t mask              # places of the table - 1
    Awaiting items[1]          # mask + 1 of them


cdef inline uint32_t incoming_places(const IncomingQos2* incoming) noexcept nogil:
    """The size of the table; empty places have no message."""
    return incoming.mask + 1 if incoming != NULL else 0


cdef inline uint32_t incoming_count(const IncomingQos2* incoming) noexcept nogil:
    return incoming.count if incoming != NULL else 0


cdef inline uint64_t incoming_bytes(const IncomingQos2* incoming) noexcept nogil:
    return incoming.bytes if incoming != NULL else 0


cdef inline Awaiting* incoming_find(IncomingQos2* incoming, uint16_t packet_id) noexcept nogil:
    """The place of the identifier, or the empty place for it; NULL only if there is no table yet."""
    cdef uint32_t i
    if incoming == NULL:
        return NULL
    i = packet_id & incoming.mask
    while incoming.items[i].message != NULL and incoming.items[i].packet_id != packet_id:
        i = (i + 1) & incoming.mask
    return &incoming.items[i]


cdef inline int incoming_add(IncomingQos2** incoming, uint16_t packet_id, Message* message,
                             uint32_t progress, uint64_t number) noexcept nogil:
    """Keep a message whose identifier is new; takes over the reference. -1: out of memory."""
    cdef IncomingQos2* before = incoming[0]
    cdef IncomingQos2* grown
    cdef uint32_t places = incoming_places(before), i
    if before == NULL or before.count * 2 >= places:
        places = places * 2 if places else FIRST_SIZE
        grown = <IncomingQos2*>calloc(1, sizeof(IncomingQos2) + (places - 1) * sizeof(Awaiting))
        if grown == NULL:
            return -1
        grown.mask = places - 1
        for i in range(incoming_places(before)):
            if before.items[i].message != NULL:
                incoming_find(grown, before.items[i].packet_id)[0] = before.items[i]
        grown.count = incoming_count(before)
        grown.bytes = incoming_bytes(before)
        free(before)
        incoming[0] = grown
    incoming_find(incoming[0], packet_id)[0] = Awaiting(message, packet_id, progress, number)
    incoming[0].count += 1
    incoming[0].bytes += message_size(message)
    return 0


cdef inline Awaiting incoming_remove(IncomingQos2* incoming, uint16_t packet_id) noexcept nogil:
    """Remove the message; its reference passes to the caller. It is NULL if none has this identifier."""
    cdef Awaiting* found = incoming_find(incoming, packet_id)
    cdef Awaiting removed
    cdef uint32_t i, k, home
    if found == NULL or found.message == NULL:
        return Awaiting(NULL, packet_id, 0, 0)
    removed = found[0]
    incoming.count -= 1
    incoming.bytes -= message_size(removed.message)
    # Move back the entries that collisions had pushed past this place.
    i = k = <uint32_t>(found - incoming.items)
    while True:
        k = (k + 1) & incoming.mask
        if incoming.items[k].message == NULL:
            break
        home = incoming.items[k].packet_id & incoming.mask
        if ((k - home) & incoming.mask) >= ((k - i) & incoming.mask):
            incoming.items[i] = incoming.items[k]
            i = k
    incoming.items[i].message = NULL
    return removed


cdef inline void incoming_free(IncomingQos2* incoming) noexcept:
    """Release all messages and the memory."""
    cdef uint32_t i
    for i in range(incoming_places(incoming)):
        if incoming.items[i].message != NULL:
            message_release(incoming.items[i].message)
    free(incoming)
