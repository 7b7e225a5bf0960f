"""One turn of the loop: all readable input is read and handled, then each connection is written once.

Owns the lists that the packets of a turn fill: connections with output, senders with messages, records for the store.
Owns the order in which the end of the turn processes them. It has no socket, and its owner advances its clock.

Group commit: output that depends on stored records waits here. A block is sealed at the end of the turn that wrote it
and passed to the store. When the store has it, the caller calls `confirm`. Acknowledgements, deliveries and callbacks
that waited for the block are then released, in the order they were made. With store `memory` nothing ever waits.

With several shards a turn has a block for each of them, and each waiter names the shards that it waits for. The
acknowledgements of a connection also wait for the shards of the earlier ones that wait.

Each block costs a store more than the records in it (a call of a function, a sync). With `limit_commits` a turn that
ends while the store is busy leaves its records to the next block: a busy store makes blocks larger, an idle one replies
at once.
"""

from collections import deque

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ..base.array cimport array_reserve
from ..base.buffers cimport (Pointers, buffer_free, buffer_reserve, buffer_size, pointers_free, pointers_push,
                                pool_free)
from ..base.cursor cimport write_u16
from ..codec.tables cimport CODE_UNSPECIFIED, PUBACK, PUBCOMP, PUBREC
from .counters cimport COMMITS, COMMITTED_BYTES, DROPPED_QUEUE_FULL, PACKETS_SENT, READ_PAUSES
from .group_settings cimport GroupSettings
from .journal cimport Journal
from .tenant cimport Tenants
from .topic_aliases cimport aliases_free
from .trace cimport Tracer, Watch

from .counters import counter_names

COUNTERS = counter_names()

cdef enum:
    CALLBACK_SIZE = 512    # bytes counted for a callback and the objects it refers to
    LAZY_MAX = 65536      # bytes of records without waiters (DONE) whose block may be delayed
    DEFERRED_MAX = 262144 # bytes of a block that may wait for the confirmation of an earlier one
    REASON_STRING = 0x1F  # identifier of the property
    REACHED_TICKS = 40    # for which a connection remembers the shards of its retained messages of QoS 0: ten seconds
    PURGE_STEP = 1024     # connections that wait for a shard, after which those that have ended are forgotten

# Sentences for AckReason: below 120 bytes, so that the lengths around them take one byte.
ACK_REASONS = {
    NO_REASON: "",
    ONLY_THE_BROKER: "only the broker publishes there",
    NO_RIGHT: "the client may not publish there",
    PAYLOAD_NOT_UTF_8: "the payload is not UTF-8, as its format indicator says",
    TOO_MANY_UNRELEASED: "too many QoS 2 messages wait for PUBREL",
    REFUSED_BY_HOOK: "a hook refuses it",
    MADE_INVALID_BY_HOOK: "a hook made it invalid",
    NOT_REWRITABLE: "a rewrite rule has no valid topic name for it",
    WRONG_DELAY: "the topic of a delayed message is $delayed/SECONDS/TOPIC, at most 4294967 seconds",
    DELAYS_ARE_OFF: "delayed messages are switched off",
    TOO_MANY_DELAYED: "too many delayed messages wait",
    TOO_MANY_LEVELS: "the topic has more levels than limits.max_topic_levels of the broker",
    WRONG_TRANSACTION: "with QoS 1: $transaction/NAME/NUMBER/PART/CHUNK stages, and $transaction/NAME/NUMBER commits",
    WRONG_CHUNK: "a chunk is a sequence of PUBLISH packets of MQTT 5.0 that the client may send",
    CHUNK_MISSING: "an earlier chunk of the part is missing: send the part again, under another name",
    PART_MISSING: "a part has not all chunks that the commit lists: send the transaction again",
    TOO_MUCH_STAGED: "too many delayed and staged messages wait",
    NOT_AS_SCHEMA: "the payload does not fit the schema of the topic",
}
cdef tuple ACK_SENTENCES = tuple(ACK_REASONS[why].encode() for why in range(len(ACK_REASONS)))


