"""The keys of a shared subscription that Redis has bound to this node.

Redis binds a key to the node that has messages of it, and assigns all that follow to this node, which keeps them in
order as a node alone does (`group_keys.pyx`). A key is *held*, and none of its messages given, while a persistent
session that was a subscriber here may still have some: Redis is asked until it has none. When the last message is done,
the node reports the key as idle; when it can't give its messages, it gives the key up (`close`).
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .journal cimport ClusterJournal
from ..session.group cimport Group
from ..session.group_keys cimport Key
from ..session.group_subscriber cimport GroupSubscriber
from ..session.group_queue cimport Held

cdef enum:
    SLOW_CHECK = 16            # ticks between questions about keys that are held for long


@cython.final
cdef class AssignedKeys:
    """No keys.

    Args:
        group: whose keys they are.
        places: of the messages that Redis has assigned to this node, and that it has.
    """

    def __init__(self, Group group not None, set places not None):
        self.group = group
        self.records = (<ClusterJournal?>group.turn.journal.at(group.shard)).group_records
        self.places = places
        self.entrusted = {}
        self.held = {}

    cdef int forget_all(self) except -1:
        """The group has another table of keys, or none."""
        self.entrusted.clear()
        self.held.clear()
        return 0

    cdef bint is_mine(self, uint64_t place) except -1:
        """Whether Redis has bound the key of the message to this node."""
        cdef Key key = None if self.group.backlog.keys is None else self.group.backlog.keys.of(place)
        return key is not None and key.number != 0

    cdef bint is_known(self, uint64_t place) except -1:
        """Whether the message has a key."""
        return self.group.backlog.keys is not None and self.group.backlog.keys.of(place) is not None

    cdef int64_t hash_of(self, uint64_t place) except -2:
        """The hash of the message's key; -1: it has none."""
        cdef Key key = None if self.group.backlog.keys is None else self.group.backlog.keys.of(place)
        return -1 if key is None else key.hash

    cdef int renumber(self, uint64_t place, uint64_t number) except -1:
        """Redis has assigned a message again that is here: an assignment of its key has this number now."""
        cdef Key key = None if self.group.backlog.keys is None else self.group.backlog.keys.of(place)
        if key is not None:
            key.number = max(key.number, number)
        return 0

    cdef int end_key(self, Key key, uint64_t place) except -1:
        """A message of the key is done; report a key without messages."""
        self.entrusted.pop(place, None)
        if key.known == 0 and not key.held and key.number:
            self.records.key_idle(self.group.client_id, key.hash, key.number)
        return 0

    # ---- messages in the queues of persistent sessions ----

    cdef int note(self, GroupSubscriber subscriber, uint64_t place, uint32_t hash, uint64_t failures) except -1:
        """The subscriber's session has this message in its queue. `failures`: as for `Failures.restore`; 0 = none."""
        cdef Key key
        if self.group.backlog.keys is None or place in self.entrusted or place in self.places:
            return 0                              # in the last case it went back, and the entry is done
        if self.group.backlog.keys.of(place) is None:
            self.group.backlog.keys.note(place, hash)
        self.entrusted[place] = subscriber
        if failures:
            self.group.backlog.failures.restore(place, failures)
        self.group.backlog.keys.bind(place, subscriber)
        key = self.group.backlog.keys.of(place)
        if key.held & ELSEWHERE and subscriber.session.shard == self.group.shard:
            self.held.pop(hash, None)             # else other messages of the session may be on their way back
            key.held &= ~ELSEWHERE
        return 0

    cdef int not_arrived(self, uint64_t place) except -1:
        """The message did not arrive in the queue of a persistent session, or the session leaves this node."""
        cdef Key key = None if self.group.backlog.keys is None else self.group.backlog.keys.of(place)
        if key is None or self.entrusted.pop(place, None) is None:
            return 0
        self.group.backlog.failures.forget(place)
        if key.number and not key.held & ELSEWHERE:
            self.hold(key)
        self.group.backlog.keys.done(place)
        return self.group.turn.schedule_send(self.group)

    cdef int leaves(self, GroupSubscriber subscriber) except -1:
        """The subscriber has a persistent session, which leaves this node: it may return elsewhere."""
        for place in [place for place, other in self.entrusted.items() if other is subscriber]:
            self.not_arrived(place)
        return 0

    # ---- keys that are held ----

    cdef int hold(self, Key key) except -1:
        """Give no message of the key until Redis reports that no session has others before."""
        self.holds += 1
        key.hold = self.holds
        key.held |= ELSEWHERE
        self.held[key.hash] = key
        self.check_every = 1
        self.check_at = self.group.turn.clock + 1
        self.ask(key)
        self.records.to_tick.add(self.group.backing)
        return 0

    cdef int ask(self, Key key) except -1:
        """Ask about a key that is held; later, if it is not known whether a session of another shard has a message."""
        if not self.records.is_key_under_way(self.group.client_id, key.hash):
            self.records.check_key(self.group.client_id, key.hash, key.hold)
        return 0

    cdef int check(self) except -1:
        """Ask Redis about the keys that are held, if it is time."""
        cdef Key key
        if self.held and self.group.turn.clock >= self.check_at:
            self.check_every = min(2 * self.check_every, <int64_t>SLOW_CHECK)
            self.check_at = self.group.turn.clock + self.check_every
            for key in self.held.values():
                self.ask(key)
        return 0

    cdef int free(self, uint32_t hash, uint64_t hold) except -1:
        """No session that is elsewhere has messages of a key that was held. `hold`: as in the question."""
        cdef Key key = self.held.get(hash)
        if key is None or key.hold != hold:
            return 0
        del self.held[hash]
        key.held &= ~ELSEWHERE
        if key.known:
            self.group.backlog.keys.offer(key)
        elif not key.held:
            self.group.backlog.keys.remove(key)
            self.records.key_idle(self.group.client_id, hash, key.number)
        return self.group.turn.schedule_send(self.group)

    # ---- keys that this node gives up ----

    cdef int close(self, Key key) except -1:
        """Give the key up. Nothing of it is given until Redis has taken back what this node has."""
        key.held |= CLOSING
        self.records.key_closed(self.group.client_id, key.hash, key.number)
        return 0

    cdef int close_all(self) except -1:
        """No subscriber here has a connection: give all keys up."""
        cdef Key key
        for key in list(self.group.backlog.keys.keys.values()) if self.group.backlog.keys is not None else ():
            if key.number and not key.held & CLOSING:
                self.close(key)
        return 0

    cdef int close_blocked(self) except -1:
        """Give the free keys up whose messages no subscriber here may take."""
        cdef Key key
        for key in list(self.group.backlog.keys.blocked) if self.group.backlog.keys is not None else ():
            if key.subscriber is None and key.number:
                self.close(key)
        return 0

    cdef int close_again(self) except -1:
        """The link to Redis was lost, and perhaps the answers with it."""
        cdef Key key
        for key in self.group.backlog.keys.keys.values() if self.group.backlog.keys is not None else ():
            if key.held & CLOSING:
                self.close(key)
        return 0

    cdef int closed(self, uint32_t hash, uint64_t number) except -1:
        """Redis has taken back the messages of a key. `number`: of the last assignment that this node had of it."""
        cdef Key key = None if self.group.backlog.keys is None else self.group.backlog.keys.keys.get(hash)
        cdef Held held
        if key is None or key.number != number or not key.held & CLOSING:
            return 0
        for held in self.group.backlog.keys.remove_parked(key):
            self.places.discard(held.place)
            self.group.backlog.queue.count_message(-1, held.message)
            self.group.backlog.failures.forget(held.place)
        self.held.pop(hash, None)
        key.held = 0
        key.number = 0
        if key.known == 0:
            self.group.backlog.keys.remove(key)
        return 0
