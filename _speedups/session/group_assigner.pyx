"""Gives each message of a shared subscription to one member: to the next that has room and may have it.

With order by key, a message goes to the member that has the messages of its key, or waits until its turn.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0
from .counters cimport SHARED_DISCARDED, SHARED_GIVEN
from .group_backlog cimport Backlog
from .group_failures cimport Failures
from .group_keys cimport Key, KeyTable, key_of
from .group_members cimport MAXIMUM_QOS, Member, put_entry
from .group_queue cimport Held, Waiting, WaitingQueue
from .group_rotation cimport Rotation
from .membership cimport SessionGroup
from .message cimport Message, Publication, message_hold, message_release
from .outgoing_queue cimport RETAIN_AS_PUBLISHED
from .session cimport Session

cdef enum:
    KEEPS_RETAIN = 8           # Retain As Published, of the options of a subscription


@cython.final
cdef class Assigner:
    """Gives the messages of a group without members.

    Args:
        group: whose messages they are.
        members: the list of its members.
        rotation: of its members.
        backlog: its messages that no member has.
    """

    def __init__(self, SessionGroup group not None, list members not None, Rotation rotation not None,
                 Backlog backlog not None):
        self.group = group
        self.members = members
        self.rotation = rotation
        self.backlog = backlog

    # ---- giving ----

    cdef int give_new(self, uint64_t place, const Publication* publication, Message* message) except -1:
        """Give a new message to the next member with room, or to the member of its key; else it waits."""
        cdef Key key
        cdef bint given
        if self.backlog.keys is None:
            given = not self.backlog.queue.waits() and self.give(place, message, False)
        else:
            key = self.backlog.keys.note(place, key_of(self.group.settings, publication))
            given = not self.backlog.queue.waits() and self.give_keyed(key, place, message, False) == GIVEN_TO_ONE
        return 0 if given else self.backlog.wait(place, message_hold(message), False)

    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to the next member with room that may take it; False: there is none."""
        cdef Rotation rotation = self.rotation
        cdef uint32_t left = rotation.ready_count
        cdef Member member
        cdef Failures failures = self.backlog.failures
        cdef bytes last = None if failures.by_place is None else failures.last_client(place)
        while left:
            left -= 1
            member = <Member>rotation.first_ready
            if last is not None and left and member.session.client_id == last:
                last = None                       # another one first
                left += 1
                rotation.first_ready = member.after
                continue
            if not member.room():
                rotation.make_unready(member)
                continue
            rotation.first_ready = member.after
            if not member.may_take(message):
                continue
            self.hand(member, place, message, recorded)
            if not member.room():
                rotation.make_unready(member)
            return True
        return False

    cdef int hand(self, Member member, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to this member. `recorded`: it is in the journal as one that waits."""
        cdef Session session = member.session
        cdef uint8_t qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        cdef uint8_t flags = qos
        cdef Begun begun
        if message.retain and member.options & KEEPS_RETAIN:
            flags |= RETAIN_AS_PUBLISHED
        self.given += 1
        self.group.turn.counters[SHARED_GIVEN] += 1
        session.trace("given", message, qos, "by a shared subscription")
        if qos == 0:
            self.backlog.forget_key(place)
            if not session.may_not_read(message) and session.outlet is not None:     # a hook may end the connection
                session.put_publish(message, PUBLISH_QOS_0 | (
                    FLAG_RETAIN if flags & RETAIN_AS_PUBLISHED and session.outlet.keeps_retain else 0), 0,
                    member.properties)
            self.backlog.failures.forget(place)
            if recorded:
                self.backlog.backing.record_done(place)
            return 0
        member.given += 1
        if self.backlog.keys is not None:
            self.backlog.keys.bind(place, member)
        if self.backlog.backing.kept and not session.recorded():
            if qos == 1:
                if not recorded:
                    self.backlog.backing.record_queued(place, message)
            else:                                 # once it is sent, no other member may get it, also after a crash
                if recorded:
                    self.backlog.backing.record_done(place)
                    self.group.turn.journal.urgent = True
                begun = Begun()
                begun.message = message_hold(message)
                begun.place = place
                begun.member = member
                begun.assigner = self
                begun.flags = flags
                if self.backlog.keys is not None:
                    self.backlog.keys.begin(place)
                session.pending += 1
                self.group.turn.after_commit(begun)
                return 0
        return self.backlog.backing.put(member, place, message, flags)

    cdef int give_waiting(self) except -1:
        """Publish the dead letters, and give the messages that wait."""
        cdef Waiting taken
        if self.backlog.failures.dead:
            self.backlog.publish_dead()
        if self.backlog.keys is not None:
            return self.send_all_keyed()
        while self.rotation.ready_count and self.backlog.queue.waits():
            taken = self.backlog.queue.take_first()       # a hook may change the queue before the message is counted
            if taken.message.expires and taken.message.expires <= self.group.turn.clock:
                self.backlog.expire(taken)
            elif self.give(taken.place, taken.message, True):
                self.backlog.queue.count_message(-1, taken.message)
                message_release(taken.message)
            elif self.rotation.ready_count:
                self.put_aside(taken)
            else:
                self.backlog.queue.put_back(taken)
        return 0

    cdef int put_aside(self, Waiting taken) except -1:
        """No member with room may take the message: keep it for others, or drop it if there are none."""
        if self.has_others() or self.someone_takes(taken.message):
            return self.backlog.queue.put_aside(taken)
        self.group.turn.counters[SHARED_DISCARDED] += 1
        return self.backlog.discard(taken, "no member may read it, or takes a packet of its size")

    cdef bint someone_takes(self, const Message* message) except -1:
        """Whether a member, with room or without, may take the message."""
        cdef Member member
        for member in self.members:
            if member.may_take(message):
                return True
        return False

    cdef bint has_others(self) except -1:
        """Whether members may be elsewhere, or are yet to join, that may take what no member here may take."""
        return self.group.settings.declared or self.backlog.backing.qos_elsewhere() >= 0

    cdef bint is_empty(self) except -1:
        """Whether it has no members, and is not declared."""
        return len(self.members) == 0 and not self.has_others()

    # ---- order by key ----

    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to a member; returns GIVEN_TO_ONE, NO_ROOM, or NOT_TAKEN."""
        cdef Member member
        cdef uint8_t qos
        if key is not None and (key.held or key.has_before(place)):
            return NO_ROOM                        # behind these
        if key is None or key.member is None:
            if self.give(place, message, recorded):
                return GIVEN_TO_ONE
            return NOT_TAKEN if self.rotation.ready_count else NO_ROOM
        member = key.member
        if not member.ready:
            return NO_ROOM
        if not member.room():
            self.rotation.make_unready(member)
            return NO_ROOM
        qos = min(message.qos, <uint8_t>(member.options & MAXIMUM_QOS))
        # It would pass messages that are not in the member's queue yet, or not sent.
        if qos == 0 or key.begun and qos == 1 or not member.may_take(message):
            return NOT_TAKEN
        if key.member is not member or not member.ready:     # a hook has ended the connection
            return NO_ROOM
        self.hand(member, place, message, recorded)
        if not member.room():
            self.rotation.make_unready(member)
        return GIVEN_TO_ONE

    cdef bint send_keyed(self, Key key, Waiting taken) except -1:
        """Give a message that waits, or put it where it waits for its turn. Takes over the reference."""
        cdef int result
        if taken.message.expires and taken.message.expires <= self.group.turn.clock:
            self.backlog.expire(taken)
            return True
        if key is not None and key.has_before(taken.place):
            self.backlog.queue.park(key, taken)
            return False
        result = self.give_keyed(key, taken.place, taken.message, True)
        if result == GIVEN_TO_ONE:
            self.backlog.queue.count_message(-1, taken.message)
            message_release(taken.message)
            return True
        if key is None:
            if result == NOT_TAKEN:
                self.put_aside(taken)
            else:
                self.backlog.queue.put_back(taken)
            return False
        if result == NOT_TAKEN and key.member is None and not (
                self.has_others() or self.someone_takes(taken.message)):
            self.put_aside(taken)                 # which drops it
            return True
        self.backlog.queue.park(key, taken)
        if result == NOT_TAKEN:
            self.backlog.keys.block(key)
        return False

    cdef int send_all_keyed(self) except -1:
        """Give the messages that wait: first messages parked for members with room, then messages of free keys."""
        cdef Key key
        cdef Member member
        cdef Waiting taken
        cdef WaitingQueue queue = self.backlog.queue
        cdef KeyTable keys = self.backlog.keys
        while True:
            while keys.woken:
                member = keys.woken.pop()
                while member.ready:
                    key = keys.next_of(member)
                    if key is None:
                        break
                    if not member.room():
                        self.rotation.make_unready(member)
                        break
                    self.send_keyed(key, queue.take_parked(key))
                    keys.offer(key)
            if not self.rotation.ready_count:
                return 0
            key = keys.next_free()
            if key is not None and not (queue.waits() and queue.first().place < key.parked[0][0]):
                self.send_keyed(key, queue.take_parked(key))
                keys.offer(key)
            elif queue.waits():
                taken = queue.take_first()
                self.send_keyed(keys.of(taken.place), taken)
            else:
                return 0


cdef class Begun(Held):
    """A message of QoS 2 for a clean session in a kept group: it is sent when the store has that it was given."""

    def __call__(self):
        cdef Assigner assigner = self.assigner
        cdef Member member = self.member
        cdef Session session = member.session
        cdef KeyTable keys = assigner.backlog.keys
        cdef Key key = None if keys is None else keys.of(self.place)
        session.pending -= session.pending > 0
        member.given -= 1
        if assigner.is_empty():                   # the group has ended
            session.turn.counters[SHARED_DISCARDED] += 1
            return
        if keys is not None:
            keys.begin_ended(self.place)
            session.turn.schedule_send(assigner.group)
        if member.group is None or session.room() == 0 or key is not None and key.has_before(self.place):
            assigner.backlog.backing.take_back(self.place, message_hold(self.message), True)
        else:
            member.given += 1
            put_entry(member, self.place, self.message, self.flags)
