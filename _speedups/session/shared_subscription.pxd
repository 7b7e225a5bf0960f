# The part of a session in shared subscriptions, as the session sees it. See shared_subscription.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from .group_settings cimport GroupSettings
from .subscriber cimport Subscriber


cdef class SessionGroup(Subscriber):
    cdef readonly GroupSettings settings

    cdef int attached(self, SharedSubscription subscription) except -1
    cdef int detached(self, SharedSubscription subscription) except -1
    cdef int rights_changed(self, SharedSubscription subscription) except -1
    cdef int has_sent(self, SharedSubscription subscription) except -1
    cdef int record_given(self, SharedSubscription subscription, uint64_t place, uint64_t n) except -1
    cdef int finished(self, SharedSubscription subscription, uint64_t place, uint8_t qos) except -1
    cdef bint refused(self, SharedSubscription subscription, uint64_t n, uint8_t code) except -1
    cdef int withheld(self, SharedSubscription subscription, uint64_t n) except -1


cdef class SharedSubscription:
    cdef readonly SessionGroup group   # None: the subscription has ended
    cdef readonly uint8_t options      # of the subscription
    cdef readonly uint32_t identifier  # subscription identifier; 0 = none
    cdef bytes properties              # the identifier, encoded as a property; b"" = none
    cdef uint16_t index                # in SharedSubscriptions.items
    cdef bint ready                    # the group gives it messages
    cdef uint32_t given                # messages that it has got and not acknowledged

    cdef int set_options(self, uint8_t options, uint32_t identifier) except -1


cdef class SharedSubscriptions:
    cdef list items                    # of SharedSubscription; None: it has ended, and its place is free
    cdef uint64_t* places              # of the messages in the session's queue, by queue number & mask
    cdef uint64_t mask
    cdef readonly uint32_t count       # of shared subscriptions

    cdef int add(self, SharedSubscription subscription) except -1
    cdef int remove(self, SharedSubscription subscription) except -1
    cdef SharedSubscription of(self, bytes name)
    cdef int put(self, uint64_t head, uint64_t n, uint64_t place) except -1
    cdef uint64_t place(self, uint64_t n) noexcept
    cdef int sent(self) except -1
    cdef int attached(self) except -1
    cdef int detached(self) except -1
    cdef int rights_changed(self) except -1
    cdef bytes properties(self, uint16_t index)
    cdef int record_given(self, uint64_t n, uint16_t index) except -1
    cdef int finished(self, uint64_t n, uint16_t index, uint8_t qos) except -1
    cdef bint refused(self, uint64_t n, uint16_t index, uint8_t code) except -1
    cdef int withheld(self, uint64_t n, uint16_t index) except -1
