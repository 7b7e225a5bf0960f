"""Checks whether byte strings are valid topic names and topic filters, and whether a filter matches a name.

Rules: the C functions take UTF-8 bytes, hold no state, and use no Python object, so the packet path calls them without
the GIL. A fault is a `TopicFault`; `fault_text` is its text. A shared subscription (`$share/{ShareName}/{filter}`) is
a filter like any other for `validate_topic_filter`; `split_shared` and `shared_filter_at` take it apart.

Valid filters:    a   /   a//b   +   #   a/+/b   +/#   /#   $SYS/#
Invalid filters:  (empty)   a#   a/#/b   #/a   a+   a/+b   ++
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from .publish cimport is_reserved
from .tenants cimport begins_tenant, tenant_size

# Eight bytes are checked at once: ONES * c repeats the byte c, and a byte of HIGH marks a hit. They are C macros
# because the C compiler cannot fold a module variable.
cdef extern from *:
    """
    #define FLOCKMQ_ONES 0x0101010101010101ULL
    #define FLOCKMQ_LOW 0x7F7F7F7F7F7F7F7FULL
    #define FLOCKMQ_HIGH 0x8080808080808080ULL
    """
    const uint64_t ONES "FLOCKMQ_ONES"
    const uint64_t LOW "FLOCKMQ_LOW"
    const uint64_t HIGH "FLOCKMQ_HIGH"


cdef inline uint64_t load(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """The first eight of `n` bytes at `p`; missing ones are filled with an ordinary letter."""
    cdef uint64_t block = ONES * c'a'
    if n >= 8:
        memcpy(&block, p, 8)           # a constant size, so that it becomes one load
    else:
        memcpy(&block, p, n)
    return block


cdef inline uint64_t equal(uint64_t block, uint8_t c) noexcept nogil:
    """The high bit of every byte of `block` that equals `c`. Exact, so its bits may be counted."""
    cdef uint64_t x = block ^ (ONES * c)
    return ~(((x & LOW) + LOW) | x) & HIGH


cdef inline int multibyte_size(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Bytes of the well-formed character that starts at `p` with a byte of 0x80 or more; 0 if it is ill-formed."""
    cdef uint8_t first = p[0]
    cdef uint8_t least = 0x80, most = 0xBF    # of the second byte: these bounds exclude the three cases below
    cdef int size, i
    if first < 0xC2 or first > 0xF4:          # a continuation byte, an overlong pair, beyond U+10FFFF
        return 0
    if first < 0xE0:
        size = 2
    elif first < 0xF0:
        size = 3
        if first == 0xE0:                     # overlong
            least = 0xA0
        elif first == 0xED:                   # surrogates U+D800 to U+DFFF [MQTT-1.5.3-1]
            most = 0x9F
    else:
        size = 4
        if first == 0xF0:                     # overlong
            least = 0x90
        elif first == 0xF4:                   # beyond U+10FFFF
            most = 0x8F
    if n < size or p[1] < least or p[1] > most:
        return 0
    for i in range(2, size):
        if p[i] & 0xC0 != 0x80:
            return 0
    return size