cdef class Outlet:
    """The sending side of one connection: bytes written here are sent at the end of the turn."""

    def __dealloc__(self):
        aliases_free(&self.aliases)
        if self.turn is not None:
            buffer_free(&self.out, &self.turn.pool)

    @property
    def outgoing_bytes(self):
        """Bytes that the peer has not read yet."""
        return buffer_size(&self.out)

    @property
    def unacknowledged_messages(self):
        """QoS 1 and 2 messages from the client that are not acknowledged; counted at level 5."""
        return self.unacknowledged

    cdef int flush(self) except -1:
        """Send as much output as possible."""
        return 0

    cdef int drained(self) except -1:
        """Called when all output has been sent, if `wants_room` was set."""
        return 0

    cdef int store_caught_up(self) except -1:
        """Called when the store has caught up."""
        return 0

    cdef uint8_t* reserve(self, Py_ssize_t n) except NULL:
        """Reserve room for `n` bytes, which count as written: the caller fills all of them."""
        cdef uint8_t* p = buffer_reserve(&self.out, &self.turn.pool, n)
        if p == NULL:
            raise MemoryError
        self.out.end += n
        if not self.unflushed:
            if pointers_push(&self.turn.unflushed, <void*>self) < 0:
                raise MemoryError
            Py_INCREF(self)
            self.unflushed = True
        return p

    cdef int acknowledge(self, uint8_t first_byte, uint16_t packet_id, bint wait, uint8_t code, uint8_t why) except -1:
        """Send an acknowledgement; if `wait`, after the block being written is stored.

        While one waits, later ones of the connection wait too: they are sent in order [MQTT-4.6.0-2]. `code` and `why`
        are the reason code and the AckReason; below level 5 they are not sent.
        """
        cdef HeldAck ack = HeldAck(<void*>self, first_byte, code, packet_id, why, 0)
        if self.turn.parts is not None:
            return self.turn.hold_for_shards(self, ack, wait)
        if wait or self.held > self.turn.committed:
            if self.turn.journal.urgent:
                self.held = self.turn.sealed + 1
                return self.turn.writing.hold(ack)
            if self.turn.sealed > self.turn.committed:
                self.held = self.turn.sealed
                return self.turn.newest.hold(ack)
            # The block being written has only records without waiters (DONE).
        return put_acknowledgement(&ack, False)

    cdef int note_reached(self) except -1:
        """Note the shards that have records of the PUBLISH being handled, which is not acknowledged."""
        if self.turn.tick - self.reached_since >= REACHED_TICKS:
            self.reached_before = self.reached if self.turn.tick - self.reached_since < 2 * REACHED_TICKS else 0
            self.reached = 0
            self.reached_since = self.turn.tick
        self.reached |= self.turn.journal.touched
        return 0

    @property
    def concerned(self):
        """Shards that acknowledgements wait for, or that have retained messages of QoS 0 of ten seconds; as bits."""
        return self.reached | self.reached_before | (self.shards if self.holding else 0)

    def send(self, bytes data not None):
        """Append encoded packets to the output; they are sent at the end of the turn."""
        cdef const uint8_t* source = data
        if self.closed or not data:
            return
        memcpy(self.reserve(len(data)), source, len(data))
        self.turn.counters[PACKETS_SENT] += 1

    def take_output(self):
        """Remove and return the unsent packets, for an owner that sends them itself; they count as sent."""
        data = self.out.data[self.out.start:self.out.end]
        buffer_free(&self.out, &self.turn.pool)
        if self.wants_room:
            self.wants_room = False
            self.drained()
        return data

    @property
    def waits(self):
        """Whether acknowledgements wait for the store."""
        return self.holding > 0 if self.turn.parts is not None else self.held > self.turn.committed


cdef class Sender:
    """An object with numbered messages to send, some of which wait for the store."""

    cdef int send_pending(self) except -1:
        """Send the messages that may be sent now."""
        return 0

    cdef int drop_unsent(self) except -1:
        """Drop messages that were never sent and have expired."""
        return 0


cdef int release(Pointers* owned) except -1:
    """Free an array of owned references."""
    cdef Pointers held = owned[0]
    cdef Py_ssize_t i
    owned[0] = Pointers(NULL, 0, 0)
    for i in range(held.count):
        Py_DECREF(<object>held.items[i])
    pointers_free(&held)
    return 0


