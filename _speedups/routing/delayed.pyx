"""Messages to `$delayed/SECONDS/TOPIC`: they wait here, or in Redis, and are published to TOPIC when they are due.

In a node alone they are a heap, and records of the journal. In a cluster Redis has them, and this has their number
only. It publishes nothing, since it stands below the router: `Router.publish_delayed` does.

The staged chunks of transactions wait, too: they are never due until their transaction is committed.
"""

from cpython.bytes cimport PyBytes_Check
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from ..base.array cimport array_reserve
from ..codec.publish cimport MESSAGE_EXPIRY_INTERVAL
from ..session.message cimport (
    message_hold, message_new, message_release, message_size, publication_of, seconds_left,
)
from ..session.session_store cimport Restored
from ..session.subscriber cimport Subscriber
from ..session.tenant cimport Tenant

import struct

cdef int64_t NEVER = INT64_MAX

cdef enum:
    PREFIX = 9                 # bytes of `$delayed/`
    DIGITS = 7                 # of MAX_DELAY


cdef Py_ssize_t delay_of(const uint8_t* topic, Py_ssize_t n, uint32_t* seconds) noexcept nogil:
    """The place of TOPIC in a topic name for which `is_delayed` holds, and its delay; -1: it is wrong."""
    cdef Py_ssize_t at = PREFIX
    cdef uint32_t found = 0
    while at < n and at < PREFIX + DIGITS and c'0' <= topic[at] <= c'9':
        found = found * 10 + (topic[at] - c'0')
        at += 1
    if at == PREFIX or at + 1 >= n or topic[at] != c'/' or found > MAX_DELAY:
        return -1
    at += 1
    if is_delayed(topic + at, n - at):
        return -1
    seconds[0] = found
    return at


def split_delayed(bytes topic not None):
    """The beginning `$delayed/SECONDS/` of a topic name, empty if it has none, and the rest.

    Raises:
        ValueError: it begins with `$delayed`, but not so.
    """
    cdef uint32_t seconds = 0
    cdef Py_ssize_t at
    if not is_delayed(topic, len(topic)):
        return b"", topic
    at = delay_of(topic, len(topic), &seconds)
    if at < 0:
        raise ValueError(f"a delayed message has the topic $delayed/SECONDS/TOPIC, with at most {MAX_DELAY} seconds")
    return topic[:at], topic[at:]


