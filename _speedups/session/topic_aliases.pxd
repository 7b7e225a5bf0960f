# The topic aliases that the broker sets on a connection to a client of level 5. Inline.
#
# A topic name has one possible place, by a hash. It gets a free place at its first message, and a taken one when it has
# come twice since the last message of the topic that holds it: so a flood of names does not push out names that repeat.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    ALIASED_MIN = 5            # bytes of a topic name: an alias takes three
    ALIASED_MAX = 256
    ALIAS_ROOM = 5             # bytes that an alias may add to a packet: the property, and longer lengths

cdef struct TopicAlias:
    uint8_t* topic             # owned; NULL = the alias is not set
    uint32_t length
    uint32_t rival             # hash of the last topic name that wanted this place; 0 = none

cdef struct TopicAliases:
    TopicAlias* places         # place i is alias i + 1; NULL = none is set
    uint16_t maximum           # 0 = the client wants none


cdef inline uint32_t alias_hash(const uint8_t* topic, Py_ssize_t n) noexcept nogil:
    """A hash of both ends of the topic name; not 0."""
    cdef uint32_t head, tail
    memcpy(&head, topic, 4)
    memcpy(&tail, topic + n - 4, 4)
    return <uint32_t>(((<uint64_t>head << 32 | tail) + <uint64_t>n) * 0x9E3779B97F4A7C15u >> 32) | 1


cdef inline uint16_t alias_of(TopicAliases* aliases, const uint8_t* topic, Py_ssize_t n, bint* is_known) noexcept nogil:
    """The alias to send with the topic name, 0 = none; if `is_known`, in its place. The packet must then be sent."""
    cdef TopicAlias* place
    cdef uint32_t h
    cdef uint16_t i
    is_known[0] = False
    if n < ALIASED_MIN or n > ALIASED_MAX:
        return 0
    if aliases.places == NULL:
        aliases.places = <TopicAlias*>calloc(aliases.maximum, sizeof(TopicAlias))
        if aliases.places == NULL:
            return 0
    h = alias_hash(topic, n)
    i = <uint16_t>((h >> 8) % aliases.maximum)
    place = &aliases.places[i]
    if place.topic != NULL:
        if place.length == <uint32_t>n and memcmp(place.topic, topic, n) == 0:
            place.rival = 0
            is_known[0] = True
            return i + 1
        if place.rival != h:
            place.rival = h
            return 0
    if place.length < <uint32_t>n:
        free(place.topic)
        place.topic = <uint8_t*>malloc(n)
        if place.topic == NULL:
            place.length = 0
            return 0
    place.length = <uint32_t>n
    place.rival = 0
    memcpy(place.topic, topic, n)
    return i + 1


cdef inline void aliases_free(TopicAliases* aliases) noexcept nogil:
    cdef uint16_t i
    if aliases.places != NULL:
        for i in range(aliases.maximum):
            free(aliases.places[i].topic)
        free(aliases.places)
    aliases.places = NULL
    aliases.maximum = 0
