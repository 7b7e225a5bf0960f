"""Listeners and endpoints: a listener has a name, limits and counters; each of its addresses is an endpoint."""

from ..base.rate_limit cimport charge_rate, has_rate


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
        self.max_packet_size = <uint32_t>-1

    def use(self, TlsContext tls):
        """Use these certificates for new connections."""
        self.tls = tls

    def set_limits(self, *, uint32_t max_connections=<uint32_t>-1, uint32_t max_per_address=0, double connects=0,
                   double client_messages=0, double client_bytes=0, double total_messages=0, double total_bytes=0,
                   uint32_t max_packet_size=<uint32_t>-1):
        """The limits of its connections; 0 = no limit. Rates are per second.

        Args:
            max_connections: open at a time.
            max_per_address: of them, from one address.
            connects: new connections.
            client_messages: PUBLISH packets from one client.
            client_bytes: bytes of packets from one client.
            total_messages: PUBLISH packets from all clients of the listener.
            total_bytes: bytes of packets from all clients of the listener.
            max_packet_size: bytes of the largest packet from a client, beside the limit of the node.
        """
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self.connects = connects
        self.client_messages = client_messages
        self.client_bytes = client_bytes
        self.total_messages = total_messages
        self.total_bytes = total_bytes
        self.max_packet_size = max_packet_size

    cdef bint metered(self) noexcept:
        """Whether its clients have a rate limit."""
        return (self.client_messages > 0 or self.client_bytes > 0 or self.total_messages > 0 or self.total_bytes > 0)

    cdef int charge(self, RateLimit* client, bint is_publish, Py_ssize_t size, uint32_t tick) noexcept:
        """Charge a handled packet to the limits of its client, and to the limits of all clients."""
        charge_rate(&client[MESSAGES], self.client_messages, is_publish, tick)
        charge_rate(&client[VOLUME], self.client_bytes, size, tick)
        charge_rate(&self.messages, self.total_messages, is_publish, tick)
        charge_rate(&self.volume, self.total_bytes, size, tick)
        return 0

    cdef bint within_rate(self, RateLimit* client, uint32_t tick) noexcept:
        """Whether these limits allow the client another packet."""
        return (has_rate(&client[MESSAGES], self.client_messages, tick)
                and has_rate(&client[VOLUME], self.client_bytes, tick)
                and has_rate(&self.messages, self.total_messages, tick)
                and has_rate(&self.volume, self.total_bytes, tick))


cdef class Endpoint:
    """One address of a listener.

    Args:
        listener: the listener that it belongs to.
        socket: bound, listening, not blocking; None if connections are passed in (`adopt`).
        transport: "mqtt", "mqtts", "ws", "wss" or "unix".
        trusts: connections begin with a PROXY protocol header; returns whether an address is a trusted proxy.
        upgrade: called with an HTTP request up to its empty line, whether TLS is used, and the address of the
            connection; returns the response, the reason of a refusal or "", and family and address of the client if a
            proxy has named it, or None.
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
