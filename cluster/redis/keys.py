"""Every key and channel in Redis, and the name of the function library. Contents: deploy/docs/internals/KEYS.md."""

from binascii import crc_hqx

LAYOUT = 1  # of everything that nodes share; a node joins no cluster of another layout
# In place of the layout, so that no node joins (`flockmq migrate`):
ARRIVING = 1_000_001  # a migration to these keys has not ended
MOVED = 1_000_002  # the state was moved to another place
LIBRARY = "flockmq1"
SLOTS = 16384  # of a Redis Cluster
# The keys that are the state of a cluster, without their prefix: whole names, and beginnings. Users and roles,
# the log of messages and its jobs are not listed: they outlive the state.
STATE_NAMES = (
    b"clock epoch starts change changes nodes applied dead retained sessions off ends delayed groups shared grace "
    b"later transactions shards once once:orphans in_doubt returning".split()
)
ACCESS_NAMES = b"users users:names roles roles:names".split()
STATE_KINDS = tuple(
    b"once: delayed: later: transactions: queued: applied: node: routes: wills: owned: log: s: q: st: in: subs: rare: "
    b"off: ends: g: gw: gq: gm: gr: go: gk: gs: gv: gl: gn: moved:".split()
)


class Keys:
    """The keys and channels of a cluster, and the commands that depend on whether they are in a Redis Cluster.

    Args:
        prefix: of all keys and channels.
        in_slot: whether they are in a Redis Cluster. The prefix is a hash tag there, so that all are in one slot.
    """

    def __init__(self, prefix: str, in_slot: bool = False) -> None:
        self.tag = b""  # the bare hash tag: a key that never exists; empty without a Redis Cluster
        if in_slot:
            name = prefix.rstrip(":") or prefix
            self.tag = b"{%s}" % name.encode()
            prefix = f"{{{name}}}{prefix[len(name) :]}"
        self.publish = b"SPUBLISH" if in_slot else b"PUBLISH"
        self.subscribe = b"SSUBSCRIBE" if in_slot else b"SUBSCRIBE"
        self.prefix = prefix.encode()
        self.layout = self.prefix + b"layout"
        self.migration = self.prefix + b"migration"
        self.epoch = self.prefix + b"epoch"
        self.starts = self.prefix + b"starts"
        self.change = self.prefix + b"change"
        self.changes = self.prefix + b"changes"
        self.nodes = self.prefix + b"nodes"
        self.retained = self.prefix + b"retained"
        self.sessions = self.prefix + b"sessions"
        self.clock = self.prefix + b"clock"
        self.delayed = self.prefix + b"delayed"
        self.delayed_wills = self.prefix + b"delayed:wills"
        self.later = self.prefix + b"later"
        self.once = self.prefix + b"once"
        self.in_doubt = self.prefix + b"in_doubt"
        self.later_messages = self.prefix + b"later:messages"
        self.later_state = self.prefix + b"later:state"
        self.later_tenants = self.prefix + b"later:tenants"
        self.staged_parts = self.prefix + b"transactions"
        self.committed = self.prefix + b"transactions:last:"  # the beginning: the user follows
        self.queued_tenants = self.prefix + b"queued:tenants"
        self.offline = self.prefix + b"off"
        self.ending = self.prefix + b"ends"
        self.grace = self.prefix + b"grace"
        self.shared = self.prefix + b"shared"
        self.declared_groups = self.prefix + b"groups"
        self.all = self.prefix + b"all"
        self.analytics_logs = self.prefix + b"analytics:logs"
        self.analytics_jobs = self.prefix + b"analytics:jobs"
        self.analytics_pipes = self.prefix + b"analytics:pipes"
        self.analytics_results = self.prefix + b"analytics:results"

    def staged_parts_of(self, name: str) -> bytes:
        """The staged parts of a name of transactions, by its key."""
        return self.prefix + b"transactions:of:" + name.encode()

    def staged_part(self, part: str) -> bytes:
        """The chunks of a staged part of a transaction."""
        return self.prefix + b"transactions:part:" + part.encode()

    def function(self, name: str) -> list[bytes]:
        """The beginning of the command that calls a function of the library.

        In a Redis Cluster it declares the bare tag as its only key. That key never exists, so the server replies MOVED
        or ASK *instead of* running the function, whenever the slot is elsewhere or only a part of its keys is there.
        """
        declared = [b"1", self.tag] if self.tag else [b"0"]
        return [b"FCALL", b"flockmq_" + name.encode(), *declared, self.prefix]

    def is_state(self, key: bytes) -> bool:
        """Whether a key that begins with the prefix is state of this cluster; else it may be another's."""
        name = key[len(self.prefix) :]
        return name in STATE_NAMES or name.startswith(STATE_KINDS)

    def is_kept(self, key: bytes) -> bool:
        """Whether a key that begins with the prefix is in a backup: state, users, logs of messages and their jobs."""
        name = key[len(self.prefix) :]
        return self.is_state(key) or name in (*ACCESS_NAMES, b"left") or name.startswith(b"analytics:")

    @property
    def slot(self) -> int:
        """The hash slot of all keys, in a Redis Cluster."""
        return crc_hqx(self.tag[1:-1], 0) % SLOTS

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

    def repair_log(self, node: bytes) -> bytes:
        """The repair log of a node: its publish batches."""
        return self.prefix + b"log:" + node

    def message_log(self, node: bytes) -> bytes:
        """The message log of a node."""
        return self.prefix + b"analytics:log:" + node

    def access(self, kind: str) -> bytes:
        """The documents of users, or of roles; their names are in `:names` behind it."""
        return self.prefix + kind.encode() + b"s"

    def analytics_lock(self, job: bytes) -> bytes:
        """The lock of the checkpoint of a job."""
        return self.prefix + b"analytics:lock:" + job

    def session(self, client_id: bytes) -> bytes:
        """The state of a session."""
        return self.prefix + b"s:" + client_id

    def rare(self, client_id: bytes) -> bytes:
        """The fields that few sessions have."""
        return self.prefix + b"rare:" + client_id

    def offline_since(self, second: int) -> bytes:
        """The sessions without an interval whose connections ended in the minute from this second on."""
        return self.prefix + b"off:%d" % second

    def ending_at(self, second: int) -> bytes:
        """The sessions with an interval that end at this second."""
        return self.prefix + b"ends:%d" % second

    def queue(self, client_id: bytes) -> bytes:
        """The queued messages of a session, if they are many or large."""
        return self.prefix + b"q:" + client_id

    def states(self, client_id: bytes) -> bytes:
        """The QoS states of a session's queue."""
        return self.prefix + b"st:" + client_id

    def awaiting(self, client_id: bytes) -> bytes:
        """The QoS 2 messages of a session that await PUBREL."""
        return self.prefix + b"in:" + client_id

    def subscriptions(self, client_id: bytes) -> bytes:
        """The subscriptions of a persistent session."""
        return self.prefix + b"subs:" + client_id

    def group(self, name: bytes) -> bytes:
        """The state of a shared subscription."""
        return self.prefix + b"g:" + name

    def group_list(self, name: bytes) -> bytes:
        """The new messages that wait in a group."""
        return self.prefix + b"gw:" + name

    def group_places(self, name: bytes) -> bytes:
        """The places of messages that wait in front of the new ones."""
        return self.prefix + b"gq:" + name

    def group_messages(self, name: bytes) -> bytes:
        """These messages, by place."""
        return self.prefix + b"gm:" + name

    def group_topics(self, name: bytes) -> bytes:
        """The place of the message of each topic, in a group with `last_value`."""
        return self.prefix + b"gv:" + name

    def group_keys(self, name: bytes) -> bytes:
        """The bindings of keys, in a group with an order."""
        return self.prefix + b"gk:" + name

    def group_subscribers(self, name: bytes) -> bytes:
        """The subscribers of a group."""
        return self.prefix + b"gs:" + name

    def assigned_groups(self, node: bytes) -> bytes:
        """The groups of a node's assignments."""
        return self.prefix + b"gl:" + node

    def assignments(self, node: bytes, group: bytes) -> bytes:
        """The messages of a group that are assigned to a node."""
        return self.prefix + b"gl:" + node + b" " + group
