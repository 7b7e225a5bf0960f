# Messages and entries of queues as Redis has them. See message_codec.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..session.message cimport Message, Publication

cdef enum:
    PLAIN_KIND = 1             # of a message without properties and expiry
    PLAIN_HEAD = 3             # bytes before the topic name
    RICH_KIND = 2              # of a message with properties or an expiry
    RICH_HEAD = 7              # bytes before its topic name, or before its deadline
    DEADLINE_SIZE = 8
    HAS_DEADLINE = 8           # in the first byte of such a message
    ENTRY_KIND = 3             # of an entry of a queue that has more than a message
    OF_SHARE = 1               # in its first byte: it is from a shared subscription
    AS_PUBLISHED = 2           # RETAIN is sent at level 5
    HAS_IDENTIFIERS = 4
    FOREIGN_SHARE = 8          # with OF_SHARE: another shard has the shared subscription
    FAILED_KIND = 4            # of the failures before a message of a group
    FAILED_SIZE = 4
    KEY_KIND = 5               # of the key before a message of a group
    KEY_SIZE = 13
    ELSEWHERE = 1              # in its first byte: a session that is elsewhere has messages of the key
    PROGRESS_KIND = 6          # of the progress before a message whose publication is under way
    PROGRESS_SIZE = 5
    NUMBER_KIND = 7            # of the number before a message that awaits PUBREL, with several shards
    NUMBER_SIZE = 9

# The heads of a message of a group.
cdef struct Heads:
    Py_ssize_t size                # bytes before the message
    int64_t key                    # hash; -1 = none
    uint64_t number                # of the assignment
    bint elsewhere
    uint64_t failures              # deliveries << 8 | reason code of the last

# The heads before the message in an entry of a queue, or of a group.
cdef struct Opened:
    uint8_t flags                  # of an entry that has more than a message: OF_SHARE, AS_PUBLISHED ...
    uint64_t place                 # in its group
    const uint8_t* group
    uint16_t group_length
    const uint8_t* identifiers
    uint16_t identifiers_length
    Heads heads
    const uint8_t* message
    Py_ssize_t size                # of the message

cdef Py_ssize_t stored_size(const Message* m) noexcept
cdef int write_message(uint8_t* p, const Message* m, uint8_t flags, int64_t deadline) except -1
cdef Publication read_message(const uint8_t* p, Py_ssize_t n, int64_t* deadline) except *
cdef Heads read_heads(const uint8_t* p, Py_ssize_t n) noexcept
cdef Opened open_entry(const uint8_t* p, Py_ssize_t size) except *
cdef bytes pack_failures(tuple failures)
cdef bytes pack_key(uint32_t key, uint64_t number)
