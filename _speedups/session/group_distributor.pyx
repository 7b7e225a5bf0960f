"""Gives each message of a shared subscription to one subscriber: to the next that has room and may have it.

With order by key, a message goes to the subscriber that has the messages of its key, or waits until its turn.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..codec.publish cimport FLAG_RETAIN, PUBLISH_QOS_0
from .counters cimport SHARED_DISCARDED, SHARED_GIVEN
from .group_backlog cimport Backlog
from .group_failures cimport Failures
from .group_keys cimport Key, KeyTable, key_of
from .group_subscriber cimport MAXIMUM_QOS, GroupSubscriber, put_entry
from .group_queue cimport Held, Waiting, WaitingQueue
from .group_rotation cimport Rotation
from .shared_subscription cimport SessionGroup
from .message cimport Message, Publication, message_hold, message_release
from .outgoing_queue cimport RETAIN_AS_PUBLISHED
from .session cimport Session

cdef enum:
    KEEPS_RETAIN = 8           # Retain As Published, of the options of a subscription


@cython.final
cdef class Distributor:
    """Gives the messages of a group without subscribers.

    Args:
        group: whose messages they are.
        subscribers: the list of its subscribers.
        rotation: of its subscribers.
        backlog: its messages that no subscriber has.
    """

    def __init__(self, SessionGroup group not None, list subscribers not None, Rotation rotation not None,
                 Backlog backlog not None):
        self.group = group
        self.subscribers = subscribers
        self.rotation = rotation
        self.backlog = backlog

    # ---- giving ----

    cdef int give_new(self, uint64_t place, const Publication* publication, Message* message) except -1:
        """Give a new message to the next subscriber with room, or to the subscriber of its key; else it waits."""
        cdef Key key
        cdef bint given
        if self.backlog.keys is None:
            given = not self.backlog.queue.waits() and self.give(place, message, False)
        else:
            key = self.backlog.keys.note(place, key_of(self.group.settings, publication))
            given = not self.backlog.queue.waits() and self.give_keyed(key, place, message, False) == GIVEN_TO_ONE
        return 0 if given else self.backlog.wait(place, message_hold(message), False)

    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to the next subscriber with room that may take it; False: there is none.

        A message that has failed goes to another subscriber than before, if one takes it.
        """
        cdef Failures failures = self.backlog.failures
        cdef bytes last = None if failures.by_place is None else failures.last_client(place)
        if last is not None and self.give_next(place, message, recorded, last):
            return True
        return self.give_next(place, message, recorded, None)

    cdef bint give_next(self, uint64_t place, Message* message, bint recorded, bytes excluded) except -1:
        """Give the message to the next subscriber with room that may take it, but not to the client `excluded`."""
        cdef Rotation rotation = self.rotation
        cdef GroupSubscriber subscriber
        cdef uint32_t left
        cdef int direct
        for direct in range(2):
            left = rotation.ready_count[direct]
            while left and rotation.first_ready[direct] != NULL:
                left -= 1
                subscriber = <GroupSubscriber>rotation.first_ready[direct]
                if not subscriber.room():
                    rotation.make_unready(subscriber)
                    continue
                rotation.first_ready[direct] = subscriber.after
                if excluded is not None and subscriber.session.client_id == excluded:
                    continue
                if not subscriber.may_take(message):
                    continue
                self.hand(subscriber, place, message, recorded)
                if not subscriber.room():
                    rotation.make_unready(subscriber)
                return True
        return False

    cdef int hand(self, GroupSubscriber subscriber, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to this subscriber. `recorded`: it is in the journal as one that waits."""
        cdef Session session = subscriber.session
        cdef uint8_t qos = min(message.qos, <uint8_t>(subscriber.options & MAXIMUM_QOS))
        cdef uint8_t flags = qos
        cdef Begun begun
        if message.retain and subscriber.options & KEEPS_RETAIN:
            flags |= RETAIN_AS_PUBLISHED
        self.given += 1
        self.group.turn.counters[SHARED_GIVEN] += 1
        session.trace("given", message, qos, "by a shared subscription")
        if qos == 0:
            self.backlog.forget_key(place)
            if not session.may_not_read(message) and session.outlet is not None:     # a hook may end the connection
                session.put_publish(message, PUBLISH_QOS_0 | (
                    FLAG_RETAIN if flags & RETAIN_AS_PUBLISHED and session.outlet.keeps_retain else 0), 0,
                    subscriber.properties)
            self.backlog.failures.forget(place)
            if recorded:
                self.backlog.backing.record_done(place)
            return 0
        subscriber.given += 1
        if self.backlog.keys is not None:
            self.backlog.keys.bind(place, subscriber)
        if self.backlog.backing.kept and not session.recorded():
            if qos == 1:
                if not recorded:
                    self.backlog.backing.record_queued(place, message)
            else:                                 # once it is sent, no other subscriber may get it, also after a crash
                if recorded:
                    self.backlog.backing.record_done(place)
                    self.group.turn.journal.urgent = True
                begun = Begun()
                begun.message = message_hold(message)
                begun.place = place
                begun.subscriber = subscriber
                begun.distributor = self
                begun.flags = flags
                if self.backlog.keys is not None:
                    self.backlog.keys.begin(place)
                session.pending += 1
                self.group.turn.after_commit(begun)
                return 0
        return self.backlog.backing.put(subscriber, place, message, flags)

    cdef int give_waiting(self) except -1:
        """Publish the dead letters, and give the messages that wait."""
        cdef Waiting taken
        if self.backlog.failures.dead:
            self.backlog.publish_dead()
        if self.backlog.keys is not None:
            return self.send_all_keyed()
        while self.rotation.has_ready() and self.backlog.queue.waits():
            taken = self.backlog.queue.take_first()       # a hook may change the queue before the message is counted
            if taken.message.expires and taken.message.expires <= self.group.turn.clock:
                self.backlog.expire(taken)
            elif self.give(taken.place, taken.message, True):
                self.backlog.queue.count_message(-1, taken.message)
                message_release(taken.message)
            elif self.rotation.has_ready():
                self.put_aside(taken)
            else:
                self.backlog.queue.put_back(taken)
        return 0

    cdef int put_aside(self, Waiting taken) except -1:
        """No subscriber with room may take the message: keep it for others, or drop it if there are none."""
        if self.has_others() or self.someone_takes(taken.message):
            return self.backlog.queue.put_aside(taken)
        self.group.turn.counters[SHARED_DISCARDED] += 1
        return self.backlog.discard(taken, "no subscriber may read it, or takes a packet of its size")

    cdef bint someone_takes(self, const Message* message) except -1:
        """Whether a subscriber, with room or without, may take the message."""
        cdef GroupSubscriber subscriber
        for subscriber in self.subscribers:
            if subscriber.may_take(message):
                return True
        return False

    cdef bint has_others(self) except -1:
        """Whether subscribers may be elsewhere, or are yet to join, that may take what no subscriber here may take."""
        return self.group.settings.declared or self.backlog.backing.qos_elsewhere() >= 0

    cdef bint is_empty(self) except -1:
        """Whether it has no subscribers, and is not declared."""
        return len(self.subscribers) == 0 and not self.has_others()

    # ---- order by key ----

    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1:
        """Give the message to a subscriber; returns GIVEN_TO_ONE, NO_ROOM, or NOT_TAKEN."""
        cdef GroupSubscriber subscriber
        cdef uint8_t qos
        if key is not None and (key.held or key.has_before(place)):
            return NO_ROOM                        # behind these
        if key is None or key.subscriber is None:
            if self.give(place, message, recorded):
                return GIVEN_TO_ONE
            return NOT_TAKEN if self.rotation.has_ready() else NO_ROOM
        subscriber = key.subscriber
        if not subscriber.ready:
            return NO_ROOM
        if not subscriber.room():
            self.rotation.make_unready(subscriber)
            return NO_ROOM
        qos = min(message.qos, <uint8_t>(subscriber.options & MAXIMUM_QOS))
        # It would pass messages that are not in the subscriber's queue yet, or not sent.
        if qos == 0 or key.begun and qos == 1 or not subscriber.may_take(message):
            return NOT_TAKEN
        if key.subscriber is not subscriber or not subscriber.ready:     # a hook has ended the connection
            return NO_ROOM
        self.hand(subscriber, place, message, recorded)
        if not subscriber.room():
            self.rotation.make_unready(subscriber)
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
        if result == NOT_TAKEN and key.subscriber is None and not (
                self.has_others() or self.someone_takes(taken.message)):
            self.put_aside(taken)                 # which drops it
            return True
        self.backlog.queue.park(key, taken)
        if result == NOT_TAKEN:
            self.backlog.keys.block(key)
        return False

    cdef int send_all_keyed(self) except -1:
        """Give the messages that wait: first messages parked for subscribers with room, then messages of free keys."""
        cdef Key key
        cdef GroupSubscriber subscriber
        cdef Waiting taken
        cdef WaitingQueue queue = self.backlog.queue
        cdef KeyTable keys = self.backlog.keys
        while True:
            while keys.woken:
                subscriber = keys.woken.pop()
                while subscriber.ready:
                    key = keys.next_of(subscriber)
                    if key is None:
                        break
                    if not subscriber.room():
                        self.rotation.make_unready(subscriber)
                        break
                    self.send_keyed(key, queue.take_parked(key))
                    keys.offer(key)
            if not self.rotation.has_ready():
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
        cdef Distributor distributor = self.distributor
        cdef GroupSubscriber subscriber = self.subscriber
        cdef Session session = subscriber.session
        cdef KeyTable keys = distributor.backlog.keys
        cdef Key key = None if keys is None else keys.of(self.place)
        session.pending -= session.pending > 0
        subscriber.given -= 1
        if distributor.is_empty():                   # the group has ended
            session.turn.counters[SHARED_DISCARDED] += 1
            return
        if keys is not None:
            keys.begin_ended(self.place)
            session.turn.schedule_send(distributor.group)
        if subscriber.group is None or session.room() == 0 or key is not None and key.has_before(self.place):
            distributor.backlog.backing.take_back(self.place, message_hold(self.message), True)
        else:
            subscriber.given += 1
            put_entry(subscriber, self.place, self.message, self.flags)
