"""Matches a topic name with all topic filters, wildcards included; the result, a delivery plan, is kept by name.

Overlapping subscriptions of a session are one receiver with the highest QoS and all subscription identifiers
[5: MQTT-3.3.4-2, 3]. If only some of them have No Local, the session is two receivers: one for messages of others, one
for its own.

Plans are cached per topic name in a table of fixed size. A new plan replaces the plan in its slot only if its name is
looked up twice in a row. Names that are used once therefore cost no copying. A change to a filter without wildcards
drops the plan of that one topic name. Any other change makes all plans stale, by number. A plan is used only within
the call that requested it: no function that the call uses changes subscriptions.
"""

from libc.stdint cimport uint8_t, uint16_t, uintptr_t
from cpython.mem cimport PyMem_Free
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy

from ..base.array cimport array_reserve
from ..base.buffers cimport buffer_free, buffer_reserve, buffer_size, pool_free
from ..base.cursor cimport write_varint
from ..codec.publish cimport SUBSCRIPTION_IDENTIFIER
from ..codec.tenants cimport tenant_size
from ..session.rights cimport MAY_READ
from ..session.subscriber cimport KEEP_RETAIN, NOT_OWN, ONLY_OWN, Plan, Receiver, Subscriber
from .foreign cimport ROUTE, ForeignTable
from .topic_tree cimport (
    HASH, PLUS, Node, TopicTree, level_hash, level_length, node_child, node_hash, node_plus, tree_free,
)


