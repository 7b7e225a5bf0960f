"""Rules with client identifiers and user names in them, prepared for many clients.

A change of rights makes the rights of each client of a node at once, so this is a copy of bytes for each client.
A name never widens a rule: it stands for one level, and makes no first level that begins with `$`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcpy

from .rights cimport AclRule, Rights

from .rights import NOTHING

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    OF_CLIENT_ID = 1
    OF_USERNAME = 2
    OF_TEXT = 4
    MAX_FILTER = 65535         # bytes of a topic filter: no topic is longer

CLIENT_ID = OF_CLIENT_ID
USERNAME = OF_USERNAME
TEXT = OF_TEXT

cdef struct Pattern:
    uint32_t at                # offset of the topic filter in `text`
    uint32_t size              # its bytes, two for each name
    uint32_t client_ids        # how many are in it
    uint32_t usernames         # how many are in it
    uint8_t names              # in it: OF_CLIENT_ID, OF_USERNAME, or both
    uint8_t opens              # which of them begins its first level, or OF_TEXT; 0: no name is in that level
    uint8_t access             # MAY_READ, MAY_PUBLISH, or both
    uint8_t allow              # else it denies

cdef struct Client:
    const uint8_t* client_id
    Py_ssize_t client_id_size
    const uint8_t* username
    Py_ssize_t username_size
    uint8_t missing            # names that are empty
    uint8_t unfit              # names that are no level of a topic
    uint8_t opening            # names that begin with `$`, and OF_TEXT


cdef bint is_level(const uint8_t* name, Py_ssize_t size) noexcept:
    """Whether a name is one level of a topic, as `#` and `a/b` are not (CVE-2017-7650)."""
    cdef Py_ssize_t i
    for i in range(size):
        if name[i] == c'+' or name[i] == c'#' or name[i] == c'/' or name[i] == 0:
            return False
    return size > 0


cdef Py_ssize_t filled_size(const Pattern* rule, const Client* client) noexcept:
    """Bytes of the topic filter for a client; 0: the rule has no effect on it; -1: the client may do nothing."""
    cdef Py_ssize_t size
    if rule.names & client.unfit:
        return 0 if rule.allow or rule.names & client.missing else -1
    if rule.opens & client.opening:
        return 0 if rule.allow else -1
    size = (rule.size + rule.client_ids * (client.client_id_size - 2)
            + rule.usernames * (client.username_size - 2))
    return size if size <= MAX_FILTER else 0


cdef uint8_t* fill(uint8_t* to, const uint8_t* text, Py_ssize_t size, const Client* client) noexcept:
    """Write the topic filter for a client; returns where it ends."""
    cdef const uint8_t* end = text + size
    cdef const uint8_t* name
    cdef Py_ssize_t n
    while True:
        name = <const uint8_t*>memchr(text, 0, end - text)
        n = (name if name != NULL else end) - text
        memcpy(to, text, n)
        to += n
        if name == NULL:
            return to
        if name[1] == c'c':
            memcpy(to, client.client_id, client.client_id_size)
            to += client.client_id_size
        else:
            memcpy(to, client.username, client.username_size)
            to += client.username_size
        text = name + 2


cdef class Patterns:
    """Rules, with names or without.

    Args:
        rules: (allow, access, topic filter, opens) each. `allow` and `access` are as for Rights. In the topic filter
            b"\\0c" stands for the client identifier, and b"\\0u" for the user name. `opens` is 0 if no name is in the
            first level of the topic, else what that level begins with: CLIENT_ID, USERNAME or TEXT.
    """

    cdef Pattern* rules        # denying rules first
    cdef uint32_t count
    cdef bytes text            # all topic filters, one after the other
    cdef readonly int names    # in any of the rules: CLIENT_ID, USERNAME, or both

    def __init__(self, rules):
        cdef list found = sorted(set(rules))
        cdef uint32_t i
        cdef Pattern* rule
        cdef Py_ssize_t at = 0
        self.text = b"".join([topic_filter for _, _, topic_filter, _ in found])
        self.rules = <Pattern*>calloc(len(found) or 1, sizeof(Pattern))
        if self.rules == NULL:
            raise MemoryError
        for i, (allow, access, topic_filter, opens) in enumerate(found):
            rule = self.rules + i
            rule.at, rule.size, rule.opens = <uint32_t>at, <uint32_t>len(topic_filter), opens
            rule.access, rule.allow = access, allow
            rule.client_ids, rule.usernames = topic_filter.count(b"\0c"), topic_filter.count(b"\0u")
            rule.names = (OF_CLIENT_ID if rule.client_ids else 0) | (OF_USERNAME if rule.usernames else 0)
            self.names |= rule.names
            at += len(topic_filter)
        self.count = <uint32_t>len(found)

    def __dealloc__(self):
        free(self.rules)

    def rights(self, str client_id not None, str username):
        """The rights of a client.

        - A rule with a name that the client does not have, or that is no level of a topic, allows nothing.
        - If such a rule denies, the client may do nothing, since its meaning is unclear; without the name it has none.
        - The same holds for a name that would make the first level of a topic begin with `$`.
        - A topic filter that is longer than all topics is left out.

        Args:
            client_id: of the client.
            username: of the client; None or empty: it has none.
        """
        cdef Client client = Client(NULL, 0, NULL, 0, 0, 0, OF_TEXT)
        cdef Pattern* rule = self.rules
        cdef Pattern* end = rule + self.count
        cdef const uint8_t* text = self.text
        cdef Py_ssize_t size, total = 0
        cdef uint32_t count = 0
        if self.names & OF_CLIENT_ID:
            client.client_id = <const uint8_t*>PyUnicode_AsUTF8AndSize(client_id, &client.client_id_size)
            look_at(&client, OF_CLIENT_ID, client.client_id, client.client_id_size)
        if self.names & OF_USERNAME:
            client.username = <const uint8_t*>PyUnicode_AsUTF8AndSize(username or "", &client.username_size)
            look_at(&client, OF_USERNAME, client.username, client.username_size)
        while rule < end:
            size = filled_size(rule, &client)
            if size < 0:
                return NOTHING
            count += size > 0
            total += size
            rule += 1
        cdef bytes filled = PyBytes_FromStringAndSize(NULL, total)
        cdef Rights made = Rights.blank(count, filled)
        cdef AclRule* to = made.rules
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(filled)
        cdef uint8_t* at = start
        rule = self.rules
        while rule < end:
            size = filled_size(rule, &client)
            if size:
                to[0] = AclRule(<uint32_t>(at - start), <uint16_t>size, rule.access, rule.allow)
                at = fill(at, text + rule.at, rule.size, &client)
                to += 1
            rule += 1
        return made


cdef void look_at(Client* client, uint8_t name, const uint8_t* text, Py_ssize_t size) noexcept:
    """Note what is wrong with a name."""
    if size == 0:
        client.missing |= name
    elif text[0] == c'$':
        client.opening |= name
    if not is_level(text, size):
        client.unfit |= name
