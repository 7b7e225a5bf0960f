# One turn of the loop: collects output and records, then sends, stores and releases them. See turn.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..base.buffers cimport Buffer, Pointers, Pool, buffer_size
from ..base.flag cimport flag
from .counters cimport COUNTER_COUNT
from .group_settings cimport GroupSettings
from .journal cimport Journal
from .rights cimport Rights
from .topic_aliases cimport TopicAliases
from .tenant cimport Tenants
from .trace cimport Tracer, Watch

cdef enum:
    SHARDS_MAX = 64            # bits of a number that says which shards
    ALIASES_MAX = 255          # largest topic alias that a configuration may allow

# Why a PUBLISH was refused, or an acknowledgement is no success: index of ACK_REASONS.
cpdef enum AckReason:
    NO_REASON = 0
    ONLY_THE_BROKER
    NO_RIGHT
    PAYLOAD_NOT_UTF_8
    TOO_MANY_UNRELEASED
    REFUSED_BY_HOOK
    MADE_INVALID_BY_HOOK
    NOT_REWRITABLE
    WRONG_DELAY
    DELAYS_ARE_OFF
    TOO_MANY_DELAYED
    TOO_MANY_LEVELS
    WRONG_TRANSACTION
    WRONG_CHUNK
    CHUNK_MISSING
    PART_MISSING
    TOO_MUCH_STAGED
    NOT_AS_SCHEMA

cdef struct Limits:
    uint32_t max_packet_size          # bytes of a whole packet
    int max_topic_levels
    uint32_t max_inflight             # QoS 1 and 2 messages sent to a session and not yet acknowledged
    uint32_t max_queued_messages      # per session, those in flight included
    uint64_t max_queued_bytes         # per session
    bint drop_oldest                  # a full queue drops its oldest unsent message; else the new one
    uint32_t max_awaiting_release     # QoS 2 messages of a session that wait for PUBREL
    Py_ssize_t max_outgoing_bytes     # unsent bytes of one connection; above it QoS 0 is dropped and QoS 1, 2 wait
    bint control_characters           # allowed in topic names
    bint validate_payload             # a payload that is declared to be UTF-8 is checked
    uint32_t receive_maximum          # unacknowledged messages of QoS 1 and 2 from a client of level 5
    uint32_t topic_alias_maximum      # of the aliases of a client, at most ALIASES_MAX
    Py_ssize_t max_uncommitted_bytes  # of blocks that the store has not confirmed; above it publishers are not read

# An acknowledgement that is sent when the store has the block it depends on.
cdef struct HeldAck:
    void* outlet                      # an Outlet; the entry owns a reference
    uint8_t first_byte
    uint8_t code                      # reason code
    uint16_t packet_id
    uint8_t why                       # AckReason
    uint8_t shard                     # with several shards: the one among whose bytes it counts


cdef class Outlet:
    cdef Turn turn
    cdef Buffer out                   # encoded packets that are not yet sent
    cdef uint64_t held                # the commit that this connection's acknowledgements wait for
    # With several shards instead: the shards that they wait for, as bits, and how many wait.
    cdef uint64_t shards
    cdef uint32_t holding
    cdef readonly bint has_published  # whether it has sent PUBLISH or PUBREL
    # Shards that have retained messages of QoS 0 from it, as bits: since this tick, and in the ten seconds before it.
    cdef uint32_t reached_since
    cdef uint64_t reached
    cdef uint64_t reached_before
    cdef uint32_t largest             # bytes of the largest packet that the client takes
    cdef uint32_t unacknowledged      # its messages of QoS 1 and 2 that are not acknowledged; counted at level 5
    cdef TopicAliases aliases         # that this node has set; the channel has the client's aliases
    cdef list sources                 # of MessageSource, for the session, in order of arrival; None when empty
    cdef uint16_t receive_maximum     # messages of QoS 1 and 2 that it takes without acknowledging one
    cdef uint8_t level                # protocol level, 0 before CONNECT
    cdef flag keeps_retain            # messages may keep the RETAIN flag of their publisher: level 5, or a bridge
    cdef flag problem_information     # it wants reason strings
    cdef flag unflushed               # is in turn.unflushed
    cdef flag blocked                 # the socket takes no more for now
    cdef readonly flag closed
    cdef flag wants_room              # `drained` is to be called when all has been sent
    cdef uint32_t dropped             # QoS 0 packets for which it had no room, until they are taken: see `take_slow`

    cdef int flush(self) except -1
    cdef int drained(self) except -1
    cdef int store_caught_up(self) except -1
    cdef uint8_t* reserve(self, Py_ssize_t n) except NULL
    cdef int acknowledge(self, uint8_t first_byte, uint16_t packet_id, bint wait, uint8_t code, uint8_t why) except -1
    cdef int note_reached(self) except -1


cdef class Sender:
    cdef uint64_t tail                # queue number that the next message gets
    cdef uint64_t committed           # queue numbers below this may be sent
    cdef uint32_t pending             # messages passed to the journal that have no queue number yet
    cdef flag waiting                 # is in turn.awaiting_commit
    cdef flag is_scheduled            # is in turn.to_send
    cdef uint8_t held_up_in           # the last turn.held_up_round in which it was noted
    cdef readonly uint8_t kind        # SessionKind of a Subscriber

    cdef int send_pending(self) except -1
    cdef int drop_unsent(self) except -1


cdef int release(Pointers* owned) except -1


