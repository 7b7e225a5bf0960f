"""The topics that one client may publish and read: topic filters that allow or deny, prepared for this client.

Access needs a rule that allows it, and a denying rule overrides all that allow. Filters match as in
subscriptions: `#` and `+` do not match topics that begin with `$`, which are closed unless a rule names them.
It has no users and no files; patterns.pyx inserts client identifiers and user names.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from ..codec.tenants cimport tenant_size
from ..codec.topics cimport match_topic

READ = MAY_READ
PUBLISH = MAY_PUBLISH

cdef uint64_t _numbers = 0


cdef class Rights:
    """The rights of a client.

    Args:
        rules: (allow, access, topic filter) each: True or False; READ, PUBLISH or both; valid UTF-8 bytes.

    Raises:
        ValueError: a topic filter is longer than MQTT's strings.
    """

    def __init__(self, rules):
        global _numbers
        cdef Py_ssize_t at = 0
        cdef uint32_t i
        _numbers += 1
        self.number = _numbers
        cdef list key = sorted({(bool(allow), int(access), bytes(name)) for allow, access, name in rules})
        self.text = b"".join([name for _, _, name in key])
        self.rules = <AclRule*>calloc(len(key) or 1, sizeof(AclRule))
        if self.rules == NULL:
            raise MemoryError
        for i, (allow, access, name) in enumerate(key):
            if len(name) > 65535:
                raise ValueError("a topic filter of more than 65535 bytes")
            self.rules[i] = AclRule(<uint32_t>at, <uint16_t>len(name), <uint8_t>access, <uint8_t>allow)
            at += len(name)
        self.count = <uint32_t>len(key)

    @staticmethod
    cdef Rights blank(uint32_t count, bytes text):
        """Rights whose rules and text the caller writes: denying rules first."""
        global _numbers
        cdef Rights found = Rights.__new__(Rights)
        found.rules = <AclRule*>calloc(count or 1, sizeof(AclRule))
        if found.rules == NULL:
            raise MemoryError
        _numbers += 1
        found.number = _numbers
        found.count, found.text = count, text
        return found

    def __dealloc__(self):
        free(self.rules)

    @property
    def key(self):
        """The rules, sorted. They are not kept as objects, as many clients have their own."""
        cdef set found = set()
        cdef uint32_t i
        for i in range(self.count):
            name = self.text[self.rules[i].at:self.rules[i].at + self.rules[i].size]
            found.add((bool(self.rules[i].allow), <int>self.rules[i].access, name))
        return tuple(sorted(found))

    def __eq__(self, other):
        if not isinstance(other, Rights) or self.count != (<Rights>other).count or self.text != (<Rights>other).text:
            return False
        return memcmp(self.rules, (<Rights>other).rules, self.count * sizeof(AclRule)) == 0

    def __hash__(self):
        return hash(self.text) ^ self.count

    def __repr__(self):
        return f"Rights({list(self.key)!r})"

    cdef bint may(self, const uint8_t* topic, Py_ssize_t n, int access) noexcept:
        """Whether the client has this access to a valid topic name."""
        cdef const uint8_t* text = self.text
        cdef AclRule* rule = self.rules
        cdef AclRule* end = rule + self.count
        while rule < end:
            if rule.access & access and match_topic(text + rule.at, rule.size, topic, n) == 1:
                return rule.allow
            rule += 1
        return False

    def may_publish(self, bytes topic not None):
        """Whether the client may publish to this valid topic name."""
        return self.may(topic, len(topic), MAY_PUBLISH)

    def may_read(self, bytes topic not None):
        """Whether messages with this valid topic name may be delivered to the client."""
        return self.may(topic, len(topic), MAY_READ)

    def may_subscribe(self, bytes topic_filter not None):
        """Whether anything that this valid topic filter matches may be readable.

        Such a subscription is granted, and each message is checked when it is delivered.
        """
        cdef Span wanted = span(topic_filter)
        cdef Span name
        cdef bint readable = False
        cdef uint32_t i
        for i in range(self.count):
            if self.rules[i].access & MAY_READ:
                name = self.filter(i)
                if not self.rules[i].allow and cover(name, wanted):
                    return False
                readable = readable or self.rules[i].allow and meet(name, wanted)
        return readable

    def may_read_all(self, bytes topic_filter not None):
        """Whether everything that this valid topic filter matches is readable, as far as single rules show it."""
        cdef Span wanted = span(topic_filter)
        cdef Span name
        cdef bint readable = False
        cdef uint32_t i
        for i in range(self.count):
            if self.rules[i].access & MAY_READ:
                name = self.filter(i)
                if not self.rules[i].allow and meet(name, wanted):
                    return False
                readable = readable or self.rules[i].allow and cover(name, wanted)
        return readable

    cdef Span filter(self, uint32_t number) noexcept:
        """The topic filter of a rule."""
        return Span(<const uint8_t*>self.text + self.rules[number].at, self.rules[number].size)

    def below(self, bytes prefix not None):
        """The same rights for topics with a prefix, which is whole levels.

        Raises:
            ValueError: a topic filter is longer than MQTT's strings then.
        """
        cdef Py_ssize_t size = len(prefix)
        cdef bytes text = PyBytes_FromStringAndSize(NULL, len(self.text) + size * self.count)
        cdef Rights found = Rights.blank(self.count, text)
        cdef const uint8_t* source = self.text
        cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(text)
        cdef AclRule rule
        cdef uint32_t i, at = 0
        for i in range(self.count):
            rule = self.rules[i]
            if rule.size + size > 65535:
                raise ValueError("a topic filter of more than 65535 bytes")
            memcpy(to + at, <const uint8_t*>prefix, size)
            memcpy(to + at + size, source + rule.at, rule.size)
            found.rules[i] = AclRule(at, <uint16_t>(rule.size + size), rule.access, rule.allow)
            at += <uint32_t>size + rule.size
        return found

    def first_denial(self):
        """True on the first call only: later denials need not be logged."""
        before, self.denied_before = self.denied_before, True
        return not before


NOTHING = Rights(())


def overlap(bytes one not None, bytes other not None):
    """Whether some topic name matches both valid topic filters."""
    return meet(span(one), span(other))


def covers(bytes wide not None, bytes narrow not None):
    """Whether `wide` matches every topic name that `narrow` matches; both are valid topic filters."""
    return cover(span(wide), span(narrow))


cdef inline Span span(bytes text) noexcept:
    return Span(<const uint8_t*>text, len(text))


cdef void leave_tenant(Span* one, Span* other) noexcept:
    """Take away the prefix of the tenant that two topic filters both have."""
    cdef Py_ssize_t size = tenant_size(one.text, one.size)
    if size and other.size >= size and memcmp(one.text, other.text, size) == 0:
        one.text, one.size = one.text + size, one.size - size
        other.text, other.size = other.text + size, other.size - size


cdef inline bint is_hidden(Span wild, Span name) noexcept:
    """Whether a wildcard in the first level stands before a level that begins with `$` [MQTT-4.7.2-1]."""
    return begins(wild, c'+', c'#') and begins(name, c'$', c'$')


cdef inline bint begins(Span rest, uint8_t one, uint8_t other) noexcept:
    """Whether the next level begins with one of two characters; a level that begins with a wildcard is one."""
    return rest.size > 0 and (rest.text[0] == one or rest.text[0] == other)


cdef inline Span next_level(Span* rest) noexcept:
    """Take the next level; the size of the rest is negative after the last level."""
    cdef const uint8_t* slash = <const uint8_t*>memchr(rest.text, c'/', rest.size)
    cdef Span level = Span(rest.text, slash - rest.text if slash != NULL else rest.size)
    rest.text, rest.size = rest.text + level.size + 1, rest.size - level.size - 1
    return level


cdef inline bint is_same(Span one, Span other) noexcept:
    return one.size == other.size and memcmp(one.text, other.text, one.size) == 0


cdef bint meet(Span one, Span other) noexcept:
    """See `overlap`."""
    cdef Span level, other_level
    leave_tenant(&one, &other)
    if is_hidden(one, other) or is_hidden(other, one):
        return False
    while not (begins(one, c'#', c'#') or begins(other, c'#', c'#')):
        if one.size < 0 or other.size < 0:
            return one.size < 0 and other.size < 0
        level, other_level = next_level(&one), next_level(&other)
        if not (is_same(level, other_level) or begins(level, c'+', c'+') or begins(other_level, c'+', c'+')):
            return False
    return True                                   # matches any remaining levels of the other filter, and the parent


cdef bint cover(Span wide, Span narrow) noexcept:
    """See `covers`."""
    cdef Span level, narrow_level
    leave_tenant(&wide, &narrow)
    if is_hidden(wide, narrow):
        return False
    while wide.size >= 0:
        if begins(wide, c'#', c'#'):
            return True
        if narrow.size < 0 or begins(narrow, c'#', c'#'):
            return False
        level, narrow_level = next_level(&wide), next_level(&narrow)
        if not (begins(level, c'+', c'+') or is_same(level, narrow_level)):
            return False
    return narrow.size < 0