cdef class DelayedMessages:
    """The messages that wait. None is accepted before `set_limits`, and in a node alone before `open`.

    Args:
        turn: of the node.
    """

    def __init__(self, Turn turn not None):
        self.turn = turn

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.waiting):
            message_release(self.items[i].message)
            Py_DECREF(<object>self.items[i].publisher)
        free(self.items)

    def __len__(self):
        """The number of messages that this node has itself: none in a cluster."""
        return self.waiting

    def set_limits(self, int64_t messages, int64_t max_bytes):
        """Set the limits of all that wait; `messages` 0: none is accepted."""
        self.max_messages = messages
        self.max_bytes = max_bytes

    def open(self, clock, on_first):
        """Let messages wait in this node.

        Args:
            clock: returns the store's clock, in milliseconds; it never goes back.
            on_first: called with the time at which a message is due that is due before all others.
        """
        self.clock = clock
        self.on_first = on_first

    def report(self, int64_t count, int64_t size, int64_t first):
        """Of a cluster: the messages that wait in Redis, their bytes, and the milliseconds until the first is due."""
        self.count = count
        self.size = size
        self.first = first

    def report_tenant(self, Tenant tenant not None, int64_t count):
        """Of a cluster: the messages of a tenant that wait in Redis."""
        tenant.delayed = count

    @property
    def first_due(self):
        """Milliseconds until the first message is due, negative if it is late; 0: none will be."""
        if self.waiting:
            return self.items[0].due - <int64_t>self.clock() if self.items[0].due != NEVER else 0
        return self.first if self.count else 0

    @property
    def due(self):
        """When the first message is due, by the store's clock; None: none of this node will be."""
        return self.items[0].due if self.waiting and self.items[0].due != NEVER else None

    cdef bint is_full(self, const uint8_t* topic, Py_ssize_t n, Py_ssize_t size) except -1:
        """Whether there is no room for another message to the topic name TOPIC, with this number of bytes."""
        cdef Tenant tenant = self.turn.tenants.of(topic, n)
        if tenant is not None and tenant.max_delayed and tenant.delayed >= tenant.max_delayed:
            return True
        return self.count >= self.max_messages or self.size + size > self.max_bytes

    cdef int count_for_tenant(self, const Message* message, int n) except -1:
        """Add to the messages that wait here for the tenant of a message."""
        cdef Tenant tenant = self.turn.tenants.of(message.data, message.topic_length)
        if tenant is not None:
            tenant.delayed += n
        return 0

    cdef int keep(self, const Publication* publication, Py_ssize_t at, uint32_t seconds) except -1:
        """Let a message wait; `at` is the place of TOPIC in its topic name. The caller has asked for room."""
        cdef Publication later = publication[0]
        cdef bytes properties, publisher
        cdef Message* m
        later.topic += at
        later.topic_length -= at
        if publication.expires:            # the interval begins when the message is due
            properties = struct.pack(">BI", MESSAGE_EXPIRY_INTERVAL, seconds_left(publication.expires, self.turn.clock))
            properties += publication.properties[:publication.properties_length]
            later.properties = properties
            later.properties_length = len(properties)
            later.expires = 0
        publisher = publisher_of(publication)
        m = message_new(&later)
        if m == NULL:
            raise MemoryError
        self.count += 1
        self.size += message_size(m)
        try:
            if self.turn.journal.shared:
                self.turn.journal.delayed(m, 0, seconds, publisher)
                self.count_for_tenant(m, 1)
            else:
                # The clock has whole milliseconds, and the present one may end at once: none is early.
                self.push_new(m, <int64_t>self.clock() + <int64_t>seconds * 1000 + 1, publisher)
        finally:
            message_release(m)
        return 0

    cdef int push_new(self, Message* m, int64_t due, bytes publisher) except -1:
        """Add a message that has just arrived, and record it."""
        cdef bint is_first = self.waiting == 0 or due < self.items[0].due
        cdef Waiting item = Waiting(due, self.arrivals, m, <PyObject*>publisher)
        self.push(item)
        self.record(&item)
        if is_first and due != NEVER:
            self.on_first(due)
        return 0

    def restore(self, Restored message not None, int64_t due, bytes publisher not None):
        """Add a message of the store; the earlier one of those with the same due time first."""
        self.count += 1
        self.size += message_size(message.message)
        self.push(Waiting(due, self.arrivals, message.message, <PyObject*>publisher))

    cdef int push(self, Waiting item) except -1:
        """Add an item to the heap, which takes its own references."""
        cdef Py_ssize_t i = self.waiting, parent
        if array_reserve(<void**>&self.items, i + 1, &self.capacity, sizeof(Waiting)) < 0:
            raise MemoryError
        self.count_for_tenant(item.message, 1)
        message_hold(item.message)
        Py_INCREF(<object>item.publisher)
        self.arrivals += 1
        self.waiting += 1
        while i and is_before(&item, &self.items[(i - 1) // 2]):
            parent = (i - 1) // 2
            self.items[i] = self.items[parent]
            i = parent
        self.items[i] = item
        return 0

    cdef bint pop(self, int64_t now, Waiting* found) except -1:
        """Take the first item, with its references, if it is due."""
        if self.waiting == 0 or self.items[0].due > now:
            return False
        self.take(0, found)
        return True

    cdef int take(self, Py_ssize_t i, Waiting* found) except -1:
        """Take the item at a place of the heap, with its references."""
        cdef Waiting last
        found[0] = self.items[i]
        self.waiting -= 1
        self.count -= 1
        self.size -= message_size(found.message)
        self.count_for_tenant(found.message, -1)
        last = self.items[self.waiting]
        if i == self.waiting:
            return 0
        while i and is_before(&last, &self.items[(i - 1) // 2]):
            self.items[i] = self.items[(i - 1) // 2]
            i = (i - 1) // 2
        return self.sink(i, last)

    cdef int sink(self, Py_ssize_t i, Waiting item) noexcept nogil:
        """Put an item into the heap at a place, or below it."""
        cdef Py_ssize_t child
        while True:
            child = 2 * i + 1
            if child + 1 < self.waiting and is_before(&self.items[child + 1], &self.items[child]):
                child += 1
            if child >= self.waiting or not is_before(&self.items[child], &item):
                break
            self.items[i] = self.items[child]
            i = child
        self.items[i] = item
        return 0

    # ---- transactions of a node alone ----

    def stage(self, bytes topic not None, bytes payload not None, bytes publisher not None):
        """Let a chunk of a transaction wait until `release`. Returns its number; None: there is no room for it."""
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), 1, False)
        cdef uint64_t number = self.arrivals
        cdef Message* m
        if self.is_full(topic, len(topic), len(topic) + len(payload)):
            return None
        m = message_new(&publication)
        if m == NULL:
            raise MemoryError
        try:
            self.count += 1
            self.size += message_size(m)
            self.push_new(m, NEVER, publisher)
        finally:
            message_release(m)
        return number

    def staged(self):
        """The chunks that wait for their transaction: number, topic name and bytes of each, in the order of arrival."""
        cdef Py_ssize_t i
        return sorted([(self.items[i].number, self.items[i].message.data[:self.items[i].message.topic_length],
                        message_size(self.items[i].message))
                       for i in range(self.waiting) if self.items[i].due == NEVER])

    def release(self, set numbers not None):
        """The transaction of the chunks with these numbers is committed: all are due now, in the block of this turn."""
        cdef int64_t now = self.clock()
        cdef Py_ssize_t i
        for i in range(self.waiting):
            if self.items[i].due == NEVER and self.items[i].number in numbers:
                self.items[i].due = now
                self.record(&self.items[i])
        self.order()
        if numbers:
            self.on_first(now)

    def drop(self, set numbers not None):
        """The staged chunks with these numbers are never published."""
        cdef Py_ssize_t i, kept = 0
        cdef Waiting item
        for i in range(self.waiting):
            item = self.items[i]
            if item.due != NEVER or item.number not in numbers:
                self.items[kept] = item
                kept += 1
                continue
            self.count -= 1
            self.size -= message_size(item.message)
            self.count_for_tenant(item.message, -1)
            if self.turn.journal.epoch:
                self.turn.journal.delayed_gone(item.message)
            message_release(item.message)
            Py_DECREF(<object>item.publisher)
        self.waiting = kept
        self.order()

    cdef int order(self) noexcept nogil:
        """Make the items a heap."""
        cdef Py_ssize_t i
        for i in range(self.waiting // 2 - 1, -1, -1):
            self.sink(i, self.items[i])
        return 0

    # ---- for the API of a node alone ----

    def find(self, bytes prefix not None, bytes without not None, int64_t due, uint64_t number, Py_ssize_t most):
        """The first messages that wait in this node, in the order in which they are due.

        Args:
            prefix: how their TOPIC begins.
            without: how it does not begin; empty: any.
            due: only messages that are due after this time of the store's clock, ...
            number: ... or at this time with a higher number.
            most: their number, from 1 on.

        Returns:
            due, number, client id of the publisher, TOPIC, QoS, RETAIN and bytes of the payload, of each.
        """
        cdef Waiting after = Waiting(due, number, NULL, NULL)
        cdef Py_ssize_t* found
        cdef Py_ssize_t count = 0, i, at
        cdef const Message* m
        found = <Py_ssize_t*>malloc(most * sizeof(Py_ssize_t))
        if found == NULL:
            raise MemoryError
        try:
            for i in range(self.waiting):
                m = self.items[i].message
                if (not is_before(&after, &self.items[i]) or not begins(m, prefix) or (without and begins(m, without))
                        or self.items[i].due == NEVER):
                    continue
                if count == most:
                    if not is_before(&self.items[i], &self.items[found[count - 1]]):
                        continue
                    count -= 1
                at = count
                count += 1
                while at and is_before(&self.items[i], &self.items[found[at - 1]]):
                    found[at] = found[at - 1]
                    at -= 1
                found[at] = i
            return [described(&self.items[found[i]]) for i in range(count)]
        finally:
            free(found)

    def cancel(self, uint64_t number, bytes prefix not None):
        """Drop the message with this number if its TOPIC begins so; whether there is one."""
        cdef Py_ssize_t i = self.place_of(number)
        cdef Waiting item
        if i < 0 or not begins(self.items[i].message, prefix):
            return False
        self.take(i, &item)
        try:
            if self.turn.journal.epoch:
                self.turn.journal.delayed_gone(item.message)
        finally:
            message_release(item.message)
            Py_DECREF(<object>item.publisher)
        return True

    cdef Py_ssize_t place_of(self, uint64_t number) noexcept nogil:
        """The place of an item in the heap; -1: there is none with this number."""
        cdef Py_ssize_t i
        for i in range(self.waiting):
            if self.items[i].number == number:
                return i
        return -1

    # ---- the journal of a node alone ----

    cdef int record(self, Waiting* item) except -1:
        if self.turn.journal.epoch:
            self.turn.journal.delayed(item.message, item.due, 0, <bytes><object>item.publisher)
        return 0

    def record_some(self, Py_ssize_t most):
        """Write up to `most` messages to the journal again, for a compaction; False when all are written.

        Messages move in the heap between two calls. So the last call looks at all of them once more: few are new
        to this epoch.
        """
        while self.recorded < self.waiting:
            if most == 0:
                return True
            most -= self.record_again(self.recorded)
            self.recorded += 1
        self.recorded = 0
        for i in range(self.waiting):
            self.record_again(i)
        return False

    cdef bint record_again(self, Py_ssize_t i) except -1:
        """Write a message, unless it has been written in this epoch; whether it was written."""
        if self.items[i].message.stored_epoch == self.turn.journal.epoch:
            return False
        self.record(&self.items[i])
        return True


cdef inline bint is_before(const Waiting* one, const Waiting* other) noexcept nogil:
    return one.due < other.due or (one.due == other.due and one.number < other.number)


cdef bint begins(const Message* m, bytes prefix) noexcept:
    """Whether the topic name of a message begins so."""
    return m.topic_length >= len(prefix) and memcmp(m.data, <const char*>prefix, len(prefix)) == 0


cdef tuple described(const Waiting* item):
    """A message that waits, for the API."""
    cdef const Message* m = item.message
    return (item.due, item.number, <bytes><object>item.publisher, m.data[:m.topic_length], m.qos, bool(m.retain),
            message_size(m) - m.topic_length - m.properties_length)


cdef bytes publisher_of(const Publication* publication):
    """The client id of a publisher; empty: the broker."""
    if publication.publisher == NULL or publication.publisher == <void*>None:
        return b""
    if PyBytes_Check(<object>publication.publisher):
        return <bytes><object>publication.publisher
    return (<Subscriber><object>publication.publisher).client_id
