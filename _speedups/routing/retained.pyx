"""The tree of retained messages: stores, removes, expires and searches them; the router decides which are retained.

Owns one message per topic name. A search visits only branches whose path fits the filter so far, oldest first. It may
pause anywhere while its client is slow. The branch where it stands stays in the tree even if its messages are removed.
A search returns the value at the time of the visit, never an older one.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from ..base.cursor cimport write_varint
from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0, SUBSCRIPTION_IDENTIFIER, is_reserved
from ..codec.tenants cimport TENANT_LEVELS, begins_tenant
from ..session.message cimport (
    Message, Publication, message_hold, message_new, message_payload, message_properties, message_release, message_size,
    publication_of,
)
from ..session.outgoing_queue cimport RETAINED_MESSAGE
from ..session.session cimport SOURCE_ENDED, SOURCE_GOES_ON, MessageSource, Session
from ..session.session_store cimport Restored
from ..session.tenant cimport Tenant
from .branches cimport (
    BRANCH_BYTES, CHILD_BYTES, NO_PLACE, Branch, Child, Spot, branch_new, branch_of, branches_free, count_levels,
    find_child, find_spot, is_branch, message_at, next_child, put_message, remove_message, stand_at, text_of,
)
from .topic_tree cimport level_length

from heapq import heapify, heappop, heappush

cdef enum:
    EXPIRING_FREE = 1024         # notes of messages that are there no more
    LEVELS_MAX = 65536           # of a topic name of 65 535 slashes
    PLACE_BYTES = CHILD_BYTES + BRANCH_BYTES     # that a message counts for its tenant: it needs one branch at most


cdef inline int64_t memory_of(const Message* message) noexcept:
    """Bytes of a message."""
    return <int64_t>sizeof(Message) + message_size(message)


cdef class RetainedTree:
    """All retained messages of the node."""

    def __cinit__(self):
        self.max_messages = self.max_bytes = <uint64_t>-1
        self.expiring = []
        self.tree.root = branch_new(&self.tree, NULL, NULL, 0)
        if self.tree.root == NULL:
            raise MemoryError

    def __dealloc__(self):
        branches_free(self.tree.root)

    @property
    def size(self):
        """Bytes of the messages and of the tree."""
        return self.message_bytes + <uint64_t>self.tree.size

    def set_tenants(self, Tenants tenants not None):
        """Count what these tenants have; to be called while the tree is empty."""
        self.tenants = tenants

    cdef Message* message_of(self, const uint8_t* topic, Py_ssize_t n) noexcept:
        """The message of a topic name, or NULL."""
        cdef Spot spot
        cdef Message** at = message_at(self.tree.root, topic, n, &spot)
        return at[0] if at != NULL else NULL

    cdef Tenant tenant_of(self, const Message* message):
        return self.tenants.of(message.data, message.topic_length) if self.tenants is not None else None

    cdef bint has_room(self, Message* message) except -1:
        """Whether the message may be kept: the limits allow it, it replaces one at least as large, or is of $SYS."""
        cdef Message* before
        if is_reserved(message.data, message.topic_length):
            return True
        if self.fits(self.tenant_of(message), message):
            return True
        before = self.message_of(message.data, message.topic_length)
        return before != NULL and memory_of(before) >= memory_of(message)

    cdef bint fits(self, Tenant tenant, const Message* message) noexcept:
        """Whether the limits allow another message. It may need a place, and a branch with the text of its topic."""
        cdef int64_t size = memory_of(message) + PLACE_BYTES
        return (self.count < self.max_messages
                and self.message_bytes + self.tree.size + size + CHILD_BYTES + message.topic_length <= self.max_bytes
                and (tenant is None or (
                    (not tenant.max_retained or tenant.retained < tenant.max_retained)
                    and (not tenant.max_retained_bytes
                         or tenant.retained_bytes + size <= tenant.max_retained_bytes))))

    cdef int put(self, Message* message, bint always=False) except -1:
        """Keep the message for its topic name in place of the previous one. 0: there is no room for it."""
        cdef Spot spot
        cdef Message** at
        cdef int64_t before = 0                 # the time at which the previous one expires
        if not always and not self.has_room(message):
            return 0
        at = message_at(self.tree.root, message.data, message.topic_length, &spot)
        if at != NULL:
            before = at[0].expires
            self.count_message(at[0], -1)
            message_release(at[0])
            at[0] = message
        elif put_message(&self.tree, message) < 0:
            raise MemoryError
        message_hold(message)
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
        cdef Message* message = self.message_of(topic, len(topic))
        return message.expires if message != NULL else 0

    cdef int count_message(self, const Message* message, int n) except -1:
        """Add a message, or with `n` -1 take one from the totals of the node and of its tenant; $SYS does not count."""
        cdef Tenant tenant
        if is_reserved(message.data, message.topic_length):
            return 0
        tenant = self.tenant_of(message)
        self.count += n
        self.message_bytes += n * memory_of(message)
        if tenant is not None:
            tenant.retained += n
            tenant.retained_bytes += n * (memory_of(message) + PLACE_BYTES)
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
        cdef Spot spot
        cdef Message** at = message_at(self.tree.root, topic, n, &spot)
        cdef Message* message
        if at == NULL:
            return 0
        message = at[0]
        remove_message(&self.tree, at, &spot)
        self.count_message(message, -1)
        message_release(message)
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
        """Keep no more messages than this, and no more bytes of them and of the tree."""
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def search(self, bytes topic_filter not None, int qos=2, uint32_t identifier=0):
        """A search for the messages that match the filter, for `Session.pull_from`; None if surely none match.

        `qos` is the granted QoS, `identifier` the subscription identifier; 0 = none.
        """
        cdef const uint8_t* path = topic_filter
        cdef Spot spot
        cdef Py_ssize_t plain = 0                  # bytes before the first wildcard
        while plain < len(topic_filter) and path[plain] != c'+' and path[plain] != c'#':
            plain += 1
        if plain == len(topic_filter):
            if self.message_of(path, plain) == NULL:
                return None
        elif plain and not find_spot(self.tree.root, path, plain - 1, &spot):
            return None
        return RetainedSearch(self, topic_filter, qos, identifier)

    def hidden(self):
        """First levels that begin with $, which wildcards at the first level don't match: a list."""
        cdef Py_ssize_t n = 0
        cdef const uint8_t* text
        cdef uint32_t place = 0
        cdef Child child = next_child(self.tree.root, &place)
        cdef list found = []
        while child != NULL:
            text = text_of(self.tree.root, child, &n)
            if n and text[0] == c'$':
                found.append(text[:level_length(text, text + n)])
            child = next_child(self.tree.root, &place)
        return found

    def children(self, bytes parent, bytes after, int limit, int count_limit):
        """At most `limit` levels directly below `parent` (None: the first levels), oldest first.

        Returns a list of (level, bytes of its own message or -1, messages further below, of which at most
        `count_limit` are counted).

        Raises:
            KeyError: there is no `parent`, or no `after` below it, where the list continues (None: from the first).
        """
        cdef Branch* branch = self.tree.root
        cdef Spot spot
        cdef Child child
        cdef Py_ssize_t n = 0
        cdef const uint8_t* text
        cdef uint32_t place = 0, h = 0
        cdef list found = []
        if parent is not None:
            if not find_spot(branch, parent, len(parent), &spot):
                raise KeyError(parent)
            child = spot.branch.children[spot.place]
            text = text_of(spot.branch, child, &n)
            if spot.length < n:                        # within joined levels, of which the next is the only one here
                found.append(described_level(child, text + spot.length + 1, text + n, count_limit))
                if after is None:
                    return found
                if after != found[0][0]:
                    raise KeyError(after)
                return []
            if not is_branch(child):
                if after is not None:
                    raise KeyError(after)
                return found
            branch = branch_of(child)
        if after is not None:
            place = find_child(branch, after, len(after), &h)
            if place == NO_PLACE:
                raise KeyError(after)
            place += 1
        while len(found) < limit:
            child = next_child(branch, &place)
            if child == NULL:
                break
            text = text_of(branch, child, &n)
            found.append(described_level(child, text, text + n, count_limit))
        return found

    def matching(self, bytes topic_filter not None):
        """The messages that match the filter: yields (topic name, payload, QoS)."""
        cdef RetainedSearch search = RetainedSearch(self, topic_filter, 2, 0)
        cdef Message* m
        while search.step():
            m = search.found
            if m != NULL:
                yield m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos

    def described(self, bytes topic_filter not None):
        """The messages that match the filter: yields (topic name, payload, QoS, property block, expiry).

        The expiry is a time of the turn's clock; 0 = the message does not expire.
        """
        cdef RetainedSearch search = RetainedSearch(self, topic_filter, 2, 0)
        cdef Message* m
        while search.step():
            m = search.found
            if m != NULL:
                yield (
                    m.data[:m.topic_length], message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos,
                    message_properties(m)[:<Py_ssize_t>m.properties_length], m.expires,
                )


