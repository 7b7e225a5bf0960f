"""Where the messages of a shared subscription are kept, beside its node: one interface, with two implementations.

The journal of a node alone (`group_journal.pyx`) has a record of each message of a group that is kept. The store of a
cluster has the messages themselves, and assigns them to nodes (`_speedups/cluster/group_assignments.pyx`). The group
calls these methods; the class itself keeps nothing, as a group needs it that has ended.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .group_keys cimport Key
from .group_subscriber cimport GroupSubscriber
from .message cimport Message, Publication, message_release
from .session cimport Session


cdef class GroupBacking:
    """Of a group that has ended: it keeps nothing."""

    # ---- messages ----

    cdef uint64_t place_new(self, const Publication* publication, uint8_t qos, Message* message) except? 0:
        """The place of a new message, which this node gives to a subscriber. 0: the store has taken it, and places it.

        `qos`: of the subscription of the group.
        """
        return 0

    cdef bint pass_on(self, Publication* publication) except -1:
        """Whether a message of QoS 0 is another node's to give, and has been sent there."""
        return False

    cdef int put(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1:
        """Put a message into the queue of the subscriber's session."""
        return 0

    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1:
        """A message comes back from a subscriber, with its reference. `record`: the store does not have it here."""
        message_release(message)
        return 0

    cdef int take_refused(self, GroupSubscriber subscriber, uint64_t n, uint8_t code) except -1:
        """The client refuses the entry `n` of its queue, or may not read it, with code 0: it comes back."""
        return 0

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        """Write to the store that the message waits."""
        return 0

    cdef int record_given(self, GroupSubscriber subscriber, uint64_t place, uint64_t n) except -1:
        """Write to the store that the entry `n` of the queue of the subscriber's session is the message."""
        return 0

    cdef int record_failure(self, uint64_t place) except -1:
        """Write to the store how often the message was sent without success, or that it was not."""
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        """Write to the store that the message is done."""
        return 0

    cdef int record_dead(self, uint64_t place) except -1:
        """The block being written has the message as a dead letter: it is done."""
        return 0

    # ---- subscribers ----

    cdef int joined(self, Session session) except -1:
        """The session is a subscriber from now on."""
        return 0

    cdef int leaves(self, GroupSubscriber subscriber) except -1:
        """The subscriber leaves the group, or its session this node, while it may have messages."""
        return 0

    cdef int left(self, bint records) except -1:
        """A subscriber has left. `records`: the store is to get records of it."""
        return 0

    cdef int qos_elsewhere(self) except -2:
        """The highest QoS granted to a subscriber at another node; -1: none has subscribers."""
        return -1

    cdef int room_changed(self) except -1:
        """The room of a subscriber has changed."""
        return 0

    def set_peer(self, peer, int announced):
        """Another node has subscribers, with this QoS and number as `Routes` announces them; -1: it has none.

        Returns whether it had some.
        """
        return False

    # ---- the group ----

    cdef int configured(self, bint was_declared) except -1:
        """The group has other settings. `was_declared`: by those before."""
        return 0

    cdef int order_changed(self) except -1:
        """The group has another table of keys, which is empty, or none."""
        return 0

    cdef bint has_given(self, GroupSubscriber subscriber, uint64_t place) except -1:
        """Whether the key of a message that the subscriber has is bound to it."""
        return True

    cdef int arrived(self, GroupSubscriber subscriber, uint64_t place, uint32_t hash, uint64_t failures) except -1:
        """A message that the store has put into the queue of the subscriber's session is there; it has a key.

        `hash`: of the key. `failures`: as for `Failures.restore`; 0 = none.
        """
        return 0

    cdef int not_arrived(self, uint64_t place) except -1:
        """A message that was given to a subscriber is not in the queue of its session."""
        return 0

    cdef int key_done(self, Key key, uint64_t place) except -1:
        """A message with this key is done."""
        return 0

    cdef int has_sent(self) except -1:
        """The group has given the messages that subscribers have room for."""
        return 0

    cdef int abandon(self) except -1:
        """The last subscriber has left, or the declaration was removed. Returns the number of messages that are
        dropped."""
        return 0

    def record(self):
        """Write the group to the store, before records that refer to it."""

    def record_messages(self):
        """Write the messages that wait to the store again, and the unacknowledged messages of clean sessions."""
