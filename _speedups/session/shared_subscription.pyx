"""The part of a session in shared subscriptions, and the group as the session sees it, which `group.pyx` implements.

A message from a group is an entry of the session's queue like any other, with the flag OF_GROUP. The entry's field
`identifiers` is then the number of the subscription, and `places` has the message's place in the group.
"""

from libc.stdlib cimport calloc, free

from ..base.cursor cimport write_varint
from ..codec.publish cimport SUBSCRIPTION_IDENTIFIER

cdef enum:
    FIRST_PLACES = 8


cdef class SessionGroup(Subscriber):
    """A shared subscription: the events of its sessions."""

    cdef int attached(self, SharedSubscription subscription) except -1:
        """The session has a connection."""
        return 0

    cdef int detached(self, SharedSubscription subscription) except -1:
        """The connection of the session has ended: unsent messages go to other sessions."""
        return 0

    cdef int rights_changed(self, SharedSubscription subscription) except -1:
        """The client may read other topics than before."""
        return 0

    cdef int has_sent(self, SharedSubscription subscription) except -1:
        """The session has sent its messages: it may have room again."""
        return 0

    cdef int record_given(self, SharedSubscription subscription, uint64_t place, uint64_t n) except -1:
        """Write to the journal that the entry `n` of the session's queue is the message with this place."""
        return 0

    cdef int finished(self, SharedSubscription subscription, uint64_t place, uint8_t qos) except -1:
        """The message with this place is acknowledged, or dropped."""
        return 0

    cdef bint refused(self, SharedSubscription subscription, uint64_t n, uint8_t code) except -1:
        """The client has refused the entry `n` of its queue. Whether the group takes it back."""
        return False

    cdef int withheld(self, SharedSubscription subscription, uint64_t n) except -1:
        """The client may not read the entry `n` of its queue any more, and has not got it: the group takes it back."""
        return 0


cdef class SharedSubscription:
    """One shared subscription of a session."""

    cdef int set_options(self, uint8_t options, uint32_t identifier) except -1:
        """Set the options of the subscription, and its identifier."""
        cdef uint8_t[5] encoded
        self.options = options
        self.identifier = identifier
        self.properties = b""
        if identifier:
            encoded[0] = SUBSCRIPTION_IDENTIFIER
            self.properties = encoded[:1 + write_varint(encoded + 1, identifier)]
        return 0


cdef class SharedSubscriptions:
    """The shared subscriptions of a session, and the places of messages that it got from them."""

    def __cinit__(self):
        self.items = []

    def __dealloc__(self):
        free(self.places)

    cdef int add(self, SharedSubscription subscription) except -1:
        cdef Py_ssize_t i
        self.count += 1
        for i in range(len(self.items)):
            if self.items[i] is None:
                self.items[i] = subscription
                subscription.index = <uint16_t>i
                return 0
        if len(self.items) > 65535:
            raise OverflowError("too many shared subscriptions of a session")
        subscription.index = <uint16_t>len(self.items)
        self.items.append(subscription)
        return 0

    cdef int remove(self, SharedSubscription subscription) except -1:
        self.items[subscription.index] = None
        self.count -= 1
        return 0

    cdef int put(self, uint64_t head, uint64_t n, uint64_t place) except -1:
        """Note the place of the message with queue number `n`; `head` is the oldest number of the queue."""
        cdef uint64_t capacity = self.mask + 1 if self.places != NULL else FIRST_PLACES
        cdef uint64_t* grown
        cdef uint64_t i
        if self.places == NULL or n - head > self.mask:
            while n - head >= capacity:
                capacity *= 2
            grown = <uint64_t*>calloc(capacity, sizeof(uint64_t))
            if grown == NULL:
                raise MemoryError
            if self.places != NULL:
                for i in range(head, min(n, head + self.mask + 1)):
                    grown[i & (capacity - 1)] = self.places[i & self.mask]
            free(self.places)
            self.places = grown
            self.mask = capacity - 1
        self.places[n & self.mask] = place
        return 0

    cdef uint64_t place(self, uint64_t n) noexcept:
        """The place of the message with queue number `n`, which came from a group."""
        return self.places[n & self.mask]

    cdef SharedSubscription of(self, bytes name):
        """The subscription in the group with this name, or None."""
        cdef SharedSubscription subscription
        for subscription in self.items:
            if subscription is not None and subscription.group.client_id == name:
                return subscription
        return None

    # ---- events ----

    cdef int attached(self) except -1:
        """The session has a connection."""
        cdef SharedSubscription subscription
        for subscription in self.items:
            if subscription is not None:
                subscription.group.attached(subscription)
        return 0

    cdef int detached(self) except -1:
        """The connection of the session has ended."""
        cdef SharedSubscription subscription
        for subscription in self.items:
            if subscription is not None:
                subscription.group.detached(subscription)
        return 0

    cdef int rights_changed(self) except -1:
        """The client may read other topics than before."""
        cdef SharedSubscription subscription
        for subscription in self.items:
            if subscription is not None:
                subscription.group.rights_changed(subscription)
        return 0

    cdef int sent(self) except -1:
        """The session has sent its messages: it may have room again."""
        cdef SharedSubscription subscription
        for subscription in self.items:
            if subscription is not None and not subscription.ready:
                subscription.group.has_sent(subscription)
        return 0

    # ---- of an entry `n` of the queue, which came from the subscription with this index ----

    cdef bytes properties(self, uint16_t index):
        """The subscription identifier of the entry, encoded as a property."""
        return (<SharedSubscription>self.items[index]).properties

    cdef int record_given(self, uint64_t n, uint16_t index) except -1:
        """Write to the journal which message of the group the entry is."""
        cdef SharedSubscription subscription = <SharedSubscription>self.items[index]
        return subscription.group.record_given(subscription, self.place(n), n)

    cdef int finished(self, uint64_t n, uint16_t index, uint8_t qos) except -1:
        """The entry is acknowledged, or dropped."""
        cdef SharedSubscription subscription = <SharedSubscription>self.items[index]
        return subscription.group.finished(subscription, self.place(n), qos)

    cdef bint refused(self, uint64_t n, uint16_t index, uint8_t code) except -1:
        """The client has refused the entry. Whether the group takes it back."""
        cdef SharedSubscription subscription = <SharedSubscription>self.items[index]
        return subscription.group.refused(subscription, n, code)

    cdef int withheld(self, uint64_t n, uint16_t index) except -1:
        """The client may not read the entry any more, and has not got it: the group takes it back."""
        cdef SharedSubscription subscription = <SharedSubscription>self.items[index]
        return subscription.group.withheld(subscription, n)
