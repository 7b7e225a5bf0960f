# The topic aliases that a client of level 5 sets on its connection. Inline. Aliases of the broker: topic_aliases.pxd.

from libc.stdint cimport uint8_t, uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ..session.message cimport Publication
from ..session.turn cimport ALIASES_MAX

# A topic name that the client has given an alias.
cdef struct ClientAlias:
    uint8_t* topic             # owned; NULL = the alias is not set
    Py_ssize_t length


cdef inline int resolve_alias(ClientAlias** aliases, Publication* publication, uint16_t number) except -1:
    """Set an alias, from 1 to ALIASES_MAX, to the publication's topic name, or the topic name to the alias's.

    `aliases` is NULL until the client sets the first one. The topic name stays empty if the alias is not set.
    """
    cdef ClientAlias* alias
    if aliases[0] == NULL:
        # For all that the limit may become: it can be raised while the connection lives.
        aliases[0] = <ClientAlias*>calloc(ALIASES_MAX + 1, sizeof(ClientAlias))
        if aliases[0] == NULL:
            raise MemoryError
    alias = &aliases[0][number]
    if publication.topic_length == 0:
        if alias.topic != NULL:
            publication.topic = alias.topic
            publication.topic_length = alias.length
        return 0
    if alias.length != publication.topic_length:
        free(alias.topic)
        alias.topic = <uint8_t*>malloc(publication.topic_length)
        if alias.topic == NULL:
            alias.length = 0
            raise MemoryError
        alias.length = publication.topic_length
    memcpy(alias.topic, publication.topic, publication.topic_length)
    return 0


cdef inline void client_aliases_free(ClientAlias* aliases) noexcept:
    cdef int i
    if aliases != NULL:
        for i in range(ALIASES_MAX + 1):
            free(aliases[i].topic)
        free(aliases)
