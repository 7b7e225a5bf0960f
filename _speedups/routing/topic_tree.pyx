"""The memory of a topic tree: each node counts once, from when the first filter needs it to its removal.

So limits hold for the memory itself: a filter of 200 levels takes 16 KiB, and a thousand filters below one share its
nodes. A node is of the tenant below whose name it is.
"""

from libc.string cimport memcmp

from ..codec.tenants cimport TENANT_SIZE


cdef class TopicTree:
    """A tree of topic levels that counts its bytes; the base of the tree of filters."""

    def __cinit__(self):
        self.root = node_new(NULL, b"", 0, 0)
        if self.root == NULL:
            raise MemoryError

    def set_tenants(self, Tenants tenants not None):
        """Count what these tenants have; to be called while the tree is empty."""
        self.tenants = tenants

    cdef Node* make(self, const uint8_t* path, Py_ssize_t n) except NULL:
        """The node of a topic name or filter, made if it is missing."""
        cdef Growth made = Growth(0, 0)
        cdef Node* node = node_at(self.root, path, n, &made)
        if node == NULL:
            raise MemoryError
        if made.total:
            self.grow(self.tenant_of(node), made.total, made.below_first)
        return node

    cdef int prune(self, Node* node) except -1:
        """Remove the node and then its ancestors, as long as they are empty."""
        cdef Growth freed = Growth(0, 0)
        cdef Tenant tenant
        if is_needless(node):
            tenant = self.tenant_of(node)
            node_prune(node, &freed)
            self.grow(tenant, freed.total, freed.below_first)
        return 0

    cdef int grow(self, Tenant tenant, int64_t total, int64_t of_tenant) except -1:
        """Count so many bytes more, for the tenant too, if there is one."""
        self.size += total
        return 0

    cdef Tenant tenant_of(self, const Node* node):
        """The tenant below whose name the node is; None: there is none. `+` is the name of none."""
        cdef const Node* second = NULL
        cdef const Node* first = node
        cdef bytes prefix
        if self.tenants is None or node.parent == NULL:
            return None
        while first.parent.parent != NULL:
            second = first
            first = first.parent
        if (second == NULL or first.length != TENANT_SIZE - 1 or memcmp(first.level, b"$tenant", TENANT_SIZE - 1) != 0
                or (second.length == 1 and (second.level[0] == c'+' or second.level[0] == c'#'))):
            return None
        prefix = b"$tenant/" + second.level[:second.length] + b"/"
        return self.tenants.of(prefix, len(prefix))
