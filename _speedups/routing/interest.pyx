"""The topic filters of a tree that have subscribers, as they are reported to another broker."""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free

from ..base.array cimport array_reserve
from .plans cimport KEEPS_RETAIN, SubscriptionEntry
from .subscriptions cimport SubscriptionTree, path_of
from .topic_tree cimport (
    HASH, PLUS, Node, level_hash, node_child, node_hash, node_path, node_plus,
)
from ..session.subscriber cimport LOG, PEER, Subscriber

cdef enum:
    ROUTE_OF_PERSISTENT = KEEPS_RETAIN     # option of a peer's subscription: only persistent sessions have the filter
    PLACES_MAX = 512           # nodes that may cover one filter; with more it counts as not covered
    PATH_MAX = 256             # levels of a filter that may be covered

cdef struct Place:
    Node* node
    uint32_t depth             # levels above it
    bint below_hash            # the scope's '#' stands for its level


def wanted_filters(SubscriptionTree tree not None, list scope not None, passed_over not None, int most, int visits):
    """The topic filters that overlap a scope and have a subscriber; without filters that another of them covers.

    The message log is no subscriber. A route of another node counts only if a clean session is behind it: persistent
    ones are in the tree themselves.

    Args:
        tree: of the node.
        scope: the levels of a topic filter.
        passed_over: client ids of sessions that do not count.
        most: filters that are returned.
        visits: nodes of the tree that are looked at.

    Returns:
        A list of filters; None: there are more, or `visits` do not suffice.
    """
    cdef Place* places = NULL
    cdef Py_ssize_t count = 0, capacity = 0
    cdef Place place
    cdef list found = []
    try:
        if array_reserve(<void**>&places, 1, &capacity, sizeof(Place)) < 0:
            raise MemoryError
        places[0] = Place(tree.root, 0, False)
        count = 1
        while count:
            count -= 1
            place = places[count]
            visits -= 1
            if visits < 0:
                return None
            if (is_within(place, scope) and place.node.count and is_wanted(place.node, passed_over)
                    and not is_covered(tree.root, place.node, passed_over)):
                if len(found) == most:
                    return None
                found.append(path_of(place.node))
            if array_reserve(<void**>&places, count + place.node.children, &capacity, sizeof(Place)) < 0:
                raise MemoryError
            count += push_children(places + count, place, scope)
        return found
    finally:
        free(places)


cdef bint is_within(Place place, list scope) except -1:
    """Whether the filter that ends at the node overlaps the scope; its levels before do."""
    cdef Py_ssize_t n = len(scope)
    if place.depth == 0:
        return False
    return (place.below_hash or place.depth == <uint32_t>n or is_level(place.node, c'#')
            or (place.depth + 1 == <uint32_t>n and scope[place.depth] == b"#"))


cdef Py_ssize_t push_children(Place* to, Place place, list scope) except -1:
    """Write the children whose levels overlap the levels of the scope; returns their number."""
    cdef Py_ssize_t n = len(scope), count = 0
    cdef Node* node = place.node
    cdef Node* child
    cdef bytes level
    cdef bint below_hash = place.below_hash
    if node.child == NULL:                            # as '#' is always
        return 0
    if not below_hash and place.depth == <uint32_t>n:
        if node.wild & HASH:                          # it matches the parent level too [MQTT-4.7.1-2]
            to[0] = Place(node_hash(node), place.depth + 1, False)
            return 1
        return 0
    if not below_hash:
        level = scope[place.depth]
        below_hash = level == b"#"
        if not below_hash and level != b"+":
            if place.depth or not level.startswith(b"$"):              # [MQTT-4.7.2-1]
                if node.wild & HASH:
                    to[count] = Place(node_hash(node), place.depth + 1, False)
                    count += 1
                if node.wild & PLUS:
                    to[count] = Place(node_plus(node), place.depth + 1, False)
                    count += 1
            child = node_child(node, <const uint8_t*>level, len(level), level_hash(<const uint8_t*>level, len(level)))
            if child != NULL:
                to[count] = Place(child, place.depth + 1, False)
                count += 1
            return count
    child = node.child
    while child != NULL:
        if place.depth or child.length == 0 or child.level[0] != c'$':
            to[count] = Place(child, place.depth + 1, below_hash)
            count += 1
        child = child.next
    return count


cdef bint is_level(const Node* node, uint8_t wildcard) noexcept:
    return node.length == 1 and node.level[0] == wildcard


cdef bint is_wanted(const Node* node, object passed_over) except -1:
    """Whether a subscriber of the node counts."""
    cdef SubscriptionEntry* entry = <SubscriptionEntry*>node.value
    cdef SubscriptionEntry* end = entry + node.count
    cdef Subscriber subscriber
    while entry < end:
        subscriber = <Subscriber>entry.subscriber
        if subscriber.kind == PEER:
            if not entry.options & ROUTE_OF_PERSISTENT:
                return True
        elif subscriber.kind != LOG and subscriber.client_id not in passed_over:
            return True
        entry += 1
    return False


cdef bint is_covered(Node* root, Node* node, object passed_over) except -1:
    """Whether another filter of the tree, with a subscriber that counts, matches all that the node's filter matches."""
    cdef Node* path[PATH_MAX]
    cdef Place places[PLACES_MAX]
    cdef Place at
    cdef Py_ssize_t count = 1, n = 0
    cdef Node* level = node
    cdef bint hidden
    cdef Node* child
    while level != root:
        if n == PATH_MAX:
            return False
        path[n] = level
        n += 1
        level = level.parent
    places[0] = Place(root, 0, False)
    while count:
        count -= 1
        at = places[count]
        hidden = at.depth == 0 and path[n - 1].length and path[n - 1].level[0] == c'$'
        if at.node.wild & HASH and not hidden:
            child = node_hash(at.node)
            if child != node and child.count and is_wanted(child, passed_over):
                return True
        if at.depth == <uint32_t>n:
            if at.node != node and at.node.count and is_wanted(at.node, passed_over):
                return True
            continue
        level = path[n - 1 - at.depth]
        if is_level(level, c'#'):
            continue                                  # only '#' covers it, see above
        if count + 2 > PLACES_MAX:
            return False
        if at.node.wild & PLUS and not hidden:
            places[count] = Place(node_plus(at.node), at.depth + 1, False)
            count += 1
        if not is_level(level, c'+'):
            child = node_child(at.node, level.level, level.length, level.hash)
            if child != NULL:
                places[count] = Place(child, at.depth + 1, False)
                count += 1
    return False
