# Figures and limits of each tenant at this node. See tenant.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..base.rate_limit cimport RateLimit


cdef class Tenant:
    cdef readonly bytes prefix         # `$tenant/NAME/`
    cdef Py_ssize_t prefix_size
    cdef uint64_t prefix_hash          # its part in the hash of topic names; set when a client is admitted
    # Counters.
    cdef readonly int64_t received, received_bytes     # messages from its clients, and bytes of their payloads
    cdef readonly int64_t sent, sent_bytes             # messages to its clients, and bytes of their payloads
    cdef readonly int64_t dropped                      # messages that a full queue or a slow client has lost
    # The present state.
    cdef public int64_t connections
    cdef public int64_t sessions
    cdef readonly int64_t subscriptions, subscription_bytes
    cdef readonly int64_t retained, retained_bytes
    cdef readonly int64_t delayed
    cdef readonly int64_t queued_here                           # bytes in queues; without queues in Redis
    cdef public int64_t queued_elsewhere               # in a cluster: bytes of queues in Redis and at other nodes
    cdef public dict queued_by_shard                   # bytes by shard, if there are several; None: not known
    # Limits; 0 = none.
    cdef readonly int64_t max_connections, max_sessions, max_subscriptions, max_subscription_bytes
    cdef readonly int64_t max_retained, max_retained_bytes, max_delayed, max_queued_bytes
    cdef double messages_per_second, bytes_per_second
    cdef RateLimit messages, volume    # recent PUBLISH packets, and bytes

    cdef bint metered(self) noexcept
    cdef int charge(self, bint is_publish, Py_ssize_t size, uint32_t tick) noexcept
    cdef bint within_rate(self, uint32_t tick) noexcept
    cdef bint is_idle(self) noexcept


cdef class Tenants:
    cdef dict known                    # prefix -> Tenant
    cdef object limits_of              # callable: prefix -> the arguments of `Tenant.set_limits`; None = no limits

    cdef Tenant of(self, const uint8_t* name, Py_ssize_t n)


cdef inline bint queue_is_over(Tenant tenant, int64_t size) noexcept:
    """Whether a message of this size is too much for the queues of a tenant; None: there is no tenant."""
    return (tenant is not None and tenant.max_queued_bytes != 0
            and tenant.queued_here + tenant.queued_elsewhere + size > tenant.max_queued_bytes)
