"""The journal of a node in a cluster with several shards: each record goes to the journal of its shard.

A turn has a part for each shard that is concerned: a block there, atomic by itself. What a turn gives (messages for
queues and groups, retained messages) comes first. What ends with a publication (a message that awaited PUBREL, a will,
an assignment) comes in a second block, when all that the publication gives is stored: so if the node dies in between,
another one publishes again. There is a second block for each set of shards that publications give to, so that a shard
that is away holds up only what depends on it. A publication that must take effect once has a *number*: a shard that has
given its messages already skips them (deploy/docs/CLUSTER.md, "Shards").
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ..base.name_hash cimport shard_of as shard_of_name
from ..base.buffers cimport buffer_free, buffer_size
from .commit_block cimport Block
from .journal cimport ClusterJournal, Whole
from .message_codec cimport read_heads
from ..log.message_log cimport MessageLog
from ..session.journal cimport RELEASED, Journal
from ..session.message cimport Message, Publication
from ..session.subscriber cimport Subscriber
from ..session.turn cimport Outlet

from cpython.bytes cimport PyBytes_Check

from .message_codec import decode_message, encode_message

import struct
from random import getrandbits

cdef enum:
    BLOCK_SIZE = 1024          # bytes counted for a block, beside its records

HIDDEN = b"$\x00flockmq/"
OF_CLIENTS = (b"streams/", b"searches/")   # kinds of hidden messages whose names are client ids


def shard_of(bytes name not None, int shards):
    """Which of the shards has this client id, name of a group, or topic name; from 0 on."""
    return shard_of_name(name, len(name), shards)


def topic_shard(bytes topic not None, int shards):
    """Which of the shards has the retained message of a topic name; from 0 on."""
    return shard_of_topic(topic, len(topic), shards)


cdef class ShardedJournal(Whole):
    """Records changes for several shards.

    Args:
        headers: for each shard a callable as for `ClusterJournal`.
        node: id of this node.
    """

    def __init__(self, list headers not None, bytes node not None):
        cdef int i
        self.shards = <int>len(headers)
        self.shared = True
        self.epoch = 1
        self.headers = headers
        self.node = node
        self.home = shard_of_name(node, len(node), self.shards)
        self.parts = [ClusterJournal(headers[i], node, self, <uint8_t>i) for i in range(self.shards)]
        self.salt = getrandbits(63)
        self.begin()

    cdef object begin(self):
        self.endings = {}
        self.numbers = []
        self.cut = []

    def start(self):
        """Start recording; there is no compaction."""

    def attach(self, MessageLog log not None):
        """Commit the blocks of this log together with the blocks of the first shard."""
        (<ClusterJournal>self.parts[0]).attach(log)

    cdef Journal at(self, uint8_t shard):
        return <Journal>self.parts[shard]

    def part(self, int shard):
        """The journal of a shard."""
        return self.parts[shard]

    cdef int set_now(self, int64_t now) except -1:
        cdef ClusterJournal part
        self.now = now
        for part in self.parts:
            part.now = now
        return 0

    # ---- the parts ----

    cdef int noted(self, ClusterJournal part, uint8_t kind) except -1:
        self.touched |= <uint64_t>1 << part.shard
        self.weight += part.weight - part.noted_weight
        part.noted_weight = part.weight
        self.room(kind, 7)
        self.urgent = self.urgent or part.urgent
        self.full = self.full or part.full
        return 0

    cdef ClusterJournal receiving(self, uint8_t shard):
        cdef ClusterJournal part
        if self.number is not None and shard == self.settling:
            part = self.ending(shard, self.depends)
            part.number = None
            return part
        part = <ClusterJournal>self.parts[shard]
        part.number = self.number
        if self.number is not None:
            self.ending_of(self.settling, self.depends).numbers[shard, self.number] = None
        return part

    cdef ClusterJournal ending(self, uint8_t shard, uint64_t depends):
        return self.ending_of(shard, depends).journal

    cdef Ending ending_of(self, uint8_t shard, uint64_t depends):
        cdef ClusterJournal part = <ClusterJournal>self.parts[shard], journal
        cdef Ending ending
        depends &= ~(<uint64_t>1 << shard)
        self.touched |= depends | <uint64_t>1 << shard
        ending = self.endings.get((shard, depends))
        if ending is None:
            ending = self.endings[shard, depends] = Ending()
            ending.shard, ending.depends, ending.numbers = shard, depends, {}
            ending.journal = journal = ClusterJournal(self.headers[shard], self.node, self, shard)
            journal.places = {}      # a session knows its place in the block of what is given
            journal.group_records.limits = part.group_records.limits
            journal.group_records.epoch_of = part.group_records.epoch_of
        ending.journal.now, ending.journal.clock_offset = part.now, part.clock_offset
        return ending

    cdef int forget_when_stored(self, uint8_t settling, uint8_t shard, bytes number) except -1:
        self.numbers.append((settling, shard, number))
        return 0

    cdef int cut_full(self, uint8_t shard) except -1:
        """The block of a shard has as many entries for queues as it may: the next one begins."""
        cdef ClusterJournal part = <ClusterJournal>self.parts[shard]
        if part.full and part.number is None:
            self.cut.append((shard, part.take()))
            part.ahead += 1
            self.full = False
        return 0

    # ---- a publication ----

    cdef uint64_t new_number(self) except? 0:
        self.last_number += 1
        return self.salt + self.last_number or 1

    cdef int begin_publication(self, const Publication* publication, uint64_t shards) except -1:
        cdef object publisher, ended_by = None
        cdef Outlet outlet = None
        cdef bytes client_id
        self.number = None
        self.publisher = self.home
        if publication.publisher != NULL:
            publisher = <object>publication.publisher
            if PyBytes_Check(publisher):
                client_id = publisher
                self.publisher = shard_of_name(client_id, len(client_id), self.shards)
            elif publisher is not None:
                self.publisher = (<Subscriber>publisher).shard
        if publication.number:
            outlet = (<Subscriber>publisher).outlet
            ended_by = (<Subscriber>publisher).client_id
            self.number = struct.pack("<cQ", b"q", publication.number) + (<Subscriber>publisher).client_id
        elif publication.will:
            ended_by = (publication.shard, publication.will)
            self.number = struct.pack("<cBQ", b"w", publication.shard, publication.will)
        if self.number is not None:
            self.settling = publication.shard
            if publication.retain:
                shards |= <uint64_t>1 << shard_of_topic(publication.topic, publication.topic_length, self.shards)
            if outlet is not None and outlet.holding:
                shards |= outlet.shards               # so its publications take effect in their order
            # The messages of a chunk end one record.
            self.depends = shards | (self.depends if ended_by == self.ended_by else 0)
            self.ended_by = ended_by
        return 0

    cdef uint64_t will_depends(self, uint8_t shard, uint64_t epoch) except? 0:
        return self.depends if self.ended_by == (shard, epoch) else 0

    cdef int end_publication(self) except -1:
        cdef ClusterJournal part
        if self.number is not None:
            for part in self.parts:
                part.number = None
            self.number = None
        return 0

    # ---- records ----

    cdef int queued(self, object session, uint64_t number, uint64_t n, Message* m, uint8_t flags,
                    const uint8_t* identifiers, Py_ssize_t length) except -1:
        cdef uint8_t shard = (<Subscriber>session).shard
        self.receiving(shard).queued(session, number, n, m, flags, identifiers, length)
        return self.cut_full(shard)

    cdef int entry(self, uint8_t kind, object session, uint64_t number, uint64_t n, uint32_t size) except -1:
        cdef uint8_t shard = (<Subscriber>session).shard
        if kind == RELEASED:
            depends = self.depends if self.ended_by == (<Subscriber>session).client_id else 0
            self.ended_by = None
            return self.ending(shard, depends).entry(kind, session, number, n, size)
        return (<ClusterJournal>self.parts[shard]).entry(kind, session, number, n, size)

    cdef int awaiting(self, object session, uint64_t number, uint16_t packet_id, Message* m,
                      uint64_t message_number) except -1:
        return (<ClusterJournal>self.parts[(<Subscriber>session).shard]).awaiting(
            session, number, packet_id, m, message_number)

    cdef int retained(self, Message* m) except -1:
        return self.receiving(shard_of_topic(m.data, m.topic_length, self.shards)).retained(m)

    cdef int retained_gone(self, const uint8_t* topic, Py_ssize_t n) except -1:
        return self.receiving(shard_of_topic(topic, n, self.shards)).retained_gone(topic, n)

    cdef int forward(self, object peer, Message* m) except -1:
        if self.number is not None:
            return self.ending(self.settling, self.depends).forward(peer, m)
        return (<ClusterJournal>self.parts[self.publisher]).forward(peer, m)

    cdef int logged(self, Py_ssize_t size) except -1:
        return (<ClusterJournal>self.parts[0]).logged(size)

    cdef int delayed(self, Message* m, int64_t due, uint32_t seconds, bytes publisher) except -1:
        return self.receiving(0).delayed(m, due, seconds, publisher)

    def send_back(self, int shard, uint64_t epoch, bytes group not None, uint64_t place, bytes message not None):
        """Record that a message goes back to its group; it was in the queue of a session of another shard.

        Args:
            shard: of the session.
            epoch: of the record there, which is to be settled in this turn.
            group, place: of the message.
            message: with its heads, as the shard of the session has it.
        """
        cdef ClusterJournal of_session = <ClusterJournal>self.parts[shard]
        cdef uint8_t home = shard_of_name(group, len(group), self.shards)
        cdef ClusterJournal part = <ClusterJournal>self.parts[home]
        cdef bytes number = struct.pack("<cBQ", b"w", shard, epoch)
        part.group_records.move(b"returned", group, place, number + translate(message, of_session, part), 0, 0)
        self.ended_by, self.depends = (shard, epoch), <uint64_t>1 << home
        self.ending_of(shard, self.depends).numbers[home, number] = None

    # ---- the block ----

    def take(self):
        """Return the ShardedBlock of the turn, and begin a new one."""
        cdef ShardedBlock block = ShardedBlock()
        cdef ClusterJournal part
        cdef Ending ending
        cdef Block cut
        block.given = self.cut
        ahead = [0] * self.shards
        for shard, cut in self.cut:               # second blocks of other turns may have been sent since it was cut
            cut.renumber(self.headers[shard](ahead[shard]))
            ahead[shard] += 1
        for part in self.parts:
            if buffer_size(&part.records):
                block.given.append((part.shard, part.take()))
            part.ahead = 0
        for ending in self.endings.values():
            ending.size = ending.journal.weight + buffer_size(&ending.journal.records) + BLOCK_SIZE
            ending.journal.whole = Taken(self.shards)
        block.ending = [*self.endings.values()]
        block.numbers = self.numbers
        block.weight = sum([size for _, size in block.sizes])
        buffer_free(&self.records, &self.pool)
        self.urgent = self.full = False
        self.weight = 0
        self.begin()
        return block

    def forget(self, int shard, bytes number not None):
        """No node asks for a number any more: Redis may forget it, with the next block of the shard."""
        (<ClusterJournal>self.parts[shard]).forgotten.append(number)


cdef class Taken(Whole):
    """In place of the journal of all shards for a part that gets no more records."""

    def __init__(self, int shards):
        self.shards = shards

    cdef int noted(self, ClusterJournal part, uint8_t kind) except -1:
        return 0


cdef class ShardedBlock:
    """The records of a turn for several shards."""

    def __len__(self):
        return self.weight

    @property
    def sizes(self):
        """(shard, bytes) of each block, as a list: those of a second block count for each shard that it waits for."""
        cdef Ending ending
        sizes = [(shard, size_of(given)) for shard, given in self.given]
        for ending in self.ending:
            sizes += ending.sizes
        return sizes


cdef class Ending:
    """Records of a turn that end publications, for one shard."""

    @property
    def sizes(self):
        """(shard, bytes), as a list, of each shard that the records wait for; if none: their own."""
        shards = [shard for shard in range(self.journal.shards) if self.depends >> shard & 1] or [self.shard]
        return [(shard, self.size) for shard in shards]

    def take(self):
        """Return the Block."""
        return self.journal.take()


def size_of(block not None):
    """The bytes that a block counts until its shard has it."""
    return len(block) + BLOCK_SIZE


cdef bytes translate(bytes stored, ClusterJournal origin, ClusterJournal target):
    """A message with heads as another shard has it: each has a clock."""
    cdef Py_ssize_t heads = read_heads(stored, len(stored)).size
    topic, payload, qos, retain, properties, deadline = decode_message(stored[heads:])
    if not deadline:
        return stored
    # `deadline` is the inverse of `clock_of`
    return stored[:heads] + encode_message(topic, payload, qos, retain, properties,
                                           target.deadline(origin.clock_of(deadline) + 1))


cdef uint8_t shard_of_topic(const uint8_t* topic, Py_ssize_t n, int shards) except? 255:
    """Which shard has the retained message of a topic name.

    A place that is kept for a client is in its shard: it must be in the block of the client's queue.
    """
    cdef bytes name, hidden
    if n > 10 and topic[0] == c"$" and topic[1] == 0:
        name = topic[len(HIDDEN):n]
        for kind in OF_CLIENTS:
            if name.startswith(kind):
                hidden = name[len(kind):]
                try:
                    hidden = bytes.fromhex(hidden.split(b"/")[0].decode())
                except ValueError:
                    break
                return shard_of_name(hidden, len(hidden), shards)
    return shard_of_name(topic, n, shards)
