"""Maps topic names to receivers: the subscription tree and the delivery plans made from it.

Owns the subscriptions. A subscription is two small records, one at the node of its filter and one at its session.
Each holds the position of the other, so that either side removes it in constant time. Overlapping subscriptions of a
session are one receiver with the highest QoS and all subscription identifiers [5: MQTT-3.3.4-2, 3]. If only some of
them have No Local, the session is two receivers: one for messages of others, one for its own.

Sessions that subscribe to `$share/NAME/FILTER` are the members of a group, which is the one subscriber to the filter.

Plans are cached per topic name in a table of fixed size. A new plan replaces the one in its slot only if its name is
looked up twice in a row. Names that are used once therefore cost no copying. A change to a filter without wildcards
drops the plan of that one topic name. Any other change makes all plans stale, by number. A plan is used only within
the call that requested it: no function called meanwhile changes subscriptions.
"""

from libc.stdint cimport uint16_t, uintptr_t
from cpython.mem cimport PyMem_Free
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy

from _speedups.base.array cimport array_reserve, array_reserve_tight
from _speedups.base.buffers cimport buffer_free, buffer_reserve, buffer_size, pool_free
from _speedups.base.cursor cimport write_varint
from _speedups.codec.publish cimport SUBSCRIPTION_IDENTIFIER
from _speedups.codec.topics cimport shared_filter_at
from _speedups.session.group cimport Group
from _speedups.session.group_members cimport Member
from _speedups.session.group_settings cimport GroupSettings
from _speedups.session.membership cimport Memberships
from _speedups.session.rights cimport MAY_READ
from _speedups.session.session cimport Session
from _speedups.session.journal cimport UNSUBSCRIBED
from _speedups.session.subscriber cimport (
    KEEP_RETAIN, LOCAL, NOT_OWN, ONLY_OWN, PEER, SHARED, Plan, Receiver, Subscriber, Subscription,
)
from _speedups.routing.topic_tree cimport (
    HASH, PLUS, Node, level_hash, level_length, node_after, node_at, node_child, node_hash, node_new, node_path, node_plus,
    node_prune, tree_free,
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


cdef inline uint32_t slot_of(uint64_t h) noexcept nogil:
    return <uint32_t>(h >> 50) & (PLAN_SLOTS - 1)


cdef inline uint32_t tag_of(uint64_t h) noexcept nogil:
    """A tag that distinguishes the topic names of a slot without comparing them. Bit 0: its plan is in the slot."""
    return <uint32_t>(h >> 17) | 1


cdef bint is_wild(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if p[i] == c'+' or p[i] == c'#':
            return True
    return False


cdef int compare_matches(const void* a, const void* b) noexcept nogil:
    """Order by subscriber, then by identifier."""
    cdef const SpecialMatch* x = <const SpecialMatch*>a
    cdef const SpecialMatch* y = <const SpecialMatch*>b
    if x.subscriber != y.subscriber:
        return -1 if <uintptr_t>x.subscriber < <uintptr_t>y.subscriber else 1
    return -1 if x.identifier < y.identifier else x.identifier > y.identifier


cdef class SubscriptionTree:
    """All subscriptions of the node."""

    def __cinit__(self):
        self.root = node_new(NULL, b"", 0, 0)
        self.plans = <Plan**>calloc(PLAN_SLOTS, sizeof(Plan*))
        if self.root == NULL or self.plans == NULL:
            raise MemoryError
        self.generation = 1
        self.by_name = {}
        self.group_type = Group

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

    # ---- changes ----

    def subscribe(self, Subscriber subscriber not None, bytes topic_filter not None, uint8_t options,
                  uint32_t identifier=0):
        """Add a subscription, or replace options and identifier of the one with the same filter.

        Args:
            subscriber: gets the matching messages.
            topic_filter: valid UTF-8 and valid as a filter.
            options: the subscription options byte; Retain Handling is not kept.
            identifier: subscription identifier, at most 268 435 455; 0 = none.

        Returns:
            True if the filter is new for the subscriber.
        """
        cdef const uint8_t* path = topic_filter
        cdef Py_ssize_t n = len(topic_filter)
        cdef Node* node
        cdef uint32_t i
        cdef Py_ssize_t at
        cdef uint8_t announced = options          # by a node, for a group
        options &= STORED_OPTIONS
        if subscriber.kind <= SHARED and shared_filter_at(path, n):
            return self.join(subscriber, topic_filter, options, identifier)
        if subscriber.kind == PEER and shared_filter_at(path, n):
            return self.join_peer(subscriber, topic_filter, announced)
        node = node_at(self.root, path, n, True)
        if node == NULL:
            raise MemoryError
        self.forget(path, n)
        at = self.find(subscriber, node)
        if at >= 0:
            i = subscriber.subscriptions[at].position
            (<SubscriptionEntry*>node.value)[i].options = identifier << IDENTIFIER_SHIFT | options
            if subscriber.kind == LOCAL and subscriber.recorded():
                subscriber.turn.journal.subscribed(subscriber.session_id, options, identifier, path, n)
            return False
        if array_reserve_tight(&node.value, node.count, sizeof(SubscriptionEntry)) < 0:
            node_prune(node)
            raise MemoryError
        if array_reserve_tight(<void**>&subscriber.subscriptions, subscriber.subscription_count, sizeof(Subscription)) < 0:
            raise MemoryError
        subscriber.subscriptions[subscriber.subscription_count] = Subscription(<void*>node, node.count)
        (<SubscriptionEntry*>node.value)[node.count] = SubscriptionEntry(
            <void*>subscriber, subscriber.subscription_count, identifier << IDENTIFIER_SHIFT | options)
        node.count += 1
        subscriber.subscription_count += 1
        self.count += 1
        if subscriber.kind == LOCAL and subscriber.recorded():
            subscriber.turn.journal.subscribed(subscriber.session_id, options, identifier, path, n)
        return True

    def unsubscribe(self, Subscriber subscriber not None, bytes topic_filter not None):
        """Remove a subscription. False if there was none with this filter."""
        cdef const uint8_t* path = topic_filter
        cdef Py_ssize_t n = len(topic_filter)
        cdef Member member = self.member_of(subscriber, topic_filter)
        cdef Node* node
        cdef Py_ssize_t at
        if subscriber.kind == PEER and shared_filter_at(path, n):
            return self.leave_peer(subscriber, topic_filter)
        if member is not None:
            if subscriber.kind == LOCAL and subscriber.recorded():
                subscriber.turn.journal.text(UNSUBSCRIBED, subscriber.session_id, 0, path, n)
            self.leave(member, False)
            return True
        node = node_at(self.root, path, n, False)
        at = self.find(subscriber, node) if node != NULL else -1
        if at < 0:
            return False
        self.forget(path, n)
        self.cancel(subscriber, <uint32_t>at)
        if subscriber.kind == LOCAL and subscriber.recorded():
            subscriber.turn.journal.text(UNSUBSCRIBED, subscriber.session_id, 0, path, n)
        return True

    def unsubscribe_all(self, Subscriber subscriber not None):
        """Remove all subscriptions of the subscriber; must be called before it is freed."""
        cdef Node* node
        cdef uint8_t path[256]
        cdef Py_ssize_t n
        cdef Member member
        if subscriber.kind == PEER:
            for name in list(self.by_name):
                self.leave_peer(subscriber, name)
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            for member in list((<Session>subscriber).shares.items):
                if member is not None:
                    self.leave(member, True)
        while subscriber.subscription_count:
            node = <Node*>subscriber.subscriptions[subscriber.subscription_count - 1].node
            n = node_path(node, NULL)
            if n <= 256:
                node_path(node, path)
                self.forget(path, n)
            else:
                self.generation += 1
            self.cancel(subscriber, subscriber.subscription_count - 1)
        PyMem_Free(subscriber.subscriptions)
        subscriber.subscriptions = NULL

    cdef Py_ssize_t find(self, Subscriber subscriber, Node* node) noexcept:
        """The position of the node in the subscriber's array, or -1; searches the shorter of the two arrays."""
        cdef uint32_t i
        cdef SubscriptionEntry* subscribers = <SubscriptionEntry*>node.value
        if node.count < subscriber.subscription_count:
            for i in range(node.count):
                if subscribers[i].subscriber == <void*>subscriber:
                    return subscribers[i].position
        else:
            for i in range(subscriber.subscription_count):
                if subscriber.subscriptions[i].node == <void*>node:
                    return i
        return -1

    cdef int cancel(self, Subscriber subscriber, uint32_t position) except -1:
        """Remove both ends; the last of each array moves into the gap, and its partner's position is updated."""
        cdef Node* node = <Node*>subscriber.subscriptions[position].node
        cdef uint32_t place = subscriber.subscriptions[position].position
        cdef SubscriptionEntry* subscribers = <SubscriptionEntry*>node.value
        cdef Subscription* last
        node.count -= 1
        if place != node.count:
            subscribers[place] = subscribers[node.count]
            (<Subscriber>subscribers[place].subscriber).subscriptions[subscribers[place].position].position = place
        subscriber.subscription_count -= 1
        if position != subscriber.subscription_count:
            last = &subscriber.subscriptions[subscriber.subscription_count]
            subscriber.subscriptions[position] = last[0]
            (<SubscriptionEntry*>(<Node*>last.node).value)[last.position].position = position
        if node.count == 0:
            PyMem_Free(node.value)
            node.value = NULL
            node_prune(node)
        self.count -= 1
        return 0

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

    # ---- groups ----

    def join(self, Session session not None, bytes name not None, uint8_t options, uint32_t identifier):
        """Make the session a member of a group, or replace the options of its membership; True if it is a new one."""
        cdef Member member = self.member_of(session, name)
        cdef Group group
        cdef const uint8_t* path = name
        cdef bint is_new = member is None
        if is_new:
            group = self.group(session.turn, name)
            member = Member(group, session)
            if session.shares is None:
                session.shares = Memberships()
            session.shares.add(member)
            self.count += 1
        member.set_options(options, identifier)
        if session.kind == LOCAL and session.recorded():
            session.turn.journal.subscribed(session.session_id, options, identifier, path, len(name))
        if is_new:
            member.group.join(member)
        self.set_qos(member.group)
        return is_new

    cdef Group group(self, Turn turn, bytes name):
        """The group with this name, made if it is new."""
        cdef Group group = self.by_name.get(name)
        if group is None:
            self.last_group += 1
            group = self.group_type(turn, self.last_group, name, name[shared_filter_at(name, len(name)):])
            self.by_name[name] = group
        return group

    cdef Member member_of(self, Subscriber subscriber, bytes name):
        """The membership of the subscriber in the group with this name, or None."""
        cdef Member member
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            for member in (<Session>subscriber).shares.items:
                if member is not None and member.group.client_id == name:
                    return member
        return None

    cdef int set_qos(self, Group group) except -1:
        """The group subscribes with the highest QoS of its members."""
        self.subscribe(group, group.topic_filter, group.qos)
        return 0

    cdef int leave(self, Member member, bint session_ends) except -1:
        """End a membership; the group ends with its last one [5: 4.8.2]."""
        cdef Group group = member.group
        group.leave(member, session_ends)
        self.count -= 1
        return self.set_qos(group) if group.members else self.end_if_empty(group)

    cdef int end_if_empty(self, Group group) except -1:
        """End a group without members; one that is declared or has members at other nodes goes on."""
        group.abandon()
        if not group.is_empty():
            return self.set_qos(group)
        self.unsubscribe_all(group)
        del self.by_name[group.client_id]
        return 0

    def join_peer(self, Subscriber peer not None, bytes name not None, int announced):
        """Another node has members of a group, with this QoS and number (see `Routes`); True if it had none."""
        cdef Group group = self.group(peer.turn, name)
        known = group.set_peer(peer, announced)
        self.set_qos(group)
        return not known

    def leave_peer(self, Subscriber peer not None, bytes name not None):
        """Another node has no members of a group any more; False if it had none."""
        cdef Group group = self.by_name.get(name)
        if group is None or not group.set_peer(peer, -1):
            return False
        if group.members:
            self.set_qos(group)
        else:
            self.end_if_empty(group)
        return True

    def declare(self, Turn turn not None, bytes name not None, GroupSettings settings not None):
        """Let a group exist without members, with these settings."""
        cdef Group group = self.group(turn, name)
        group.configure(settings)
        self.set_qos(group)
        turn.schedule_send(group)

    def undeclare(self, bytes name not None):
        """Let a group exist by its members only. Returns the number of dropped messages; None: it is not declared."""
        cdef Group group = self.by_name.get(name)
        if group is None or not group.settings.declared:
            return None
        group.configure(None)
        if group.members:
            self.set_qos(group)
            group.turn.schedule_send(group)
            return 0
        dropped = group.abandon()
        self.end_if_empty(group)
        return dropped

    def set_group_type(self, group_type):
        """Make groups of this type from now on, derived from Group."""
        self.group_type = group_type

    @property
    def groups(self):
        """All groups, by name."""
        return self.by_name

    def restore_group(self, Turn turn not None, uint64_t number, bytes name not None):
        """Restore a GROUP record; returns the group."""
        cdef Group group = self.group(turn, name)
        group.session_id = number
        self.last_group = max(self.last_group, number)
        return group

    def restored(self):
        """End the restore, after that of all sessions: groups without members end, the others give back the unsent."""
        cdef Group group
        cdef Member member
        for group in list(self.by_name.values()):
            if group.is_empty():
                self.unsubscribe_all(group)       # it was declared once
                del self.by_name[group.client_id]
                continue
            group.restored()
            for member in group.members:
                member.detached()

    # ---- plans ----

    cdef Plan* known(self, const uint8_t* topic, Py_ssize_t n, uint64_t* h) noexcept:
        """The cached plan of the topic name, perhaps stale, or NULL. A name with a plan is valid."""
        cdef Plan* plan
        h[0] = topic_hash(topic, n)
        if self.tags[slot_of(h[0])] != tag_of(h[0]):
            return NULL
        plan = self.plans[slot_of(h[0])]
        if plan == NULL or plan.topic_length != n or memcmp(plan.topic, topic, n) != 0:
            return NULL
        return plan

    cdef Plan* plan(self, const uint8_t* topic, Py_ssize_t n, uint64_t h) except NULL:
        """Make the plan for a valid topic name; `h` is its hash, as `known` returned it."""
        cdef uint32_t slot = slot_of(h)
        cdef Plan* old
        cdef Plan* plan
        cdef int i
        cdef Py_ssize_t size, receivers_size, identifiers_size
        self.match(topic, n)
        if self.scratch.count > PLAN_MAX or n > PLAN_TOPIC_MAX or (self.tags[slot] | 1) != tag_of(h):
            self.tags[slot] = tag_of(h) & ~1u     # the plan in the slot is no longer used
            self.scratch.generation = self.generation
            self.scratch.publisher = 0
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
        plan.topic_length = <uint32_t>n
        plan.count = self.scratch.count
        plan.receivers = <Receiver*>(<char*>plan + size)
        memcpy(plan.topic, topic, n)
        memcpy(plan.receivers, self.scratch.receivers, receivers_size)
        plan.identifiers = <uint8_t*>plan.receivers + receivers_size
        if identifiers_size:
            memcpy(plan.identifiers, self.scratch.identifiers, identifiers_size)
        self.kept += plan.count
        self.plans[slot] = plan
        self.tags[slot] = tag_of(h)
        return plan

    cdef int match(self, const uint8_t* topic, Py_ssize_t n) except -1:
        """Put the receivers of a topic name into the scratch plan: level by level, all nodes of a level together."""
        cdef const uint8_t* p = topic
        cdef const uint8_t* end = topic + n
        cdef Py_ssize_t length, count = 1, found, i
        cdef uint32_t h
        cdef Node* node
        cdef Node* child
        cdef Node** swap
        cdef bint hidden = n > 0 and topic[0] == c'$'   # not matched by wildcards at the first level [MQTT-4.7.2-1]
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
            hidden = False
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
        cdef Receiver* known
        cdef uint8_t qos, flags
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
            qos = s.options & MAXIMUM_QOS
            flags = KEEP_RETAIN if s.options & KEEPS_RETAIN else 0
            if self.is_receiver(s.subscriber):
                known = &self.scratch.receivers[subscriber.plan_index]
                known.flags |= flags
                if known.qos < qos:
                    known.qos = qos
            else:
                self.add_receiver(s.subscriber, qos, flags)
            s += 1
        return 0

    cdef bint is_receiver(self, void* subscriber) noexcept:
        """Whether the plan being made has the subscriber: its `plan_index` may be of an earlier plan."""
        cdef uint32_t index = (<Subscriber>subscriber).plan_index
        return index < self.scratch.count and self.scratch.receivers[index].subscriber == subscriber

    cdef int add_receiver(self, void* subscriber, uint8_t qos, uint8_t flags) except -1:
        """Add a receiver, for which there is room."""
        (<Subscriber>subscriber).plan_index = self.scratch.count
        self.scratch.receivers[self.scratch.count] = Receiver(subscriber, qos, flags, 0, 0)
        self.scratch.count += 1
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
        cdef bint others = self.is_receiver(matches[0].subscriber) # it has matches without No Local ...
        cdef bint no_local = False                               # ... and with it
        cdef uint8_t own_qos = 0, own_flags = 0
        cdef Receiver* receiver
        cdef Py_ssize_t i
        if array_reserve(<void**>&self.scratch.receivers, self.scratch.count + 2, &self.receiver_capacity,
                         sizeof(Receiver)) < 0:
            raise MemoryError
        if not others:
            self.add_receiver(matches[0].subscriber, 0, 0)
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
            self.scratch.receivers[self.scratch.count] = Receiver(matches[0].subscriber, own_qos, own_flags | ONLY_OWN, 0, 0)
            self.add_identifiers(&self.scratch.receivers[self.scratch.count], matches, n, NO_LOCAL)
            self.scratch.count += 1
        return 0

    cdef int add_identifiers(self, Receiver* receiver, SpecialMatch* matches, Py_ssize_t n, uint8_t without) except -1:
        """Write the identifiers of the matches as properties, ascending; not of matches with these options.

        One that several subscriptions have is written for each [5: MQTT-3.3.4-4]. Receivers with the same set one after the other share it. More than 65 535 bytes are not sent.
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

    def forget_plans(self):
        """Drop all plans, after the rights of a subscriber have changed."""
        self.generation += 1

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

    def match_many(self, bytes topic not None, int times):
        """Match without a plan, `times` times, for measuring; returns the number of receivers."""
        cdef const uint8_t* path = topic
        cdef Py_ssize_t n = len(topic)
        for _ in range(times):
            self.match(path, n)
        return self.scratch.count

    def has(self, Subscriber subscriber not None, bytes topic_filter not None):
        """Whether the subscriber has a subscription with this topic filter."""
        cdef const uint8_t* path = topic_filter
        cdef Node* node
        if self.member_of(subscriber, topic_filter) is not None:
            return True
        node = node_at(self.root, path, len(topic_filter), False)
        return node != NULL and self.find(subscriber, node) >= 0

    def subscriptions_of(self, Subscriber subscriber not None):
        """The subscriber's subscriptions: a list of (topic filter, options)."""
        return [(topic_filter, options) for topic_filter, options, _ in self.all_of(subscriber)]

    def all_of(self, Subscriber subscriber not None):
        """The subscriber's subscriptions: a list of (topic filter, options, identifier or 0)."""
        cdef uint32_t i
        cdef Node* node
        cdef SubscriptionEntry* entry
        cdef Member member
        cdef list found = []
        for i in range(subscriber.subscription_count):
            node = <Node*>subscriber.subscriptions[i].node
            entry = &(<SubscriptionEntry*>node.value)[subscriber.subscriptions[i].position]
            found.append((path_of(node), entry.options & STORED_OPTIONS, entry.options >> IDENTIFIER_SHIFT))
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            for member in (<Session>subscriber).shares.items:
                if member is not None:
                    found.append((member.group.client_id, member.options, member.identifier))
        return found

    def record(self, Subscriber subscriber not None):
        """Write the subscriber's subscriptions to the journal again."""
        cdef bytes path
        if subscriber.recorded():
            for path, options, identifier in self.all_of(subscriber):
                subscriber.turn.journal.subscribed(subscriber.session_id, options, identifier, path, len(path))

    def filters(self):
        """All subscribed topic filters, with the number of subscriptions: a list."""
        cdef Node* node = self.root
        cdef list found = []
        while node != NULL:
            if node.count:
                found.append((path_of(node), node.count))
            node = node_after(node, True)
        return found


cdef bytes path_of(const Node* node):
    cdef Py_ssize_t n = node_path(node, NULL)
    cdef uint8_t* path = <uint8_t*>malloc(n + 1)
    if path == NULL:
        raise MemoryError
    node_path(node, path)
    found = path[:n]
    free(path)
    return found
