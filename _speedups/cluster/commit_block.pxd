# A block: a turn's changes, packed for Redis, and the numbers of sessions in it. See commit_block.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ..session.message cimport Message
from ..session.session cimport Session

# A message to be queued.
cdef struct Queued:
    Message* message           # an owned reference
    uint8_t flags              # EntryFlags

# A number of a session: a message for its queue, or an acknowledgement.
cdef struct Item:
    uint32_t session           # place in the block's list of sessions
    uint32_t size              # of a done entry, in bytes; 0 = not known
    uint8_t kind               # RecordKind
    uint64_t number            # place of the message, queue number, or packet identifier

cdef struct Items:
    Item* items
    Py_ssize_t count, capacity

# A message for another node.
cdef struct Forward:
    uint32_t peer              # place in the block's list of sessions
    Message* message           # an owned reference


cdef class Block:
    cdef readonly bytes commit         # for the function flockmq_commit; empty = nothing
    cdef readonly list texts           # messages: arguments of that function
    cdef Py_ssize_t texts_size         # their bytes
    cdef readonly list acks            # texts for the function flockmq_acks, one for each call
    cdef readonly list changes         # of `commit`
    cdef readonly dict numbered_changes  # number of a publication -> places of its changes, from 1
    cdef readonly bytes settled        # steps that the node settles with groups, for the last of them; empty = none
    cdef readonly bint is_part         # the next block goes on with a message of this one
    cdef list moves, done              # of the journal: assignments end with this block
    cdef readonly bytes batch          # for the log and other nodes, with its header; empty = nothing
    cdef bytes header                  # of the batch; empty: there is none
    cdef Py_ssize_t header_from        # place in `commit` behind which it is first
    cdef readonly tuple entry          # of the message log: (id, block); None = no entry
    cdef list sessions                 # Sessions that get messages, in the order of the reply
    cdef dict identifiers              # place of a message -> identifiers of the subscriptions that it matched
    cdef dict of_groups                # as of the journal
    cdef Queued* messages
    cdef Py_ssize_t message_count
    cdef Items pushes                  # by session

    cdef int renumber(self, bytes header) except -1
    cdef object not_given(self, uint64_t number)


cdef list ended_assignments(list moves, list done)
