# The hash of a name, by which it belongs to a shard or to a place in an order: the same at all nodes. Inline.

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint32_t hash_of(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    """The hash of a key: the same at all nodes and in all versions (FNV-1a, then mixed)."""
    cdef uint32_t h = 2166136261U
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ data[i]) * 16777619U
    h ^= h >> 16
    h *= 2246822507U
    h ^= h >> 13
    return h


cdef inline uint8_t shard_of(const uint8_t* name, Py_ssize_t n, int shards) noexcept nogil:
    """Which of the shards of a cluster has this client id, name of a group, or topic name."""
    return <uint8_t>(<uint64_t>hash_of(name, n) * <uint64_t>shards >> 32) if shards > 1 else 0
