"""The messages of a shared subscription that no subscriber has: how many may wait, how long, and which are dropped.

At the limits of the settings the policy selects the message to drop. With `last_value` a new message replaces the
message to its topic. A message that was sent without success as often as `max_deliveries` allows is a dead letter: the
group publishes it to the topic of the settings, and ends it in the same block. The store has a record of each step.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

from .counters cimport DEAD_LETTERS, EXPIRED, SHARED_DISCARDED, SHARED_RETURNED
from .group_backing cimport GroupBacking
from .group_failures cimport Failures
from .group_keys cimport Key, KeyTable
from .group_queue cimport Held, Waiting, WaitingQueue, held_of
from .group_rotation cimport Rotation
from .group_settings cimport ROTATION
from .shared_subscription cimport SessionGroup
from .message cimport (
    Message, Publication, expiry_after, message_hold, message_new, message_payload, message_properties,
    message_release, publication_of_message,
)

from .dead_letter import DeadLetter

cdef str FULL = "the queue is full"


@cython.final
cdef class Backlog:
    """A group without messages.

    Args:
        group: whose messages they are.
        rotation: of its subscribers.
    """

    def __init__(self, SessionGroup group not None, Rotation rotation not None):
        self.group = group
        self.rotation = rotation
        self.queue = WaitingQueue(group.turn, group.tenant)
        self.failures = Failures()

    cdef int trace(self, str step, const Message* message, str detail) except -1:
        """Report a step of the message to the tracer, if there is one."""
        if self.group.turn.tracer is not None:
            self.group.turn.tracer.note_message(step, self.group.client_id, message, message.qos, detail)
        return 0

    # ---- new messages ----

    cdef Message* lower_expiry(self, Message* message) except NULL:
        """The message, with an expiry that the group allows; the caller gets a reference."""
        cdef Publication publication
        cdef Message* lowered
        cdef int64_t latest
        if not self.group.settings.max_expiry:
            return message_hold(message)
        latest = expiry_after(self.group.settings.max_expiry, self.group.turn.clock)
        if message.expires and message.expires <= latest:
            return message_hold(message)
        publication = publication_of_message(message)
        publication.expires = latest
        lowered = message_new(&publication)
        if lowered == NULL:
            raise MemoryError
        return lowered

    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1:
        """Put a message behind all others; takes over the reference. At the limits the policy selects one to drop."""
        while self.queue.is_full(self.group.settings, message):
            if self.drop_expired():
                continue
            self.group.turn.queue_is_full(self.group.client_id)
            if not self.group.settings.drop_oldest or not self.drop_oldest():
                self.trace("dropped", message, FULL)
                if recorded:
                    self.backing.record_done(place)
                self.forget_key(place)
                message_release(message)
                return 0
        self.keep_waiting(place, message)
        return 0 if recorded else self.backing.record_queued(place, message)

    cdef int keep_waiting(self, uint64_t place, Message* message) except -1:
        """Put a message behind all others, whatever the limits are; takes over the reference."""
        self.queue.add(place, message)
        self.trace("queued", message, "no subscriber has room")
        if self.rotation.has_ready():             # they may not take this one: it must not hold up those behind it
            self.group.turn.schedule_send(self.group)
        return 0

    cdef int restore(self, uint64_t place, Message* message) except -1:
        """Let a message of the store wait, or take it as a dead letter; takes over the reference."""
        if self.failures.are_too_many(place, self.group.settings):
            return self.take_dead(place, message)
        return self.wait(place, message, True)

    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1:
        """Keep only the newer of this message and the message to its topic that waits.

        Returns:
            Whether one waits. Then the caller's message must not wait; the other has its content if it is the newer.
        """
        cdef uint64_t other = 0, age = 0
        cdef Message** at = self.queue.newest_of(message, &other, &age)
        if at == NULL:
            return False
        self.trace("dropped", at[0] if is_new or age < place else message, "a newer message to its topic waits")
        if not is_new and age > place:
            return True
        self.queue.replace(at, other, place, message)
        if self.failures.count(other):            # the older message has failed
            self.failures.forget(other)
            self.backing.record_failure(other)
        self.backing.record_queued(other, message)
        if (self.queue.aside or self.keys is not None) and self.rotation.has_ready():    # they may take this one
            self.recall()
        return True

    # ---- messages that come back ----

    cdef int come_back(self, uint64_t place, Message* message) except -1:
        """Take a message that a subscriber had, to its old place; takes over the reference."""
        self.returned += 1
        self.group.turn.counters[SHARED_RETURNED] += 1
        self.trace("returned", message, "")
        if self.failures.are_too_many(place, self.group.settings):
            self.key_done(place)
            return self.take_dead(place, message)
        if self.group.settings.last_value and self.backing.limits_here and self.supersede(place, message, False):
            self.failures.forget(place)
            self.backing.record_done(place)
            self.key_done(place)
            message_release(message)
            return 0
        self.queue.come_back(place, message)
        return self.group.turn.schedule_send(self.group)

    cdef int take_dead(self, uint64_t place, Message* message) except -1:
        """Publish the message as a dead letter at the end of the turn; takes over the reference."""
        self.failures.put_dead(held_of(Waiting(place, message)))
        return self.group.turn.schedule_send(self.group)

    cdef int publish_dead(self) except -1:
        """Publish the dead letters, and end them in the same block."""
        cdef Held held
        cdef Message* m
        while self.failures.dead:
            held = self.failures.dead.pop(0)
            m = held.message
            deliveries, code, _ = self.failures.of(held.place)
            self.failures.forget(held.place)
            self.group.turn.counters[DEAD_LETTERS] += 1
            self.trace("dropped", m, "it is a dead letter")
            self.backing.record_dead(held.place)
            if self.group.turn.dead_letters is not None:
                self.group.turn.dead_letters(DeadLetter(
                    self.group.client_id, self.group.settings.dead_letter_topic, m.data[:m.topic_length],
                    message_payload(m)[:<Py_ssize_t>m.payload_length], m.qos,
                    message_properties(m)[:<Py_ssize_t>m.properties_length], deliveries, code))
        return 0

    cdef int recall(self) except -1:
        """Let the messages that were put aside wait again."""
        self.queue.recall()
        return self.group.turn.schedule_send(self.group)

    # ---- messages that are dropped ----

    cdef int purge(self) except -1:
        """Drop all messages that wait; returns their number."""
        cdef int dropped = 0
        while self.drop_oldest():
            dropped += 1
        self.group.turn.counters[SHARED_DISCARDED] += dropped
        return dropped

    cdef bint drop_oldest(self) except -1:
        """Drop the oldest message; whether there was one."""
        cdef Waiting oldest = self.queue.take_oldest()
        if oldest.message == NULL:
            return False
        self.discard(oldest, FULL)
        return True

    cdef bint drop_expired(self) except -1:
        """Drop all messages that have expired; whether there were any."""
        cdef list expired = self.queue.take_expired()
        cdef Held held
        for held in expired:
            self.expire(Waiting(held.place, message_hold(held.message)))
        return len(expired) > 0

    cdef int expire(self, Waiting expired) except -1:
        """Drop a message that has expired, and has been taken out; takes over the reference."""
        self.group.turn.counters[EXPIRED] += 1
        return self.discard(expired, "it has expired")

    cdef int discard(self, Waiting dropped, str reason) except -1:
        """Drop a message that waited and has been taken out; takes over the reference."""
        self.queue.count_message(-1, dropped.message)
        self.trace("dropped", dropped.message, reason)
        self.failures.forget(dropped.place)
        self.backing.record_done(dropped.place)
        self.forget_key(dropped.place)
        message_release(dropped.message)
        return 0

    # ---- order by key ----

    cdef int set_order(self) except -1:
        """Apply the strategy. It holds for the messages that follow, and by topic for messages that are here too."""
        cdef uint8_t strategy = self.group.settings.strategy_number
        if strategy == (ROTATION if self.keys is None else self.keys.strategy):
            return 0
        self.keys = KeyTable(strategy) if strategy != ROTATION else None
        self.queue.set_keys(self.keys)
        self.backing.order_changed()
        return self.group.turn.schedule_send(self.group)

    cdef int key_done(self, uint64_t place) except -1:
        """A message of the group is done: others with its key may follow."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None:
            return 0
        if self.keys.done(place):
            self.group.turn.schedule_send(self.group)
        return self.backing.key_done(key, place)

    cdef int forget_key(self, uint64_t place) except -1:
        """A message that no subscriber has is dropped, or given with QoS 0."""
        cdef Key key = None if self.keys is None else self.keys.of(place)
        if key is None:
            return 0
        self.keys.forget(place)
        return self.backing.key_done(key, place)
