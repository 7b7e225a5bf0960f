"""The address of a connection's client, as the system calls have it, and as logs and limits have it."""

from libc.string cimport memcmp, memcpy

from .posix cimport AF_INET, AF_INET6, AF_UNIX

import socket

cdef const uint8_t* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"  # prefix of an IPv4 address in IPv6 form


cdef inline int family_of(const Address* address) noexcept:
    return address.bytes[0] | address.bytes[1] << 8


cdef str address_text(const Address* address):
    """Address and port, as text; for a Unix socket, "unix:" and the client's user id."""
    cdef int family = family_of(address)
    if family == AF_UNIX:
        return f"unix:{int.from_bytes(address.bytes[4:8], 'little')}"
    port = address.bytes[2] << 8 | address.bytes[3]
    if family == AF_INET:
        return f"{socket.inet_ntop(family, address.bytes[4:8])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address.bytes[8:24])}]:{port}"


cdef int address_set(Address* address, int family, bytes host, int port) except -1:
    """Replace the address by the client's address from its proxy."""
    cdef int at = 4 if family == AF_INET else 8
    address.bytes[0] = family & 0xFF
    address.bytes[1] = family >> 8
    address.bytes[2] = port >> 8
    address.bytes[3] = port & 0xFF
    memcpy(address.bytes + at, <const uint8_t*>host, min(len(host), <Py_ssize_t>sizeof(address.bytes) - at))
    return 0


cdef bytes address_origin(const Address* address):
    """The part that the limit of an address counts: an IPv4 address or an IPv6 network; empty for a Unix socket."""
    cdef int family = family_of(address)
    if family == AF_INET:
        return address.bytes[4:8]
    if family == AF_INET6 and memcmp(address.bytes + 8, MAPPED, 12) == 0:
        return address.bytes[20:24]                 # an IPv4 address in IPv6 form, as some proxies send it
    return address.bytes[8:16] if family == AF_INET6 else b""
