"""Listeners and endpoints: a listener has a name, limits and counters; each of its addresses is an endpoint."""


cdef class Listener:
    """The settings and counters that the connections to one listener share.

    Args:
        name: as in the configuration.
        tls: certificates, for its endpoints that use TLS.
    """

    def __init__(self, str name not None="default", TlsContext tls=None):
        self.name = name
        self.tls = tls
        self.max_connections = <uint32_t>-1

    cdef bint metered(self) noexcept:
        """Whether its clients have a rate limit."""
        return (self.client_messages > 0 or self.client_bytes > 0 or self.total_messages > 0 or self.total_bytes > 0)


cdef class Endpoint:
    """One address of a listener.

    Args:
        listener: the listener that it belongs to.
        socket: bound, listening, not blocking; None if connections are passed in (`adopt`).
        transport: "mqtt", "mqtts", "ws", "wss" or "unix".
        trusts: connections begin with a PROXY protocol header; returns whether an address is a trusted proxy.
        upgrade: called with an HTTP request up to its empty line, and whether TLS is used; returns the response and
            the reason of a refusal, or "".
    """

    def __init__(self, Listener listener not None, socket=None, str transport not None="mqtt", trusts=None,
                 upgrade=None):
        self.listener = listener
        self.socket = socket
        self.transport = transport
        self.secure = transport in ("mqtts", "wss")
        self.websocket = transport in ("ws", "wss")
        self.trusts = trusts
        self.upgrade = upgrade