cdef inline uint64_t topic_hash(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Eight bytes at a time; the high bits are well mixed."""
    cdef uint64_t h = <uint64_t>n * 0x9E3779B97F4A7C15u
    cdef uint64_t w
    while n >= 8:
        memcpy(&w, p, 8)
        h = (h ^ w) * 0x9FB21C651E98DF25u
        h ^= h >> 32
        p += 8
        n -= 8
    if n:
        w = 0
        memcpy(&w, p, n)
        h = (h ^ w) * 0x9FB21C651E98DF25u
        h ^= h >> 32
    return h * 0x9E3779B97F4A7C15u


cdef uint64_t prefix_hash(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """The part of a tenant's prefix in the hash of its topic names."""
    return topic_hash(p, n)


cdef int compare_shards(const void* a, const void* b) noexcept nogil:
    return (<int>(<Subscriber>(<const Receiver*>a).subscriber).shard
            - <int>(<Subscriber>(<const Receiver*>b).subscriber).shard)


cdef inline uint32_t slot_of(uint64_t h) noexcept nogil:
    return <uint32_t>(h >> 50) & (PLAN_SLOTS - 1)


cdef inline uint32_t tag_of(uint64_t h) noexcept nogil:
    """A tag that distinguishes the topic names of a slot without comparing them. Bit 0: its plan is in the slot."""
    return <uint32_t>(h >> 17) | 1


cdef inline Plan* find_plan(Plans plans, uint64_t h, const uint8_t* name, Py_ssize_t n, Py_ssize_t hidden) noexcept:
    """The plan in the slot of hash `h` if its topic name ends with `name` after `hidden` bytes; else NULL."""
    cdef Plan* plan
    if plans.tags[slot_of(h)] != tag_of(h):
        return NULL
    plan = plans.plans[slot_of(h)]
    if plan == NULL or plan.topic_length != hidden + n or memcmp(plan.topic + hidden, name, n) != 0:
        return NULL
    return plan


cdef bint is_wild(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if p[i] == c'+' or p[i] == c'#':
            return True
    return False


cdef enum:
    EVENT_LEVEL_MAX = 4096     # bytes of a level of a topic name that stands for a client identifier
    EVENT_TOPIC_MAX = 5120     # bytes of that topic name

cdef const uint8_t* HEX = b"0123456789ABCDEF"


cdef inline bint is_plain(uint8_t byte) noexcept nogil:
    """Whether a byte may stand for itself in a level where others are %XX."""
    return byte > 0x1F and byte != c'%' and byte != c'/' and byte != c'+' and byte != c'#' and byte != 0x7F


cdef int compare_matches(const void* a, const void* b) noexcept nogil:
    """Order by subscriber, then by identifier."""
    cdef const SpecialMatch* x = <const SpecialMatch*>a
    cdef const SpecialMatch* y = <const SpecialMatch*>b
    if x.subscriber != y.subscriber:
        return -1 if <uintptr_t>x.subscriber < <uintptr_t>y.subscriber else 1
    return -1 if x.identifier < y.identifier else x.identifier > y.identifier


cdef inline bint is_receiver(Plans plans, void* subscriber) noexcept:
    """Whether the plan being made has the subscriber: its `plan_index` may be of an earlier plan."""
    cdef uint32_t index = (<Subscriber>subscriber).plan_index
    return index < plans.scratch.count and plans.scratch.receivers[index].subscriber == subscriber


cdef inline void add_receiver(Plans plans, void* subscriber, uint8_t qos, uint8_t flags) noexcept:
    """Add a receiver, for which there is room."""
    (<Subscriber>subscriber).plan_index = plans.scratch.count
    plans.scratch.receivers[plans.scratch.count] = Receiver(subscriber, qos, flags, 0, 0)
    plans.scratch.count += 1


cdef inline void add_match(Plans plans, void* subscriber, uint32_t options) noexcept:
    """Add a matching subscription, for which there is room; of several of a subscriber the highest QoS counts."""
    cdef uint8_t qos = options & MAXIMUM_QOS
    cdef uint8_t flags = KEEP_RETAIN if options & KEEPS_RETAIN else 0
    cdef Receiver* known
    if is_receiver(plans, subscriber):
        known = &plans.scratch.receivers[(<Subscriber>subscriber).plan_index]
        known.flags |= flags
        if known.qos < qos:
            known.qos = qos
    else:
        add_receiver(plans, subscriber, qos, flags)


cdef class Plans(TopicTree):
    """The delivery plans of a node, and the tree from which they are made."""

    def __cinit__(self):
        self.plans = <Plan**>calloc(PLAN_SLOTS, sizeof(Plan*))
        if self.plans == NULL:
            raise MemoryError
        self.generation = 1

    def __dealloc__(self):
        cdef int i
        if self.plans != NULL:
            for i in range(PLAN_SLOTS):
                free(self.plans[i])
        free(self.plans)
        free(self.scratch.receivers)
        free(self.specials)
        buffer_free(&self.identifiers, &self.pool)
        pool_free(&self.pool)
        free(self.frontier)
        free(self.beyond)
        tree_free(self.root, PyMem_Free)

    cdef Plan* known(self, const uint8_t* topic, Py_ssize_t n, uint64_t* h) noexcept:
        """The cached plan of the topic name, perhaps stale, or NULL. A name with a plan is valid."""
        cdef Py_ssize_t size = tenant_size(topic, n)
        if size:
            return self.known_below(topic, size, topic_hash(topic, size), topic + size, n - size, h)
        h[0] = topic_hash(topic, n)
        return find_plan(self, h[0], topic, n, 0)

    cdef Plan* known_below(self, const uint8_t* prefix, Py_ssize_t size, uint64_t prefix_part, const uint8_t* name,
                           Py_ssize_t n, uint64_t* h) noexcept:
        """As `known`, of a topic name whose prefix is elsewhere; `prefix_part` belongs to `prefix_hash`."""
        cdef Plan* plan
        h[0] = topic_hash(name, n) ^ prefix_part
        plan = find_plan(self, h[0], name, n, size)
        return plan if plan != NULL and memcmp(plan.topic, prefix, size) == 0 else NULL

    cdef Plan* plan(self, const uint8_t* topic, Py_ssize_t n, uint64_t h) except NULL:
        """Make the plan for a valid topic name; `h` is its hash, as `known` returned it."""
        cdef uint32_t slot = slot_of(h)
        cdef Plan* old
        cdef Plan* plan
        cdef int i
        cdef Py_ssize_t size, receivers_size, identifiers_size
        self.match(topic, n)
        if self.by_shard and self.scratch.count > 1:      # so a block has the message once for all of its queues
            qsort(self.scratch.receivers, self.scratch.count, sizeof(Receiver), compare_shards)
        if self.scratch.count > PLAN_MAX or n > PLAN_TOPIC_MAX or (self.tags[slot] | 1) != tag_of(h):
            self.tags[slot] = tag_of(h) & ~1u     # the plan in the slot is no longer used
            self.scratch.generation = self.generation
            self.scratch.publisher = 0
            self.scratch.unbound = 0
            self.scratch.log_block = 0
            return &self.scratch
        if self.kept > PLANS_MAX:
            for i in range(PLAN_SLOTS):
                free(self.plans[i])
                self.plans[i] = NULL
                self.tags[i] &= ~1u
            self.kept = 0
        old = self.plans[slot]
        if old != NULL:
            self.kept -= old.count
        size = (sizeof(Plan) + n + 7) & ~7
        receivers_size = self.scratch.count * sizeof(Receiver)
        identifiers_size = buffer_size(&self.identifiers)
        if old != NULL and old.capacity >= size + receivers_size + identifiers_size:
            plan = old
        else:
            free(old)
            self.plans[slot] = NULL
            plan = <Plan*>malloc(size + receivers_size + identifiers_size)
            if plan == NULL:
                raise MemoryError
            plan.capacity = <uint32_t>(size + receivers_size + identifiers_size)
        plan.generation = self.generation
        plan.log_block = 0
        plan.publisher = 0
        plan.unbound = 0
        plan.topic_length = <uint32_t>n
        plan.count = self.scratch.count
        plan.receivers = <Receiver*>(<char*>plan + size)
        memcpy(plan.topic, topic, n)
        if receivers_size:
            memcpy(plan.receivers, self.scratch.receivers, receivers_size)
        plan.identifiers = <uint8_t*>plan.receivers + receivers_size
        if identifiers_size:
            memcpy(plan.identifiers, self.scratch.identifiers, identifiers_size)
        self.kept += plan.count
        self.plans[slot] = plan
        self.tags[slot] = tag_of(h)
        return plan

    cdef int forget(self, const uint8_t* path, Py_ssize_t n) except -1:
        """Drop the plans that a change to this filter affects."""
        cdef uint64_t h
        cdef Plan* plan
        if is_wild(path, n):
            self.generation += 1
            return 0
        plan = self.known(path, n, &h)
        if plan != NULL:
            plan.generation = 0
        return 0

    def forget_plans(self):
        """Drop all plans, after the rights of a subscriber have changed."""
        self.generation += 1

    # ---- matching ----

    cdef int match(self, const uint8_t* topic, Py_ssize_t n) except -1:
        """Put the receivers of a topic name into the scratch plan: level by level, all nodes of a level together."""
        cdef const uint8_t* p = topic
        cdef const uint8_t* end = topic + n
        cdef Py_ssize_t length, count = 1, found, i
        cdef uint32_t h
        cdef Node* node
        cdef Node* child
        cdef Node** swap
        cdef const uint8_t* own = topic + tenant_size(topic, n)  # the topic name that clients see
        cdef bint hidden           # wildcards don't match its first level [MQTT-4.7.2-1], nor a prefix's
        cdef bint more = True
        self.topic = topic
        self.topic_length = n
        self.scratch.count = 0
        self.special_count = 0
        self.identifiers.start = self.identifiers.end = 0
        self.last_identifiers = 0
        self.widen(1)
        self.frontier[0] = self.root
        while more:
            length = level_length(p, end)
            h = level_hash(p, length)
            hidden = (p == topic or p == own) and p < end and p[0] == c'$'
            self.widen(count * 2)
            found = 0
            for i in range(count):
                node = self.frontier[i]
                child = node_child(node, p, length, h)      # never a wildcard: a topic name has none
                if child != NULL:
                    self.beyond[found] = child
                    found += 1
                if node.wild and not hidden:
                    if node.wild & HASH:
                        self.collect(node_hash(node))
                    if node.wild & PLUS:
                        self.beyond[found] = node_plus(node)
                        found += 1
            swap = self.frontier
            self.frontier = self.beyond
            self.beyond = swap
            self.frontier_capacity, self.beyond_capacity = self.beyond_capacity, self.frontier_capacity
            count = found
            p += length
            more = p < end and count > 0
            p += 1
        for i in range(count):
            node = self.frontier[i]
            if node.value != NULL:
                self.collect(node)
            if node.wild & HASH:                      # '#' matches the parent level too [MQTT-4.7.1-2]
                self.collect(node_hash(node))
        if self.foreign is not None and self.foreign.table.shape_count:
            self.collect_foreign(topic, n)
        if self.special_count:
            self.complete()
        return 0

    cdef int widen(self, Py_ssize_t n) except -1:
        """Room for `n` nodes on either side."""
        if (array_reserve(<void**>&self.beyond, n, &self.beyond_capacity, sizeof(Node*)) < 0
                or array_reserve(<void**>&self.frontier, n, &self.frontier_capacity, sizeof(Node*)) < 0):
            raise MemoryError
        return 0

    cdef int collect(self, Node* node) except -1:
        """Add the node's subscribers to the plan."""
        cdef SubscriptionEntry* s = <SubscriptionEntry*>node.value
        cdef SubscriptionEntry* end = s + node.count
        cdef Subscriber subscriber
        if array_reserve(<void**>&self.scratch.receivers, self.scratch.count + node.count, &self.receiver_capacity,
                         sizeof(Receiver)) < 0:
            raise MemoryError
        while s < end:
            subscriber = <Subscriber>s.subscriber
            if subscriber.rights is not None and not subscriber.rights.may(self.topic, self.topic_length, MAY_READ):
                s += 1
                continue
            if s.options > STORED_OPTIONS or s.options & NO_LOCAL:
                if array_reserve(<void**>&self.specials, self.special_count + 1, &self.special_capacity,
                                 sizeof(SpecialMatch)) < 0:
                    raise MemoryError
                self.specials[self.special_count] = SpecialMatch(
                    s.subscriber, s.options >> IDENTIFIER_SHIFT, s.options & STORED_OPTIONS)
                self.special_count += 1
                s += 1
                continue
            add_match(self, s.subscriber, s.options)
            s += 1
        return 0

    cdef int collect_foreign(self, const uint8_t* topic, Py_ssize_t n) except -1:
        """Add foreign sessions and nodes to the plan."""
        cdef ForeignTable table = self.foreign.table
        cdef Subscriber subscriber
        cdef Py_ssize_t i
        table.find_matches(topic, n)
        if array_reserve(<void**>&self.scratch.receivers, self.scratch.count + table.match_count,
                         &self.receiver_capacity, sizeof(Receiver)) < 0:
            raise MemoryError
        for i in range(table.match_count):
            if not table.matches[i].options & (ROUTE | MAXIMUM_QOS):
                continue                              # QoS 0 is not queued: the session's node has a route
            subscriber = self.foreign.receiver_of(&table.matches[i])
            add_match(self, <void*>subscriber, table.matches[i].options)
        return 0

    cdef int complete(self) except -1:
        """Add the matching subscriptions that have No Local or an identifier, subscriber by subscriber."""
        cdef Py_ssize_t i = 0, j
        qsort(self.specials, self.special_count, sizeof(SpecialMatch), compare_matches)
        while i < self.special_count:
            j = i + 1
            while j < self.special_count and self.specials[j].subscriber == self.specials[i].subscriber:
                j += 1
            self.complete_one(self.specials + i, j - i)
            i = j
        self.scratch.identifiers = self.identifiers.data + self.identifiers.start
        return 0

    cdef int complete_one(self, SpecialMatch* matches, Py_ssize_t n) except -1:
        """Add `n` matches of one subscriber, in the order of their identifiers."""
        cdef Subscriber subscriber = <Subscriber>matches[0].subscriber
        cdef bint others = is_receiver(self, matches[0].subscriber) # it has matches without No Local ...
        cdef bint no_local = False                               # ... and with it
        cdef uint8_t own_qos = 0, own_flags = 0
        cdef Receiver* receiver
        cdef Py_ssize_t i
        if array_reserve(<void**>&self.scratch.receivers, self.scratch.count + 2, &self.receiver_capacity,
                         sizeof(Receiver)) < 0:
            raise MemoryError
        if not others:
            add_receiver(self, matches[0].subscriber, 0, 0)
        receiver = &self.scratch.receivers[subscriber.plan_index]
        own_qos, own_flags = receiver.qos, receiver.flags
        for i in range(n):
            if matches[i].options & NO_LOCAL:
                no_local = True
            else:
                others = True
                own_qos = max(own_qos, <uint8_t>(matches[i].options & MAXIMUM_QOS))
                own_flags |= KEEP_RETAIN if matches[i].options & KEEPS_RETAIN else 0
            receiver.qos = max(receiver.qos, <uint8_t>(matches[i].options & MAXIMUM_QOS))
            receiver.flags |= KEEP_RETAIN if matches[i].options & KEEPS_RETAIN else 0
        self.add_identifiers(receiver, matches, n, 0)
        if not no_local:
            return 0
        receiver.flags |= NOT_OWN
        if others:
            self.scratch.receivers[self.scratch.count] = Receiver(
                matches[0].subscriber, own_qos, own_flags | ONLY_OWN, 0, 0)
            self.add_identifiers(&self.scratch.receivers[self.scratch.count], matches, n, NO_LOCAL)
            self.scratch.count += 1
        return 0

    cdef int add_identifiers(self, Receiver* receiver, SpecialMatch* matches, Py_ssize_t n, uint8_t without) except -1:
        """Write the identifiers of the matches as properties, ascending; not of matches with these options.

        One that several subscriptions have is written for each [5: MQTT-3.3.4-4]. Receivers with the same set one after
        the other share it. More than 65 535 bytes are not sent.
        """
        cdef Py_ssize_t before = self.last_identifiers, start = buffer_size(&self.identifiers), size
        cdef uint8_t* p
        cdef Py_ssize_t i
        for i in range(n):
            if matches[i].identifier == 0 or matches[i].options & without:
                continue
            p = buffer_reserve(&self.identifiers, &self.pool, 5)
            if p == NULL:
                raise MemoryError
            p[0] = SUBSCRIPTION_IDENTIFIER
            size = 1 + write_varint(p + 1, matches[i].identifier)
            if buffer_size(&self.identifiers) - start + size > 65535:
                break
            self.identifiers.end += size
        size = buffer_size(&self.identifiers) - start
        if start and size == start - before and memcmp(
                self.identifiers.data + self.identifiers.start + before,
                self.identifiers.data + self.identifiers.start + start, size) == 0:
            self.identifiers.end -= size
            start = before
        else:
            self.last_identifiers = start
        receiver.identifiers_at = <uint32_t>start
        receiver.identifiers_size = <uint16_t>size
        return 0

    # ---- queries ----

    def receivers(self, bytes topic not None):
        """The receivers of a message with this valid topic name: a list of (subscriber, QoS granted), by plan."""
        cdef const uint8_t* path = topic
        cdef Py_ssize_t n = len(topic)
        cdef uint64_t h
        cdef Plan* plan = self.known(path, n, &h)
        if plan == NULL or plan.generation != self.generation:
            plan = self.plan(path, n, h)
        return [(<Subscriber>plan.receivers[i].subscriber, plan.receivers[i].qos) for i in range(plan.count)]

    def reached(self, bytes head not None, bytes name not None, bytes tail not None):
        """The topic name `head`, `name` as one level, and `tail`, if a message with it has receivers; else None.

        In the level, bytes that a level can't have, `%` and ASCII control characters are %XX. A level of more than
        EVENT_LEVEL_MAX bytes is cut there. No plan is kept.
        """
        cdef uint8_t topic[EVENT_TOPIC_MAX]
        cdef const uint8_t* p = name
        cdef Py_ssize_t left = len(name), n = len(head), end = n + EVENT_LEVEL_MAX
        if n + EVENT_LEVEL_MAX + 3 + len(tail) > EVENT_TOPIC_MAX:
            raise ValueError("head and tail are too long")
        memcpy(topic, <const uint8_t*>head, n)
        while left and n < end:
            if is_plain(p[0]):
                topic[n] = p[0]
                n += 1
            else:
                topic[n] = c'%'
                topic[n + 1] = HEX[p[0] >> 4]
                topic[n + 2] = HEX[p[0] & 15]
                n += 3
            p += 1
            left -= 1
        while left and p[0] & 0xC0 == 0x80:           # no character is cut
            topic[n] = p[0]
            n += 1
            p += 1
            left -= 1
        memcpy(topic + n, <const uint8_t*>tail, len(tail))
        n += len(tail)
        self.match(topic, n)
        return topic[:n] if self.scratch.count else None

    def may_reach(self, bytes head not None):
        """Whether a filter of the tree may match topic names that begin with these levels; foreign filters may, too."""
        cdef const uint8_t* topic = head
        cdef const uint8_t* p = topic
        cdef const uint8_t* end = topic + len(head)
        cdef Py_ssize_t length, count = 1, found, i
        cdef uint32_t h
        cdef Node* node
        cdef Node* child
        cdef Node** swap
        self.widen(1)
        self.frontier[0] = self.root
        while count > 0:
            length = level_length(p, end)
            h = level_hash(p, length)
            self.widen(count * 2)
            found = 0
            for i in range(count):
                node = self.frontier[i]
                child = node_child(node, p, length, h)
                if child != NULL:
                    self.beyond[found] = child
                    found += 1
                if node.wild and not (p == topic and p < end and p[0] == c'$'):
                    if node.wild & HASH:
                        return True
                    self.beyond[found] = node_plus(node)
                    found += 1
            swap = self.frontier
            self.frontier = self.beyond
            self.beyond = swap
            self.frontier_capacity, self.beyond_capacity = self.beyond_capacity, self.frontier_capacity
            count = found
            p += length
            if p == end:
                return count > 0
            p += 1
        return False

    def match_many(self, bytes topic not None, int times):
        """Match without a plan, `times` times, for measuring; returns the number of receivers."""
        cdef const uint8_t* path = topic
        cdef Py_ssize_t n = len(topic)
        for _ in range(times):
            self.match(path, n)
        return self.scratch.count
