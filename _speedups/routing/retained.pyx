"""The tree of retained messages: stores, removes, expires and searches them; the router decides which are retained.

Owns one message per topic name. A search visits only nodes whose path fits the filter so far, oldest first. It may
pause anywhere while its client is slow. The node where it stands is pinned, so that the node stays in the tree even if
its message is removed. A search returns the value at the time of the visit, never an older one.
"""

cimport cython
from libc.stdint cimport int64_t

from ..base.cursor cimport write_varint
from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0, SUBSCRIPTION_IDENTIFIER
from ..codec.tenants cimport TENANT_LEVELS
from ..session.message cimport (
    Message, Publication, message_hold, message_new, message_payload, message_properties, message_release, message_size,
    publication_of,
)
from ..session.outgoing_queue cimport RETAINED_MESSAGE
from ..session.session cimport SOURCE_ENDED, SOURCE_GOES_ON, MessageSource, Session
from ..session.session_store cimport Restored
from ..session.tenant cimport Tenant
from .topic_tree cimport (
    Node, TopicTree, level_bytes, level_hash, missing_bytes, node_at, node_child, tree_free,
)

from heapq import heapify, heappop, heappush

cdef enum:
    EXPIRING_FREE = 1024         # notes of messages that are there no more


cdef inline int64_t memory_of(const Message* message) noexcept:
    """Bytes of a message."""
    return <int64_t>sizeof(Message) + message_size(message)


cdef void drop_message(void* message) noexcept:
    message_release(<Message*>message)


