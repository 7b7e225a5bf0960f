"""The messages of a shared subscription that no subscriber has, each with its place: a number that grows.

New messages are in a ring, returned messages in a heap, both by place. Messages that no subscriber with room may take
are put aside. With order by key, messages also wait at their keys (`group_keys.pyx`). The queue counts all of them.

With `last_value` only the newest message of each topic waits: `newest_of` finds it, `replace` gives it the content of a
newer one.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

from collections import deque
from itertools import chain

from libc.stdlib cimport free, malloc

from ..base.array cimport array_reserve
from .group_keys cimport Key, KeyTable
from .group_settings cimport GroupSettings
from .message cimport Message, message_hold, message_release, message_size
from .outgoing_queue cimport NEVER_EXPIRES
from .tenant cimport Tenant, queue_is_over
from .turn cimport Turn

cdef enum:
    FIRST_WAITING = 16


cdef class Held:
    """A message that waits outside of a queue; it owns a reference."""

    def __dealloc__(self):
        if self.message != NULL:
            message_release(self.message)


@cython.final
@cython.no_gc_clear                       # as for Session: its end subtracts from the totals of `turn`
cdef class WaitingQueue:
    """An empty queue.

    Args:
        turn: of the node.
        tenant: of the group; None: it has none.
    """

    def __init__(self, Turn turn not None, Tenant tenant):
        self.turn = turn
        self.tenant = tenant
        self.earliest = NEVER_EXPIRES

    def __dealloc__(self):
        if self.turn is not None:
            self.count_queued(-<int64_t>self.count, -<int64_t>self.size)
        while self.waits():
            message_release(self.take_first().message)
        free(self.ring)
        free(self.back)

    def messages(self):
        """Iterate over the messages that wait, as Held, the oldest first. The queue must not change during the walk."""
        cdef list others = []
        cdef Py_ssize_t k
        cdef uint64_t i
        for k in range(self.back_count):
            others.append((self.back[k].place, held_copy(self.back[k])))
        for held in chain(self.aside or (), () if self.keys is None else self.keys.all_parked()):
            others.append(((<Held>held).place, held))
        others.sort()
        for _, held in others:
            yield held
        for i in range(self.head, self.tail):
            yield held_copy(self.ring[i & (self.capacity - 1)])

    # ---- figures ----

    cdef int count_message(self, int n, Message* message) except -1:
        """Count a message that waits from now on (1), or does not any more and has been taken out (-1)."""
        cdef int64_t size = message_size(message)
        cdef bytes topic
        if n < 0 and self.newest is not None:
            topic = message.data[:message.topic_length]
            found = self.newest.get(topic)
            if found is not None and self.at(found[0]) == NULL:
                del self.newest[topic]
        if n > 0:
            self.note_expiry(message)
        self.count += n
        self.size += n * size
        self.count_queued(n, n * size)
        return 0

    cdef void count_queued(self, int64_t messages, int64_t size) noexcept:
        """Add to the totals of the node and of the tenant."""
        self.turn.queued += messages
        self.turn.queued_bytes += size
        if self.tenant is not None:
            self.tenant.queued_here += size

    cdef bint is_full(self, GroupSettings settings, const Message* message) noexcept:
        """Whether the message is one too many; a message alone never is."""
        return self.count != 0 and (
            self.count >= settings.max_messages
            or self.size + <uint64_t>message_size(message) > settings.max_bytes
            or queue_is_over(self.tenant, message_size(message)))

    # ---- in the order of their places ----

    cdef bint waits(self) noexcept:
        """Whether messages wait that a subscriber with room may take."""
        return self.head != self.tail or self.back_count != 0

    cdef uint64_t in_order(self) noexcept:
        """The number of these messages."""
        return self.tail - self.head + <uint64_t>self.back_count

    cdef int add(self, uint64_t place, Message* message) except -1:
        """Put a message behind all others; takes over the reference."""
        cdef Waiting* grown
        cdef uint64_t i, size
        if self.tail - self.head == self.capacity:
            size = self.capacity * 2 or FIRST_WAITING
            grown = <Waiting*>malloc(size * sizeof(Waiting))
            if grown == NULL:
                message_release(message)
                raise MemoryError
            for i in range(self.head, self.tail):
                grown[i & (size - 1)] = self.ring[i & (self.capacity - 1)]
            free(self.ring)
            self.ring = grown
            self.capacity = size
        self.ring[self.tail & (self.capacity - 1)] = Waiting(place, message)
        self.tail += 1
        self.count_message(1, message)
        if self.newest is not None:
            self.newest[message.data[:message.topic_length]] = (place, place)
        return 0

    cdef int come_back(self, uint64_t place, Message* message) except -1:
        """Take a message that a subscriber had, to its old place; takes over the reference."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None:
            self.put_back(Waiting(place, message))
        else:
            self.park(key, Waiting(place, message))
            self.keys.release(place)
        self.count_message(1, message)
        if self.newest is not None:
            self.newest[message.data[:message.topic_length]] = (place, place)
        return 0

    cdef int put_back(self, Waiting waiting) except -1:
        """Put a message that is counted to its old place; takes over the reference."""
        cdef Py_ssize_t i = self.back_count, above
        if array_reserve(<void**>&self.back, self.back_count + 1, &self.back_capacity, sizeof(Waiting)) < 0:
            message_release(waiting.message)
            raise MemoryError
        while i and self.back[(i - 1) >> 1].place > waiting.place:
            above = (i - 1) >> 1
            self.back[i] = self.back[above]
            i = above
        self.back[i] = waiting
        self.back_count += 1
        return 0

    cdef Waiting* first(self) noexcept:
        """The message with the lowest place; there must be one."""
        if self.back_count and (self.head == self.tail
                                or self.back[0].place < self.ring[self.head & (self.capacity - 1)].place):
            return self.back
        return self.ring + (self.head & (self.capacity - 1))

    cdef Waiting take_first(self) noexcept:
        """Remove the message with the lowest place, which stays counted; its reference passes to the caller."""
        cdef Waiting taken = self.first()[0]
        cdef Waiting last
        cdef Py_ssize_t i = 0, below
        if self.first() != self.back:
            self.head += 1
            if self.head == self.tail and self.capacity > 1024:
                free(self.ring)
                self.ring = NULL
                self.head = self.tail = self.capacity = 0
            return taken
        self.back_count -= 1
        last = self.back[self.back_count]
        while True:
            below = 2 * i + 1
            if below >= self.back_count:
                break
            if below + 1 < self.back_count and self.back[below + 1].place < self.back[below].place:
                below += 1
            if self.back[below].place >= last.place:
                break
            self.back[i] = self.back[below]
            i = below
        self.back[i] = last
        return taken

    # ---- aside, and at their keys ----

    cdef int put_aside(self, Waiting waiting) except -1:
        """Keep a message that no subscriber with room may take; takes over the reference."""
        if self.aside is None:
            self.aside = deque()
        self.aside.append(held_of(waiting))
        return 0

    cdef int park(self, Key key, Waiting waiting) except -1:
        """Keep a message at its key; takes over the reference."""
        return self.keys.park(key, waiting.place, held_of(waiting))

    cdef Waiting take_parked(self, Key key) except *:
        """Remove the first message that is parked at the key; its reference passes to the caller."""
        cdef Held held = self.keys.take(key)
        return Waiting(held.place, message_hold(held.message))

    cdef int recall(self) except -1:
        """Let the messages that were put aside wait again."""
        cdef Held held
        aside, self.aside = self.aside, None
        if self.keys is not None:
            self.keys.unblock_all()
        for held in aside or ():
            self.put_back(Waiting(held.place, message_hold(held.message)))
        return 0

    cdef int set_keys(self, KeyTable keys) except -1:
        """Keep another order from now on; messages that are parked wait in the order of their places again."""
        cdef Held held
        for held in () if self.keys is None else self.keys.all_parked():
            self.put_back(Waiting(held.place, message_hold(held.message)))
        self.keys = keys
        return 0

    # ---- messages to drop ----

    cdef Waiting take_oldest(self) except *:
        """Remove the oldest message, wherever it waits; its reference passes to the caller. NULL: none is here."""
        cdef Waiting oldest
        cdef Held held = <Held>self.aside[0] if self.aside else None
        cdef Key key = None if self.keys is None else self.keys.with_oldest()
        cdef uint64_t place = self.first().place if self.waits() else <uint64_t>-1
        if key is not None and key.parked[0][0] < place and (held is None or key.parked[0][0] < held.place):
            oldest = self.take_parked(key)
            self.keys.offer(key)
            return oldest
        if held is None or place < held.place:
            return self.take_first() if self.waits() else Waiting(0, NULL)
        self.aside.popleft()
        return Waiting(held.place, message_hold(held.message))

    cdef list take_expired(self):
        """Remove all messages that have expired, wherever they wait, and return them as Held.

        All are looked at, but only when one may have expired since the last time: at most once in a tick.
        """
        cdef list expired = []
        cdef list gone
        cdef Held held
        cdef Key key
        cdef Waiting waiting
        cdef uint64_t i, to = self.head
        cdef Py_ssize_t k, count = self.back_count
        if self.earliest > self.turn.clock:
            return expired
        self.earliest = NEVER_EXPIRES
        for i in range(self.head, self.tail):
            waiting = self.ring[i & (self.capacity - 1)]
            if self.has_expired(waiting.message):
                expired.append(held_of(waiting))
            else:
                self.ring[to & (self.capacity - 1)] = waiting
                to += 1
        self.tail = to
        self.back_count = 0
        for k in range(count):
            waiting = self.back[k]
            if self.has_expired(waiting.message):
                expired.append(held_of(waiting))
            else:
                self.put_back(waiting)
        others, self.aside = self.aside, None if self.aside is None else deque()
        for held in others or ():
            (expired if self.has_expired(held.message) else self.aside).append(held)
        if self.keys is not None:
            for key in list(self.keys.keys.values()):
                gone = [held for _, held in key.parked if self.has_expired((<Held>held).message)]
                if gone:
                    self.keys.unpark(key, set(gone))
                    expired += gone
        return expired

    cdef bint has_expired(self, const Message* message) noexcept:
        """Whether a message that waits has expired; else its expiry is noted."""
        if message.expires and message.expires <= self.turn.clock:
            return True
        self.note_expiry(message)
        return False

    cdef void note_expiry(self, const Message* message) noexcept:
        """A message waits that may expire."""
        if message.expires and message.expires < self.earliest:
            self.earliest = message.expires

    # ---- last value ----

    # A topic has one message that waits, at the place of the first: a topic with many messages is not put off by each.
    # Its age is the place that the message would have. After a restart that is its place.

    cdef Message** newest_of(self, const Message* message, uint64_t* place, uint64_t* age) except? NULL:
        """Where the message to the same topic waits, with its place and age; NULL: none waits."""
        if self.newest is None:
            self.note_all()
        found = self.newest.get(message.data[:message.topic_length])
        if found is None:
            return NULL
        place[0], age[0] = found
        return self.at(place[0])

    cdef int replace(self, Message** at, uint64_t place, uint64_t age, Message* message) except -1:
        """Give the place of a message that waits to a newer one, to which the queue takes a reference."""
        cdef int64_t more = message_size(message) - message_size(at[0])
        self.size += more
        self.count_queued(0, more)
        message_release(at[0])
        at[0] = message_hold(message)
        self.note_expiry(message)
        self.newest[message.data[:message.topic_length]] = (place, age)
        return 0

    cdef int note_all(self) except -1:
        """Note all messages that wait, in their order."""
        cdef Held held
        self.newest = {}
        for held in self.messages():
            self.newest[held.message.data[:held.message.topic_length]] = (held.place, held.place)
        return 0

    cdef Message** at(self, uint64_t place) except? NULL:
        """Where the message with this place waits; NULL: none does."""
        cdef uint64_t low = self.head, high = self.tail, middle
        cdef Py_ssize_t k
        cdef Held held
        cdef Key key
        while low < high:
            middle = (low + high) // 2
            if self.ring[middle & (self.capacity - 1)].place < place:
                low = middle + 1
            else:
                high = middle
        if low < self.tail and self.ring[low & (self.capacity - 1)].place == place:
            return &self.ring[low & (self.capacity - 1)].message
        for k in range(self.back_count):
            if self.back[k].place == place:
                return &self.back[k].message
        for held in self.aside or ():
            if held.place == place:
                return &held.message
        key = None if self.keys is None else self.keys.of(place)
        for entry in () if key is None else key.parked:
            if entry[0] == place:
                held = entry[1]
                return &held.message
        return NULL


cdef Held held_of(Waiting waiting):
    """An object for a message that waits; takes over the reference."""
    cdef Held held = Held()
    held.place = waiting.place
    held.message = waiting.message
    return held


cdef Held held_copy(Waiting waiting):
    """An object for a message that stays where it waits."""
    return held_of(Waiting(waiting.place, message_hold(waiting.message)))
