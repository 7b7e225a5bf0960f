# The journal of a node in a cluster with several shards. See sharded_journal.pyx.

from libc.stdint cimport uint8_t, uint64_t

from .journal cimport ClusterJournal, Whole


cdef class ShardedJournal(Whole):
    cdef readonly list parts           # ClusterJournal of each shard: what is given
    cdef list endings                  # likewise: what ends; None: nothing does
    cdef list cut                      # (shard, Block): blocks of this turn that were full
    cdef object headers                # callables: the header of a batch in the next block of each shard
    cdef bytes node                    # id of this node
    cdef readonly uint8_t home         # the shard of this node
    cdef uint8_t publisher             # the shard of the publisher of the message that is being recorded
    cdef bytes number                  # of this publication; None: it has none
    cdef uint8_t settling              # the shard of the record that ends with it
    cdef dict numbers                  # (shard, number) to be forgotten when this turn is stored -> None
    cdef uint64_t last_number, salt

    cdef object begin(self)
    cdef int cut_full(self, uint8_t shard) except -1


cdef class ShardedBlock:
    cdef readonly list given           # (shard, Block)
    cdef readonly list ending          # (shard, ClusterJournal), whose blocks are taken when all of `given` is stored
    cdef readonly list numbers         # (shard, number): no node asks for them when the turn is stored
    cdef Py_ssize_t weight
