"""The protocol of Redis, RESP3: commands to bytes, bytes to replies and pushes.

A text is bytes, a map a dict, a set a list, and an error a ReplyError, which is a value: nothing raises it here.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy

cdef enum:
    DEPTH_MAX = 32             # of arrays in arrays
    LINE_MAX = 65536           # bytes of a line: a number, or a short text
    TEXT_MAX = 1073741824      # bytes of a text
    HEAD_MAX = 24              # bytes before an argument: its kind, its size, CR LF


class ReplyError(Exception):
    """An error that Redis replied; the text begins with its code."""


class InvalidReply(ValueError):
    """Bytes that are no reply."""


class Incomplete(Exception):
    """The bytes end before the reply does. `args`: how many more it needs at least."""


cdef int64_t number_of(const uint8_t* p, Py_ssize_t n) except? -1:
    cdef int64_t value = 0
    cdef Py_ssize_t i = 0
    cdef bint negative = n > 0 and p[0] == c'-'
    if negative or (n > 0 and p[0] == c'+'):
        i = 1
    if i == n or n - i > 19:
        raise InvalidReply("a number that can't be read")
    while i < n:
        if not c'0' <= p[i] <= c'9':
            raise InvalidReply("a number that can't be read")
        value = value * 10 + (p[i] - c'0')
        i += 1
    return -value if negative else value


cdef object read_reply(const uint8_t** at, const uint8_t* end, int depth):
    """The reply or push that begins at `at`, which is advanced behind it.

    Raises:
        Incomplete: the bytes end before; `at` is undefined.
        InvalidReply: it is none.
    """
    cdef const uint8_t* line = at[0] + 1
    cdef const uint8_t* stop
    cdef uint8_t kind
    cdef Py_ssize_t size
    cdef int64_t n
    if at[0] >= end:
        raise Incomplete(1)
    kind = at[0][0]
    stop = <const uint8_t*>memchr(at[0], c'\n', end - at[0])
    if stop == NULL:
        if end - at[0] > LINE_MAX:
            raise InvalidReply("a line without an end")
        raise Incomplete(1)
    size = stop - 1 - line
    if size < 0 or line[size] != c'\r' or depth > DEPTH_MAX:
        raise InvalidReply("a line that can't be read")
    at[0] = stop + 1
    if kind == c'+' or kind == c'(':               # a number beyond 64 bits stays a text
        return line[:size]
    if kind == c'-':
        return ReplyError(line[:size].decode("utf-8", "replace"))
    if kind == c'_':
        return None
    if kind == c'#':
        return line[0] == c't'
    if kind == c',':
        return float(line[:size])
    n = number_of(line, size)
    if kind == c':':
        return n
    if n > TEXT_MAX or n < -1:
        raise InvalidReply("a length that is none")
    if n == -1:
        return None
    if kind == c'$' or kind == c'=' or kind == c'!':
        if end - at[0] < n + 2:
            raise Incomplete(n + 2 - (end - at[0]))
        line, at[0] = at[0], at[0] + n + 2
        if kind == c'!':
            return ReplyError(line[:<Py_ssize_t>n].decode("utf-8", "replace"))
        return line[4:<Py_ssize_t>n] if kind == c'=' else line[:<Py_ssize_t>n]  # its first four bytes are a format
    if kind == c'*' or kind == c'>' or kind == c'~':
        return read_items(at, end, n, depth)
    if kind == c'%' or kind == c'|':
        items = read_items(at, end, 2 * n, depth)
        if kind == c'|':                           # about the reply that follows
            return read_reply(at, end, depth + 1)
        return dict(zip(items[::2], items[1::2]))
    raise InvalidReply(f"a reply of an unknown kind: {kind:#x}")


cdef list read_items(const uint8_t** at, const uint8_t* end, int64_t count, int depth):
    cdef list items = []
    for _ in range(count):
        items.append(read_reply(at, end, depth + 1))
    return items


cdef uint8_t* put_head(Outlet out, uint8_t kind, uint64_t number, Py_ssize_t more) except NULL:
    """Write kind and number, and return where `more` bytes are to follow. (A turn has thousands: snprintf is slow.)"""
    cdef uint8_t[HEAD_MAX] head
    cdef Py_ssize_t at = HEAD_MAX - 2
    cdef uint8_t* p
    head[at], head[at + 1] = c'\r', c'\n'
    while True:
        at -= 1
        head[at] = c'0' + <uint8_t>(number % 10)
        number //= 10
        if number == 0:
            break
    at -= 1
    head[at] = kind
    p = out.reserve(HEAD_MAX - at + more)
    memcpy(p, head + at, HEAD_MAX - at)
    return p + HEAD_MAX - at


cdef int put_count(Outlet out, uint64_t number) except -1:
    """The head of a command: the number of its arguments."""
    put_head(out, c'*', number, 0)
    return 0


cdef int put_text(Outlet out, const uint8_t* data, Py_ssize_t n) except -1:
    """An argument of a command."""
    cdef uint8_t* p = put_head(out, c'$', n, n + 2)
    memcpy(p, data, n)
    p[n] = c'\r'
    p[n + 1] = c'\n'
    return 0
