"""The journal of a node in a cluster: a turn's changes for Redis, packed as one call of a function.

Sessions and the router record here as they do in the journal of a single node. A record alone has no effect: Redis
returns queue numbers, retained messages and subscriptions of persistent sessions, in one order for all nodes.

A block is texts of MessagePack (deploy/docs/CLUSTER.md, "A turn becomes a commit"). `commit`: an array of the number
of messages, pushes, log, header, targets, changes, awaiting, released, wills, releases, and perhaps shares, moves and
delayed messages. `acks`: an array of (client id, incarnation, queue numbers that are done, queue numbers with PUBREC,
bytes of the entries that are done). Acknowledgements are separate because they must succeed when Redis has no memory
left. Two parts are arguments of their own for `flockmq_commit`: `texts`, the messages, and `batch`, the batch of the
log after its header.

A batch is a sequence of packets: PUBLISH as MQTT 3.1.1 encodes it, with packet identifier 0; or, for a message with
properties or an expiry, PUBLISH as MQTT 5.0 encodes it, with packet type 0.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from _speedups.base.array cimport array_reserve
from _speedups.base.buffers cimport buffer_free, buffer_size, pool_free
from _speedups.cluster.message_codec cimport (
    AS_PUBLISHED, ENTRY_LAYOUT, HAS_IDENTIFIERS, OF_SHARE, Heads, Opened, open_entry, pack_failures, read_heads,
    read_message, stored_size, write_message,
)
from _speedups.codec.publish cimport (
    FLAG_RETAIN, FORWARD_5, PUBLISH_QOS_0, properties_size, publish_remaining, publish_size, write_properties,
    write_publish,
)
from _speedups.session.journal cimport AWAITING, DONE, QUEUED, RECEIVED, RELEASED, RETAINED
from _speedups.session.group cimport Group
from _speedups.session.group_members cimport MAXIMUM_QOS, forget_given, note_given
from _speedups.session.message cimport (
    Publication, message_hold, message_new, message_payload, message_properties, message_release, seconds_left,
)
from _speedups.session.outgoing_queue cimport (
    DUP, GOT_PUBREC, QOS, RETAIN_AS_PUBLISHED, RETAINED_MESSAGE, SENT, WAITING, Entry, queue_entry,
)
from _speedups.session.subscriber cimport Subscriber
from _speedups.base.msgpack cimport put, put_array, put_number, put_object, put_text, put_text_head

from _speedups.base.msgpack import pack
from _speedups.cluster.message_codec import encode_entry, encode_message

import struct
from random import getrandbits

cdef enum:
    QUARTER = 250              # milliseconds of the turn's clock
    FIRST_MESSAGE = 9          # place of the first message among the arguments of flockmq_commit
    PUSHES_MAX = 1000          # entries for queues in a block: Redis executes nothing else, for 5 us or more each
    ACKS_MAX = 1000            # likewise acknowledgements in a call, but for those of one session


cdef int add(Items* list, uint32_t session, uint8_t kind, uint64_t number, uint32_t size=0) except -1:
    if array_reserve(<void**>&list.items, list.count + 1, &list.capacity, sizeof(Item)) < 0:
        raise MemoryError
    list.items[list.count] = Item(session, size, kind, number)
    list.count += 1
    return 0


cdef int sort_by_session(Items* list, Py_ssize_t sessions, Py_ssize_t** counts) except -1:
    """Group the items by session, in order of arrival. The caller frees `counts`, one per session."""
    cdef Py_ssize_t* count = <Py_ssize_t*>calloc(sessions + 1, sizeof(Py_ssize_t))
    cdef Py_ssize_t* place = <Py_ssize_t*>malloc((sessions + 1) * sizeof(Py_ssize_t))
    cdef Item* sorted = <Item*>malloc((list.count + 1) * sizeof(Item))
    cdef Py_ssize_t i, total = 0
    if count == NULL or place == NULL or sorted == NULL:
        free(count)
        free(place)
        free(sorted)
        raise MemoryError
    for i in range(list.count):
        count[list.items[i].session] += 1
    for i in range(sessions):
        place[i] = total
        total += count[i]
    for i in range(list.count):
        sorted[place[list.items[i].session]] = list.items[i]
        place[list.items[i].session] += 1
    free(place)
    free(list.items)
    list.items = sorted
    list.capacity = list.count + 1
    counts[0] = count
    return 0


def arrive(Session session not None, uint64_t n, bytes data not None, bint given=False):
    """Pass an entry of a queue with queue number `n`, encoded for Redis, to its session.

    `given`: Redis has just given it to the session, as a member of a group.
    """
    cdef Opened entry = open_entry(data, len(data))
    cdef int64_t deadline
    cdef Publication publication = read_message(entry.message, entry.size, &deadline)
    cdef Message* m
    publication.expires = session.turn.journal.clock_of(deadline)
    m = message_new(&publication)
    if m == NULL:
        raise MemoryError
    try:
        session.arrive(n, m, entry.message[0] & (QOS | RETAINED_MESSAGE)
                       | (RETAIN_AS_PUBLISHED if entry.flags & AS_PUBLISHED else 0),
                       entry.identifiers[:entry.identifiers_length], len(data))
        if given:
            session.trace("given", m, entry.message[0] & QOS, "by a shared subscription")
        if entry.flags & OF_SHARE:
            note_given(session, n, entry.group[:entry.group_length], entry.place, True, entry.heads.key,
                       entry.heads.failures)
    finally:
        message_release(m)


def unfinished(Session session not None):
    """The QoS 2 messages that the client may have, and that are not completed.

    Returns:
        A list of (queue number, entry of the queue encoded for Redis). The entry is empty after PUBREC. That of a
        shared subscription has neither group nor place: Redis may have given the place to another message.
    """
    cdef uint64_t n = session.queue.head, end = session.first_unsent()
    cdef Entry* e
    cdef Message* m
    cdef bytes entry
    cdef list found = []
    while n < end:
        e = queue_entry(session.queue, n)
        if e.flags & QOS == 2 and (e.state == SENT or e.state == GOT_PUBREC or (e.state == WAITING and e.flags & DUP)):
            m = e.message
            entry = b"" if m == NULL else encode_entry(
                encode_message(m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length],
                               2, e.flags & RETAINED_MESSAGE != 0,
                               message_properties(m)[:<Py_ssize_t>m.properties_length],
                               # the inverse of `clock_of`
                               session.turn.journal.deadline(m.expires + 1 if m.expires else 0)),
                e.flags & RETAIN_AS_PUBLISHED != 0, session.identifiers_of(e))
            found.append((n, entry))
        n += 1
    return found


def leased(object group not None, uint64_t place, bytes data not None):
    """Redis has leased a message to this node: pass it to the group."""
    cdef int64_t deadline
    cdef Publication publication
    cdef Message* m
    cdef Group known = group
    cdef const uint8_t* p = data
    cdef Py_ssize_t size = len(data)
    cdef Heads heads = read_heads(p, size)
    if heads.failures:
        known.restore_failed(place, heads.failures)
    publication = read_message(p + heads.size, size - heads.size, &deadline)
    publication.expires = known.turn.journal.clock_of(deadline)
    m = message_new(&publication)
    if m == NULL:
        raise MemoryError
    try:
        known.take_lease(place, m, heads.key, heads.number, heads.elsewhere)
    finally:
        message_release(m)


cdef list ended_leases(list moves, list done):
    return [*zip(moves[1::5], moves[2::5]), *zip(done[::2], done[1::2])]


cdef class Block:
    """A turn's changes, to be sent to Redis."""

    @property
    def ended_leases(self):
        """(group, place) of the leases that end with this block, as a list."""
        return ended_leases(self.moves, self.done)

    def __len__(self):
        return (len(self.commit) + self.texts_size + len(self.batch) + sum(map(len, self.acks))
                + (len(self.entry[1]) if self.entry is not None else 0))

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.message_count):
            message_release(self.messages[i].message)
        free(self.messages)
        free(self.pushes.items)

    def numbered(self, list reply not None):
        """Redis has the block: sessions whose clients are here get their messages.

        Args:
            reply: first queue number and count for each session in turn; number 0 for sessions of other nodes.
        """
        cdef Py_ssize_t i = 0, j, number = 0
        cdef uint64_t first, count
        cdef Session session
        cdef Queued* queued
        for item in self.sessions:
            session = item
            first = reply[number]
            count = reply[number + 1]
            number += 2
            j = i
            while j < self.pushes.count and self.pushes.items[j].session == self.pushes.items[i].session:
                if first and <uint64_t>(j - i) < count:
                    queued = &self.messages[self.pushes.items[j].number]
                    session.arrive(first + (j - i), queued.message, queued.flags,
                                   self.identifiers.get(self.pushes.items[j].number, b""),
                                   len(<bytes>self.texts[self.pushes.items[j].number]))
                    if self.of_groups:
                        of_group = self.of_groups.get(self.pushes.items[j].number)
                        if of_group is not None:
                            note_given(session, first + (j - i), of_group[0], of_group[1], False)
                else:
                    self.not_given(session, self.pushes.items[j].number)
                session.pending -= session.pending > 0
                j += 1
            i = j
            go_on(session)

    cdef int not_given(self, Session session, uint64_t number) except -1:
        """A message of a group is not in the session's queue, or is counted again when the queue is read."""
        of_group = self.of_groups.get(number) if self.of_groups else None
        if of_group is not None:
            forget_given(session, of_group[0], of_group[1])
        return 0

    def unnumbered(self):
        """Redis has the block, but its reply was lost: the caller must read the queues. Returns the sessions."""
        cdef Session session
        cdef Py_ssize_t i = 0, first
        for item in self.sessions:
            session = item
            session.pending = 0
            first = i
            while i < self.pushes.count and self.pushes.items[i].session == self.pushes.items[first].session:
                self.not_given(session, self.pushes.items[i].number)
                i += 1
            go_on(session)
        return self.sessions


