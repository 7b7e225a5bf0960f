# The journal of a node in a cluster with several shards. See sharded_journal.pyx.

from libc.stdint cimport uint8_t, uint64_t

from .journal cimport ClusterJournal, Whole


cdef class Ending


cdef class ShardedJournal(Whole):
    cdef readonly list parts           # ClusterJournal of each shard: what is given
    cdef dict endings                  # (shard, the shards that it depends on) -> Ending
    cdef list cut                      # (shard, Block): blocks of this turn that were full
    cdef object headers                # callables: the header of a batch in the next block of each shard
    cdef bytes node                    # id of this node
    cdef readonly uint8_t home         # the shard of this node
    cdef uint8_t publisher             # the shard of the publisher of the message that is being recorded
    cdef bytes number                  # of this publication; None: it has none
    cdef uint8_t settling              # the shard of the record that ends with it
    cdef uint64_t depends              # the shards to which the publication gives, as bits ...
    cdef object ended_by               # ... of the last one: the client id, or the shard and the epoch of its will
    cdef list numbers                  # (settling shard, shard, number): to be forgotten when the former has this turn
    cdef uint64_t last_number, salt

    cdef object begin(self)
    cdef int cut_full(self, uint8_t shard) except -1
    cdef Ending ending_of(self, uint8_t shard, uint64_t depends)


cdef class ShardedBlock:
    cdef readonly list given           # (shard, Block)
    cdef readonly list ending          # Ending
    cdef readonly list numbers         # (settling shard, shard, number): see ShardedJournal
    cdef Py_ssize_t weight


cdef class Ending:
    cdef readonly int shard
    cdef readonly uint64_t depends     # shards, as bits: the block is taken when they have all that the turn gives
    cdef readonly ClusterJournal journal
    cdef readonly dict numbers         # (shard, number) -> None: no node asks for them when the block is stored
    cdef readonly Py_ssize_t size      # bytes, about
