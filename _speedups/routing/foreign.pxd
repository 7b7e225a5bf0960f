# Sessions that are at other nodes, with their topic filters, and the routes of these nodes. See foreign.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ..base.arena cimport Arena, Ref
from ..base.segments cimport Table

cdef enum:
    SHAPES_MAX = 64            # other filters have no room here: a topic name of 64 KiB takes up to a millisecond
    SHAPE_LEVELS = 64          # of a filter, without '#'
    PROBES = 16                # filters that are looked up at once
    ROUTE = 128                # an option of a holder, beside the options of a subscription: it is a node

# All filters with the same number of levels, '+' at the same levels, and '#' or not.
cdef struct Shape:
    uint64_t plus              # bits of the levels that are '+'
    uint32_t count             # filters
    uint8_t levels             # without '#'
    uint8_t below              # it ends in '#'

# A session or a node that has a matching filter.
cdef struct Match:
    Ref holder                 # of the session, or the number of the node
    uint8_t options            # with ROUTE for a node

cdef struct Probe:
    uint64_t hash
    const uint8_t* text        # a filter that matches, if it is there
    uint64_t* entry            # or NULL
    uint32_t length


cdef class ForeignTable:
    cdef Arena arena
    cdef Table by_client_id, by_filter
    cdef uint64_t seed
    cdef Shape shapes[SHAPES_MAX]
    cdef uint32_t shape_count
    cdef readonly uint64_t subscriptions, routes
    cdef uint8_t ended[8192]           # a bit for each node that has ended and still has routes here
    cdef uint32_t swept                # segments in which no ended node has a route
    cdef Match* matches                # of the last topic name
    cdef Py_ssize_t match_count, match_capacity
    cdef uint8_t* texts                # of the filters that are looked up
    cdef Py_ssize_t texts_capacity

    cpdef int add(self, bytes client_id, uint64_t incarnation) except -1
    cpdef bint remove(self, bytes client_id) except -1
    cpdef object incarnation_of(self, bytes client_id)
    cpdef bint has_room(self, bytes topic_filter) noexcept
    cpdef bint subscribe(self, bytes client_id, bytes topic_filter, uint8_t options) except -1
    cpdef bint unsubscribe(self, bytes client_id, bytes topic_filter) except -1
    cpdef list subscriptions_of(self, bytes client_id)
    cpdef bint route(self, uint32_t node, bytes topic_filter, uint8_t options) except -1
    cpdef bint unroute(self, uint32_t node, bytes topic_filter) except -1
    cdef Ref new_session(self, const uint8_t* client_id, Py_ssize_t n, uint64_t h, uint64_t incarnation) except 0
    cdef bint subscribe_session(self, Ref session, bytes topic_filter, uint64_t h, uint8_t options) except -1
    cdef bytes client_id_at(self, Ref session)
    cdef uint64_t incarnation_at(self, Ref session) noexcept
    cdef uint32_t held_by(self, Ref session) noexcept
    cdef Ref session_of(self, bytes client_id) noexcept
    cdef Ref find_session(self, const uint8_t* client_id, Py_ssize_t n, uint64_t h) noexcept
    cdef Ref find_filter(self, const uint8_t* text, Py_ssize_t n, uint64_t h) noexcept
    cdef Ref make_filter(self, const uint8_t* text, Py_ssize_t n, uint64_t h) except 0
    cdef int end_filter(self, Ref ref) except -1
    cdef int add_holder(self, Ref ref, uint64_t holder, uint8_t options) except -1
    cdef int remove_holder(self, Ref ref, uint32_t position) except -1
    cdef int note_position(self, Ref session, Ref ref, uint32_t position) noexcept
    cdef Py_ssize_t entry_of(self, Ref session, Ref ref) noexcept
    cdef int remove_entry(self, Ref session, uint32_t index) except -1
    cdef Py_ssize_t route_of(self, Ref ref, uint32_t node) noexcept
    cdef Shape* shape_of(self, const Shape* shape) noexcept
    cdef bint is_ended(self, uint32_t node) noexcept
    cdef int find_matches(self, const uint8_t* topic, Py_ssize_t n) except -1
    cdef bint is_filter(self, Ref ref, const uint8_t* text, Py_ssize_t n) noexcept
    cdef int move_holder(self, Ref ref, uint8_t* items, uint32_t position, uint32_t to) noexcept
    cdef tuple described(self, Ref session)
    cdef list filters_of(self, Ref session)
    cdef int look_up(self, Probe* probes, int count) except -1
    cdef int collect(self, Ref ref) except -1
