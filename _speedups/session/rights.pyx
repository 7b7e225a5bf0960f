"""The topics that one client may publish and read: topic filters that allow or deny, prepared for this client.

Access needs a rule that allows it, and a denying rule overrides all that allow. Filters match as in
subscriptions: `#` and `+` do not match topics that begin with `$`, which are closed unless a rule names them.
It has no users and no files; patterns.pyx inserts client identifiers and user names.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

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
        readable = False
        for allow, access, rule in self.key:
            if access & MAY_READ:
                if not allow and covers(rule, topic_filter):
                    return False
                readable = readable or (allow and overlap(rule, topic_filter))
        return readable

    def may_read_all(self, bytes topic_filter not None):
        """Whether everything that this valid topic filter matches is readable, as far as single rules show it."""
        readable = False
        for allow, access, rule in self.key:
            if access & MAY_READ:
                if not allow and overlap(rule, topic_filter):
                    return False
                readable = readable or (allow and covers(rule, topic_filter))
        return readable

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


cdef tuple as_seen(bytes one, bytes other):
    """Two topic filters without the prefix of the tenant that both have."""
    cdef Py_ssize_t size = tenant_size(one, len(one))
    return (one[size:], other[size:]) if size and other.startswith(one[:size]) else (one, other)


NOTHING = Rights(())


def overlap(bytes one not None, bytes other not None):
    """Whether some topic name matches both valid topic filters."""
    one, other = as_seen(one, other)
    cdef list a = one.split(b"/"), b = other.split(b"/")
    cdef Py_ssize_t i = 0
    if (a[0] in (b"+", b"#") and other.startswith(b"$")) or (b[0] in (b"+", b"#") and one.startswith(b"$")):
        return False                              # [MQTT-4.7.2-1]
    while True:
        if i < len(a) and a[i] == b"#" or i < len(b) and b[i] == b"#":
            return True                           # matches any remaining levels of the other filter, and the parent
        if i == len(a) or i == len(b):
            break
        if a[i] != b[i] and a[i] != b"+" and b[i] != b"+":
            return False
        i += 1
    return len(a) == len(b)


def covers(bytes wide not None, bytes narrow not None):
    """Whether `wide` matches every topic name that `narrow` matches; both are valid topic filters."""
    wide, narrow = as_seen(wide, narrow)
    cdef list a = wide.split(b"/"), b = narrow.split(b"/")
    cdef Py_ssize_t i = 0
    if a[0] in (b"+", b"#") and narrow.startswith(b"$"):
        return False
    while i < len(a):
        if a[i] == b"#":
            return True
        if i == len(b) or b[i] == b"#" or (a[i] != b"+" and a[i] != b[i]):
            return False
        i += 1
    return len(a) == len(b)