cdef class Commit:
    """The senders, acknowledgements and callbacks that wait for one block."""

    def __cinit__(self):
        self.callbacks = []

    def __dealloc__(self):
        cdef Py_ssize_t i
        release(&self.awaiting_commit)
        for i in range(self.ack_count):
            Py_DECREF(<object>self.acks[i].outlet)
        free(self.tails)
        free(self.acks)

    cdef int hold(self, HeldAck ack) except -1:
        if array_reserve(<void**>&self.acks, self.ack_count + 1, &self.ack_capacity, sizeof(HeldAck)) < 0:
            raise MemoryError
        Py_INCREF(<object>ack.outlet)
        self.acks[self.ack_count] = ack
        self.ack_count += 1
        self.size += sizeof(HeldAck)
        (<Outlet>ack.outlet).turn.uncommitted += sizeof(HeldAck)
        return 0


cdef class Turn:
    """The state that all connections of a node share.

    Args:
        journal: collects the records for the store.
        store: called with each block; `confirm` must be called for each, in order.
        report: called with an exception that a callback of `after_commit`, or a sender, raised; the others still run.
    """

    def __init__(self, Journal journal not None, store=None, report=None):
        self.journal = journal
        self.report = report
        self.store = store
        self.commits = deque()
        self.held_up = []
        self.held_up_round = 1
        self.full_queues = {}
        self.slow = []
        self.tenants = Tenants()
        self.shared = GroupSettings()
        self.writing = Commit()
        if journal.shards > 1:
            self.parts, self.waiting = {}, {}
            self.held_back = [[] for _ in range(journal.shards)]
        self.clock = 1               # 0 stands for "never" in deadlines
        journal.set_now(self.clock)

    def __dealloc__(self):
        self.release_waiters()
        pool_free(&self.pool)

    cdef int release_waiters(self) except -1:
        release(&self.unflushed)
        release(&self.to_send)
        release(&self.awaiting_commit)
        release(&self.awaiting_store)
        return 0

    def abandon(self):
        """Forget all that waits: the node drops this state. The garbage collector does not see references in C."""
        self.writing = Commit()
        self.newest = None
        self.commits.clear()
        if self.parts is not None:
            self.parts, self.waiting = {}, {}
            self.held_back = [[] for _ in range(self.journal.shards)]
        self.release_waiters()

    def set_limits(self, limits not None):
        """Set the TurnLimits."""
        self.limits = Limits(
            limits.max_packet_size, limits.max_topic_levels, min(limits.max_inflight, 65535),
            limits.max_queued_messages, limits.max_queued_bytes, limits.drop_oldest, limits.max_awaiting_release,
            limits.max_outgoing_bytes, limits.control_characters, limits.validate_payload, limits.receive_maximum,
            min(limits.topic_alias_maximum, ALIASES_MAX), limits.max_uncommitted_bytes)

    def limit_queue(self, bytes client_id not None, limits):
        """Give the queue of a session its own limits: (messages, bytes, drop the oldest); None: no more."""
        known = dict(self.own_limits or {})
        known.pop(client_id, None)
        if limits is not None:
            known[client_id] = limits
        self.own_limits = known or None

    def set_hooks(self, bint decide, deliver_hook):
        """The hooks on the data path.

        Args:
            decide: every PUBLISH is handed to the handler first.
            deliver_hook: called with (session, topic name, payload, QoS, RETAIN, property block); False keeps it
                from the session. None: every message is delivered.
        """
        self.hooks_decide = decide
        self.has_publish_hook = decide or self.bound is not None
        self.deliver_hook = deliver_hook

    def set_schemas(self, Rights bound, fits):
        """Set the schemas of payloads. A PUBLISH that does not fit is handed to the handler.

        Args:
            bound: may publish to the topic names that have a schema. None: there are no schemas.
            fits: called with (topic name, payload) of these names, as clients know them; returns whether they fit.
        """
        self.bound = bound
        self.fits = fits
        self.has_publish_hook = self.hooks_decide or bound is not None

    def set_rewrite(self, rewrite):
        """Set the function that gives each PUBLISH of a client its topic name, before rights are checked.

        Args:
            rewrite: called with (channel, topic name); returns a topic name, which need not be valid. None: names stay.
        """
        self.rewrite = rewrite

    def set_dead_letters(self, publish):
        """Set the function that is called with each DeadLetter, while the turn ends, before its block is sealed."""
        self.dead_letters = publish

    def limit_commits(self, uint64_t most):
        """Let the end of a turn seal a block only while fewer than `most` are unconfirmed; 0 = always.

        The caller ends a turn after `confirm`, and calls `seal_deferred` before anything that has to follow the
        records.
        """
        self.most_commits = most

    def follow_shards(self, stored_up_to, is_busy):
        """Connect the store of a node with several shards.

        The store calls `stored` for what a shard has stored, and then `release_stored`.

        Args:
            stored_up_to: called with shards, as bits; returns the number of the last turn of which they have all.
            is_busy: returns whether a shard that replies has enough to store: as `limit_commits`.
        """
        self.stored_up_to, self.is_busy = stored_up_to, is_busy

    def follow(self, Tracer tracer):
        """Note the steps of messages in this tracer; None: in none."""
        self.tracer = tracer

    def watch_messages(self, Watch watch):
        """Report the steps of the messages in this watch; None: of none."""
        self.watch = watch

    def count(self, int counter, uint64_t n=1):
        """Add `n` to a counter, given by its index in COUNTERS."""
        self.counters[counter] += n

    def counted(self):
        """All counters, by name."""
        return {name: self.counters[i] for i, name in enumerate(COUNTERS)}

    cdef int queue_is_full(self, object client_id) except -1:
        """Count a message that was dropped at the limits of a session's queue."""
        self.counters[DROPPED_QUEUE_FULL] += 1
        self.full_queues[client_id] = self.full_queues.get(client_id, 0) + 1
        return 0

    def add_full_queues(self, dict dropped not None):
        """Add messages dropped at queues elsewhere: client id -> their number. The counters already include them."""
        for client_id, n in dropped.items():
            self.full_queues[client_id] = self.full_queues.get(client_id, 0) + n

    def drop_expired(self):
        """Drop messages of connected clients that have expired before they could be sent: Redis counts them so far."""
        expiring, self.expiring = self.expiring, None
        for sender in expiring or ():
            (<Sender>sender).drop_unsent()

    def take_full_queues(self):
        """Client id -> messages that were dropped at its full queue since the last call."""
        dropped, self.full_queues = self.full_queues, {}
        return dropped

    def take_slow(self):
        """Connections whose output had no room for messages of QoS 0 since the last call, and the number of these."""
        cdef Outlet outlet
        cdef list found = []
        for outlet in self.slow:
            found.append((outlet, outlet.dropped))
            outlet.dropped = 0
        self.slow = []
        return found

    def take_held_up(self):
        """Client ids of sessions in which, since the last call, messages had to wait for an acknowledgement."""
        held_up, self.held_up = self.held_up, []
        self.held_up_round = self.held_up_round % 255 + 1       # of a sender that was never noted it is 0
        return held_up

    def advance(self, uint32_t ticks, int64_t missed=0):
        """Advance the tick by `ticks` quarters of a second, the clock by `missed` more: the process was suspended."""
        self.tick += ticks
        self.clock += ticks + missed
        self.journal.set_now(self.clock)

    def after_commit(self, callback, uint64_t shards=<uint64_t>-1):
        """Call `callback()` when all records so far are stored; at once if they are.

        `shards`: with several shards, those whose records count, as bits.
        """
        cdef Commit commit = self.writing
        if self.parts is not None:
            commit = self.waiters_of(shards)
            if commit is None:
                callback()
                return
        elif not self.journal.urgent:
            if not self.commits:
                callback()
                return
            commit = self.newest
        commit.callbacks.append(callback)
        commit.size += CALLBACK_SIZE
        self.uncommitted += CALLBACK_SIZE

    def before_seal(self, callback):
        """Call `callback()` before the block being written is sealed: its records are in the block, too."""
        if self.sealing is None:
            self.sealing = []
        self.sealing.append(callback)

    cdef int await_commit(self, Sender sender) except -1:
        """Note that the sender has entries in the block being written."""
        if not sender.waiting:
            if pointers_push(&self.awaiting_commit, <void*>sender) < 0:
                raise MemoryError
            Py_INCREF(sender)
            sender.waiting = True
        return 0

    cdef int forget_tails(self, Sender sender, uint64_t most) except -1:
        """Queue numbers of the sender from `most` on are given again: blocks on their way to the store have others."""
        cdef Commit commit
        cdef Py_ssize_t i
        for commit in self.commits:
            for i in range(commit.awaiting_commit.count):
                if commit.awaiting_commit.items[i] == <void*>sender:
                    commit.tails[i] = min(commit.tails[i], most)
        return 0

    cdef int schedule_send(self, Sender sender) except -1:
        """Call `send_pending` of the sender at the end of the turn."""
        if not sender.is_scheduled:
            if pointers_push(&self.to_send, <void*>sender) < 0:
                raise MemoryError
            Py_INCREF(sender)
            sender.is_scheduled = True
        return 0

    cdef bint overloaded(self) noexcept:
        """Whether the store is so far behind that publishers must wait."""
        return self.uncommitted + buffer_size(&self.journal.records) > self.limits.max_uncommitted_bytes

    cdef bint behind(self) noexcept:
        """Whether the store has yet to confirm something that was recorded."""
        return self.journal.urgent or self.sealed > self.committed

    cdef int await_store(self, Outlet outlet) except -1:
        """Resume reading from the connection when the store has caught up."""
        if pointers_push(&self.awaiting_store, <void*>outlet) < 0:
            raise MemoryError
        Py_INCREF(outlet)
        self.counters[READ_PAUSES] += 1
        return 0

    cpdef int seal(self) except -1:
        """Pass the block being written to the store, if it has records, and queue its waiters."""
        cdef Commit commit = self.writing
        cdef Sender sender
        cdef Py_ssize_t i
        self.deferred = False
        if self.sealing is not None:
            callbacks, self.sealing = self.sealing, None
            for callback in callbacks:
                callback()
        if buffer_size(&self.journal.records) == 0:
            return 0
        if self.awaiting_commit.count:
            commit.tails = <uint64_t*>malloc(self.awaiting_commit.count * sizeof(uint64_t))
            if commit.tails == NULL:
                raise MemoryError
        for i in range(self.awaiting_commit.count):
            sender = <Sender>self.awaiting_commit.items[i]
            sender.waiting = False
            commit.tails[i] = sender.tail
        commit.awaiting_commit = self.awaiting_commit
        self.awaiting_commit = Pointers(NULL, 0, 0)
        block = self.journal.take()
        self.sealed += 1
        if self.parts is not None:
            self.seal_parts(block)
        else:
            commit.size += len(block)
            self.uncommitted += len(block)
            self.commits.append(commit)
            self.newest = commit
            self.writing = Commit()
        self.counters[COMMITS] += 1
        self.counters[COMMITTED_BYTES] += len(block)
        self.store(block)
        return 0

    cpdef int seal_deferred(self) except -1:
        """Seal the block being written, if a turn has ended without doing so."""
        return self.seal() if self.deferred else 0

    cdef bint defers(self) except -1:
        """Whether the block being written should wait for the confirmation of an earlier one."""
        if self.is_busy is not None:
            return buffer_size(&self.journal.records) + self.journal.weight < DEFERRED_MAX and self.is_busy()
        return (self.most_commits > 0 and self.sealed - self.committed >= self.most_commits
                and buffer_size(&self.journal.records) + self.journal.weight < DEFERRED_MAX)

    def confirm(self, Py_ssize_t blocks=1):
        """The store has the next `blocks` blocks: release their waiters. The caller then ends a turn."""
        if self.parts is not None:
            self.committed += blocks
            return
        for _ in range(blocks):
            self.committed += 1
            self.release_commit(self.commits.popleft())
        if not self.commits:
            self.newest = None                      # it would keep sessions that have ended
        if self.awaiting_store.count and not self.overloaded():
            self.resume_store_behind()

    cdef int release_commit(self, Commit commit) except -1:
        """The store has the block that these wait for."""
        cdef Sender sender
        cdef Outlet outlet
        cdef Py_ssize_t i
        self.uncommitted -= commit.size
        for i in range(commit.awaiting_commit.count):
            sender = <Sender>commit.awaiting_commit.items[i]
            sender.committed = commit.tails[i]
            self.schedule_send(sender)
        for i in range(commit.ack_count):
            outlet = <Outlet>commit.acks[i].outlet
            if self.parts is not None:
                self.unstored[commit.acks[i].shard] -= sizeof(HeldAck)
                outlet.holding -= 1
            if not outlet.closed:
                put_acknowledgement(&commit.acks[i], True)
        for callback in commit.callbacks:
            try:
                callback()
            except Exception as error:
                self.report(error)
        return 0

    # ---- several shards ----

    cdef int hold_for_shards(self, Outlet outlet, HeldAck ack, bint wait) except -1:
        """Send an acknowledgement when the shards have all that they wait for: see `Outlet.acknowledge`."""
        cdef uint64_t shards = self.journal.touched if wait else 0
        cdef Commit commit = None
        cdef int i
        if outlet.holding:
            shards |= outlet.shards
        if shards:
            commit = self.waiters_of(shards)
        if commit is None:
            return put_acknowledgement(&ack, False)
        for i in range(self.journal.shards):          # the one that is the furthest behind
            if shards >> i & 1 and (not shards >> ack.shard & 1 or self.unstored[i] > self.unstored[ack.shard]):
                ack.shard = <uint8_t>i
        self.unstored[ack.shard] += sizeof(HeldAck)
        outlet.shards = shards
        outlet.holding += 1
        return commit.hold(ack)

    cdef Commit waiters_of(self, uint64_t shards):
        """The waiters for all records so far in these shards; None: they have them."""
        cdef Commit commit
        shards &= (<uint64_t>1 << self.journal.shards) - 1 if self.journal.shards < SHARDS_MAX else <uint64_t>-1
        if self.journal.urgent:
            commit = self.parts.get(shards)
            if commit is None:
                commit = self.parts[shards] = Commit()
            return commit
        if self.committed == self.sealed or self.stored_up_to(shards) >= self.sealed:
            return None
        waiting = self.waiting.setdefault(shards, deque())
        commit = waiting[len(waiting) - 1] if waiting else None
        if commit is None or commit.number < self.sealed:
            commit = Commit()
            commit.number = self.sealed
            waiting.append(commit)
        return commit

    cdef int seal_parts(self, object block) except -1:
        """The block being written is on its way: its waiters wait for its shards."""
        cdef Commit commit
        for shard, size in block.sizes:
            self.unstored[<int>shard] += <Py_ssize_t>size
            self.uncommitted += <Py_ssize_t>size
        parts, self.parts = self.parts, {}
        for shards, commit in parts.items():
            commit.number = self.sealed
            self.waiting.setdefault(shards, deque()).append(commit)
        return 0

    def stored(self, int shard, Py_ssize_t size):
        """A shard has stored something of this size. The caller then calls `release_stored`."""
        self.unstored[shard] -= size
        self.uncommitted -= size

    def release_stored(self):
        """Release all whose shards have what it waits for. The caller then ends a turn.

        An acknowledgement waits for the shards of the earlier ones of its connection, too: so what waits for fewer
        shards is released first, and all is in order.
        """
        cdef int shard
        for shards in sorted(self.waiting, key=int.bit_count):
            waiting = self.waiting.get(shards)
            stored = self.stored_up_to(shards) if waiting else 0
            while waiting and (<Commit>waiting[0]).number <= stored:
                self.release_commit(waiting.popleft())
            if not waiting:
                self.waiting.pop(shards, None)
        for shard in range(self.journal.shards):
            if self.held_back[shard] and self.shard_behind(<uint64_t>1 << shard) < 0:
                self.read_again(shard)

    cdef int shard_behind(self, uint64_t shards) noexcept:
        """One of these shards that is so far behind that publishers must wait; -1: none is."""
        cdef int i
        for i in range(self.journal.shards):
            if shards >> i & 1 and self.unstored[i] > self.limits.max_uncommitted_bytes // self.journal.shards:
                return i
        return -1

    cdef int await_shard(self, Outlet outlet, int shard) except -1:
        """Resume reading from the connection when the shard has caught up."""
        cdef list held = self.held_back[shard]
        held.append(outlet)
        if len(held) % PURGE_STEP == 0:               # a shard may be away for hours
            self.held_back[shard] = [each for each in held if not (<Outlet>each).closed]
        self.counters[READ_PAUSES] += 1
        return 0

    def read_again(self, int shard):
        """Resume the connections that waited longest, while the shard keeps up."""
        cdef list held = self.held_back[shard]
        cdef Py_ssize_t n = 0
        self.held_back[shard] = []
        while n < len(held) and self.shard_behind(<uint64_t>1 << shard) < 0:
            n += 1
            (<Outlet>held[n - 1]).store_caught_up()
        self.held_back[shard] = held[n:] + self.held_back[shard]

    # ---- readers of a store that is behind ----

    cdef int resume_store_behind(self) except -1:
        """Resume the connections that waited longest, while the store keeps up; one that waits again is queued last."""
        cdef Pointers held = self.awaiting_store
        cdef Pointers again
        cdef Outlet outlet
        cdef Py_ssize_t i = 0
        self.awaiting_store = Pointers(NULL, 0, 0)
        while i < held.count and not self.overloaded():
            outlet = <Outlet>held.items[i]
            i += 1
            outlet.store_caught_up()                # may close the gate again
            Py_DECREF(outlet)
        again = self.awaiting_store
        self.awaiting_store = Pointers(NULL, 0, 0)
        while i < held.count:
            if pointers_push(&self.awaiting_store, held.items[i]) < 0:
                raise MemoryError
            i += 1
        for i in range(again.count):
            if pointers_push(&self.awaiting_store, again.items[i]) < 0:
                raise MemoryError
        pointers_free(&held)
        pointers_free(&again)
        return 0

    cpdef bint end(self) except -1:
        """Send messages, store, flush. Returns True if senders already have more: another turn should follow soon."""
        cdef Pointers to_send = self.to_send
        cdef Sender sender
        cdef Outlet outlet
        cdef Py_ssize_t i
        self.to_send = Pointers(NULL, 0, 0)
        for i in range(to_send.count):
            sender = <Sender>to_send.items[i]
            sender.is_scheduled = False
            try:
                sender.send_pending()
            except Exception as error:              # the senders behind it have to be served
                self.report(error)
            Py_DECREF(sender)
        pointers_free(&to_send)
        if self.journal.urgent or buffer_size(&self.journal.records) > LAZY_MAX:
            self.deferred = self.defers()
            if not self.deferred:
                self.seal()
        # The newest first: deliveries are newer than acknowledgements and more urgent.
        while self.unflushed.count:
            self.unflushed.count -= 1
            outlet = <Outlet>self.unflushed.items[self.unflushed.count]
            outlet.unflushed = False
            if not outlet.closed:
                outlet.flush()
            Py_DECREF(outlet)
        return self.to_send.count > 0


