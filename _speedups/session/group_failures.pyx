"""Messages of a shared subscription that were sent without success, and dead letters, which failed too often.

A message that came back after it was sent, or was refused, has an entry until it is done.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .group_settings cimport GroupSettings


@cython.final
cdef class Failures:
    """No failures."""

    cdef int note(self, uint64_t place, uint8_t code, bytes client_id) except -1:
        """A message comes back that was sent to this client; `code`: of its refusal, 0 = it was not acknowledged."""
        if self.by_place is None:
            self.by_place = {}
        self.by_place[place] = (self.count(place) + 1, code, client_id)
        return 0

    cdef int restore(self, uint64_t place, uint64_t failures) except -1:
        """A message has failed before. `failures`: deliveries << 8 | reason code of the last."""
        if self.by_place is None:
            self.by_place = {}
        self.by_place[place] = (failures >> 8, failures & 255, None)
        return 0

    cdef int forget(self, uint64_t place) except -1:
        """The message is done, or another node's to give."""
        if self.by_place is not None:
            self.by_place.pop(place, None)
            if not self.by_place:
                self.by_place = None
        return 0

    cdef int forget_others(self, set places) except -1:
        """Only the messages with these places are left."""
        for place in [place for place in self.by_place or () if place not in places]:
            self.forget(place)
        return 0

    cdef uint32_t count(self, uint64_t place) except? 0:
        """How often the message was sent without success."""
        return self.by_place[place][0] if self.by_place is not None and place in self.by_place else 0

    cdef tuple of(self, uint64_t place):
        """Deliveries, reason code and client id of a message that came back; None: it has not."""
        return None if self.by_place is None else self.by_place.get(place)

    cdef bytes last_client(self, uint64_t place):
        """The client that did not acknowledge the message; None: it is not known, or there was none."""
        return self.by_place[place][2] if self.by_place is not None and place in self.by_place else None

    cdef bint are_too_many(self, uint64_t place, GroupSettings settings) except -1:
        """Whether the message was sent as often as the settings allow."""
        return (self.by_place is not None and settings.max_deliveries != 0
                and self.count(place) >= settings.max_deliveries)

    cdef int put_dead(self, object held) except -1:
        """Keep a dead letter."""
        if self.dead is None:
            self.dead = []
        self.dead.append(held)
        return 0