cdef int go_on(Session session) except -1:
    """Fewer messages are on their way to the session's queue: it may pull more, also if it had got these before."""
    if session.outlet is not None:
        session.turn.schedule_send(session)
    return 0


cdef class ClusterJournal(Journal):
    """Records changes for Redis.

    Args:
        header: called without arguments, returns the bytes before the batch of the block.
        node: id of this node.
    """

    def __init__(self, header, bytes node not None=b""):
        self.header = header
        self.node = node
        self.shared = True
        self.epoch = self.layout = 1
        self.most_pushes = PUSHES_MAX
        self.share_limits = (1 << 30, 1 << 40, 0)
        self.to_tick = set()
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
        self.block += 1
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
        self.moves = []
        self.delayed_messages = []
        self.tenants = {}
        self.done = []
        self.rooms = {}
        self.members = {}
        self.idle = {}
        self.closed = {}
        self.checks = {}

    def start(self):
        """Start recording. There is no compaction: nothing is written again."""

    def open_layout(self, uint8_t layout):
        """All nodes speak this layout: 2 has properties, expiry, options and identifiers."""
        self.layout = layout

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

    def follow_claims(self, epoch_of not None):
        """Members of groups get messages directly. `epoch_of` returns the epoch of a connection's claim; 0 = none."""
        self.epoch_of = epoch_of

    def change(self, tuple record not None):
        """Record a replicated change for all nodes; cluster/replication/changes.py lists the kinds."""
        self.changes.append(record)
        self.note(RETAINED)

    def will_settled(self, uint64_t epoch):
        """Record that the will of the connection with this epoch is published in this block, or discarded."""
        self.wills.append(epoch)
        self.note(RETAINED)

    def release(self, bytes client_id not None, uint64_t epoch, uint64_t sent, interval=None, delay=None):
        """Record that a connection has ended and that this node releases the session.

        Args:
            client_id, epoch: of the connection.
            sent: messages of the queue below this number may have been sent.
            interval: Session Expiry Interval in seconds; None = as configured.
            delay: seconds until the will of the connection is to be published; None: it has none that waits.
        """
        if interval is None and delay is None:
            self.releases.append((client_id, epoch, sent))
        else:
            # 0 stands for None: MessagePack as it is used here has no negative numbers.
            self.releases.append((client_id, epoch, sent, 0 if interval is None else interval + 1,
                                  0 if delay is None else delay + 1))
        self.note(RETAINED)

    cdef int note(self, uint8_t kind) except -1:
        """Note a record: `records` grows, because other modules test its size."""
        self.room(kind, 7)
        return 0

    cdef uint32_t index(self, Subscriber session) except? 0:
        if session.block_index >= <uint32_t>len(self.sessions) or self.sessions[session.block_index] is not session:
            session.block_index = <uint32_t>len(self.sessions)
            self.sessions.append(session)
        return session.block_index

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
        add(&self.pushes, self.index(<Subscriber>session), QUEUED,
            self.place(m, flags, identifiers[:length] if length else b""))
        self.limit((<Subscriber>session).tenant)
        self.full = self.pushes.count >= self.most_pushes
        return self.note(QUEUED)

    cdef int limit(self, Tenant tenant) except -1:
        """Note that the block adds to the queues of a tenant, if they have a limit."""
        if tenant is not None and tenant.max_queued_bytes:
            self.tenants[tenant.prefix] = tenant
        return 0

    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n, uint32_t size) except -1:
        add(&self.handshakes if kind == RELEASED else &self.acks, self.index(<Subscriber>session), kind, n, size)
        return self.note(kind)

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m) except -1:
        cdef uint64_t place = self.place(m, 2 | m.retain << 2, b"")
        add(&self.handshakes, self.index(<Subscriber>session), AWAITING, place << 16 | packet_id)
        return self.note(AWAITING)

    cdef int progress(self, object session, uint16_t packet_id, uint64_t will, Message* m, uint32_t hash) except -1:
        self.is_part = True
        if will:
            self.wills.append((will, hash))
        elif packet_id:
            self.half_published = (session.client_id, session.session_id, packet_id,
                                   self.place(m, 2 | m.retain << 2, b"") + FIRST_MESSAGE, hash)
        return 0

    cdef int retained(self, Message* m) except -1:
        cdef bytes value = PyBytes_FromStringAndSize(NULL, stored_size(m))
        write_message(<uint8_t*>PyBytes_AS_STRING(value), m, m.qos | 4, self.deadline(m.expires))
        self.change(("retained", m.data[:m.topic_length], value))
        return 0

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        self.change(("retained", topic[:n], b""))
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
        self.delayed_messages += [place + FIRST_MESSAGE, seconds, publisher]
        return self.note(QUEUED)

    # ---- shared subscriptions ----

    def limit_shares(self, int most, uint64_t most_bytes, bint drop_oldest):
        """Set the limits of the messages that wait in a group."""
        self.share_limits = (most, most_bytes, 1 if drop_oldest else 0)

    cdef int share(self, bytes group, Tenant tenant, Message* m, uint8_t qos, bytes head) except -1:
        """Record a message for a group. `head`: its key as `pack_key` returns it; None: it has none."""
        cdef uint64_t number
        if head is None:
            number = self.place(m, qos | m.retain << 2, b"")
        else:
            number = self.new_place(m, qos | m.retain << 2, b"")
            self.heads[number] = head
        self.shares.setdefault(group, []).append(number + FIRST_MESSAGE)
        self.limit(tenant)
        return self.note(QUEUED)

    cdef int queue_given(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes group,
                         uint64_t place, bytes heads) except -1:
        """Record that a leased message goes into the queue of a persistent session."""
        cdef uint64_t number
        self.moves += [b"given", group, place, session.client_id, session.session_id]
        number = self.new_place(m, flags, identifiers)
        self.of_groups[number] = (group, place)
        self.heads[number] = heads
        add(&self.pushes, self.index(session), QUEUED, number)
        return self.note(QUEUED)

    cdef int put_back(self, bytes group, uint64_t place, Message* m, bytes heads) except -1:
        """Record that a message whose lease has ended comes back."""
        cdef uint64_t number = self.place(m, m.qos | m.retain << 2, b"")
        self.moves += [b"put", group, place, heads, number + FIRST_MESSAGE]
        return self.note(QUEUED)

    cdef int key_idle(self, bytes group, uint32_t key, uint64_t number) except -1:
        """Record that this node has no message with the key any more. `number`: of the last lease of one."""
        self.idle[group, key] = number
        return self.note(QUEUED)

    cdef int key_closed(self, bytes group, uint32_t key, uint64_t number) except -1:
        """Record that this node gives a key up. `number`: of the last lease of a message with it."""
        self.closed[group, key] = number
        return self.note(QUEUED)

    cdef int check_key(self, bytes group, uint32_t key, uint64_t hold) except -1:
        """Ask whether the key need not be held any more for a session that is elsewhere."""
        self.checks[group, key] = hold
        return self.note(QUEUED)

    cdef int lease_back(self, bytes group, uint64_t place) except -1:
        """Record that this node has no use for a leased message."""
        self.moves += [b"back", group, place, b"", 0]
        return self.note(QUEUED)

    cdef int lease_failed(self, bytes group, uint64_t place, tuple failures) except -1:
        """Record that a leased message was sent without success: the node keeps it."""
        self.moves += [b"failed", group, place, pack_failures(failures), 0]
        return self.note(QUEUED)

    cdef int lease_dead(self, bytes group, uint64_t place) except -1:
        """Record that a leased message is done, in the block that has its dead letter."""
        self.moves += [b"dead", group, place, b"", 0]
        return self.note(QUEUED)

    cdef int refused(self, bytes group, uint64_t place, bytes client_id, uint64_t n, uint8_t code) except -1:
        """Record that a client refuses the entry `n` of its session's queue, which goes back to its group."""
        self.moves += [b"refused", group, place, client_id, n << 8 | code]
        return self.note(QUEUED)

    def return_lease(self, bytes group not None, uint64_t place):
        """Record that this node has no use for a leased message."""
        self.lease_back(group, place)

    cdef int lease_done(self, bytes group, uint64_t place) except -1:
        """Record that a leased message is done."""
        self.done += [group, place]
        return self.note(QUEUED)

    @property
    def ended_leases(self):
        """(group, place) of the leases that end with the block being written, as a list."""
        return ended_leases(self.moves, self.done)

    cdef int announce(self, bytes group, uint64_t room, uint64_t weight, uint64_t total) except -1:
        """Record how many messages the members of a group here have room for."""
        self.rooms[group] = (group, room, weight, total)
        return self.note(QUEUED)

    cdef int announce_member(self, bytes group, Session session, int64_t limit, uint8_t options,
                             bytes identifiers) except -1:
        """Record how many messages Redis may put into the queue of a session by itself.

        Args:
            limit: of the number of messages that it has put there in all; 0 = no more, and this node asks for that
                number; negative: of the length of the queue.
            options: of the subscription.
            identifiers: of the subscription, as properties.
        """
        epoch = self.epoch_of(session.owner)
        if epoch:
            self.members[group, session.client_id] = (
                group, session.client_id, epoch, limit, options & MAXIMUM_QOS, options >> 3 & 1, identifiers)
        return self.note(QUEUED)

    cdef bytes pack_settled(self):
        if not self.done and not self.rooms and not self.idle and not self.members:
            return b""
        settled = [self.done, [part for room in self.rooms.values() for part in room],
                   [part for (group, key), number in self.idle.items() for part in (group, pack_hash(key), number)]]
        if self.members:
            settled.append([*self.members.values()])
        return pack(settled)

    # ---- the block ----

    def take(self):
        """Return the block, and begin a new one."""
        cdef Block block = Block()
        cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
        cdef Py_ssize_t i
        block.acks = self.pack_acks()
        block.settled = self.pack_settled()
        for kind, steps in ((b"closed", self.closed), (b"check", self.checks)):    # the last of each counts
            for (group, key), number in steps.items():
                self.moves += [kind, group, 0, pack_hash(key), number]
        block.shares = bool(self.shares or self.moves or self.delayed_messages or self.tenants)
        block.is_part = self.is_part
        block.moves, block.done = self.moves, self.done
        if block.settled and not block.acks:
            block.acks = [NO_ACKS]
        block.commit = block.batch = b""
        block.texts = []
        if self.changes:
            self.changes.append(("mark", getrandbits(53)))
        block.changes = self.changes
        block.sessions = []
        if self.log is not None and self.log.required:
            block.entry = self.log.take_block()
        if (self.pushes.count or self.handshakes.count or self.forward_count or self.changes or self.wills
                or self.releases or block.shares):
            try:
                put_array(&b, &self.packing, 14 if self.tenants else 13 if self.delayed_messages else 12
                          if block.shares else 10)
                put_number(&b, &self.packing, self.message_count)
                block.texts = self.pack_messages(&block.texts_size)
                block.sessions = self.pack_pushes(&b)
                self.pack_log(&b, block)
                put_object(&b, &self.packing, pack_changes(self.changes))
                self.pack_handshakes(&b, AWAITING)
                self.pack_handshakes(&b, RELEASED)
                put_object(&b, &self.packing, self.wills)
                put_object(&b, &self.packing, self.releases)
                if block.shares:
                    put_object(&b, &self.packing, [
                        *self.share_limits, *[part for share in self.shares.items() for part in share]])
                    put_object(&b, &self.packing, self.moves)
                if self.delayed_messages or self.tenants:
                    put_object(&b, &self.packing, self.delayed_messages)
                if self.tenants:
                    put_object(&b, &self.packing, [part for each in self.tenants.values()
                                                   for part in (each.prefix, each.max_queued_bytes)])
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
        buffer_free(&self.records, &self.pool)
        self.urgent = False
        self.weight = 0
        self.full = False
        self.begin()
        return block

    cdef list pack_messages(self, Py_ssize_t* total):
        """The messages as Redis has them. `total`: gets their bytes."""
        cdef Py_ssize_t i, head
        cdef Queued* queued
        cdef bytes identifiers, share, heads, text
        cdef list texts = []
        cdef uint16_t length
        cdef uint8_t* p
        for i in range(self.message_count):
            queued = &self.messages[i]
            identifiers = self.identifiers.get(i, b"") if self.identifiers else b""
            length = <uint16_t>len(identifiers)
            head = 0
            share = b""
            heads = self.heads.get(i, b"") if self.heads else b""
            if self.of_groups and i in self.of_groups:
                group, place = self.of_groups[i]
                share = struct.pack("<QH", place, len(group)) + group
            if queued.flags & RETAIN_AS_PUBLISHED or length or share:
                head = 1 + len(share) + (2 + length if length else 0)
            text = PyBytes_FromStringAndSize(NULL, head + len(heads) + stored_size(queued.message))
            p = <uint8_t*>PyBytes_AS_STRING(text)
            if head:
                p[0] = (ENTRY_LAYOUT << 4 | (AS_PUBLISHED if queued.flags & RETAIN_AS_PUBLISHED else 0)
                        | (HAS_IDENTIFIERS if length else 0) | (OF_SHARE if share else 0))
                memcpy(p + 1, <const uint8_t*>share, len(share))
                if length:
                    memcpy(p + 1 + len(share), &length, 2)
                    memcpy(p + 3 + len(share), <const uint8_t*>identifiers, length)
            memcpy(p + head, <const uint8_t*>heads, len(heads))
            write_message(p + head + len(heads), queued.message, queued.flags & (QOS | RETAINED_MESSAGE),
                          self.deadline(queued.message.expires))
            texts.append(text)
            total[0] += len(text)
        return texts

    cdef list pack_pushes(self, Buffer* b):
        """[client id, incarnation, places of messages ...] for each session."""
        cdef Py_ssize_t* counts = NULL
        cdef Py_ssize_t i, j, total = 0, used = 0
        cdef Session session
        cdef list found = []
        cdef bytes client_id
        if self.pushes.count == 0:
            put_array(b, &self.packing, 0)
            return found
        sort_by_session(&self.pushes, len(self.sessions), &counts)
        try:
            for i in range(len(self.sessions)):
                used += counts[i] > 0
            put_array(b, &self.packing, used)
            for i in range(len(self.sessions)):
                if counts[i] == 0:
                    continue
                session = self.sessions[i]
                found.append(session)
                client_id = session.client_id
                put_array(b, &self.packing, 2 + counts[i])
                put_text(b, &self.packing, client_id, len(client_id))
                put_number(b, &self.packing, session.session_id)
                for j in range(total, total + counts[i]):
                    put_number(b, &self.packing, self.pushes.items[j].number + FIRST_MESSAGE)
                total += counts[i]
        finally:
            free(counts)
        return found

    cdef int pack_log(self, Buffer* b, Block block) except -1:
        """1 for a batch, the header of batches, and [peer, its batch; empty = that of the log].

        The batch of the log is no part of the text: it takes Redis much longer to get a text out of another one than to
        have it as an argument.
        """
        cdef Py_ssize_t i, k, size = 0
        cdef Message* m
        cdef Message* last
        cdef bytes header
        cdef uint8_t* p
        cdef list peers = []
        if self.forward_count == 0:
            put_text_head(b, &self.packing, 0)
            put_text_head(b, &self.packing, 0)
            put_array(b, &self.packing, 0)
            return 0
        last = NULL
        for i in range(self.forward_count):       # the peers of a message follow each other
            m = self.forwards[i].message
            if m != last:
                size += packet_size(m)
            last = m
            if self.sessions[self.forwards[i].peer] not in peers:
                peers.append(self.sessions[self.forwards[i].peer])
        header = self.header()
        block.batch = PyBytes_FromStringAndSize(NULL, len(header) + size)
        p = <uint8_t*>PyBytes_AS_STRING(block.batch)
        memcpy(p, <const uint8_t*>header, len(header))
        p += len(header)
        last = NULL
        for i in range(self.forward_count):
            m = self.forwards[i].message
            if m != last:
                write_packet(p, m, self.layout, self.now)
                p += packet_size(m)
            last = m
        put_number(b, &self.packing, 1)
        put_object(b, &self.packing, header)
        put_array(b, &self.packing, len(peers))
        for peer in peers:
            k = (<Subscriber>peer).block_index
            size = 0
            for i in range(self.forward_count):
                if self.forwards[i].peer == k:
                    size += packet_size(self.forwards[i].message)
            put_array(b, &self.packing, 2)
            put_object(b, &self.packing, (<Subscriber>peer).client_id)
            if size == len(block.batch) - len(header):
                put_text_head(b, &self.packing, 0)
                continue
            put_text_head(b, &self.packing, size)
            for i in range(self.forward_count):
                if self.forwards[i].peer == k:
                    m = self.forwards[i].message
                    write_packet(put(b, &self.packing, packet_size(m)), m, self.layout, self.now)
        return 0

    cdef int pack_handshakes(self, Buffer* b, uint8_t kind) except -1:
        """[client id, incarnation, packet identifier, place of the message], the last for AWAITING only.

        The progress of a publication follows in the last one of AWAITING: a block is sealed after one is noted.
        """
        cdef Py_ssize_t i, count = kind == AWAITING and self.half_published is not None
        cdef Item* item
        cdef Session session
        cdef bytes client_id
        for i in range(self.handshakes.count):
            count += self.handshakes.items[i].kind == kind
        put_array(b, &self.packing, count)
        for i in range(self.handshakes.count):
            item = &self.handshakes.items[i]
            if item.kind != kind:
                continue
            session = self.sessions[item.session]
            client_id = session.client_id
            put_array(b, &self.packing, 4 if kind == AWAITING else 3)
            put_text(b, &self.packing, client_id, len(client_id))
            put_number(b, &self.packing, session.session_id)
            put_number(b, &self.packing, item.number & 0xFFFF)
            if kind == AWAITING:
                put_number(b, &self.packing, (item.number >> 16) + FIRST_MESSAGE)
        if kind == AWAITING and self.half_published is not None:
            put_object(b, &self.packing, self.half_published)
        return 0

    cdef list pack_acks(self):
        """Texts of [client id, incarnation, numbers that are done, numbers with PUBREC, bytes that are done].

        There is one for each session. The last element is 0 if the bytes of an entry are not known.
        """
        cdef Py_ssize_t* counts = NULL
        cdef Py_ssize_t first = 0, end, done = 0, used, size
        cdef list texts = []
        if self.acks.count == 0:
            return texts
        sort_by_session(&self.acks, len(self.sessions), &counts)
        try:
            while done < self.acks.count:
                end, used, size = first, 0, 0
                while end < len(self.sessions) and size < ACKS_MAX:
                    used += counts[end] > 0
                    size += counts[end]
                    end += 1
                texts.append(self.pack_acks_of(first, end, used, counts, self.acks.items + done))
                first = end
                done += size
            return texts
        finally:
            free(counts)

    cdef bytes pack_acks_of(self, Py_ssize_t first, Py_ssize_t end, Py_ssize_t used, const Py_ssize_t* counts,
                            const Item* items):
        """The text for some sessions of the block, `used` of which have items; `items` are theirs, in order."""
        cdef Buffer b = Buffer(NULL, 0, 0, 0, 0)
        cdef Py_ssize_t i, j, received
        cdef uint64_t size
        cdef bint is_known
        cdef Session session
        cdef bytes client_id
        try:
            put_array(&b, &self.packing, used)
            for i in range(first, end):
                if counts[i] == 0:
                    continue
                session = self.sessions[i]
                client_id = session.client_id
                received, size, is_known = 0, 0, True
                for j in range(counts[i]):
                    received += items[j].kind == RECEIVED
                    size += items[j].size
                    is_known = is_known and (items[j].size or items[j].kind == RECEIVED)
                put_array(&b, &self.packing, 5)
                put_text(&b, &self.packing, client_id, len(client_id))
                put_number(&b, &self.packing, session.session_id)
                put_array(&b, &self.packing, counts[i] - received)
                for j in range(counts[i]):
                    if items[j].kind == DONE:
                        put_number(&b, &self.packing, items[j].number)
                put_array(&b, &self.packing, received)
                for j in range(counts[i]):
                    if items[j].kind == RECEIVED:
                        put_number(&b, &self.packing, items[j].number)
                put_number(&b, &self.packing, size if is_known else 0)
                items += counts[i]
            return b.data[b.start:b.end]
        finally:
            buffer_free(&b, &self.packing)