cdef class RetainedTree(TopicTree):
    """All retained messages of the node."""

    def __cinit__(self):
        self.max_messages = self.max_bytes = <uint64_t>-1
        self.expiring = []

    def __dealloc__(self):
        tree_free(self.root, drop_message)

    cdef bint has_room(self, Message* message) except -1:
        """Whether the message may be kept: the limits allow it, or it replaces one at least as large."""
        cdef Node* node
        cdef int64_t size = memory_of(message)
        cdef Tenant tenant = self.tenants.of(message.data, message.topic_length) if self.tenants is not None else None
        if self.fits(tenant, size + (message.topic_length + 1) * level_bytes(1)):    # almost all do, so it is first
            return True
        if self.fits(tenant, size + missing_bytes(self.root, message.data, message.topic_length)):
            return True
        node = node_at(self.root, message.data, message.topic_length, NULL)
        return node != NULL and node.value != NULL and memory_of(<Message*>node.value) >= size

    cdef bint fits(self, Tenant tenant, int64_t size) noexcept:
        """Whether the limits allow another message that takes so many bytes."""
        return (self.count < self.max_messages and self.size + <uint64_t>size <= self.max_bytes
                and (tenant is None or (
                    (not tenant.max_retained or tenant.retained < tenant.max_retained)
                    and (not tenant.max_retained_bytes
                         or tenant.retained_bytes + size <= tenant.max_retained_bytes))))

    cdef int put(self, Message* message, bint always=False) except -1:
        """Keep the message for its topic name in place of the previous one. 0: there is no room for it."""
        cdef Node* node
        cdef int64_t before = 0                 # the time at which the previous one expires
        if not always and not self.has_room(message):
            return 0
        node = self.make(message.data, message.topic_length)
        if node.value != NULL:
            before = (<Message*>node.value).expires
            self.count_message(<Message*>node.value, -1)
            message_release(<Message*>node.value)
        node.value = <void*>message_hold(message)
        self.count_message(message, 1)
        if message.expires and not 0 < before <= message.expires:    # else the note of the previous one is enough
            self.expect(message.expires, message.data[:message.topic_length])
        return 1

    cdef int expect(self, int64_t expires, bytes topic) except -1:
        """Note when a message expires. Notes of messages that are there no more go when they are too many."""
        heappush(self.expiring, (expires, topic))
        if <uint64_t>len(self.expiring) > 2 * self.count + EXPIRING_FREE:
            topics = {topic for _, topic in self.expiring}
            notes = [(self.expiry_of(topic), topic) for topic in topics]
            self.expiring = [note for note in notes if note[0]]
            heapify(self.expiring)
        return 0

    cdef int64_t expiry_of(self, bytes topic) except -1:
        """When the message with this topic name expires; 0: there is none, or it does not."""
        cdef Node* node = node_at(self.root, topic, len(topic), NULL)
        return 0 if node == NULL or node.value == NULL else (<Message*>node.value).expires

    cdef int count_message(self, const Message* message, int n) except -1:
        """Add a message, or with `n` -1 take one from the totals of the node and of its tenant."""
        cdef Tenant tenant = self.tenants.of(message.data, message.topic_length) if self.tenants is not None else None
        cdef int64_t size = n * memory_of(message)
        self.count += n
        if tenant is not None:
            tenant.retained += n
        return self.grow(tenant, size, size)

    cdef int grow(self, Tenant tenant, int64_t total, int64_t of_tenant) except -1:
        self.size += total
        if tenant is not None:
            tenant.retained_bytes += of_tenant
        return 0

    def watch(self, Restored message not None):
        """The message, which may be here, has got the time at which it expires."""
        if message.expires:
            self.expect(message.expires, message.topic)

    cdef bytes take_expired(self, int64_t clock):
        """Remove a message that has expired at `clock`; its topic name, or None if there is no such message."""
        cdef bytes topic
        cdef int64_t expires
        while self.expiring and self.expiring[0][0] <= clock:
            _, topic = heappop(self.expiring)
            expires = self.expiry_of(topic)
            if expires > clock:                     # it has replaced the message of the note
                heappush(self.expiring, (expires, topic))
            elif expires:
                self.remove(topic, len(topic))
                return topic
        return None

    cdef int remove(self, const uint8_t* topic, Py_ssize_t n) except -1:
        """Remove the message of the topic name. 0 if there was none."""
        cdef Node* node = node_at(self.root, topic, n, NULL)
        if node == NULL or node.value == NULL:
            return 0
        self.count_message(<Message*>node.value, -1)
        message_release(<Message*>node.value)
        node.value = NULL
        self.prune(node)
        return 1

    def set(self, bytes topic not None, bytes payload not None, int qos=0, uint64_t number=0, bytes properties=b"",
            int64_t expires=0):
        """Keep a message whose room the caller has checked; an empty payload clears.

        Args:
            topic, payload, qos: of the message.
            number: its name in the store, if it has one.
            properties: its property block.
            expires: time of the turn's clock at which it expires; 0 = never.
        """
        cdef const uint8_t* t = topic
        cdef Publication publication
        cdef Message* message
        if not payload:
            self.remove(t, len(topic))
            return
        publication = publication_of(t, len(topic), payload, len(payload), <uint8_t>qos, True)
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.expires = expires
        message = message_new(&publication)
        if message == NULL:
            raise MemoryError
        message.stored_id = number
        try:
            self.put(message, True)
        finally:
            message_release(message)

    def keep(self, Restored message not None):
        """Keep a message restored from the store."""
        self.put(message.message)

    def set_limits(self, uint64_t max_messages, uint64_t max_bytes):
        """Keep no more messages than this, and no more bytes of them and of the nodes that they need."""
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def search(self, bytes topic_filter not None, int qos=2, uint32_t identifier=0):
        """A search for the messages that match the filter, for `Session.pull_from`; None if surely none match.

        `qos` is the granted QoS, `identifier` the subscription identifier; 0 = none.
        """
        cdef const uint8_t* path = topic_filter
        cdef Node* node
        cdef Py_ssize_t plain = 0                  # bytes before the first wildcard
        while plain < len(topic_filter) and path[plain] != c'+' and path[plain] != c'#':
            plain += 1
        if plain == len(topic_filter):
            node = node_at(self.root, path, plain, NULL)
            if node == NULL or node.value == NULL:
                return None
        elif plain and node_at(self.root, path, plain - 1, NULL) == NULL:
            return None
        return RetainedSearch(self, topic_filter, qos, identifier)

    def hidden(self):
        """First levels that begin with $, which wildcards at the first level don't match: a list."""
        cdef Node* node = self.root.child
        cdef list found = []
        while node != NULL:
            if node.length and node.level[0] == c'$':
                found.append(node.level[:node.length])
            node = node.next
        return found

    def children(self, bytes parent, bytes after, int limit, int count_limit):
        """At most `limit` levels directly below `parent` (None: the first levels), oldest first.

        Returns a list of (level, bytes of its own message or -1, messages further below, counted among the first
        `count_limit` nodes there).

        Raises:
            KeyError: there is no `parent`, or no `after` below it, where the list continues (None: from the first).
        """
        cdef Node* node = self.root
        cdef const uint8_t* p
        cdef list found = []
        if parent is not None:
            p = parent
            node = node_at(self.root, p, len(parent), NULL)
            if node == NULL:
                raise KeyError(parent)
        if after is None:
            node = node.child
        else:
            p = after
            node = node_child(node, p, len(after), level_hash(p, len(after))) if node.child != NULL else NULL
            if node == NULL:
                raise KeyError(after)
            node = node.next
        while node != NULL and len(found) < limit:
            found.append((node.level[:node.length],
                          (<Message*>node.value).payload_length if node.value != NULL else -1,
                          messages_below(node, count_limit)))
            node = node.next
        return found

    def matching(self, bytes topic_filter not None):
        """The messages that match the filter: yields (topic name, payload, QoS)."""
        cdef RetainedSearch search = RetainedSearch(self, topic_filter, 2, 0)
        cdef Message* m
        while search.step():
            m = search.found()
            if m != NULL:
                yield m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos

    def described(self, bytes topic_filter not None):
        """The messages that match the filter: yields (topic name, payload, QoS, property block, expiry).

        The expiry is a time of the turn's clock; 0 = the message does not expire.
        """
        cdef RetainedSearch search = RetainedSearch(self, topic_filter, 2, 0)
        cdef Message* m
        while search.step():
            m = search.found()
            if m != NULL:
                yield (
                    m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos,
                    message_properties(m)[:<Py_ssize_t>m.properties_length], m.expires,
                )


