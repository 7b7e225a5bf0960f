"""The PROXY protocol header, which a load balancer sends before a client's first byte, versions 1 and 2.

The format is HAProxy's (https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt). Only the client's address is
used; TLVs are skipped. Called with the bytes received so far.
"""

import re
import socket
import struct

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"         # of version 2
HEADER_MAX = 4096                            # bytes, not more than reactor.pxd's TAIL_MAX; room for many TLVs
LINE_MAX = 107                               # bytes of a header of version 1, CRLF included
FIXED = 16                                    # bytes of version 2: signature, command, family, size
LINE = re.compile(rb"PROXY (TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5})")
LOCAL, PROXY = 0x20, 0x21                     # version and command: the balancer's own connection, or a client's
STREAM = {                                    # family and transport -> address family, bytes of an address
    0x11: (socket.AF_INET, 4),
    0x21: (socket.AF_INET6, 16),
}


def read_proxy_header(bytes data not None):
    """Parse the header at the start of `data`: returns its size in bytes, and the client's (family, address, port).

    The size is 0 while the header is incomplete. The address is packed, in network order. The address is missing if
    the connection is the balancer's own, or if the balancer can't name the client.

    Raises:
        ValueError: the bytes are not a PROXY header.
    """
    if data[:len(SIGNATURE)] == SIGNATURE:
        return _read_binary(data)
    if data[:6] == b"PROXY ":
        return _read_line(data)
    if SIGNATURE.startswith(data) or b"PROXY ".startswith(data):
        return 0, None
    raise ValueError("no PROXY protocol header")


cdef _read_binary(bytes data):
    if len(data) < FIXED:
        return 0, None
    command, family, length = struct.unpack_from(">BBH", data, len(SIGNATURE))
    size = FIXED + length
    if command not in (LOCAL, PROXY):
        raise ValueError(f"PROXY protocol version and command {command:#04x}")
    if size > HEADER_MAX:
        raise ValueError(f"a PROXY protocol header of {size} bytes")
    if len(data) < size:
        return 0, None
    if command == LOCAL or family not in STREAM:
        return size, None
    kind, n = STREAM[family]
    if length < 2 * n + 4:
        raise ValueError("a PROXY protocol header too short for its addresses")
    port = struct.unpack_from(">H", data, FIXED + 2 * n)[0]
    return size, (kind, data[FIXED:FIXED + n], port)


cdef _read_line(bytes data):
    end = data.find(b"\r\n", 0, LINE_MAX)
    if end < 0:
        if len(data) >= LINE_MAX:
            raise ValueError("a PROXY protocol line without an end")
        return 0, None
    if data[:end].split(b" ", 2)[1] == b"UNKNOWN":
        return end + 2, None
    match = LINE.fullmatch(data, 0, end)
    if match is None:
        raise ValueError("a PROXY protocol line that can't be read")
    kind = socket.AF_INET if match[1] == b"TCP4" else socket.AF_INET6
    port = int(match[4])
    try:
        address = socket.inet_pton(kind, match[2].decode("ascii"))
    except (OSError, ValueError):
        raise ValueError("a PROXY protocol line with no address") from None
    if port > 0xFFFF:
        raise ValueError("a PROXY protocol line with no port")
    return end + 2, (kind, address, port)