cdef uint32_t remaining_of(const Message* m) noexcept:
    """The Remaining Length of the packet of a batch."""
    cdef uint32_t remaining = publish_remaining(m.topic_length, m.payload_length, m.qos)
    if m.properties_length or m.expires:
        remaining += <uint32_t>properties_size(m.expires != 0, 0, 0, m.properties_length)
    return remaining


cdef Py_ssize_t packet_size(const Message* m) noexcept:
    return publish_size(remaining_of(m))


cdef int write_packet(uint8_t* p, const Message* m, uint8_t layout, int64_t clock) except -1:
    """Write a PUBLISH with its original QoS, 1 or 2, and packet identifier 0."""
    cdef bint is_level_5 = m.properties_length or m.expires
    cdef uint8_t first_byte = (FORWARD_5 if is_level_5 else PUBLISH_QOS_0) | m.qos << 1
    if layout > 1 and m.retain:
        first_byte |= FLAG_RETAIN
    p = write_publish(p, first_byte, remaining_of(m), m.data, m.topic_length, 0, message_payload(m), m.payload_length)
    if is_level_5:
        write_properties(p, m.expires != 0, seconds_left(m.expires, clock), 0, NULL, 0, message_properties(m),
                         m.properties_length)
    return 0


def pack_changes(list changes not None):
    """The changes of a block, encoded for all nodes; empty if there are none."""
    return pack(changes) if changes else b""


cdef bytes pack_hash(uint32_t key):
    return struct.pack("<I", key)


NO_ACKS = pack([])
