# The journal of a node in a cluster: a turn's changes for Redis, packed as one call. See journal.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..base.buffers cimport Pool
from .commit_block cimport Forward, Items, Queued
from .group_records cimport GroupRecords
from ..session.journal cimport Journal
from ..log.message_log cimport MessageLog
from ..session.message cimport Message
from ..session.session cimport Session
from ..session.subscriber cimport Subscriber
from ..session.tenant cimport Tenant


cdef class ClusterJournal(Journal):
    cdef Pool packing
    cdef list sessions                 # Sessions of this block, peers too
    cdef dict identifiers              # place of a message -> identifiers of the subscriptions that it matched
    cdef dict of_groups                # place of a message -> (group, place in it, the GroupSubscriber that counts it)
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
    cdef int limit(self, Tenant tenant) except -1
    cdef bint counts_much(self, Session session) except -1
    cdef int share(self, bytes group, Tenant tenant, Message* m, uint8_t qos, bytes head) except -1
    cdef int queue_given(self, Session session, Message* m, uint8_t flags, bytes identifiers, bytes group,
                         uint64_t place, bytes heads, object subscriber) except -1
    cdef int put_back(self, bytes group, uint64_t place, Message* m, bytes heads) except -1
    cdef uint32_t index(self, Subscriber session) except? 0
    cdef uint64_t place(self, Message* m, uint8_t flags, bytes identifiers) except? 0
    cdef uint64_t new_place(self, Message* m, uint8_t flags, bytes identifiers) except? 0
    cdef int note(self, uint8_t kind) except -1