cdef tuple described_level(Child child, const uint8_t* text, const uint8_t* end, int count_limit):
    """The first level of a child's text; the bytes of its message, or -1; the messages further below."""
    cdef Py_ssize_t n = level_length(text, end)
    cdef Message* own = branch_of(child).message if is_branch(child) else <Message*>child
    cdef Py_ssize_t below = messages_below(branch_of(child), count_limit) if is_branch(child) else 0
    if text + n != end:
        return text[:n], -1, min(below + (own != NULL), count_limit)
    return text[:n], own.payload_length if own != NULL else -1, below


cdef Py_ssize_t messages_below(const Branch* top, Py_ssize_t most) noexcept:
    """Messages below a branch, of which at most `most` are counted."""
    cdef const Branch* branch = top
    cdef uint32_t place = 0
    cdef Py_ssize_t count = 0
    cdef Child child
    while count < most:
        child = next_child(branch, &place)
        if child == NULL:
            if branch == top:
                break
            place = branch.place + 1
            branch = branch.parent
        elif is_branch(child):
            branch = branch_of(child)
            place = 0
            count += branch.message != NULL
        else:
            count += 1
    return count


@cython.no_gc_clear                       # its end needs the tree
cdef class RetainedSearch(MessageSource):
    """A walk over the retained messages that match a filter."""

    def __init__(self, RetainedTree retained not None, bytes topic_filter not None, int qos, uint32_t identifier):
        cdef uint8_t data[5]
        cdef const uint8_t* path = topic_filter
        cdef Py_ssize_t i, levels = count_levels(path, len(topic_filter))
        self.retained = retained
        self.topic_filter = topic_filter
        self.starts = <uint32_t*>malloc((levels + 1) * sizeof(uint32_t))
        if self.starts == NULL:
            raise MemoryError
        levels = self.starts[0] = 0
        for i in range(len(topic_filter) + 1):
            if i == len(topic_filter) or path[i] == c'/':
                levels += 1
                self.starts[levels] = <uint32_t>(i + 1)
        self.all_below = path[self.starts[levels - 1]] == c'#'
        self.filter_depth = levels - self.all_below
        if self.filter_depth >= TENANT_LEVELS and begins_tenant(path, len(topic_filter)):
            self.own_level = TENANT_LEVELS
        self.free_depth = max(self.filter_depth, self.own_level + 1) if self.all_below else LEVELS_MAX
        self.qos = <uint8_t>qos
        self.identifiers = b""
        if identifier:
            data[0] = SUBSCRIPTION_IDENTIFIER
            self.identifiers = data[:1 + write_varint(data + 1, identifier)]
        stand_at(&retained.tree, &self.stand, retained.tree.root, 0)

    def __dealloc__(self):
        self.stop()
        free(self.starts)

    @property
    def is_over(self):
        """Whether all messages have been found."""
        return self.stand.branch == NULL

    def stop(self):
        """End the search: its subscription has ended."""
        if self.stand.branch != NULL:
            stand_at(&self.retained.tree, &self.stand, NULL, 0)

    cdef int step(self) except -1:
        """Look at the next child where the filter leaves a choice. 0: the search is over."""
        cdef Branch* branch = self.stand.branch
        cdef uint32_t place = self.stand.place
        cdef Child child
        self.found = NULL
        while branch != NULL:
            child = self.choose(branch, &place)
            if child != NULL:
                return self.visit(branch, place, child)
            place = branch.place + 1
            branch = branch.parent
        self.stop()
        return 0

    cdef Child choose(self, const Branch* branch, uint32_t* place) noexcept:
        """The next child of a branch that the filter may match, and the place with which to go on; NULL: no more."""
        cdef Py_ssize_t n = 0
        cdef const uint8_t* level
        cdef uint32_t found, h = 0
        if branch.depth >= self.filter_depth:
            return next_child(branch, place) if self.all_below else NULL
        if self.is_wild(branch.depth):
            return next_child(branch, place)
        if place[0]:
            return NULL                                # there was one at most
        place[0] = NO_PLACE
        level = self.level(branch.depth, &n)
        found = find_child(branch, level, n, &h)
        return branch.children[found] if found != NO_PLACE else NULL

    cdef int visit(self, Branch* branch, uint32_t place, Child child) except -1:
        """Stand at the child, if it is a branch whose path fits, else still at the branch before it. Returns 1."""
        cdef Py_ssize_t n = 0
        cdef const uint8_t* text = text_of(branch, child, &n)
        cdef Py_ssize_t depth = self.fit(text, n, branch.depth)
        cdef bint matches = depth >= self.filter_depth
        if depth >= 0 and is_branch(child):
            branch = branch_of(child)
            place = 0
            self.found = branch.message if matches else NULL
        elif matches:
            self.found = <Message*>child
        stand_at(&self.retained.tree, &self.stand, branch, place)
        return 1

    cdef Py_ssize_t fit(self, const uint8_t* text, Py_ssize_t n, Py_ssize_t depth) noexcept:
        """The depth that the filter has after these levels, which begin at a depth; -1: it does not match them."""
        cdef const uint8_t* end = text + n
        cdef const uint8_t* level
        cdef Py_ssize_t length
        while depth < self.free_depth:
            length = level_length(text, end)
            if depth >= self.filter_depth and not self.all_below:
                return -1
            if depth >= self.filter_depth or self.is_wild(depth):
                # Wildcards at the first level don't match topics that begin with $ [MQTT-4.7.2-1].
                if length and text[0] == c'$' and (depth == 0 or depth == self.own_level):
                    return -1
            else:
                level = self.level(depth, &n)
                if n != length or memcmp(level, text, n) != 0:
                    return -1
            depth += 1
            text += length
            if text == end:
                break
            text += 1
        return depth

    cdef const uint8_t* level(self, Py_ssize_t index, Py_ssize_t* n) noexcept:
        """A level of the filter."""
        n[0] = self.starts[index + 1] - self.starts[index] - 1
        return <const uint8_t*>self.topic_filter + self.starts[index]

    cdef bint is_wild(self, Py_ssize_t index) noexcept:
        """Whether a level of the filter is '+'."""
        return (<const uint8_t*>self.topic_filter)[self.starts[index]] == c'+'

    cdef int pull(self, Session session) except -1:
        cdef Message* m
        cdef const uint8_t* identifiers = self.identifiers
        cdef uint8_t qos
        if not self.step():
            return SOURCE_ENDED
        m = self.found
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
