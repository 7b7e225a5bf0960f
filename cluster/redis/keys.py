"""Every key and channel in Redis, and the name of the function library. Contents: deploy/docs/CLUSTER.md."""

LAYOUT = 2  # the newest layout that this version knows, of everything that nodes share; 2 has what MQTT 5.0 adds
LIBRARY = "flockmq1"


class Keys:
    """The keys of a cluster.

    Args:
        prefix: of all keys and channels.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.changes = self.prefix + b"changes"
        self.nodes = self.prefix + b"nodes"
        self.retained = self.prefix + b"retained"
        self.sessions = self.prefix + b"sessions"
        self.clock = self.prefix + b"clock"
        self.delayed = self.prefix + b"delayed"
        self.delayed_wills = self.prefix + b"delayed:wills"
        self.users = self.prefix + b"users"
        self.all = self.prefix + b"all"
        self.analytics_logs = self.prefix + b"analytics:logs"
        self.analytics_jobs = self.prefix + b"analytics:jobs"
        self.analytics_results = self.prefix + b"analytics:results"

    def to(self, node: bytes) -> bytes:
        """The channel of a node."""
        return self.prefix + b"to:" + node

    def node(self, node: bytes) -> bytes:
        """The description of a node."""
        return self.prefix + b"node:" + node

    def routes(self, node: bytes) -> bytes:
        """The topic filters for which a node has clients."""
        return self.prefix + b"routes:" + node

    def wills(self, node: bytes) -> bytes:
        """The wills of a node's clients, by epoch."""
        return self.prefix + b"wills:" + node

    def log(self, node: bytes) -> bytes:
        """The publish batches of a node."""
        return self.prefix + b"log:" + node

    def analytics_log(self, node: bytes) -> bytes:
        """The log of messages of a node."""
        return self.prefix + b"analytics:log:" + node

    def session(self, client_id: bytes) -> bytes:
        """The state of a session."""
        return self.prefix + b"s:" + client_id

    def queue(self, client_id: bytes) -> bytes:
        """The queued messages of a session."""
        return self.prefix + b"q:" + client_id
