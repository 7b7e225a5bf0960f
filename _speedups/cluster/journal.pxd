# The journal of a node in a cluster: a turn's changes for Redis, packed as one call. See journal.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..base.buffers cimport Pool
from .commit_block cimport Forward, Items, Queued
from .group_records cimport GroupRecords
from .hand_over cimport HandOver
from ..session.journal cimport Journal
from ..log.message_log cimport MessageLog
from ..session.message cimport Message
from ..session.session cimport Session
from ..session.subscriber cimport Subscriber
from ..session.tenant cimport Tenant


cdef class Whole(Journal):
    cdef int noted(self, ClusterJournal part, uint8_t kind) except -1
    cdef ClusterJournal receiving(self, uint8_t shard)
    cdef ClusterJournal ending(self, uint8_t shard, uint64_t depends)
    cdef uint64_t will_depends(self, uint8_t shard, uint64_t epoch) except? 0
    cdef int forget_when_stored(self, uint8_t settling, uint8_t shard, bytes number) except -1


cdef class ClusterJournal(Journal):
    cdef Whole whole                   # the journal of all shards; None: there is only one shard
    cdef readonly uint8_t shard        # that has the records of this journal
    cdef readonly int ahead            # blocks of the shard that are taken, and not passed to its store yet
    cdef Py_ssize_t noted_weight       # of the records that `whole` knows
    cdef bytes number                  # of the publication that is being recorded; None: it has none
    cdef dict numbered                 # number -> Numbered
    cdef dict numbers                  # place of a session -> number of the publication that it gets
    cdef list message_numbers          # of AWAITING, in turn
    cdef readonly list forgotten       # numbers that no node asks for any more
    cdef Pool packing
    cdef list sessions                 # Sessions of this block, peers too
    cdef dict places                   # of sessions; None: they know their places (`block_index`)
    cdef dict identifiers              # place of a message -> identifiers of the subscriptions that it matched
    cdef dict of_groups                # place of a message -> (group, place, GroupSubscriber that counts it, HandOver)
    cdef dict heads                    # place of a message -> heads of a message of a group
    cdef dict shares                   # group -> places of messages
    cdef readonly GroupRecords group_records  # the records of groups that are no messages
    cdef list delayed_messages         # place of a message in the call, seconds, client id of its publisher, in turn
    cdef dict tenants                  # prefix of a tenant with a limit of its queues -> Tenant: the block adds to them
    cdef uint64_t block                # number of this block, for the marks on sessions
    cdef Queued* messages
    cdef Py_ssize_t message_count, message_capacity
    cdef Items pushes
    cdef Items acks                    # DONE, RECEIVED
    cdef uint64_t acked_bytes          # of their entries
    cdef Items handshakes              # AWAITING, RELEASED
    cdef Forward* forwards
    cdef Py_ssize_t forward_count, forward_capacity
    cdef list changes                  # for all nodes, in order of occurrence: tuples
    cdef list wills                    # step, epoch, progress, in turn
    cdef bint is_part                  # as of the Block
    cdef tuple half_published          # as it is packed among AWAITING, with its progress; None: there is none
    cdef list releases                 # of sessions: see `release`
    cdef readonly MessageLog log       # None = messages are not logged
    cdef object header                 # callable: returns the bytes before a batch for a peer
    cdef bytes node                    # id of this node

    cdef object begin(self)
    cdef object numbered_part(self)
    cdef int retained_change(self, tuple record) except -1
    cdef uint32_t add_index(self, Subscriber session) except? 0
    cdef int limit(self, Tenant tenant) except -1
    cdef int64_t quota_of(self, Tenant tenant) except? -1
    cdef bint counts_much(self, Session session) except -1
    cdef int share(self, bytes group, Tenant tenant, Message* m, uint8_t qos, bytes head) except -1
    cdef int queue_given(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes group,
                         uint64_t place, bytes heads, object subscriber) except -1
    cdef int queue_handed_over(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes heads,
                               object subscriber, HandOver hand_over) except -1
    cdef int put_back(self, bytes group, uint64_t place, Message* m, bytes heads) except -1
    cdef uint32_t index(self, Subscriber session) except? 0
    cdef uint64_t place(self, Message* m, uint8_t flags, bytes identifiers) except? 0
    cdef uint64_t new_place(self, Message* m, uint8_t flags, bytes identifiers) except? 0
    cdef ClusterJournal receiving(self)
    cdef ClusterJournal ending(self, uint64_t depends)
