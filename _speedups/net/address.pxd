# The address of a connection's client. See address.pyx.

from libc.stdint cimport uint8_t

cdef struct Address:
    uint8_t bytes[24]          # of struct sockaddr_in or sockaddr_in6 up to the address, or only the family; of a Unix
                               # socket the family, and from byte 4 on the client's user id

cdef str address_text(const Address* address)
cdef int address_set(Address* address, int family, bytes host, int port) except -1
cdef bytes address_origin(const Address* address)
