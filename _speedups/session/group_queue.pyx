"""The messages of a shared subscription that no member has, each with its place: a number that grows.

New messages are in a ring, those that came back in a heap, both by place. Those that no member with room may take are
put aside. With order by key, messages also wait at their keys (`group_keys.pyx`). The limits and the policy of the
settings hold for all of them together.

With `last_value` only the newest message of each topic waits. With `max_deliveries` a message that came back after it
was sent, or was refused, has an entry in `failures` until it is done.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from collections import deque
from itertools import chain, islice

from libc.stdlib cimport free, malloc

from ..base.array cimport array_reserve
from ..codec.topics cimport shared_filter_at
from .counters cimport EXPIRED, SHARED_DISCARDED
from .group_keys cimport Key, KeyTable
from .group_settings cimport GroupSettings
from .message cimport (
    Message, Publication, expiry_after, message_hold, message_new, message_payload, message_release, message_size,
    publication_of_message,
)
from .outgoing_queue cimport NEVER_EXPIRES
from .subscriber cimport GROUP, Subscriber
from .tenant cimport queue_is_over
from .turn cimport Turn

cdef enum:
    FIRST_WAITING = 16

cdef str FULL = "the queue is full"


cdef class Held:
    """A message that waits outside of a queue; it owns a reference."""

    def __dealloc__(self):
        if self.message != NULL:
            message_release(self.message)


@cython.no_gc_clear                       # as for Session: its end subtracts from the totals of `turn`
cdef class GroupQueue(Subscriber):
    """The queue of a group, empty.

    Args:
        turn: of the node.
        name: the share name and the topic filter, with `$share/`.
    """

    def __init__(self, Turn turn not None, bytes name not None):
        cdef const uint8_t* path = name
        cdef Py_ssize_t at = shared_filter_at(path, len(name))
        self.turn = turn
        self.settings = turn.shared
        self.client_id = name
        self.tenant = turn.tenants.of(path + at, len(name) - at)
        self.kind = GROUP
        self.earliest = NEVER_EXPIRES
        self.aside = deque()
        self.dead = deque()

    def __dealloc__(self):
        cdef Waiting taken
        cdef Held held
        if self.turn is not None:
            for held in self.aside:
                self.count_queued(-1, -message_size(held.message))
            if self.keys is not None and self.keys.keys is not None:
                for held in self.keys.all_parked():
                    self.count_queued(-1, -message_size(held.message))
            while self.head != self.tail or self.back_count:
                taken = self.take_first()
                self.count_queued(-1, -message_size(taken.message))
                message_release(taken.message)
        free(self.queue)
        free(self.back)

    @property
    def name(self):
        """Share name and topic filter, with `$share/`."""
        return self.client_id

    @property
    def waiting(self):
        """Messages that no member has."""
        return self.waiting_count()

    cdef uint64_t waiting_count(self):
        return self.tail - self.head + self.back_count + len(self.aside) + (0 if self.keys is None else self.keys.count)

    @property
    def waiting_size(self):
        """Bytes of topic names, properties and payloads of these messages."""
        return self.waiting_bytes

    def messages(self, Py_ssize_t most=1 << 30):
        """Up to `most` of the messages that wait, the oldest first: a list of (place, topic name, payload)."""
        cdef Held held
        cdef list found = []
        for held in islice(self.waiting_messages(), most):
            found.append((held.place, held.message.data[:held.message.topic_length],
                          message_payload(held.message)[:<Py_ssize_t>held.message.payload_length]))
        return found

    def waiting_messages(self):
        """Iterate over the messages that wait, as Held, the oldest first. The queue must not change meanwhile."""
        cdef list others = []
        cdef Py_ssize_t k
        cdef uint64_t i
        for k in range(self.back_count):
            others.append((self.back[k].place, held_copy(self.back[k])))
        for held in self.aside if self.keys is None else chain(self.aside, self.keys.all_parked()):
            others.append(((<Held>held).place, held))
        others.sort()
        for _, held in others:
            yield held
        for i in range(self.head, self.tail):
            yield held_copy(self.queue[i & (self.capacity - 1)])

    def purge(self):
        """Drop all messages that wait; returns their number."""
        cdef int dropped = 0
        while self.drop_oldest():
            dropped += 1
        self.turn.counters[SHARED_DISCARDED] += dropped
        return dropped

    # ---- queue ----

    cdef Message* lower_expiry(self, Message* message) except NULL:
        """The message, with an expiry that the group allows; the caller gets a reference."""
        cdef Publication publication
        cdef Message* lowered
        cdef int64_t latest = expiry_after(self.settings.max_expiry, self.turn.clock)
        if not self.settings.max_expiry or message.expires and message.expires <= latest:
            return message_hold(message)
        publication = publication_of_message(message)
        publication.expires = latest
        lowered = message_new(&publication)
        if lowered == NULL:
            raise MemoryError
        return lowered

    cdef bint waits(self) noexcept:
        """Whether messages wait that a member with room may take."""
        return self.head != self.tail or self.back_count != 0

    cdef bint is_full(self, const Message* message) except -1:
        """Whether the message is one too many for those that wait; one alone never is."""
        return self.waiting_count() != 0 and (
            self.waiting_count() >= self.settings.max_messages
            or self.waiting_bytes + message_size(message) > self.settings.max_bytes
            or queue_is_over(self.tenant, message_size(message)))

    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1:
        """Put a message behind all others; takes over the reference. At the limits the policy selects one to drop."""
        cdef Waiting* grown
        cdef uint64_t i, size
        while self.is_full(message):
            if self.drop_expired():
                continue
            self.turn.queue_is_full(self.client_id)
            if not self.settings.drop_oldest or not self.drop_oldest():
                if self.turn.tracer is not None:
                    self.turn.tracer.note_message("dropped", self.client_id, message, message.qos, FULL)
                if recorded:
                    self.record_done(place)
                self.forget_key(place)
                message_release(message)
                return 0
        if self.tail - self.head == self.capacity:
            size = self.capacity * 2 or FIRST_WAITING
            grown = <Waiting*>malloc(size * sizeof(Waiting))
            if grown == NULL:
                message_release(message)
                raise MemoryError
            for i in range(self.head, self.tail):
                grown[i & (size - 1)] = self.queue[i & (self.capacity - 1)]
            free(self.queue)
            self.queue = grown
            self.capacity = size
        self.queue[self.tail & (self.capacity - 1)] = Waiting(place, message)
        self.tail += 1
        self.count_waiting(1, message)
        if self.newest is not None:
            self.note(place, message)
        if not recorded:
            self.record_queued(place, message)
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("queued", self.client_id, message, message.qos, "no member has room")
        if self.ready_count:                      # they may not take this one: it must not hold up those behind it
            self.turn.schedule_send(self)
        return 0

    cdef int put_back(self, Waiting waiting) except -1:
        """Put a message to its old place; takes over the reference."""
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
                                or self.back[0].place < self.queue[self.head & (self.capacity - 1)].place):
            return self.back
        return self.queue + (self.head & (self.capacity - 1))

    cdef Waiting take_first(self) noexcept:
        """Remove the message with the lowest place; its reference passes to the caller."""
        cdef Waiting taken = self.first()[0]
        cdef Waiting last
        cdef Py_ssize_t i = 0, below
        if self.first() != self.back:
            self.head += 1
            if self.head == self.tail and self.capacity > 1024:
                free(self.queue)
                self.queue = NULL
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

    cdef int recall(self) except -1:
        """Let the messages that were put aside wait again."""
        cdef Held held
        cdef object aside = self.aside
        self.aside = deque()
        if self.keys is not None:
            self.keys.unblock_all()
        for held in aside:
            self.put_back(Waiting(held.place, message_hold(held.message)))
        return self.turn.schedule_send(self)

    cdef int count_waiting(self, int n, Message* message) except -1:
        """Add to the messages that wait, here and in the node's totals."""
        cdef int64_t size = message_size(message)
        if n < 0 and self.newest is not None:
            self.forget(message)
        if n > 0:
            self.note_expiry(message)
        self.waiting_bytes += n * size
        self.count_queued(n, n * size)
        return 0

    cdef void note_expiry(self, const Message* message) noexcept:
        """A message waits that may expire."""
        if message.expires and message.expires < self.earliest:
            self.earliest = message.expires

    cdef void count_queued(self, int64_t messages, int64_t size) noexcept:
        """Add to the totals of the node and of the tenant."""
        self.turn.queued += messages
        self.turn.queued_bytes += size
        if self.tenant is not None:
            self.tenant.queued_here += size

    cdef bint drop_oldest(self) except -1:
        """Drop the oldest message; whether there was one."""
        cdef Message* message
        cdef Held held = <Held>self.aside[0] if self.aside else None
        cdef Key key = None if self.keys is None else self.keys.with_oldest()
        if key is not None:
            if (held is None or held.place > key.parked[0][0]) and not (
                    self.waits() and self.first().place < key.parked[0][0]):
                held = key.parked[0][1]
            else:
                key = None
        if held is None and not self.waits():
            return False
        if key is None and held is not None and self.waits() and self.first().place < held.place:
            held = None
        message = held.message if held is not None else self.first().message
        if key is not None:
            self.discard(self.take_parked(key), FULL)
            self.keys.offer(key)
        elif held is None:
            self.discard(self.take_first(), FULL)
        else:
            self.aside.popleft()
            self.discard(Waiting(held.place, message_hold(message)), FULL)
        return True

    cdef bint drop_expired(self) except -1:
        """Drop all messages that have expired, wherever they wait; whether there were any.

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
            return False
        self.earliest = NEVER_EXPIRES
        for i in range(self.head, self.tail):
            waiting = self.queue[i & (self.capacity - 1)]
            if self.has_expired(waiting.message):
                expired.append(held_of(waiting))
            else:
                self.queue[to & (self.capacity - 1)] = waiting
                to += 1
        self.tail = to
        self.back_count = 0
        for k in range(count):
            waiting = self.back[k]
            if self.has_expired(waiting.message):
                expired.append(held_of(waiting))
            else:
                self.put_back(waiting)
        others, self.aside = self.aside, deque()
        for held in others:
            (expired if self.has_expired(held.message) else self.aside).append(held)
        if self.keys is not None:
            for key in list(self.keys.keys.values()):
                gone = [held for _, held in key.parked if self.has_expired((<Held>held).message)]
                if gone:
                    self.keys.unpark(key, set(gone))
                    expired += gone
        for held in expired:
            self.expire(Waiting(held.place, message_hold(held.message)))
        return len(expired) > 0

    cdef bint has_expired(self, const Message* message) noexcept:
        """Whether a message that waits has expired; else its expiry is noted."""
        if message.expires and message.expires <= self.turn.clock:
            return True
        self.note_expiry(message)
        return False

    cdef int expire(self, Waiting expired) except -1:
        """Drop a message that has expired, and has been taken out; takes over the reference."""
        self.turn.counters[EXPIRED] += 1
        return self.discard(expired, "it has expired")

    cdef int discard(self, Waiting dropped, str reason) except -1:
        """Drop a message that waited and has been taken out; takes over the reference."""
        self.count_waiting(-1, dropped.message)
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("dropped", self.client_id, dropped.message, dropped.message.qos, reason)
        self.forget_failures(dropped.place)
        self.record_done(dropped.place)
        self.forget_key(dropped.place)
        message_release(dropped.message)
        return 0

    # ---- last value ----

    # A topic has one message that waits, at the place of the first: a topic with many messages is not put off by each.
    # Its age is the place that the message would have. After a restart that is its place.

    cdef int note(self, uint64_t place, Message* message) except -1:
        """Note that the message waits."""
        self.newest[message.data[:message.topic_length]] = (place, place)
        return 0

    cdef int note_all(self) except -1:
        """Note all messages that wait, in their order."""
        self.newest = {}
        for place, topic, _ in self.messages():
            self.newest[topic] = (place, place)
        return 0

    cdef int forget(self, Message* message) except -1:
        """The message waits no more, or is about to be put elsewhere."""
        cdef bytes topic = message.data[:message.topic_length]
        found = self.newest.get(topic)
        if found is not None and self.waiting_at(found[0]) == NULL:
            del self.newest[topic]
        return 0

    cdef Message** waiting_at(self, uint64_t place) except? NULL:
        """Where the message with this place waits; NULL: none does."""
        cdef uint64_t low = self.head, high = self.tail, middle
        cdef Py_ssize_t k
        cdef Held held
        cdef Key key
        while low < high:
            middle = (low + high) // 2
            if self.queue[middle & (self.capacity - 1)].place < place:
                low = middle + 1
            else:
                high = middle
        if low < self.tail and self.queue[low & (self.capacity - 1)].place == place:
            return &self.queue[low & (self.capacity - 1)].message
        for k in range(self.back_count):
            if self.back[k].place == place:
                return &self.back[k].message
        for held in self.aside:
            if held.place == place:
                return &held.message
        key = None if self.keys is None else self.keys.of(place)
        for entry in () if key is None else key.parked:
            if entry[0] == place:
                held = entry[1]
                return &held.message
        return NULL

    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1:
        """Keep only the newer of this message and the one to its topic that waits.

        Returns:
            Whether one waits. Then the caller's message must not wait; the other has its content if it is the newer.
        """
        cdef bytes topic = message.data[:message.topic_length]
        cdef Message** at
        if self.newest is None:
            self.note_all()
        found = self.newest.get(topic)
        if found is None:
            return False
        at = self.waiting_at(found[0])
        if at == NULL:
            return False
        if self.turn.tracer is not None:
            self.turn.tracer.note_message("dropped", self.client_id, at[0] if is_new or found[1] < place else message,
                                          message.qos, "a newer message to its topic waits")
        if not is_new and found[1] > place:
            return True
        self.waiting_bytes += message_size(message) - message_size(at[0])
        self.count_queued(0, message_size(message) - message_size(at[0]))
        message_release(at[0])
        at[0] = message_hold(message)
        self.note_expiry(message)
        self.newest[topic] = (found[0], place)
        if self.deliveries(found[0]):             # those of the older one
            self.forget_failures(found[0])
            if self.recorded():
                self.turn.journal.group_failed(self.session_id, found[0], 0, 0)
        self.record_queued(found[0], message)
        if (self.aside or self.keys is not None) and self.ready_count:       # those with room may take this one
            self.recall()
        return True

    # ---- order by key ----

    cdef int park(self, Key key, Waiting waiting) except -1:
        """Keep a message at its key; takes over the reference."""
        return self.keys.park(key, waiting.place, held_of(waiting))

    cdef Waiting take_parked(self, Key key) except *:
        """Remove the first message that is parked at the key; its reference passes to the caller."""
        cdef Held held = self.keys.take(key)
        return Waiting(held.place, message_hold(held.message))

    cdef int key_done(self, uint64_t place) except -1:
        """A message of the group is done: others with its key may follow."""
        if self.keys is not None and self.keys.done(place):
            self.turn.schedule_send(self)
        return 0

    cdef int forget_key(self, uint64_t place) except -1:
        """A message that no member has is dropped, or given with QoS 0."""
        return 0 if self.keys is None else self.keys.forget(place)

    # ---- dead letters ----

    cdef int note_failure(self, uint64_t place, uint8_t code, bytes client_id) except -1:
        """A message comes back that was sent to this client; `code`: of its refusal, 0 = it was not acknowledged."""
        if self.settings.max_deliveries == 0:
            return 0
        if self.failures is None:
            self.failures = {}
        self.failures[place] = (self.deliveries(place) + 1, code, client_id)
        return 0

    cdef int forget_failures(self, uint64_t place) except -1:
        """The message is done, or another node's to give."""
        if self.failures is not None:
            self.failures.pop(place, None)
            if not self.failures:
                self.failures = None
        return 0

    cdef uint32_t deliveries(self, uint64_t place) except? 0:
        """How often the message was sent without success."""
        return self.failures[place][0] if self.failures is not None and place in self.failures else 0

    cdef bytes last_of(self, uint64_t place):
        """The client that did not acknowledge the message; None: it is not known, or there was none."""
        return self.failures[place][2] if place in self.failures else None

    cdef bint has_failed(self, uint64_t place) except -1:
        """Whether the message was sent as often as the settings allow."""
        return (self.failures is not None and self.settings.max_deliveries != 0
                and self.deliveries(place) >= self.settings.max_deliveries)

    cdef int record_failure(self, uint64_t place) except -1:
        """Write how often the message was sent without success."""
        if self.failures is not None and self.recorded() and place in self.failures:
            self.turn.journal.group_failed(self.session_id, place, self.failures[place][0], self.failures[place][1])
        return 0

    cdef int take_dead(self, uint64_t place, Message* message) except -1:
        """Publish the message as a dead letter at the end of the turn; takes over the reference."""
        self.dead.append(held_of(Waiting(place, message)))
        return self.turn.schedule_send(self)

    # ---- store ----

    cdef int record_queued(self, uint64_t place, Message* message) except -1:
        """Write to the store that the message waits."""
        return 0

    cdef int record_done(self, uint64_t place) except -1:
        """Write to the store that the message is done."""
        return 0


cdef Held held_of(Waiting waiting):
    """An object for a message that waits; takes over the reference."""
    cdef Held held = Held()
    held.place = waiting.place
    held.message = waiting.message
    return held


cdef Held held_copy(Waiting waiting):
    """An object for a message that stays where it waits."""
    return held_of(Waiting(waiting.place, message_hold(waiting.message)))
