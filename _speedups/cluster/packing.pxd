# The parts of a block as Redis has them. See packing.pyx.

from libc.stdint cimport int64_t, uint8_t

from ..base.buffers cimport Buffer, Pool
from .commit_block cimport Forward, Items, Queued
from ..session.journal cimport Journal

cdef enum:
    FIRST_MESSAGE = 15         # place of the first message among the arguments of flockmq_commit


cdef list pack_messages(const Queued* messages, Py_ssize_t count, dict identifiers_of, dict of_groups, dict heads_of,
                        Journal clock, Py_ssize_t* total)
cdef list pack_pushes(Buffer* b, Pool* pool, Items* pushes, list sessions, dict numbers, dict numbered)
cdef bytes pack_log(Buffer* b, Pool* pool, const Forward* forwards, Py_ssize_t count, list sessions, bytes header,
                    int64_t clock)
cdef int pack_handshakes(Buffer* b, Pool* pool, const Items* handshakes, uint8_t kind, list sessions,
                         tuple half_published, list message_numbers) except -1
cdef list pack_acks(Pool* pool, Items* acks, list sessions)
