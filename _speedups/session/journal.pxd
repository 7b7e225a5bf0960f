# The journal: durable state changes as a sequence of records; a turn's records are one block.
# journal.pyx describes the layout.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..base.buffers cimport Buffer, Pool
from .message cimport Message, Publication

cdef enum:
    LAYOUT = 1                 # of a block
    BLOCK_MAX = 16777216      # bytes that a turn's block may refer to: past it a new block begins

cdef enum RecordKind:
    MESSAGE = 1
    QUEUED = 2
    DONE = 3
    RECEIVED = 4
    AWAITING = 5
    RELEASED = 6
    SESSION = 7
    SESSION_USER = 8
    SESSION_EXPIRY = 9
    SESSION_GONE = 10
    SUBSCRIBED = 11
    UNSUBSCRIBED = 12
    RETAINED = 13
    RETAINED_GONE = 14
    WILL = 15
    WILL_AUTHOR = 16
    WILL_DELAY = 17
    WILL_DUE = 18
    WILL_GONE = 19
    CLOCK = 20
    GROUP = 21
    GROUP_DECLARED = 22
    GROUP_GONE = 23
    GROUP_QUEUED = 24
    GROUP_DONE = 25
    GROUP_FAILED = 26
    GROUP_KEY = 27
    GIVEN = 28
    DELAYED = 29
    DELAYED_GONE = 30
    COMMITTED = 31


cdef class Journal:
    cdef Buffer records        # of the block being written
    cdef Pool pool
    cdef uint64_t last_id      # of the messages named so far
    cdef readonly int shards   # of the cluster; 1 also at a node alone
    cdef readonly bint shared  # records reach all nodes, and retained messages take effect from there
    cdef bint urgent           # a client or callback waits for this block: not all its records are DONE
    cdef int64_t now           # the turn's clock
    cdef int64_t clock_offset   # milliseconds of the store's clock when the turn's clock was 0
    cdef Py_ssize_t weight     # bytes that the block refers to or stands for, and `records` does not contain
    cdef int most_pushes       # entries for queues that a call of the store should have at most; 0 = any number
    cdef readonly bint full    # the block has as many
    cdef uint32_t epoch        # number of the current compaction; 0 = nothing is kept (store `memory`)
    cdef public uint64_t touched # with several shards: those that have got records since this was reset, as bits

    cdef Journal at(self, uint8_t shard)
    cdef int set_now(self, int64_t now) except -1
    cdef uint64_t new_number(self) except? 0
    cdef int begin_publication(self, const Publication* publication, uint64_t shards) except -1
    cdef int end_publication(self) except -1
    cdef int64_t deadline(self, int64_t clock) noexcept
    cdef uint8_t* room(self, uint8_t kind, Py_ssize_t n) except NULL
    cdef int note(self, uint8_t kind) except -1
    cdef int number(self, uint8_t kind, uint64_t a) except -1
    cdef int numbers(self, uint8_t kind, uint64_t a, uint64_t b) except -1
    cdef int three_numbers(self, uint8_t kind, uint64_t a, uint64_t b, uint64_t c) except -1
    cdef uint8_t* with_text(self, uint8_t kind, Py_ssize_t head, const uint8_t* data, Py_ssize_t n) except NULL
    cdef int text(self, uint8_t kind, uint64_t a, const uint8_t* data, Py_ssize_t n) except -1
    cdef uint64_t message(self, Message* m) except? 0
    # Records of sessions and the router. A session is passed as an object and as a number: each kind of journal uses
    # the name that it needs.
    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1
    cdef int session(self, uint64_t number, uint8_t level, uint8_t connected, uint64_t first, uint64_t sent,
                     bytes client_id) except -1
    cdef int subscribed(self, uint64_t number, uint8_t options, uint32_t identifier, const uint8_t* topic_filter,
                        Py_ssize_t n) except -1
    cdef int group_queued(self, uint64_t group, uint64_t place, Message* m) except -1
    cdef int group_failed(self, uint64_t group, uint64_t place, uint64_t deliveries, uint8_t code) except -1
    cdef int group_key(self, uint64_t group, uint64_t place, uint64_t hash) except -1
    cdef int given(self, uint64_t group, uint64_t place, uint64_t number, uint64_t n) except -1
    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n, uint32_t size) except -1
    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m,
                       uint64_t message_number) except -1
    cdef int progress(self, object session, uint16_t packet_id, uint64_t will, Message* m, uint32_t hash) except -1
    cdef int forward(self, object peer, Message* m) except -1
    cdef int logged(self, Py_ssize_t size) except -1
    cdef int retained(self, Message* m) except -1
    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1
    cdef int delayed(self, Message* m, int64_t due, uint32_t seconds, bytes publisher) except -1
    cdef int delayed_gone(self, const Message* m) except -1
    cdef int will(self, Message* m, const uint8_t* client_id, Py_ssize_t n) except -1
