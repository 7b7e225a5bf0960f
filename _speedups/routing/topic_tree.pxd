# A tree of topic levels, one node a level, independent of the values in its nodes. Used by topic filters.
#
# Children form a ring of siblings, '+' and '#' first and then the oldest first; a node with many also has a hash table
# over them. No function here recurses: a topic of 32 767 levels costs loops, not stack (CVE-2019-11779).
#
# Matching is bound by memory: each node that it visits, and each that it compares, is a miss of the cache. So the table
# holds the hashes, and the fields of a node that matching reads are together. With a level of up to 16 bytes a node
# takes 80 bytes.

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from ..session.tenant cimport Tenant, Tenants

cdef enum:
    TABLE_FROM = 8             # children from which a node has a table ...
    FIRST_BITS = 5             # ... of 32 places at first
    PLUS = 1                   # bits of Node.wild: a child '+' ...
    HASH = 2                   # ... or '#' exists
    LEVEL_PART = 8             # bytes of the level in Node, so that it has no padding; all others follow

cdef struct Slot:
    Node* node                 # or NULL
    uint32_t hash

cdef struct Node:
    Node* parent               # NULL at the root
    Node* previous             # sibling; at the first: the last
    Slot* table                # children by hash of their level, open addressing; or NULL. Matching reads all from here
    Node* child                # the first child; its `previous` is the last
    Node* next                 # sibling, NULL at the last
    void* value                # value of the tree's owner; a node without value and child is removed
    uint32_t children
    uint32_t count             # for the owner: items in `value`
    uint32_t hash
    uint16_t length            # of the level
    uint8_t wild
    uint8_t table_bits         # the table has 2 to the power of so many places
    uint8_t level[LEVEL_PART]


# Bytes by which nodes grow a tree. Those below its first level are of one tenant, or of none.
cdef struct Growth:
    int64_t total
    int64_t below_first


cdef inline uint32_t level_hash(const uint8_t* p, Py_ssize_t n) noexcept:
    """FNV-1a: levels are short."""
    cdef uint32_t h = 2166136261u
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ p[i]) * 16777619u
    return h


cdef inline Py_ssize_t level_length(const uint8_t* p, const uint8_t* end) noexcept:
    """Bytes until the next '/' or the end."""
    cdef const uint8_t* start = p
    while p < end and p[0] != c'/':
        p += 1
    return p - start


cdef inline Node* node_new(Node* parent, const uint8_t* level, Py_ssize_t n, uint32_t h) noexcept:
    cdef Node* node = <Node*>PyMem_Calloc(1, sizeof(Node) - LEVEL_PART + n)
    if node != NULL:
        node.parent = parent
        node.hash = h
        node.length = <uint16_t>n
        memcpy(node.level, level, n)
    return node


cdef inline uint32_t table_mask(const Node* node) noexcept:
    """The number of places of the table, less one."""
    return (<uint32_t>1 << node.table_bits) - 1


cdef inline void table_put(Node* node, Node* child) noexcept:
    cdef uint32_t mask = table_mask(node), i = child.hash & mask
    while node.table[i].node != NULL:
        i = (i + 1) & mask
    node.table[i] = Slot(child, child.hash)


cdef inline void table_build(Node* node) noexcept:
    """A table with all children, at most three quarters full. If memory is out there is none: the ring is complete."""
    cdef Node* child = node.child
    free(node.table)
    node.table_bits = FIRST_BITS
    while node.children * 4 > (table_mask(node) + 1) * 3:
        node.table_bits += 1
    node.table = <Slot*>calloc(table_mask(node) + 1, sizeof(Slot))
    while child != NULL and node.table != NULL:
        table_put(node, child)
        child = child.next


cdef inline Node* node_child(const Node* node, const uint8_t* level, Py_ssize_t n, uint32_t h) noexcept:
    """The child with this level, or NULL."""
    cdef Node* child
    cdef uint32_t i, mask
    if node.table == NULL:
        child = node.child
        while child != NULL and (child.hash != h or child.length != n or memcmp(child.level, level, n) != 0):
            child = child.next
        return child
    mask = table_mask(node)
    i = h & mask
    while True:
        child = node.table[i].node
        if child == NULL or (node.table[i].hash == h and child.length == n and memcmp(child.level, level, n) == 0):
            return child
        i = (i + 1) & mask


cdef inline Node* node_plus(const Node* node) noexcept:
    """The child '+' of a node that has it."""
    return node.child


cdef inline Node* node_hash(const Node* node) noexcept:
    """The child '#' of a node that has it."""
    return node.child.next if node.wild & PLUS else node.child


cdef inline void ring_insert(Node* node, Node* child, Node* after) noexcept:
    """Put a child into the ring of siblings, after this one; NULL: as the first."""
    if after == NULL:
        child.next = node.child
        child.previous = child if node.child == NULL else node.child.previous
        node.child = child
    else:
        child.next = after.next
        child.previous = after
        after.next = child
    if child.next != NULL:
        child.next.previous = child
    else:
        node.child.previous = child


cdef inline Node* node_add(Node* node, const uint8_t* level, Py_ssize_t n, uint32_t h) noexcept:
    """A new youngest child. NULL: out of memory."""
    cdef Node* child = node_new(node, level, n, h)
    if child == NULL:
        return NULL
    if n == 1 and level[0] == c'+':
        ring_insert(node, child, NULL)
        node.wild |= PLUS
    elif n == 1 and level[0] == c'#':
        ring_insert(node, child, node_plus(node) if node.wild & PLUS else NULL)
        node.wild |= HASH
    else:
        ring_insert(node, child, node.child.previous if node.child != NULL else NULL)
    node.children += 1
    if node.table != NULL and node.children * 4 <= (table_mask(node) + 1) * 3:
        table_put(node, child)
    elif node.children >= TABLE_FROM:
        table_build(node)
    return child


