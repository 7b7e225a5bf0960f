"""Adds and removes subscriptions in the tree of topic filters; `plans.pyx` matches topic names with it.

A subscription is two small records, one at the node of its filter and one at its session. Each holds the position of
the other, so that either side removes it in constant time. Its meaning for a topic name is in `plans.pyx`.

Sessions that subscribe to `$share/NAME/FILTER` are the subscribers of a group, which is the only subscriber to the
filter.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from cpython.mem cimport PyMem_Free
from libc.stdlib cimport free, malloc

from ..base.array cimport array_reserve_tight
from ..codec.topics cimport shared_filter_at, weight_of
from ..session.group cimport Group
from ..session.group_journal cimport GroupJournal
from ..session.group_subscriber cimport GroupSubscriber
from ..session.group_settings cimport GroupSettings
from ..session.journal cimport UNSUBSCRIBED
from ..session.shared_subscription cimport SharedSubscriptions
from ..session.rights cimport Rights
from ..session.session cimport Session
from ..session.subscriber cimport LOCAL, PEER, SHARED, Subscriber, Subscription
from ..session.turn cimport Turn
from .plans cimport IDENTIFIER_SHIFT, STORED_OPTIONS, Plans, SubscriptionEntry
from .topic_tree cimport Node, missing_bytes, node_after, node_at, node_path
from ..session.tenant cimport Tenant

cdef enum:
    ENTRY_BYTES = sizeof(SubscriptionEntry) + sizeof(Subscription)     # of a subscription, besides its node
    SUBSCRIBER_BYTES = 320         # of a subscription in a group ...
    GROUP_BYTES = 1792         # ... and of a group, besides its name and its subscription
    SLICE_BYTES = 2097152      # bytes of the tree that are removed at once: about a millisecond of work

cdef Rights NOTHING = Rights([])       # of subscribers that have ended


cdef class SubscriptionTree(Plans):
    """All subscriptions of the node."""

    def __cinit__(self):
        self.by_name = {}
        self.backing_type = GroupJournal
        self.leaving = []

    # ---- changes ----

    def subscribe(self, Subscriber subscriber not None, bytes topic_filter not None, uint8_t options,
                  uint32_t identifier=0):
        """Add a subscription, or replace options and identifier of the subscription with the same filter.

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
        node = self.make(path, n)
        self.forget(path, n)
        self.changes += 1
        at = self.find(subscriber, node)
        if at >= 0:
            i = subscriber.subscriptions[at].position
            (<SubscriptionEntry*>node.value)[i].options = identifier << IDENTIFIER_SHIFT | options
            if subscriber.kind == LOCAL and subscriber.recorded():
                subscriber.turn.journal.subscribed(subscriber.session_id, options, identifier, path, n)
            return False
        if array_reserve_tight(&node.value, node.count, sizeof(SubscriptionEntry)) < 0:
            self.prune(node)
            raise MemoryError
        if array_reserve_tight(
                <void**>&subscriber.subscriptions, subscriber.subscription_count, sizeof(Subscription)) < 0:
            raise MemoryError
        subscriber.subscriptions[subscriber.subscription_count] = Subscription(<void*>node, node.count)
        (<SubscriptionEntry*>node.value)[node.count] = SubscriptionEntry(
            <void*>subscriber, subscriber.subscription_count, identifier << IDENTIFIER_SHIFT | options)
        node.count += 1
        subscriber.subscription_count += 1
        subscriber.subscription_weight += weight_of(path, n)
        self.count_held(subscriber, 1)
        self.grow(subscriber.tenant, ENTRY_BYTES, ENTRY_BYTES)
        if subscriber.kind == LOCAL and subscriber.recorded():
            subscriber.turn.journal.subscribed(subscriber.session_id, options, identifier, path, n)
        return True

    def unsubscribe(self, Subscriber subscriber not None, bytes topic_filter not None):
        """Remove a subscription. False if there was none with this filter."""
        cdef const uint8_t* path = topic_filter
        cdef Py_ssize_t n = len(topic_filter)
        cdef GroupSubscriber shared = self.shared_of(subscriber, topic_filter)
        cdef Node* node
        cdef Py_ssize_t at
        if subscriber.kind == PEER and shared_filter_at(path, n):
            return self.leave_peer(subscriber, topic_filter)
        if shared is not None:
            if subscriber.kind == LOCAL and subscriber.recorded():
                subscriber.turn.journal.text(UNSUBSCRIBED, subscriber.session_id, path, n)
            self.leave(shared, False)
            return True
        node = node_at(self.root, path, n, NULL)
        at = self.find(subscriber, node) if node != NULL else -1
        if at < 0:
            return False
        self.forget(path, n)
        self.count_held(subscriber, -1)
        subscriber.subscription_weight -= weight_of(path, n)
        self.cancel(subscriber, <uint32_t>at)
        if subscriber.kind == LOCAL and subscriber.recorded():
            subscriber.turn.journal.text(UNSUBSCRIBED, subscriber.session_id, path, n)
        return True

    def unsubscribe_all(self, Subscriber subscriber not None, removed=None):
        """End all subscriptions of the subscriber; must be called before it is freed, and once.

        They match nothing from now on. If they are many, they leave the tree in slices, see `set_later`.

        Args:
            removed: called with lists of (topic filter, options) when they have left the tree; None: no call.
        """
        cdef GroupSubscriber shared
        cdef list groups = []
        if subscriber.kind == PEER:
            for name in list(self.by_name):
                self.leave_peer(subscriber, name)
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            for shared in list((<Session>subscriber).shares.items):
                if shared is not None:
                    groups.append((shared.group.client_id, shared.options))
                    self.leave(shared, True)
        if groups and removed is not None:
            removed(groups)
        self.count_held(subscriber, -<int64_t>subscriber.subscription_count)
        subscriber.subscription_weight = 0
        if subscriber.subscription_count <= SLICE or self.later is None:
            while subscriber.subscription_count:
                self.remove_slice(subscriber, removed)
        else:
            subscriber.rights = NOTHING
            self.generation += 1
            self.leaving.append((subscriber, removed))
            if len(self.leaving) == 1:
                self.later(self.remove_some)

    def set_later(self, later):
        """Let many subscriptions of one subscriber leave the tree in slices.

        Args:
            later: called with a function, which it calls in a later turn of the loop.
        """
        self.later = later

    def remove_some(self):
        """Remove a slice of the subscriptions of a subscriber that has ended."""
        cdef Subscriber subscriber
        subscriber, removed = self.leaving[0]
        try:
            self.remove_slice(subscriber, removed)
        finally:
            if not subscriber.subscription_count:
                del self.leaving[0]
            if self.leaving:
                self.later(self.remove_some)

    cdef int remove_slice(self, Subscriber subscriber, removed) except -1:
        """Remove a slice of subscriptions, the newest first."""
        cdef Node* node
        cdef uint8_t path[256]
        cdef Py_ssize_t n
        cdef uint32_t left = max(<int64_t>subscriber.subscription_count - SLICE, 0)
        cdef uint64_t enough = self.size - SLICE_BYTES if self.size > SLICE_BYTES else 0
        cdef list gone = []
        while subscriber.subscription_count > left and self.size > enough:
            node = <Node*>subscriber.subscriptions[subscriber.subscription_count - 1].node
            n = node_path(node, NULL)
            if removed is not None:
                gone.append((path_of(node), self.options_of(subscriber, subscriber.subscription_count - 1)))
            if subscriber.rights is NOTHING:
                pass                                  # no plan has it
            elif n <= 256:
                node_path(node, path)
                self.forget(path, n)
            else:
                self.generation += 1
            self.cancel(subscriber, subscriber.subscription_count - 1)
        if not subscriber.subscription_count:
            PyMem_Free(subscriber.subscriptions)
            subscriber.subscriptions = NULL
        if gone:
            removed(gone)
        return 0

    cdef uint8_t options_of(self, Subscriber subscriber, uint32_t position) noexcept:
        cdef Subscription* held = &subscriber.subscriptions[position]
        return (<SubscriptionEntry*>(<Node*>held.node).value)[held.position].options & STORED_OPTIONS

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
        self.changes += 1
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
            self.prune(node)
        return self.grow(subscriber.tenant, -ENTRY_BYTES, -ENTRY_BYTES)

    cdef int count_held(self, Subscriber subscriber, int64_t n) except -1:
        """Count so many subscriptions more, or with a negative number less."""
        if subscriber.kind <= SHARED:                 # a session
            self.count += n
            if subscriber.tenant is not None:
                subscriber.tenant.subscriptions += n
        return 0

    cdef int grow(self, Tenant tenant, int64_t total, int64_t of_tenant) except -1:
        self.size += total
        if tenant is not None:
            tenant.subscription_bytes += of_tenant
        return 0

    # ---- groups ----

    def join(self, Session session not None, bytes name not None, uint8_t options, uint32_t identifier):
        """Make the session a subscriber of a group, or replace the options of its subscription; True if it is a new
        one."""
        cdef GroupSubscriber shared = self.shared_of(session, name)
        cdef Group group
        cdef const uint8_t* path = name
        cdef bint is_new = shared is None
        if is_new:
            group = self.group(session.turn, name)
            shared = GroupSubscriber(group, session)
            if session.shares is None:
                session.shares = SharedSubscriptions()
            session.shares.add(shared)
            session.subscription_weight += weight_of(path, len(name))
            self.count_held(session, 1)
            self.grow(session.tenant, SUBSCRIBER_BYTES, SUBSCRIBER_BYTES)
        group = <Group>shared.group
        shared.set_options(options, identifier)
        if session.kind == LOCAL and session.recorded():
            session.turn.journal.subscribed(session.session_id, options, identifier, path, len(name))
        group.options_changed(shared)
        if is_new:
            group.join(shared)
        self.set_qos(group)
        return is_new

    cdef Group group(self, Turn turn, bytes name):
        """The group with this name, made if it is new."""
        cdef Group group = self.by_name.get(name)
        if group is None:
            self.last_group += 1
            group = Group(turn, self.last_group, name, name[shared_filter_at(name, len(name)):], self.backing_type)
            self.by_name[name] = group
            self.grow(group.tenant, GROUP_BYTES + len(name), GROUP_BYTES + len(name))
        return group

    cdef int end_group(self, Group group) except -1:
        cdef int64_t size = GROUP_BYTES + len(group.client_id)
        self.unsubscribe_all(group)
        group.end()
        del self.by_name[group.client_id]
        return self.grow(group.tenant, -size, -size)

    cdef GroupSubscriber shared_of(self, Subscriber subscriber, bytes name):
        """The subscription of the subscriber in the group with this name, or None."""
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            return (<Session>subscriber).shares.of(name)
        return None

    cdef int set_qos(self, Group group) except -1:
        """The group subscribes with the highest QoS of its subscribers."""
        self.subscribe(group, group.topic_filter, group.qos)
        return 0

    cdef int leave(self, GroupSubscriber shared, bint session_ends) except -1:
        """End a subscription; the group ends with its last one [5: 4.8.2]."""
        cdef Group group = shared.group
        cdef bytes name = group.client_id
        self.count_held(shared.session, -1)
        shared.session.subscription_weight -= weight_of(name, len(name))
        self.grow(shared.session.tenant, -SUBSCRIBER_BYTES, -SUBSCRIBER_BYTES)
        group.leave(shared, session_ends)
        return self.set_qos(group) if group.subscribers else self.end_if_empty(group)

    cdef int end_if_empty(self, Group group) except -1:
        """End a group without subscribers; one that is declared or has subscribers at other nodes goes on."""
        group.backing.abandon()
        if not group.is_empty():
            return self.set_qos(group)
        return self.end_group(group)

    def join_peer(self, Subscriber peer not None, bytes name not None, int announced):
        """Another node has subscribers of a group, with this QoS and number (see `Routes`); True if it had none."""
        cdef Group group = self.group(peer.turn, name)
        known = group.backing.set_peer(peer, announced)
        self.set_qos(group)
        return not known

    def leave_peer(self, Subscriber peer not None, bytes name not None):
        """Another node has no subscribers of a group any more; False if it had none."""
        cdef Group group = self.by_name.get(name)
        if group is None or not group.backing.set_peer(peer, -1):
            return False
        if group.subscribers:
            self.set_qos(group)
        else:
            self.end_if_empty(group)
        return True

    def declare(self, Turn turn not None, bytes name not None, GroupSettings settings not None):
        """Let a group exist without subscribers, with these settings."""
        cdef Group group = self.group(turn, name)
        group.configure(settings)
        self.set_qos(group)
        turn.schedule_send(group)

    def undeclare(self, bytes name not None):
        """Let a group exist by its subscribers only. Returns the number of dropped messages; None: it is not
        declared."""
        cdef Group group = self.by_name.get(name)
        if group is None or not group.settings.declared:
            return None
        group.configure(None)
        if group.subscribers:
            self.set_qos(group)
            group.turn.schedule_send(group)
            return 0
        dropped = group.backing.abandon()
        self.end_if_empty(group)
        return dropped

    def set_group_backing(self, backing_type):
        """Make groups with this class, derived from GroupBacking, from now on."""
        self.backing_type = backing_type

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
        """End the restore, after the restore of all sessions: groups without subscribers end, the others give back the
        unsent."""
        cdef Group group
        cdef GroupSubscriber shared
        for group in list(self.by_name.values()):
            if group.is_empty():
                self.end_group(group)       # it was declared once
                continue
            (<GroupJournal?>group.backing).restored()
            for shared in group.subscribers:
                group.detached(shared)

    # ---- queries ----

    def has(self, Subscriber subscriber not None, bytes topic_filter not None):
        """Whether the subscriber has a subscription with this topic filter."""
        cdef const uint8_t* path = topic_filter
        cdef Node* node
        if self.shared_of(subscriber, topic_filter) is not None:
            return True
        node = node_at(self.root, path, len(topic_filter), NULL)
        return node != NULL and self.find(subscriber, node) >= 0

    def bytes_of(self, bytes topic_filter not None):
        """Bytes that one more subscription with this topic filter would take."""
        cdef const uint8_t* path = topic_filter
        cdef Py_ssize_t n = len(topic_filter), at = shared_filter_at(path, n)
        cdef int64_t size = missing_bytes(self.root, path + at, n - at) + ENTRY_BYTES
        if at:
            size += SUBSCRIBER_BYTES + (GROUP_BYTES + n if topic_filter not in self.by_name else 0)
        return size

    def subscriptions_of(self, Subscriber subscriber not None):
        """The subscriber's subscriptions: a list of (topic filter, options)."""
        return [(topic_filter, options) for topic_filter, options, _ in self.all_of(subscriber)]

    def all_of(self, Subscriber subscriber not None):
        """The subscriber's subscriptions: a list of (topic filter, options, identifier or 0)."""
        cdef uint32_t i
        cdef Node* node
        cdef SubscriptionEntry* entry
        cdef GroupSubscriber shared
        cdef list found = []
        for i in range(subscriber.subscription_count):
            node = <Node*>subscriber.subscriptions[i].node
            entry = &(<SubscriptionEntry*>node.value)[subscriber.subscriptions[i].position]
            found.append((path_of(node), entry.options & STORED_OPTIONS, entry.options >> IDENTIFIER_SHIFT))
        if isinstance(subscriber, Session) and (<Session>subscriber).shares is not None:
            for shared in (<Session>subscriber).shares.items:
                if shared is not None:
                    found.append((shared.group.client_id, shared.options, shared.identifier))
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
