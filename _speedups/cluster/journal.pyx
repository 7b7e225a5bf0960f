"""The journal of a node in a cluster: a turn's changes for Redis, packed as one call of a function.

Sessions and the router record here as they do in the journal of a single node. A record alone has no effect: Redis
returns queue numbers, retained messages and subscriptions of persistent sessions, in one order for all nodes.

A block is texts of MessagePack (packing.pyx), whose fields cluster/redis/calls.py lists: `commit` and `acks`.
Acknowledgements are separate because they must succeed when Redis has no memory left. Two parts are arguments of their
own for `flockmq_commit`: `texts`, the messages, and `batch`, the batch of the log after its header.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport free

from ..base.array cimport array_reserve
from ..base.buffers cimport Buffer, buffer_free, pool_free
from ..base.msgpack cimport put_array, put_number, put_object
from .commit_block cimport Block, Forward, Item, Items, Queued
from .group_records cimport GroupRecords, flat_keys
from .message_codec cimport stored_size, write_message
from .packing cimport (
    FIRST_MESSAGE, pack_acks, pack_handshakes, pack_log, pack_messages, pack_pushes,
)
from ..session.journal cimport AWAITING, QUEUED, RELEASED, RETAINED
from ..session.message cimport message_hold, message_release
from ..session.session_queue cimport QueueLimits, get_limits
from ..session.subscriber cimport Subscriber

from ..base.msgpack import pack

from random import getrandbits

cdef enum:
    QUARTER = 250              # milliseconds of the turn's clock
    BLOCK_FIELDS = 17          # of `commit`
    UNSENT_PART = 8            # acknowledgements may wait while they are less than an eighth of a queue's limits
    STEP_WEIGHT = 128          # bytes that a change or a release counts, so that a block has some 2000: see PUSHES_MAX
    PUSHES_MAX = 1000          # entries for queues in a block: Redis executes nothing else, for 5 us or more each

NO_ACKS = pack([[], []])


cdef int add(Items* list, uint32_t session, uint8_t kind, uint64_t number, uint32_t size=0) except -1:
    if array_reserve(<void**>&list.items, list.count + 1, &list.capacity, sizeof(Item)) < 0:
        raise MemoryError
    list.items[list.count] = Item(session, size, kind, number)
    list.count += 1
    return 0


class Numbered:
    """What a numbered publication gives to a shard: Redis skips it if an earlier block has given it.

    Attributes:
        pushes: places among the pushes of the block.
        shares: name of a group and places of messages, in turn.
        delayed: delayed messages, as a block has them.
        changes: places among the changes of the block.
    """

    __slots__ = ("changes", "delayed", "pushes", "shares")

    def __init__(self):
        self.pushes, self.shares, self.delayed, self.changes = [], [], [], []

    def packed(self):
        """As Redis gets it."""
        return [self.pushes, self.shares, self.delayed, self.changes]


cdef uint64_t last_block = 0   # of all journals of this process: a place in one block must not count in another


cdef class Whole(Journal):
    """The journal of a node in a cluster with several shards, as each part of it sees it: sharded_journal.pyx."""

    cdef int noted(self, ClusterJournal part, uint8_t kind) except -1:
        """A part has a record more."""
        raise NotImplementedError

    cdef ClusterJournal receiving(self, uint8_t shard):
        """The journal for what a publication gives to a shard."""
        raise NotImplementedError

    cdef ClusterJournal ending(self, uint8_t shard, uint64_t depends):
        """The journal for records that end publications: their block follows all that these have given.

        `depends`: the shards to which they have given, as bits.
        """
        raise NotImplementedError

    cdef uint64_t will_depends(self, uint8_t shard, uint64_t epoch) except? 0:
        """The shards to which a will has given, if it was the last publication that ends a record; else 0."""
        raise NotImplementedError

    cdef int forget_when_stored(self, uint8_t settling, uint8_t shard, bytes number) except -1:
        """No node asks a shard for a number any more when another has stored what is given in this turn."""
        raise NotImplementedError


cdef class ClusterJournal(Journal):
    """Records changes for Redis.

    Args:
        header: called with the number of blocks that go before it, returns the bytes before the batch of the block.
        node: id of this node.
        whole: the journal of all shards; None: there is only one.
        shard: that has the records.
    """

    def __init__(self, header, bytes node not None=b"", Whole whole=None, uint8_t shard=0):
        self.header = header
        self.whole = whole
        self.shard = shard
        self.shards = 1 if whole is None else whole.shards
        self.forgotten = []
        self.node = node
        self.shared = True
        self.epoch = 1
        self.most_pushes = PUSHES_MAX
        self.group_records = GroupRecords(self)
        self.begin()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.message_count):
            message_release(self.messages[i].message)
        for i in range(self.forward_count):
            message_release(self.forwards[i].message)
        free(self.messages)
        free(self.forwards)
        free(self.pushes.items)
        free(self.acks.items)
        free(self.handshakes.items)
        pool_free(&self.packing)

    cdef object begin(self):
        global last_block
        last_block += 1
        self.block = last_block
        self.sessions = []
        self.changes = []
        self.wills = []
        self.half_published = None
        self.is_part = False
        self.releases = []
        self.identifiers = {}
        self.of_groups = {}
        self.heads = {}
        self.shares = {}
        self.delayed_messages = []
        self.tenants = {}
        self.number = None
        self.numbered = {}
        self.numbers = {}
        self.message_numbers = []
        self.noted_weight = 0

    def start(self):
        """Start recording. There is no compaction: nothing is written again."""

    def limit_pushes(self, int most):
        """Set how many entries for queues a block has, about: the next message, or part of it, is in the next one."""
        self.most_pushes = most

    def clock_of(self, int64_t deadline):
        """A deadline of the cluster as a time of the turn's clock, at least 1; 0 stays 0.

        It is a tick too early: no node may find more time left than there was at another.
        """
        return max((deadline - self.clock_offset) // QUARTER - 1, 1) if deadline else 0

    # ---- records ----

    def attach(self, MessageLog log not None):
        """Commit the blocks of this log together with those of the journal."""
        self.log = log

    def change(self, tuple record not None):
        """Record a replicated change for all nodes; cluster/replication/changes.py lists the kinds."""
        self.changes.append(record)
        self.weight += STEP_WEIGHT
        self.note(RETAINED)

    def will_settled(self, uint64_t epoch):
        """Record that the will of the connection with this epoch is published in this block, or discarded."""
        cdef uint64_t depends = 0 if self.whole is None else self.whole.will_depends(self.shard, epoch)
        cdef ClusterJournal journal = self.ending(depends)
        journal.wills += [b"settled", epoch, 0]
        journal.note(RETAINED)

    def drop_held_will(self, uint64_t epoch):
        """Record that the delayed will of the connection with this epoch is discarded: its client is back."""
        self.wills += [b"dropped", epoch, 0]
        self.note(RETAINED)

    def release(self, bytes client_id not None, uint64_t epoch, sent=None, interval=None, delay=None,
                bint overtaken=False):
        """Record that a connection has ended and that this node releases the session.

        Args:
            client_id, epoch: of the connection.
            sent: messages of the queue below this number may have been sent; None: the client was never admitted.
            interval: Session Expiry Interval in seconds; None = as configured.
            delay: seconds until the will of the connection is to be published; None: it has none that waits.
            overtaken: whether it has ended because another connection has claimed the session.
        """
        fields = [b"" if each is None else each for each in (sent, interval, delay)]
        self.releases.append((client_id, epoch, *fields, <int>overtaken))
        self.weight += STEP_WEIGHT
        self.note(RETAINED)

    cdef ClusterJournal receiving(self):
        """The journal for what a publication gives to the shard of this one."""
        return self if self.whole is None else self.whole.receiving(self.shard)

    cdef ClusterJournal ending(self, uint64_t depends):
        """The journal for records of the shard of this one that end publications, which have given to `depends`."""
        return self if self.whole is None else self.whole.ending(self.shard, depends)

    cdef int note(self, uint8_t kind) except -1:
        """Note a record: `records` grows, because other modules test its size."""
        self.room(kind, 7)
        return 0 if self.whole is None else self.whole.noted(self, kind)

    cdef uint32_t index(self, Subscriber session) except? 0:
        """The last place of the session."""
        if self.places is not None:
            found = self.places.get(session)
            return self.add_index(session) if found is None else <uint32_t>found
        if session.block_index >= <uint32_t>len(self.sessions) or self.sessions[session.block_index] is not session:
            return self.add_index(session)
        return session.block_index

    cdef uint32_t add_index(self, Subscriber session) except? 0:
        """A place of its own for the session."""
        cdef uint32_t place = <uint32_t>len(self.sessions)
        if self.places is None:
            session.block_index = place
        else:
            self.places[session] = place
        self.sessions.append(session)
        return place

    cdef object numbered_part(self):
        """What the publication with this number gives to the shard."""
        found = self.numbered.get(self.number)
        if found is None:
            found = self.numbered[self.number] = Numbered()
        return found

    cdef uint64_t place(self, Message* m, uint8_t flags, bytes identifiers) except? 0:
        """The place of the message in the block, for all queues with this QoS (1 or 2) and without identifiers."""
        cdef int shift = 32 if flags == 2 else 0
        cdef bint is_plain = flags <= 2 and not identifiers
        if m.stored_epoch != <uint32_t>self.block:
            m.stored_epoch = <uint32_t>self.block
            m.stored_id = 0
        if is_plain and m.stored_id >> shift & 0xFFFFFFFF:
            return (m.stored_id >> shift & 0xFFFFFFFF) - 1
        self.new_place(m, flags, identifiers)
        if is_plain:
            m.stored_id |= <uint64_t>self.message_count << shift
        return self.message_count - 1

    cdef uint64_t new_place(self, Message* m, uint8_t flags, bytes identifiers) except? 0:
        """A place of its own for the message."""
        if array_reserve(<void**>&self.messages, self.message_count + 1, &self.message_capacity, sizeof(Queued)) < 0:
            raise MemoryError
        self.messages[self.message_count] = Queued(message_hold(m), flags)
        self.weight += stored_size(m)
        if identifiers:
            self.identifiers[self.message_count] = identifiers
        self.message_count += 1
        return self.message_count - 1

    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1:
        cdef uint64_t place = self.place(m, flags, identifiers[:length] if length else b"")
        if self.number is None:
            add(&self.pushes, self.index(<Subscriber>session), QUEUED, place)
        else:
            self.numbered_part()
            self.numbers[len(self.sessions)] = self.number
            add(&self.pushes, self.add_index(<Subscriber>session), QUEUED, place)
            (<Subscriber>session).block_index = <uint32_t>-1      # what follows does not depend on the number
        self.limit((<Subscriber>session).tenant)
        self.full = self.pushes.count >= self.most_pushes
        return self.note(QUEUED)

    cdef int limit(self, Tenant tenant) except -1:
        """Note that the block adds to the queues of a tenant, if they have a limit."""
        if tenant is not None and tenant.max_queued_bytes:
            self.tenants[tenant.prefix] = tenant
        return 0

    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n, uint32_t size) except -1:
        if kind == RELEASED:
            add(&self.handshakes, self.index(<Subscriber>session), kind, n, size)
        else:
            add(&self.acks, self.index(<Subscriber>session), kind, n, size)
            self.acked_bytes += size
            self.urgent = self.urgent or self.counts_much(<Session>session)
        return self.note(kind)

    cdef bint counts_much(self, Session session) except -1:
        """Whether Redis takes so much for unacknowledged that the queue of the session may seem full to other nodes."""
        cdef QueueLimits limits
        get_limits(session, &limits)
        if session.tenant is not None and session.tenant.max_queued_bytes:
            limits.size = min(limits.size, <uint64_t>session.tenant.max_queued_bytes)
        return (UNSENT_PART * <uint64_t>self.acks.count >= limits.messages
                or UNSENT_PART * self.acked_bytes >= limits.size)

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m,
                      uint64_t message_number) except -1:
        cdef uint64_t place = self.place(m, 2 | m.retain << 2, b"")
        add(&self.handshakes, self.index(<Subscriber>session), AWAITING, place << 16 | packet_id)
        self.message_numbers.append(message_number)
        return self.note(AWAITING)

    cdef int progress(self, object session, uint16_t packet_id, uint64_t will, Message* m, uint32_t hash) except -1:
        self.is_part = True
        if will:
            self.wills += [b"progress", will, hash]
        elif packet_id:
            self.half_published = (session.client_id, session.session_id, packet_id,
                                   self.place(m, 2 | m.retain << 2, b"") + FIRST_MESSAGE, hash)
        return 0

    cdef int retained(self, Message* m) except -1:
        cdef bytes value = PyBytes_FromStringAndSize(NULL, stored_size(m))
        write_message(<uint8_t*>PyBytes_AS_STRING(value), m, m.qos | 4, self.deadline(m.expires))
        return self.retained_change(("retained", m.data[:m.topic_length], value))

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        return self.retained_change(("retained", topic[:n], b""))

    cdef int retained_change(self, tuple record) except -1:
        if self.number is not None:
            self.numbered_part().changes.append(len(self.changes) + 1)
        self.change(record)
        return 0

    cdef int forward(self, object peer, Message* m) except -1:
        if array_reserve(<void**>&self.forwards, self.forward_count + 1, &self.forward_capacity, sizeof(Forward)) < 0:
            raise MemoryError
        self.forwards[self.forward_count] = Forward(self.index(<Subscriber>peer), message_hold(m))
        self.forward_count += 1
        self.weight += stored_size(m)
        return self.note(QUEUED)

    cdef int logged(self, Py_ssize_t size) except -1:
        self.weight += size
        return self.note(QUEUED)

    cdef int delayed(self, Message* m, int64_t due, uint32_t seconds, bytes publisher) except -1:
        cdef uint64_t place = self.place(m, m.qos | m.retain << 2, b"")
        if self.number is None:
            self.delayed_messages += [place + FIRST_MESSAGE, seconds, publisher]
        else:
            self.numbered_part().delayed += [place + FIRST_MESSAGE, seconds, publisher]
        return self.note(QUEUED)

    cdef int64_t quota_of(self, Tenant tenant) except? -1:
        """The bytes that a tenant may have in queues of this shard: the bytes in other shards count, too."""
        if not tenant.queued_by_shard:
            return tenant.max_queued_bytes
        elsewhere = sum([size for shard, size in tenant.queued_by_shard.items() if shard != self.shard])
        return max(1, tenant.max_queued_bytes - elsewhere)

    # ---- shared subscriptions ----

    cdef int share(self, bytes group, Tenant tenant, Message* m, uint8_t qos, bytes head) except -1:
        """Record a message for a group. `head`: its key as `pack_key` returns it; None: it has none."""
        cdef uint64_t number
        if head is None:
            number = self.place(m, qos | m.retain << 2, b"")
        else:
            number = self.new_place(m, qos | m.retain << 2, b"")
            self.heads[number] = head
        if self.number is None:
            self.shares.setdefault(group, []).append(number + FIRST_MESSAGE)
        else:
            self.numbered_part().shares += [group, [number + FIRST_MESSAGE]]
        self.limit(tenant)
        return self.note(QUEUED)

    cdef int queue_given(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes group,
                         uint64_t place, bytes heads, object subscriber) except -1:
        """Record that an assigned message goes into the queue of a persistent session; `subscriber` counts it."""
        cdef uint64_t number
        number = self.new_place(m, flags, identifiers)
        self.of_groups[number] = (group, place, subscriber, None)
        self.heads[number] = heads
        add(&self.pushes, self.index(session), QUEUED, number)
        return self.group_records.given(group, place, session)

    cdef int queue_handed_over(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes heads,
                               object subscriber, HandOver hand_over) except -1:
        """Record that a session of this shard gets a message of a group of another one; `subscriber` counts it."""
        cdef uint64_t number = self.new_place(m, flags, identifiers)
        cdef bytes publication = self.number
        self.of_groups[number] = (hand_over.group, hand_over.place, subscriber, hand_over)
        self.heads[number] = heads
        self.number = hand_over.number
        self.numbered_part()
        self.numbers[len(self.sessions)] = self.number
        self.number = publication
        add(&self.pushes, self.add_index(session), QUEUED, number)
        session.block_index = <uint32_t>-1                        # what follows does not depend on the number
        return self.note(QUEUED)

    def handed_over(self, HandOver hand_over not None):
        """Record that a session of another shard has a message of a group of this one: its assignment ends."""
        self.whole.forget_when_stored(self.shard, hand_over.shard, hand_over.number)
        if hand_over.key >= 0:
            self.group_records.move(b"moved", hand_over.group, hand_over.place, hand_over.client_id, 0, 0)
        else:
            self.group_records.end(hand_over.group, hand_over.place)
        self.group_records.arrives(hand_over.group, hand_over.place)

    def not_handed_over(self, HandOver hand_over not None):
        """Record that the session has ended: the message goes back. Its shard may have noted the number."""
        self.whole.forget_when_stored(self.shard, hand_over.shard, hand_over.number)
        self.group_records.back(hand_over.group, hand_over.place)
        self.group_records.arrives(hand_over.group, hand_over.place)

    def flush_forgotten(self):
        """Have the next block, if there are numbers to forget, although it may have nothing else."""
        if self.forgotten:
            self.note(RETAINED)

    cdef int put_back(self, bytes group, uint64_t place, Message* m, bytes heads) except -1:
        """Record that a message whose assignment has ended comes back."""
        cdef uint64_t number = self.place(m, m.qos | m.retain << 2, b"")
        return self.group_records.put(group, place, heads, number + FIRST_MESSAGE)

    # ---- the block ----

    def take(self):
        """Return the block, and begin a new one."""
        cdef Block block = Block()
        cdef GroupRecords records = self.group_records
        cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
        cdef Py_ssize_t i
        block.acks = pack_acks(&self.packing, &self.acks, self.sessions)
        block.settled = records.pack_settled()
        is_needed = (self.pushes.count or self.handshakes.count or self.forward_count or self.changes or self.wills
                     or self.releases or self.shares or records.changes() or self.delayed_messages or self.numbered
                     or self.forgotten)
        block.is_part = self.is_part
        block.moves, block.done = records.moves, records.done
        if block.settled and not block.acks:
            block.acks = [NO_ACKS]
        block.commit = block.batch = block.header = b""
        block.texts = []
        if self.changes:
            self.changes.append(("mark", getrandbits(53)))
        block.changes = self.changes
        block.numbered_changes = {number: each.changes for number, each in self.numbered.items() if each.changes}
        block.sessions = []
        if self.log is not None and self.log.required:
            block.entry = self.log.take_block()
        if is_needed:
            try:
                put_array(&b, &self.packing, BLOCK_FIELDS)
                block.texts = pack_messages(self.messages, self.message_count, self.identifiers, self.of_groups,
                                            self.heads, self, &block.texts_size)
                block.sessions = pack_pushes(&b, &self.packing, &self.pushes, self.sessions, self.numbers,
                                             self.numbered)
                if self.forward_count:
                    block.header, block.header_from = self.header(self.ahead), b.end - b.start
                block.batch = pack_log(&b, &self.packing, self.forwards, self.forward_count, self.sessions,
                                       block.header, self.now)
                put_object(&b, &self.packing, pack(self.changes) if self.changes else b"")
                pack_handshakes(&b, &self.packing, &self.handshakes, AWAITING, self.sessions, self.half_published,
                                self.message_numbers if self.whole is not None else None)
                pack_handshakes(&b, &self.packing, &self.handshakes, RELEASED, self.sessions, None, None)
                put_object(&b, &self.packing, self.wills)
                put_object(&b, &self.packing, self.releases)
                put_object(&b, &self.packing, records.limits)
                put_object(&b, &self.packing, [part for share in self.shares.items() for part in share])
                put_object(&b, &self.packing, records.moves)
                put_object(&b, &self.packing, flat_keys(records.closed))
                put_object(&b, &self.packing, flat_keys(records.checks))
                put_object(&b, &self.packing, self.delayed_messages)
                put_object(&b, &self.packing, [part for each in self.tenants.values()
                                               for part in (each.prefix, self.quota_of(each))])
                put_object(&b, &self.packing, [part for number, each in self.numbered.items()
                                               for part in (number, each.packed())])
                put_object(&b, &self.packing, self.forgotten)
                self.forgotten = []
                block.commit = b.data[b.start:b.end]
            finally:
                buffer_free(&b, &self.packing)
        block.identifiers = self.identifiers
        block.of_groups = self.of_groups
        block.messages = self.messages
        block.message_count = self.message_count
        block.pushes = self.pushes
        self.messages = NULL
        self.message_count = self.message_capacity = 0
        self.pushes = Items(NULL, 0, 0)
        for i in range(self.forward_count):
            message_release(self.forwards[i].message)
        self.forward_count = 0
        self.acks.count = self.handshakes.count = 0
        self.acked_bytes = 0
        buffer_free(&self.records, &self.pool)
        self.urgent = False
        self.weight = 0
        self.full = False
        self.begin()
        records.begin()
        return block