cdef inline void table_remove(Node* node, Node* child) noexcept:
    """Remove the child, and move back the entries that collisions had pushed on."""
    cdef uint32_t mask = table_mask(node)
    cdef uint32_t i = child.hash & mask
    cdef uint32_t k, home
    while node.table[i].node != child:
        i = (i + 1) & mask
    k = i
    while True:
        k = (k + 1) & mask
        if node.table[k].node == NULL:
            break
        home = node.table[k].hash & mask
        if ((k - home) & mask) >= ((k - i) & mask):
            node.table[i] = node.table[k]
            i = k
    node.table[i].node = NULL


cdef inline void node_remove(Node* child) noexcept:
    """Unhook a node without children from its parent and free it."""
    cdef Node* node = child.parent
    if node.table != NULL:
        table_remove(node, child)
    if child.next != NULL:
        child.next.previous = child.previous
    elif node.child != child:
        node.child.previous = child.previous
    if node.child == child:
        node.child = child.next
    else:
        child.previous.next = child.next
    node.children -= 1
    if child.length == 1 and child.level[0] == c'+':
        node.wild &= ~PLUS
    elif child.length == 1 and child.level[0] == c'#':
        node.wild &= ~HASH
    free(child.table)
    PyMem_Free(child)


cdef inline int64_t level_bytes(Py_ssize_t n) noexcept:
    """Bytes that a node with a level of this length counts: its own, and of a place in a table.

    They depend on nothing else, so the same number is added when a node is made and taken when it is removed.
    """
    return <int64_t>((sizeof(Node) - LEVEL_PART + n + 15) & ~15) + <int64_t>sizeof(Slot)


cdef inline bint is_needless(const Node* node) noexcept:
    return node.parent != NULL and node.child == NULL and node.value == NULL


cdef inline void node_prune(Node* node, Growth* growth) noexcept:
    """Remove the node and then its ancestors, as long as they are empty."""
    cdef Node* parent
    cdef int64_t size
    while is_needless(node):
        parent = node.parent
        size = level_bytes(node.length)
        growth.total -= size
        growth.below_first -= size if parent.parent != NULL else 0
        node_remove(node)
        node = parent


cdef inline int64_t missing_bytes(Node* node, const uint8_t* path, Py_ssize_t n) noexcept:
    """Bytes of the nodes that `node_at` would make."""
    cdef const uint8_t* p = path
    cdef const uint8_t* end = path + n
    cdef Py_ssize_t length
    cdef int64_t size = 0
    while True:
        length = level_length(p, end)
        if node != NULL:
            node = node_child(node, p, length, level_hash(p, length))
        if node == NULL:
            size += level_bytes(length)
        p += length
        if p == end:
            return size
        p += 1


cdef inline Node* node_at(Node* node, const uint8_t* path, Py_ssize_t n, Growth* growth) noexcept:
    """The node of a topic name or filter below the root; if missing, it is made. NULL `growth`: it is not made."""
    cdef const uint8_t* p = path
    cdef const uint8_t* end = path + n
    cdef Py_ssize_t length
    cdef uint32_t h
    cdef Node* child
    while True:
        length = level_length(p, end)
        h = level_hash(p, length)
        child = node_child(node, p, length, h)
        if child == NULL:
            if growth == NULL:
                return NULL
            child = node_add(node, p, length, h)
            if child == NULL:
                node_prune(node, growth)
                return NULL
            growth.total += level_bytes(length)
            growth.below_first += level_bytes(length) if node.parent != NULL else 0
        node = child
        p += length
        if p == end:
            return node
        p += 1


cdef inline Py_ssize_t node_path(const Node* node, uint8_t* path) noexcept:
    """Length in bytes of the node's topic name or filter, which is written to `path` unless that is NULL."""
    cdef const Node* n = node
    cdef Py_ssize_t size = 0
    cdef uint8_t* p
    while n.parent != NULL:
        size += n.length + (n.parent.parent != NULL)
        n = n.parent
    if path != NULL:
        p = path + size
        n = node
        while n.parent != NULL:
            p -= n.length
            memcpy(p, n.level, n.length)
            n = n.parent
            if n.parent != NULL:
                p -= 1
                p[0] = c'/'
    return size


cdef inline Node* node_after(Node* node, bint deeper) noexcept:
    """The node after this one, parents before children; without `deeper`, past all below it. NULL: no more."""
    if deeper and node.child != NULL:
        return node.child
    while node.parent != NULL:
        if node.next != NULL:
            return node.next
        node = node.parent
    return NULL


cdef inline void tree_free(Node* root, void (*drop)(void*) noexcept) noexcept:
    """Free the tree, and each value with `drop`. Leaves first: down to a leaf, then to its sibling or its parent."""
    cdef Node* node = root
    cdef Node* parent
    while node != NULL:
        if node.child != NULL:
            parent = node
            node = node.child
            parent.child = node.next
        else:
            parent = node.parent
            if node.value != NULL:
                drop(node.value)
            free(node.table)
            PyMem_Free(node)
            node = parent


cdef class TopicTree:
    cdef Node* root
    cdef readonly uint64_t size        # bytes of its nodes, and of the owner's data in them
    cdef Tenants tenants               # of the node; None: their content is not counted

    cdef Node* make(self, const uint8_t* path, Py_ssize_t n) except NULL
    cdef int prune(self, Node* node) except -1
    cdef int grow(self, Tenant tenant, int64_t total, int64_t of_tenant) except -1
    cdef Tenant tenant_of(self, const Node* node)
