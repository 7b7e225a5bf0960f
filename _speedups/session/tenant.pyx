"""Figures and limits of each tenant at this node.

Sessions, shared subscriptions, retained and delayed messages find their Tenant by the prefix of their names, once:
all others have None there, and cost nothing.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from ..base.rate_limit cimport charge_rate, has_rate
from ..codec.tenants cimport TENANT_SIZE, tenant_size

cdef enum:
    MANY = 10000               # tenants; above, tenants that have nothing here are forgotten


cdef class Tenant:
    """A tenant: its figures and its limits at this node.

    Args:
        prefix: `$tenant/NAME/`.
    """

    def __init__(self, bytes prefix not None):
        self.prefix = prefix
        self.prefix_size = len(prefix)

    @property
    def name(self):
        """Its name."""
        return self.prefix[TENANT_SIZE:len(self.prefix) - 1].decode()

    @property
    def queued_bytes(self):
        """Bytes of messages in the queues of its sessions and shared subscriptions, in a cluster at all nodes."""
        return self.queued_here + self.queued_elsewhere

    def set_limits(self, dict limits not None):
        """Set its limits at this node; 0, or missing = none.

        Args:
            limits: max_connections: open at a time; max_sessions: whether their clients are connected or not;
                max_subscriptions: of all its sessions; max_subscription_bytes: that these take; max_retained_messages:
                that are kept; max_retained_bytes: that these take; max_delayed_messages: that wait; max_queued_bytes:
                of messages in the queues of its sessions and shared subscriptions; messages_per_second: PUBLISH packets
                from all its clients; bytes_per_second: of packets from all its clients.
        """
        self.max_connections = limits.get("max_connections", 0)
        self.max_sessions = limits.get("max_sessions", 0)
        self.max_subscriptions = limits.get("max_subscriptions", 0)
        self.max_subscription_bytes = limits.get("max_subscription_bytes", 0)
        self.max_retained = limits.get("max_retained_messages", 0)
        self.max_retained_bytes = limits.get("max_retained_bytes", 0)
        self.max_delayed = limits.get("max_delayed_messages", 0)
        self.max_queued_bytes = limits.get("max_queued_bytes", 0)
        self.messages_per_second = limits.get("messages_per_second", 0)
        self.bytes_per_second = limits.get("bytes_per_second", 0)

    cdef bint metered(self) noexcept:
        """Whether its clients have a rate limit."""
        return self.messages_per_second > 0 or self.bytes_per_second > 0

    cdef int charge(self, bint is_publish, Py_ssize_t size, uint32_t tick) noexcept:
        """Charge a packet of one of its clients."""
        charge_rate(&self.messages, self.messages_per_second, is_publish, tick)
        charge_rate(&self.volume, self.bytes_per_second, size, tick)
        return 0

    cdef bint within_rate(self, uint32_t tick) noexcept:
        """Whether its rates allow another packet."""
        return (has_rate(&self.messages, self.messages_per_second, tick)
                and has_rate(&self.volume, self.bytes_per_second, tick))

    cdef bint is_idle(self) noexcept:
        """Whether it has nothing at this node."""
        return not (self.connections or self.sessions or self.subscription_bytes or self.retained_bytes or self.delayed
                    or self.queued_here)


cdef class Tenants:
    """The tenants that this node has seen; there are none at first."""

    def __cinit__(self):
        self.known = {}

    def __len__(self):
        return len(self.known)

    def __iter__(self):
        return iter(list(self.known.values()))

    def get(self, bytes prefix not None):
        """The tenant with this prefix, if the node has seen it."""
        return self.known.get(prefix)

    def at(self, bytes prefix not None):
        """The tenant with this prefix, made if it is new."""
        return self.of(prefix, len(prefix))

    def set_limits(self, limits_of):
        """Set the limits of all tenants, and of later ones.

        Args:
            limits_of: called with a prefix; returns the argument of `Tenant.set_limits`.
        """
        self.limits_of = limits_of
        for tenant in self.known.values():
            tenant.set_limits(limits_of(tenant.prefix))

    cdef Tenant of(self, const uint8_t* name, Py_ssize_t n):
        """The tenant of a topic name, topic filter or client identifier; None: it has none."""
        cdef Py_ssize_t size = tenant_size(name, n)
        cdef bytes prefix
        cdef Tenant tenant
        if not size:
            return None
        prefix = name[:size]
        tenant = self.known.get(prefix)
        if tenant is None:
            if len(self.known) >= MANY:
                self.known = {each.prefix: each for each in self.known.values() if not (<Tenant>each).is_idle()}
            tenant = self.known[prefix] = Tenant(prefix)
            if self.limits_of is not None:
                tenant.set_limits(self.limits_of(prefix))
        return tenant
