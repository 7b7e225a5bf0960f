# A tree of messages by topic name, in which levels without a choice are joined. Used by the retained messages.
#
# A topic name under which there is one message and nothing else is no node: the message, which has the name, stands
# among the children of a branch. A branch is where topic names part, or where one ends and others go on below it. Its
# text is one level or several. So there are fewer branches than messages, and most names cost a place only.
#
# Children stand in the order in which they came; one that goes leaves a hole, and holes are closed when they are many.
# A branch with many children has a hash table over their first levels. No function here recurses.
#
# A search stands at a branch. While it does the branch is neither joined nor removed, and its place follows when holes
# are closed.

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

from ..base.array cimport array_reserve_tight
from ..session.message cimport Message, message_release
from .topic_tree cimport level_hash, level_length

cdef enum:
    TABLE_FROM = 8             # children from which a branch has a table ...
    FIRST_BITS = 4             # ... of 16 slots at first
    HOLES_FREE = 8             # holes beside half as many as there are children
    CHILD_BYTES = 28           # that a child counts: its place, and one in a table at a usual load
    BRANCH_BYTES = 112         # that a branch counts besides its text
    OWN_TEXT = 29              # bytes of text for which a branch has room: they cost no further miss of the cache
    NO_PLACE = 0xffffffff      # there is no such child; of a search: no more children

ctypedef void* Child           # a Message*, or a Branch* plus 1

cdef struct Slot:
    uint32_t place             # plus 1; 0: free
    uint32_t hash

# What finding a child reads is at the front.
cdef struct Branch:
    uint8_t* text              # its levels below the parent, in `own_text` if they are short; the root has none
    Child* children            # the oldest first; NULL: a hole
    Slot* table                # children by hash of their first level, open addressing; or NULL
    uint32_t places            # children and holes
    uint16_t length            # of its text
    uint16_t start             # bytes of a topic name before the text of a child
    uint8_t table_bits         # the table has 2 to the power of so many slots
    uint8_t own_text[OWN_TEXT]
    uint16_t depth             # levels from the root to the end of its text
    Message* message           # of the topic name that ends here, or NULL; a reference of the tree
    Branch* parent             # NULL at the root
    Stand* stands              # of the searches that are here
    uint32_t place             # among the children of the parent
    uint32_t count             # children

# Where a search is; its owner gives it its memory.
cdef struct Stand:
    Branch* branch             # or NULL
    Stand* previous            # at the same branch
    Stand* next
    uint32_t place             # with which the search goes on

cdef struct Branches:
    Branch* root
    int64_t size               # bytes of branches and places

# The place of a topic name, or of the first levels of some.
cdef struct Spot:
    Branch* branch
    uint32_t place             # of the child in which it ends ...
    uint32_t hash              # ... and the hash of the child's first level, if the branch has a table
    Py_ssize_t length          # bytes of the child's text before that end


cdef inline bint is_branch(Child child) noexcept:
    return <size_t>child & 1


cdef inline Branch* branch_of(Child child) noexcept:
    return <Branch*>(<size_t>child - 1)


cdef inline Child child_of(Branch* branch) noexcept:
    return <Child>(<size_t>branch + 1)


cdef inline const uint8_t* text_of(const Branch* branch, Child child, Py_ssize_t* n) noexcept:
    """The levels of a child below the branch."""
    if is_branch(child):
        n[0] = branch_of(child).length
        return branch_of(child).text
    n[0] = (<Message*>child).topic_length - branch.start
    return (<Message*>child).data + branch.start


cdef inline Py_ssize_t common_levels(const uint8_t* a, Py_ssize_t a_length, const uint8_t* b,
                                     Py_ssize_t b_length) noexcept:
    """Bytes of the levels that both begin with; their first level is the same."""
    cdef Py_ssize_t i = 0, common = 0, n = min(a_length, b_length)
    while True:
        if (i == a_length or a[i] == c'/') and (i == b_length or b[i] == c'/'):
            common = i
        if i == n or a[i] != b[i]:
            return common
        i += 1