cdef int put_acknowledgement(const HeldAck* ack, bint was_held) except -1:
    cdef Outlet outlet = <Outlet>ack.outlet
    cdef int kind = ack.first_byte >> 4
    cdef uint8_t* p
    if outlet.level == 5:
        if outlet.unacknowledged and (
                kind == PUBACK or kind == PUBCOMP or (kind == PUBREC and ack.code >= CODE_UNSPECIFIED)):
            outlet.unacknowledged -= 1
    if ack.code and outlet.level == 5:
        put_reason(outlet, ack)
    else:
        p = outlet.reserve(4)
        p[0] = ack.first_byte
        p[1] = 2
        write_u16(p + 2, ack.packet_id)
    if outlet.turn.tracer is not None:
        outlet.turn.tracer.answered(outlet, ack.first_byte, ack.packet_id, was_held)
    outlet.turn.counters[PACKETS_SENT] += 1
    return 0


cdef int put_reason(Outlet outlet, const HeldAck* ack) except -1:
    """Write an acknowledgement with its reason code, and its reason string if the client takes it [5: MQTT-3.4.2-2]."""
    cdef bytes sentence = ACK_SENTENCES[ack.why] if outlet.problem_information else b""
    cdef Py_ssize_t n = len(sentence)
    cdef uint8_t* p
    if n and 9 + n > <Py_ssize_t>outlet.largest:
        n = 0
    p = outlet.reserve(9 + n if n else 5)
    p[0] = ack.first_byte
    p[1] = <uint8_t>(7 + n if n else 3)
    write_u16(p + 2, ack.packet_id)
    p[4] = ack.code
    if n:
        p[5] = <uint8_t>(3 + n)
        p[6] = REASON_STRING
        write_u16(p + 7, <uint16_t>n)
        memcpy(p + 9, <const uint8_t*>sentence, n)
    return 0