cdef int check_utf8(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether `n` bytes at `p` are well-formed UTF-8 without U+0000.

    Returns 0, or TOPIC_BAD_UTF8 [MQTT-1.5.3-1] [MQTT-1.5.3-2].
    """
    cdef uint64_t block
    cdef int size
    while n > 0:
        block = load(p, n)
        if not (block & HIGH or equal(block, 0)):
            p += 8
            n -= 8
        elif p[0] == 0:
            return TOPIC_BAD_UTF8
        elif p[0] < 0x80:
            p += 1
            n -= 1
        else:
            size = multibyte_size(p, n)
            if size == 0:
                return TOPIC_BAD_UTF8
            p += size
            n -= size
    return TOPIC_OK


cdef Py_ssize_t characters(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Characters in `n` bytes of well-formed UTF-8."""
    cdef Py_ssize_t count = 0, i
    for i in range(n):
        count += p[i] & 0xC0 != 0x80
    return count


cdef inline int check_common(
    const uint8_t* p, Py_ssize_t n, int level, int max_levels, bint* wildcard
) noexcept nogil:
    """The checks common to names and filters; `wildcard` is set if there is a `+` or `#` anywhere."""
    cdef const uint8_t* at = p
    cdef Py_ssize_t rest = n
    cdef int levels = 1
    cdef uint64_t block, wild = 0, odd = 0
    if n == 0:
        return TOPIC_EMPTY
    if n > TOPIC_BYTES_MAX:
        return TOPIC_TOO_LONG
    while rest > 0:
        block = load(at, rest)
        levels += <int>(((equal(block, c'/') >> 7) * ONES) >> 56)    # the sum of eight bytes, each 0 or 1
        wild |= equal(block, c'+') | equal(block, c'#')
        odd |= (block & HIGH) | equal(block, 0)
        at += 8
        rest -= 8
    # Text beyond plain ASCII is rare and gets the full check; no byte of a longer character equals `/+#`.
    if odd and check_utf8(p, n):
        return TOPIC_BAD_UTF8
    if level == 3 and n > TOPIC_CHARACTERS_MAX_3 and characters(p, n) > TOPIC_CHARACTERS_MAX_3:
        return TOPIC_TOO_LONG
    if levels > max_levels:
        return TOPIC_TOO_MANY_LEVELS
    wildcard[0] = wild != 0
    return TOPIC_OK


cdef int check_topic_name(const uint8_t* p, Py_ssize_t n, int level, int max_levels) noexcept nogil:
    """Whether `n` bytes at `p` are a topic name at protocol `level` of at most `max_levels` levels: a TopicFault."""
    cdef bint wildcard = False
    cdef int fault = check_common(p, n, level, max_levels, &wildcard)
    if fault == TOPIC_OK and wildcard:
        return TOPIC_WILDCARD_IN_NAME
    return fault


cdef bint holds_control_character(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether well-formed UTF-8 holds U+0001 to U+001F, U+007F to U+009F or a non-character, as [MQTT-1.5.3] advises
    against."""
    cdef uint64_t block
    cdef uint32_t character
    while n > 0:
        block = load(p, n)
        if not ((block & HIGH) or ((block - ONES * 0x20) & HIGH) or equal(block, 0x7F)):
            p += 8
            n -= 8
        elif p[0] < 0x80:
            if p[0] < 0x20 or p[0] == 0x7F:
                return True
            p += 1
            n -= 1
        elif p[0] < 0xE0:
            if p[0] == 0xC2 and p[1] < 0xA0:                         # U+0080 to U+009F
                return True
            p += 2
            n -= 2
        elif p[0] < 0xF0:
            character = <uint32_t>(p[0] & 15) << 12 | (p[1] & 63) << 6 | (p[2] & 63)
            if 0xFDD0 <= character <= 0xFDEF or character >= 0xFFFE:
                return True
            p += 3
            n -= 3
        else:
            if p[1] & 15 == 15 and p[2] == 0xBF and p[3] >= 0xBE:    # the last two of a plane
                return True
            p += 4
            n -= 4
    return False


cdef int check_topic_filter(const uint8_t* p, Py_ssize_t n, int level, int max_levels) noexcept nogil:
    """Whether `n` bytes at `p` are a topic filter at protocol `level` of at most `max_levels` levels: a TopicFault."""
    cdef bint wildcard = False
    cdef bint first, last
    cdef Py_ssize_t i
    cdef int fault = check_common(p, n, level, max_levels, &wildcard)
    if fault != TOPIC_OK or not wildcard:
        return fault
    for i in range(n):
        if p[i] != c'+' and p[i] != c'#':
            continue
        first = i == 0 or p[i - 1] == c'/'
        last = i + 1 == n
        if p[i] == c'#':
            if not (first and last):
                return TOPIC_MISPLACED_HASH
        elif not (first and (last or p[i + 1] == c'/')):
            return TOPIC_MISPLACED_PLUS
    return TOPIC_OK


cdef int match_topic(
    const uint8_t* topic_filter, Py_ssize_t filter_size, const uint8_t* topic_name, Py_ssize_t name_size
) noexcept nogil:
    """Whether the filter matches the name: 1 or 0. Both must be valid. Linear: no byte is read twice."""
    cdef const uint8_t* f = topic_filter
    cdef const uint8_t* f_end = f + filter_size
    cdef const uint8_t* t = topic_name
    cdef const uint8_t* t_end = t + name_size
    # [MQTT-4.7.2-1] A filter that starts with a wildcard does not match a name that starts with `$`.
    cdef const uint8_t* own = t + tenant_size(t, name_size)
    while True:                        # here both stand at the start of a level
        if ((t == topic_name or t == own) and t < t_end and t[0] == c'$'
                and f < f_end and (f[0] == c'+' or f[0] == c'#')):
            return 0
        if f < f_end and f[0] == c'#' and f + 1 == f_end:
            return 1
        if f < f_end and f[0] == c'+' and (f + 1 == f_end or f[1] == c'/'):
            f += 1
            while t < t_end and t[0] != c'/':
                t += 1
        else:
            while f < f_end and t < t_end and f[0] == t[0] and f[0] != c'/':
                f += 1
                t += 1
            if (f < f_end and f[0] != c'/') or (t < t_end and t[0] != c'/'):
                return 0
        if f == f_end:
            return t == t_end
        if t == t_end:                 # `a/#` matches the parent level `a` too [MQTT-4.7.1-2]
            return f_end - f == 2 and f[1] == c'#'
        f += 1
        t += 1


# ---- shared subscriptions ----

cdef Py_ssize_t shared_filter_at(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Where the topic filter begins in `$share/{ShareName}/{filter}`; 0: it is no valid shared subscription.

    The ShareName has at least one character, and no wildcard [5: MQTT-4.8.2-1, 2].
    """
    cdef Py_ssize_t i
    if n < SHARE_SIZE + 3 or memcmp(p, b"$share/", SHARE_SIZE) != 0:
        return 0
    for i in range(SHARE_SIZE, n - 1):
        if p[i] == c'/':
            return i + 1 if i > SHARE_SIZE else 0
        if p[i] == c'+' or p[i] == c'#':
            return 0
    return 0


cpdef bint is_shared(topic_filter) except -1:
    """Whether `topic_filter` (str, or UTF-8 bytes) asks for a shared subscription, a valid one or not."""
    cdef bytes data = as_utf8(topic_filter)
    return PyBytes_GET_SIZE(data) >= SHARE_SIZE and memcmp(PyBytes_AS_STRING(data), b"$share/", SHARE_SIZE) == 0


def split_shared(str topic_filter not None):
    """The ShareName and the topic filter of `$share/{ShareName}/{filter}`; the topic filter is not checked.

    Raises:
        InvalidTopic: it is no shared subscription, or has no valid ShareName [5: MQTT-4.8.2-1, 2].
    """
    cdef bytes data = as_utf8(topic_filter)
    cdef Py_ssize_t at = shared_filter_at(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    if not at:
        raise InvalidTopic("not of the form $share/NAME/FILTER", 0x8F)
    return data[SHARE_SIZE:at - 1].decode("utf-8", "surrogatepass"), data[at:].decode("utf-8", "surrogatepass")


# ---- limits ----

cdef uint32_t weight_of(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """The subscriptions that a topic filter counts as: one, and one more for each further 8 levels, and each KiB.

    So as many as a session may have take about as much memory, whatever their filters are.
    """
    cdef Py_ssize_t i
    cdef uint32_t separators = 0
    for i in range(n):
        separators += p[i] == c'/'
    return 1 + separators // LEVELS_OF_ONE + <uint32_t>n // BYTES_OF_ONE


# ---- for Python ----

cdef tuple FAULT_TEXTS = (
    "",
    "it is empty [MQTT-4.7.3-1]",
    "it is longer than 65535 bytes, or 32767 characters at level 3 [MQTT-4.7.3-3]",
    "it has more levels than limits.max_topic_levels",
    "it is not well-formed UTF-8 or holds U+0000 [MQTT-1.5.3-1] [MQTT-1.5.3-2]",
    "it holds a wildcard [MQTT-3.3.2-2]",
    "'#' must be a level of its own, and the last [MQTT-4.7.1-2]",
    "'+' must be a level of its own [MQTT-4.7.1-3]",
    "it holds a control character or a non-character [MQTT-1.5.3]; mqtt.control_characters accepts them",
)


cdef object fault_text(int fault):
    """The text of a TopicFault for logs, with the statement; an empty string for TOPIC_OK."""
    return FAULT_TEXTS[fault]


class InvalidTopic(ValueError):
    """A topic name or filter that violates the rule in `reason`.

    `code` is the reason code a level-5 peer is sent: 0x90 Topic Name invalid or 0x8F Topic Filter invalid.
    """

    def __init__(self, reason, code):
        super().__init__(reason)
        self.reason = reason
        self.code = code


cdef bytes as_utf8(object topic):
    """The bytes of a str or bytes. A lone surrogate is kept, so that the check below refuses it with our reason."""
    if isinstance(topic, str):
        return (<str>topic).encode("utf-8", "surrogatepass")
    return topic


def validate_topic_name(topic not None, int level=4, int max_levels=TOPIC_LEVELS_MAX):
    """Check that `topic` (str, or UTF-8 bytes) is a topic name at protocol `level` (3, 4 or 5).

    `max_levels` is the largest number of `/`-separated levels. Raises InvalidTopic [MQTT-3.3.2-2] [MQTT-4.7.3-1].
    """
    cdef bytes data = as_utf8(topic)
    cdef int fault = check_topic_name(
        <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), level, max_levels
    )
    if fault:
        raise InvalidTopic(f"topic name: {fault_text(fault)}", 0x90)


def validate_topic_filter(topic not None, int level=4, int max_levels=TOPIC_LEVELS_MAX):
    """Check that `topic` (str, or UTF-8 bytes) is a topic filter at protocol `level` (3, 4 or 5).

    `max_levels` is the largest number of `/`-separated levels. Raises InvalidTopic [MQTT-4.7.1-2] [MQTT-4.7.1-3].
    """
    cdef bytes data = as_utf8(topic)
    cdef int fault = check_topic_filter(
        <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), level, max_levels
    )
    if fault:
        raise InvalidTopic(f"topic filter: {fault_text(fault)}", 0x8F)


def split_tenant(bytes name not None):
    """The prefix `$tenant/NAME/` of a topic name, topic filter or client identifier, perhaps empty; and the rest."""
    cdef Py_ssize_t size = tenant_size(name, len(name))
    return name[:size], name[size:]


def without_tenant(bytes name not None):
    """The name as clients know it, as text, of a topic name, topic filter or client identifier."""
    cdef Py_ssize_t size = tenant_size(name, len(name))
    return name[size:].decode() if size else name.decode()


def is_broker_only(bytes name not None):
    """Whether no client publishes to the topic name, as it writes it without a delay: $SYS, $stream/ and $tenant/."""
    return is_reserved(name, len(name)) or begins_tenant(name, len(name))


def has_control_characters(str text not None):
    """Whether a text holds U+0001 to U+001F, U+007F to U+009F, or a non-character.

    Raises:
        UnicodeEncodeError: it holds a lone surrogate.
    """
    cdef bytes data = text.encode()
    return holds_control_character(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def filter_weight(bytes topic_filter not None):
    """The subscriptions that this valid topic filter counts as, for the limit of a session."""
    return weight_of(topic_filter, len(topic_filter))


def matches(topic_filter not None, topic_name not None):
    """Whether `topic_filter` matches `topic_name` (str, or UTF-8 bytes; both valid). Section 4.7; raises nothing."""
    cdef bytes f = as_utf8(topic_filter)
    cdef bytes t = as_utf8(topic_name)
    return match_topic(
        <const uint8_t*>PyBytes_AS_STRING(f), PyBytes_GET_SIZE(f),
        <const uint8_t*>PyBytes_AS_STRING(t), PyBytes_GET_SIZE(t),
    ) == 1