cdef Py_ssize_t messages_below(Node* top, Py_ssize_t visits) noexcept nogil:
    """Messages in the tree below a node, counted among the first `visits` nodes."""
    cdef Py_ssize_t count = 0
    cdef Node* node = top
    while visits > 0:
        if node.child != NULL:
            node = node.child
        else:
            while node != top and node.next == NULL:
                node = node.parent
            if node == top:
                break
            node = node.next
        count += node.value != NULL
        visits -= 1
    return count


@cython.no_gc_clear                       # its end needs the tree
cdef class RetainedSearch(MessageSource):
    """A walk over the retained messages that match a filter."""

    def __init__(self, RetainedTree tree not None, bytes topic_filter not None, int qos, uint32_t identifier):
        cdef uint8_t data[5]
        self.tree = tree
        self.topic_filter = topic_filter
        self.levels = topic_filter.split(b"/")
        self.all_below = self.levels[len(self.levels) - 1] == b"#"
        self.filter_depth = len(self.levels) - self.all_below
        if self.filter_depth >= TENANT_LEVELS and self.levels[0] == b"$tenant":
            self.own_depth = TENANT_LEVELS + 1
        self.qos = <uint8_t>qos
        self.identifiers = b""
        if identifier:
            data[0] = SUBSCRIPTION_IDENTIFIER
            self.identifiers = data[:1 + write_varint(data + 1, identifier)]
        self.stand(tree.root, 0)

    def __dealloc__(self):
        if self.at != NULL:
            self.at.pins -= 1
            self.tree.prune(self.at)

    @property
    def is_over(self):
        """Whether all messages have been found."""
        return self.at == NULL

    def stop(self):
        """End the search: its subscription has ended."""
        self.stand(NULL, 0)

    cdef int stand(self, Node* node, Py_ssize_t depth) except -1:
        """Move the pin to this node."""
        cdef Node* left = self.at
        if node != NULL:
            node.pins += 1
        self.at = node
        self.depth = depth
        if left != NULL:
            left.pins -= 1
            self.tree.prune(left)
        return 0

    cdef int step(self) except -1:
        """Move to the next node on a path that fits the filter. 0: the search is over."""
        cdef Node* node = self.at
        cdef Node* child = NULL
        cdef Py_ssize_t depth = self.depth
        cdef bytes level
        cdef const uint8_t* p
        if node == NULL:
            return 0
        if depth < self.filter_depth:
            level = self.levels[depth]
            if level == b"+":
                child = node.child
            elif node.child != NULL:
                p = level
                child = node_child(node, p, len(level), level_hash(p, len(level)))
        elif self.all_below:
            child = node.child
        if child != NULL:
            node = child
            depth += 1
        else:
            node = self.beside(node, &depth)
        # Wildcards at the first level don't match topics that begin with $ [MQTT-4.7.2-1].
        while (node != NULL and (depth == 1 or depth == self.own_depth) and node.length and node.level[0] == c'$'
               and self.wild_at(depth - 1)):
            node = self.beside(node, &depth)
        self.stand(node, depth)
        return node != NULL

    cdef bint wild_at(self, Py_ssize_t depth):
        return depth >= self.filter_depth or self.levels[depth] == b"+"

    cdef Node* beside(self, Node* node, Py_ssize_t* depth):
        """The next sibling of the node, or of the nearest ancestor where the filter leaves a choice."""
        while node.parent != NULL:
            if node.next != NULL and self.wild_at(depth[0] - 1):
                return node.next
            node = node.parent
            depth[0] -= 1
        return NULL

    cdef Message* found(self) noexcept:
        """The message where the search stands, if it matches."""
        if self.at == NULL or self.depth < self.filter_depth or (self.depth > self.filter_depth and not self.all_below):
            return NULL
        return <Message*>self.at.value

    cdef int pull(self, Session session) except -1:
        cdef Message* m
        cdef const uint8_t* identifiers = self.identifiers
        cdef uint8_t qos
        if not self.step():
            return SOURCE_ENDED
        m = self.found()
        if m == NULL:
            return SOURCE_GOES_ON
        if m.expires and m.expires <= session.turn.clock:
            return SOURCE_GOES_ON                  # the sweep drops it soon
        qos = m.qos if m.qos < self.qos else self.qos
        if session.may_not_read(m, qos == 0):
            return SOURCE_GOES_ON
        if qos:
            session.enqueue(m, qos | RETAINED_MESSAGE, identifiers, len(self.identifiers))
            return SOURCE_GOES_ON
        if session.put_publish(m, PUBLISH_QOS_0 | FLAG_RETAIN, 0, self.identifiers):    # [MQTT-3.3.1-8]
            session.trace("sent", m, 0, "retained")
        return SOURCE_GOES_ON