cdef inline Py_ssize_t count_levels(const uint8_t* text, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i, count = 1
    for i in range(n):
        count += text[i] == c'/'
    return count


# ---- the table of a branch ----

cdef inline uint32_t hash_of(const Branch* branch, Child child) noexcept:
    cdef Py_ssize_t n = 0
    cdef const uint8_t* text = text_of(branch, child, &n)
    return level_hash(text, level_length(text, text + n))


cdef inline void slot_put(Slot* table, uint32_t mask, uint32_t place, uint32_t h) noexcept:
    cdef uint32_t i = h & mask
    while table[i].place:
        i = (i + 1) & mask
    table[i] = Slot(place + 1, h)


cdef inline void slot_remove(Slot* table, uint32_t mask, uint32_t place, uint32_t h) noexcept:
    """Remove the slot of this place, and move back the slots that collisions had pushed on."""
    cdef uint32_t i = h & mask, k
    while table[i].place != place + 1:
        i = (i + 1) & mask
    k = i
    while True:
        k = (k + 1) & mask
        if not table[k].place:
            break
        if ((k - table[k].hash) & mask) >= ((k - i) & mask):
            table[i] = table[k]
            i = k
    table[i].place = 0


cdef inline uint32_t table_mask(const Branch* branch) noexcept:
    """The number of slots of the table, less one."""
    return (<uint32_t>1 << branch.table_bits) - 1


cdef inline void table_build(Branch* branch, const uint32_t* moved) noexcept:
    """A table at most three quarters full, if there are many children. If memory is out there is none: finding is slow.

    It has the children of the table before, whose places have become `moved` unless that is NULL; else all children.
    """
    cdef Slot* before = branch.table
    cdef uint32_t i, old_mask = table_mask(branch), bits = FIRST_BITS
    branch.table = NULL
    if branch.count >= TABLE_FROM:
        while <uint64_t>branch.count * 4 > <uint64_t>3 << bits:
            bits += 1
        branch.table = <Slot*>PyMem_Calloc(<size_t>1 << bits, sizeof(Slot))
    if branch.table != NULL:
        branch.table_bits = <uint8_t>bits
        if before != NULL:
            for i in range(old_mask + 1):
                if before[i].place:
                    slot_put(branch.table, table_mask(branch),
                             before[i].place - 1 if moved == NULL else moved[before[i].place - 1], before[i].hash)
        else:
            for i in range(branch.places):
                if branch.children[i] != NULL:
                    slot_put(branch.table, table_mask(branch), i, hash_of(branch, branch.children[i]))
    PyMem_Free(before)


# ---- children ----

cdef inline bint begins_with(const Branch* branch, Child child, const uint8_t* level, Py_ssize_t n) noexcept:
    cdef Py_ssize_t length = 0
    cdef const uint8_t* text = text_of(branch, child, &length)
    return length >= n and (length == n or text[n] == c'/') and memcmp(text, level, n) == 0


cdef inline uint32_t find_child(const Branch* branch, const uint8_t* level, Py_ssize_t n, uint32_t* h) noexcept:
    """The place of the child that begins with this level, or NO_PLACE. `h` gets the hash if there is a table."""
    cdef uint32_t i, mask
    if branch.table == NULL:
        for i in range(branch.places):
            if branch.children[i] != NULL and begins_with(branch, branch.children[i], level, n):
                return i
        return NO_PLACE
    h[0] = level_hash(level, n)
    mask = table_mask(branch)
    i = h[0] & mask
    while branch.table[i].place:
        if branch.table[i].hash == h[0] and begins_with(branch, branch.children[branch.table[i].place - 1], level, n):
            return branch.table[i].place - 1
        i = (i + 1) & mask
    return NO_PLACE


cdef inline void set_child(Branch* branch, uint32_t place, Child child) noexcept:
    """Put a child to this place. The child that was there has the same first level, or there was none."""
    branch.children[place] = child
    if is_branch(child):
        branch_of(child).parent = branch
        branch_of(child).place = place


cdef inline int add_child(Branches* tree, Branch* branch, Child child) noexcept:
    """Add the youngest child. -1: out of memory, and nothing has changed."""
    if array_reserve_tight(<void**>&branch.children, branch.places, sizeof(Child)) < 0:
        return -1
    set_child(branch, branch.places, child)
    branch.places += 1
    branch.count += 1
    tree.size += CHILD_BYTES
    if branch.table == NULL:
        table_build(branch, NULL)
        return 0
    if <uint64_t>branch.count * 4 > <uint64_t>3 << branch.table_bits:
        table_build(branch, NULL)
    if branch.table != NULL:
        slot_put(branch.table, table_mask(branch), branch.places - 1, hash_of(branch, child))
    return 0


cdef inline void close_holes(Branch* branch) noexcept:
    """Move all children to the front. If memory is out the holes stay."""
    cdef uint32_t* moved = <uint32_t*>PyMem_Malloc((<size_t>branch.places + 1) * sizeof(uint32_t))
    cdef uint32_t i, to = 0, room = 1
    cdef Stand* stand = branch.stands
    cdef void* smaller
    if moved == NULL:
        return
    for i in range(branch.places):
        moved[i] = to
        if branch.children[i] != NULL:
            set_child(branch, to, branch.children[i])
            to += 1
    moved[branch.places] = to
    while stand != NULL:
        if stand.place != NO_PLACE:
            stand.place = moved[stand.place]
        stand = stand.next
    branch.places = to
    while room < to:
        room *= 2
    smaller = PyMem_Realloc(branch.children, room * sizeof(Child))
    if smaller != NULL:
        branch.children = <Child*>smaller
    if branch.table != NULL:
        table_build(branch, moved)
    PyMem_Free(moved)


cdef inline void remove_child(Branches* tree, Branch* branch, uint32_t place, uint32_t h) noexcept:
    """Leave a hole; the child is the caller's. `h`: the hash of its first level."""
    if branch.table != NULL:
        slot_remove(branch.table, table_mask(branch), place, h)
    branch.children[place] = NULL
    branch.count -= 1
    tree.size -= CHILD_BYTES
    if branch.places > branch.count + branch.count // 2 + HOLES_FREE:
        close_holes(branch)


# ---- branches ----

cdef inline int64_t branch_bytes(Py_ssize_t length) noexcept:
    """Bytes that a branch with a text of this length counts."""
    return BRANCH_BYTES + length


cdef inline void text_free(Branch* branch) noexcept:
    if branch.text != branch.own_text:
        PyMem_Free(branch.text)


cdef inline void branch_release(Branch* branch) noexcept:
    text_free(branch)
    PyMem_Free(branch.children)
    PyMem_Free(branch.table)
    PyMem_Free(branch)


cdef inline Branch* branch_new(Branches* tree, const Branch* parent, const uint8_t* text, Py_ssize_t n) noexcept:
    """A branch without children, with room for two; NULL: out of memory. `parent` NULL: the root."""
    cdef Branch* branch = <Branch*>PyMem_Calloc(1, sizeof(Branch))
    if branch == NULL:
        return NULL
    if parent != NULL:
        branch.text = branch.own_text
        if n > OWN_TEXT:
            branch.text = <uint8_t*>PyMem_Malloc(n)
        branch.children = <Child*>PyMem_Calloc(2, sizeof(Child))
        if branch.text == NULL or branch.children == NULL:
            branch_release(branch)
            return NULL
        memcpy(branch.text, text, n)
        branch.length = <uint16_t>n
        branch.start = <uint16_t>(parent.start + n + 1)
        branch.depth = <uint16_t>(parent.depth + count_levels(text, n))
        tree.size += branch_bytes(n)
    return branch


cdef inline void branch_free(Branches* tree, Branch* branch) noexcept:
    """Free a branch; its message and its children have another owner."""
    tree.size -= branch_bytes(branch.length)
    branch_release(branch)


cdef inline Branch* split(Branches* tree, Branch* branch, uint32_t place, Py_ssize_t n) noexcept:
    """A new branch for the first `n` bytes of a child's text, in the place of the child, which is below it then.

    NULL: out of memory, and nothing has changed.
    """
    cdef Child child = branch.children[place]
    cdef Branch* below
    cdef Py_ssize_t length = 0
    cdef const uint8_t* text = text_of(branch, child, &length)
    cdef Branch* made = branch_new(tree, branch, text, n)
    if made == NULL:
        return NULL
    if length == n:                                   # a message
        made.message = <Message*>child
    else:
        if is_branch(child):
            below = branch_of(child)
            below.length -= <uint16_t>(n + 1)
            memmove(below.text, below.text + n + 1, below.length)
            tree.size -= n + 1
        made.places = made.count = 1                  # there is room
        tree.size += CHILD_BYTES
        set_child(made, 0, child)
    set_child(branch, place, child_of(made))
    return made


cdef inline bint join(Branches* tree, Branch* branch, Branch* below) noexcept:
    """Let the only child take the place of a branch without message, with the text of both. False: out of memory."""
    cdef Py_ssize_t n = branch.length + 1
    cdef uint8_t* text = below.own_text
    if n + below.length > OWN_TEXT:
        text = <uint8_t*>PyMem_Malloc(n + below.length)
        if text == NULL:
            return False
    memmove(text + n, below.text, below.length)
    memcpy(text, branch.text, branch.length)
    text[n - 1] = c'/'
    if text != below.text:
        text_free(below)
    below.text = text
    below.length += <uint16_t>n
    tree.size += n
    return True


cdef inline Child only_child(const Branch* branch) noexcept:
    cdef uint32_t i = 0
    while branch.children[i] == NULL:
        i += 1
    return branch.children[i]


cdef inline void tidy(Branches* tree, Branch* branch) noexcept:
    """Remove a branch that is needed no more: with a message alone, a child alone, or nothing."""
    cdef Branch* parent
    cdef Child child
    while branch.parent != NULL and branch.stands == NULL and branch.count + (branch.message != NULL) < 2:
        parent = branch.parent
        if branch.message == NULL and branch.count == 0:
            remove_child(tree, parent, branch.place, hash_of(parent, child_of(branch)))
            branch_free(tree, branch)
            branch = parent
            continue
        child = <Child>branch.message if branch.message != NULL else only_child(branch)
        if is_branch(child) and not join(tree, branch, branch_of(child)):
            return
        if branch.count:
            tree.size -= CHILD_BYTES
        set_child(parent, branch.place, child)
        branch_free(tree, branch)
        return


# ---- topic names ----

cdef inline bint find_spot(Branch* branch, const uint8_t* topic, Py_ssize_t n, Spot* spot) noexcept:
    """Where these levels end in the tree; False: no topic name begins with them."""
    cdef const uint8_t* text
    cdef Py_ssize_t length = 0, rest
    cdef uint32_t place, h = 0
    while True:
        rest = n - branch.start
        place = find_child(branch, topic + branch.start, level_length(topic + branch.start, topic + n), &h)
        if place == NO_PLACE:
            return False
        text = text_of(branch, branch.children[place], &length)
        if rest <= length or not is_branch(branch.children[place]):
            spot[0] = Spot(branch, place, h, rest)
            return (rest <= length and memcmp(text, topic + branch.start, rest) == 0
                    and (rest == length or text[rest] == c'/'))
        if topic[branch.start + length] != c'/' or memcmp(text, topic + branch.start, length) != 0:
            return False
        branch = branch_of(branch.children[place])


cdef inline Message** message_at(Branch* root, const uint8_t* topic, Py_ssize_t n, Spot* spot) noexcept:
    """Where the tree has the message of a topic name; NULL: it has none. `spot` gets its place."""
    cdef Child* child
    cdef Branch* branch
    if not find_spot(root, topic, n, spot):
        return NULL
    child = &spot.branch.children[spot.place]
    if not is_branch(child[0]):
        return <Message**>child if (<Message*>child[0]).topic_length == n else NULL
    branch = branch_of(child[0])
    return &branch.message if branch.length == spot.length and branch.message != NULL else NULL


cdef inline int put_message(Branches* tree, Message* message) noexcept:
    """Add a message whose topic name has none. -1: out of memory, and nothing has changed."""
    cdef const uint8_t* topic = message.data
    cdef const uint8_t* text
    cdef Branch* branch = tree.root
    cdef Py_ssize_t common, length = 0, rest
    cdef uint32_t place, h = 0
    while True:
        rest = message.topic_length - branch.start
        if rest < 0:                                  # the topic name ends with the branch
            branch.message = message
            return 0
        place = find_child(branch, topic + branch.start,
                           level_length(topic + branch.start, topic + message.topic_length), &h)
        if place == NO_PLACE:
            if add_child(tree, branch, message) < 0:
                tidy(tree, branch)                    # it may have been made for the message
                return -1
            return 0
        text = text_of(branch, branch.children[place], &length)
        common = common_levels(text, length, topic + branch.start, rest)
        if common < length or not is_branch(branch.children[place]):
            branch = split(tree, branch, place, common)
            if branch == NULL:
                return -1
        else:
            branch = branch_of(branch.children[place])


cdef inline void remove_message(Branches* tree, Message** at, const Spot* spot) noexcept:
    """Remove a message that `message_at` has found; its reference is the caller's."""
    cdef Child child = spot.branch.children[spot.place]
    if is_branch(child):
        at[0] = NULL
        tidy(tree, branch_of(child))
    else:
        remove_child(tree, spot.branch, spot.place, spot.hash)
        tidy(tree, spot.branch)


cdef inline Child next_child(const Branch* branch, uint32_t* place) noexcept:
    """The child at this place or after it, and the place after that; NULL: there are no more."""
    cdef Child child = NULL
    while child == NULL and place[0] < branch.places:
        child = branch.children[place[0]]
        place[0] += 1
    return child


cdef inline void branches_free(Branch* root) noexcept:
    """Free all branches, and release all messages: the youngest child first, and a branch after its children."""
    cdef Branch* branch = root
    cdef Branch* parent
    cdef Child child
    while branch != NULL:
        if branch.places == 0:
            parent = branch.parent
            if branch.message != NULL:
                message_release(branch.message)
            branch_release(branch)
            branch = parent
            continue
        branch.places -= 1
        child = branch.children[branch.places]
        if child != NULL and is_branch(child):
            branch = branch_of(child)
        elif child != NULL:
            message_release(<Message*>child)


# ---- searches ----

cdef inline void stand_at(Branches* tree, Stand* stand, Branch* branch, uint32_t place) noexcept:
    """Move a search to a place of a branch; NULL: to nowhere. The branch that it leaves may be needed no more."""
    cdef Branch* left = stand.branch
    stand.place = place
    if branch == left:
        return
    if left != NULL:
        if stand.next != NULL:
            stand.next.previous = stand.previous
        if stand.previous != NULL:
            stand.previous.next = stand.next
        else:
            left.stands = stand.next
    stand.branch = branch
    if branch != NULL:
        stand.previous = NULL
        stand.next = branch.stands
        if branch.stands != NULL:
            branch.stands.previous = stand
        branch.stands = stand
    if left != NULL:
        tidy(tree, left)
