# A shared subscription: a group of sessions, of which each message goes to one. See group.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from _speedups.session.group_keys cimport Key
from _speedups.session.group_queue cimport GroupQueue, Held, Waiting
from _speedups.session.group_settings cimport GroupSettings
from _speedups.session.membership cimport Membership
from _speedups.session.message cimport Message, Publication
from _speedups.session.outgoing_queue cimport Entry
from _speedups.session.session cimport Session

cdef class Member(Membership):
    cdef readonly Group group      # None: it has left
    cdef readonly Session session
    cdef bint listed               # in Group.connected
    cdef void* before              # Members of the ring of those with room ...
    cdef void* after               # ... not owned

    cdef bint has_room(self) noexcept
    cdef bint may_take(self, const Message* message) except -1
    cdef bint fits(self, const Message* message) noexcept
    cdef int returned(self, uint64_t place, Message* message, uint8_t qos) except -1


cdef class Group(GroupQueue):
    cdef readonly bytes topic_filter
    cdef readonly list members     # in the order of joining
    cdef list connected            # those with a connection, in that order ...
    cdef Py_ssize_t turn_of        # ... and the next of them to get a message of QoS 0
    cdef void* first_ready         # a ring of Members with room; NULL = none has
    cdef uint64_t next_place
    cdef dict restored_keys        # place -> hash of the publisher, until `configure` asks for it; or None
    cdef readonly uint64_t given, returned    # so far
    cdef readonly bint kept        # it is declared or has a persistent member, so its state is written to the journal
    cdef dict restored_places      # place -> Restored, while the store is read

    cdef bint pass_on(self, Publication* publication) except -1
    cdef int find_keys(self) except -1
    cdef int note_key(self, uint64_t place, const Message* message) except -1
    cdef int accept_message(self, uint64_t place, const Publication* publication, Message* message) except -1
    cdef int set_strategy(self) except -1
    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1
    cdef bint send_keyed(self, Key key, Waiting taken) except -1
    cdef int send_all_keyed(self) except -1
    cdef bint someone_takes(self, const Message* message) except -1
    cdef int record_key(self, uint64_t place) except -1
    cdef Member choose(self, const Publication* publication)
    cdef bint has_persistent(self) noexcept
    cdef int join(self, Member member) except -1
    cdef int unlist(self, Member member) except -1
    cdef int leave(self, Member member, bint session_ends) except -1
    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1
    cdef int hand(self, Member member, uint64_t place, Message* message, bint recorded) except -1
    cdef int come_back(self, uint64_t place, Message* message) except -1
    cdef int put_aside(self, Waiting taken) except -1
    cdef bint has_others(self) noexcept
    cdef int make_ready(self, Member member) except -1
    cdef int make_unready(self, Member member) except -1
    cdef int take_lease(self, uint64_t place, Message* message) except -1
    cdef int highest_qos(self) except -1
    cdef int stop_keeping(self, bint records) except -1
    cdef bint is_empty(self) noexcept
    cdef int room_changed(self) except -1
    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1
    cdef int keep(self) except -1
    cdef int put(self, Member member, uint64_t place, Message* message, uint8_t flags) except -1
    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1
    cdef int publish_dead(self) except -1
    cdef int end_dead(self, uint64_t place) except -1
    cdef int prune_failures(self) except -1


cdef class Begun(Held):
    cdef Group group               # as it was given: the member may have left it
    cdef Member member
    cdef uint8_t flags

cdef uint64_t put_entry(Session session, Member member, uint64_t place, Message* message, uint8_t flags) except 0
cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, bint counts) except -1
cdef int forget_given(Session session, bytes name) except -1
cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=*) except -1
cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL
cdef int give_back_unsent(Member member) except -1