cdef class Commit:
    cdef Pointers awaiting_commit     # Senders (owned references) ...
    cdef uint64_t* tails              # ... and the queue number below which each may send
    cdef HeldAck* acks
    cdef Py_ssize_t ack_count, ack_capacity
    cdef list callbacks               # Python callables without arguments
    cdef Py_ssize_t size              # bytes of the block and of its waiters
    cdef uint64_t number              # with several shards: of the turn

    cdef int hold(self, HeldAck ack) except -1


cdef class Turn:
    cdef Limits limits
    cdef Pool pool                    # blocks for outgoing and incoming buffers
    cdef readonly Journal journal
    cdef Pointers unflushed           # Outlets with output (owned references)
    cdef Pointers to_send             # Senders that may have messages to send (owned references)
    cdef Pointers awaiting_commit     # Senders with entries in the block being written (owned references)
    cdef Pointers awaiting_store      # Outlets that are not read until the store has caught up (owned references)
    cdef Commit writing               # the waiters of the block being written
    cdef Commit newest                # of `commits`; None before the first
    cdef object commits               # deque of Commit: blocks that the store has not confirmed, in order
    cdef object store                 # callable that takes a block
    cdef object report                # callable that takes an exception
    cdef readonly Py_ssize_t uncommitted  # bytes of those blocks and of their waiters
    cdef readonly uint64_t sealed     # blocks given to the store
    cdef readonly uint64_t committed  # blocks that the store has confirmed
    cdef uint64_t most_commits        # unconfirmed blocks with which a turn seals no further one; 0 = any number
    cdef bint deferred                # a turn has ended so
    # With several shards in place of `writing` and `commits`: waiters by the shards that they wait for, as bits.
    cdef dict parts                   # of the block being written: shards -> Commit; None: there is one shard
    cdef dict waiting                 # shards -> deque of Commit, in the order of the turns
    cdef list held_back               # of each shard: Outlets that are not read until it has caught up
    cdef Py_ssize_t[SHARDS_MAX] unstored # bytes that each shard has yet to store, and of waiters
    cdef object stored_up_to          # callable: shards -> the last turn of which they have all
    cdef object is_busy               # callable: whether a shard that replies has enough to store
    cdef readonly bint has_publish_hook  # the handler decides over some PUBLISH packets, or over all:
    cdef bint hooks_decide            # hooks decide over every message
    cdef readonly Rights bound        # topic names, as clients know them, whose payloads have a schema; None = none
    cdef object fits                  # callable: (topic name, payload) -> whether the payload fits the schema
    cdef readonly object rewrite      # callable: (channel, topic name) -> the name to publish to; None = as received
    cdef readonly object deliver_hook # callable: whether the session may get the message; None = always
    cdef readonly Tracer tracer       # None while no trace runs
    cdef readonly Watch watch         # None while nothing waits for a step of a single message
    cdef readonly uint32_t tick       # quarters of a second that the loop has been running
    cdef readonly int64_t clock       # quarters of a second since the node began, the machine's sleep included
    cdef uint64_t counters[COUNTER_COUNT]
    cdef readonly object dead_letters # callable that takes a DeadLetter; None = they are dropped
    cdef list sealing                 # callbacks of `before_seal`; None: there are none
    cdef set expiring                 # Senders with messages in Redis that expire, and that they can't send yet; None
    cdef list held_up                 # client ids of sessions in which messages wait for an acknowledgement, noted once
    cdef uint8_t held_up_round        # ... in this round, which ends with `take_held_up`
    cdef dict full_queues             # client id -> messages dropped at its full queue, until `take_full_queues`
    cdef list slow                    # Outlets that had no room for messages of QoS 0, each once
    cdef readonly Tenants tenants     # of the names at this node
    cdef dict own_limits              # client id -> its own limits of a queue: messages, bytes, drop the oldest
    cdef readonly GroupSettings shared # of shared subscriptions without their own
    cdef readonly int64_t queued        # messages in the queues of all sessions of this node ...
    cdef readonly int64_t queued_bytes  # ... bytes of them ...
    cdef readonly int64_t inflight      # ... and how many of them were sent and are not acknowledged

    cdef int release_waiters(self) except -1
    cdef int await_commit(self, Sender sender) except -1
    cdef int forget_tails(self, Sender sender, uint64_t most) except -1
    cdef int schedule_send(self, Sender sender) except -1
    cdef int queue_is_full(self, object client_id) except -1
    cdef bint overloaded(self) noexcept
    cdef bint behind(self) noexcept
    cdef bint defers(self) except -1
    cdef int await_store(self, Outlet outlet) except -1
    cdef int hold_for_shards(self, Outlet outlet, HeldAck ack, bint wait) except -1
    cdef Commit waiters_of(self, uint64_t shards)
    cdef int seal_parts(self, object block) except -1
    cdef int release_commit(self, Commit commit) except -1
    cdef int shard_behind(self, uint64_t shards) noexcept
    cdef int await_shard(self, Outlet outlet, int shard) except -1
    cdef int resume_store_behind(self) except -1
    cpdef int seal(self) except -1
    cpdef int seal_deferred(self) except -1
    cpdef bint end(self) except -1


cdef inline uint64_t record_position(Turn turn) noexcept:
    """A number that grows with each record for the store, also when the block is sealed in between."""
    return turn.sealed << 40 | <uint64_t>buffer_size(&turn.journal.records)
