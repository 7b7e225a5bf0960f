"""Order by key in a shared subscription: messages with one key keep their order over subscribers, also when subscribers
end.

A key is a hash of the topic name, or of the publisher's client identifier. It is bound to a subscriber while that has
unacknowledged messages of it. Later messages of the key go to the same subscriber, or are parked, even if others have
room. When the last of them is acknowledged or has come back, the key is free: its parked messages go to any subscriber,
the lowest place first, and bind it again.

The table owns no messages and gives none: `group.pyx` does. The heaps have entries that are outdated: an
entry counts only if its place is still the first that is parked at the key, and the key is still bound as it was.
"""

from heapq import heapify, heappop, heappush

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ..base.name_hash cimport hash_of
from .group_settings cimport BY_TOPIC, GroupSettings
from .shared_subscription cimport SharedSubscription
from .message cimport Publication
from .subscriber cimport Subscriber

cdef enum:
    OUTDATED = 64                  # entries of `oldest` that are worth no cleaning


cdef class Key:
    """The messages with one key."""

    def __lt__(self, other):
        return False                   # in a heap after an outdated entry with the same place

    def __hash__(self):
        return <Py_ssize_t><void*>self >> 4

    cdef bint has_before(self, uint64_t place) except -1:
        """Whether an earlier message of the key is parked."""
        return len(self.parked) > 0 and self.parked[0][0] < place


cdef class KeyTable:
    """The keys of one group, without messages.

    Args:
        strategy: number of the strategy, as in GroupSettings.
    """

    def __init__(self, uint8_t strategy):
        self.strategy = strategy
        self.keys = {}
        self.places = {}
        self.bound = {}
        self.free = []
        self.oldest = []
        self.blocked = {}
        self.woken = []

    # ---- messages that are known ----

    cdef Key note(self, uint64_t place, uint32_t hash):
        """A message has this key."""
        cdef Key key = self.keys.get(hash)
        if key is None:
            key = Key()
            key.hash = hash
            key.parked = []
            self.keys[hash] = key
        key.known += 1
        self.places[place] = key
        return key

    cdef Key of(self, uint64_t place):
        """The key of a message, or None: it has no order to keep."""
        return self.places.get(place)

    cdef int forget(self, uint64_t place) except -1:
        """A message that no subscriber has is dropped."""
        cdef Key key = self.places.pop(place, None)
        if key is not None:
            key.known -= 1
            if key.known == 0 and not key.held:
                self.remove(key)
        return 0

    cdef int remove(self, Key key) except -1:
        """Forget a key without messages."""
        del self.keys[key.hash]
        self.blocked.pop(key, None)
        return 0

    # ---- messages that subscribers have ----

    cdef int bind(self, uint64_t place, SharedSubscription subscriber) except -1:
        """The message is given to the subscriber."""
        cdef Key key = self.of(place)
        if key is not None:
            key.subscriber = subscriber
            key.given += 1
        return 0

    cdef bint release(self, uint64_t place) except -1:
        """The message comes back from its subscriber, or is done; returns whether parked messages may be given now."""
        cdef Key key = self.of(place)
        cdef SharedSubscription subscriber
        if key is None or key.given == 0:
            return False
        key.given -= 1
        if key.given:
            return False
        subscriber, key.subscriber = key.subscriber, None
        self.next_of(subscriber)                      # entries of this key are outdated
        if not key.parked:
            return False
        if key.blocked:
            self.unblock(key)
        else:
            self.offer(key)
        return True

    cdef bint done(self, uint64_t place) except -1:
        """The message is acknowledged, or dropped by its subscriber; returns whether parked messages may be given
        now."""
        cdef bint found = self.release(place)
        self.forget(place)
        return found

    cdef int begin(self, uint64_t place) except -1:
        """The message is the subscriber's, and enters its queue later."""
        cdef Key key = self.of(place)
        if key is not None:
            key.begun += 1
        return 0

    cdef int begin_ended(self, uint64_t place) except -1:
        """The message enters the queue of the subscriber, or comes back."""
        cdef Key key = self.of(place)
        if key is not None and key.begun:
            key.begun -= 1
            if key.begun == 0:
                self.unblock(key)
        return 0

    # ---- messages that are parked ----

    cdef int park(self, Key key, uint64_t place, object held) except -1:
        """Keep a message until its key is free or the key's subscriber has room."""
        heappush(key.parked, (place, held))
        self.count += 1
        if key.parked[0][0] == place:
            self.offer(key)
        return 0

    cdef object take(self, Key key):
        """Remove the first message that is parked at the key. `offer` must follow."""
        self.count -= 1
        return heappop(key.parked)[1]

    cdef int unpark(self, Key key, set removed) except -1:
        """Remove these messages from the messages that are parked at the key."""
        self.count -= len(removed)
        key.parked = [entry for entry in key.parked if entry[1] not in removed]
        heapify(key.parked)
        return self.offer(key)

    cdef int offer(self, Key key) except -1:
        """The first parked message of the key, or its subscriber, is another than before."""
        cdef tuple entry
        cdef Key other
        if not key.parked:
            if key.blocked:
                self.unblock(key)
            return 0
        entry = (key.parked[0][0], key)
        if len(self.oldest) > 2 * len(self.keys) + OUTDATED:
            self.oldest = []
            for other in self.keys.values():
                if other.parked:
                    self.oldest.append((other.parked[0][0], other))
            heapify(self.oldest)
        heappush(self.oldest, entry)
        if key.blocked or key.held:
            return 0
        if key.subscriber is None:
            heappush(self.free, entry)
        else:
            heappush(self.bound.setdefault(key.subscriber, []), entry)
            if key.subscriber.ready:
                self.woken.append(key.subscriber)
        return 0

    cdef int block(self, Key key) except -1:
        """No subscriber with room may take the first parked message of the key: ignore it until something changes."""
        key.blocked = True
        self.blocked[key] = None
        return 0

    cdef int unblock(self, Key key) except -1:
        """Something has changed that may let the key's messages through."""
        if key.blocked:
            key.blocked = False
            self.blocked.pop(key, None)
            self.offer(key)
        return 0

    cdef int unblock_all(self) except -1:
        cdef Key key
        for key in list(self.blocked):
            self.unblock(key)
        return 0

    cdef int wake(self, SharedSubscription subscriber) except -1:
        """The subscriber has room."""
        if subscriber in self.bound:
            self.woken.append(subscriber)
        return 0

    cdef Key next_of(self, SharedSubscription subscriber):
        """The key bound to the subscriber whose parked message is the oldest, or None."""
        cdef list heap = self.bound.get(subscriber)
        cdef Key key
        while heap:
            key = heap[0][1]
            if (key.subscriber is subscriber and not key.blocked and not key.held and key.parked
                    and key.parked[0][0] == heap[0][0]):
                return key
            heappop(heap)
        if heap is not None:
            del self.bound[subscriber]
        return None

    cdef Key next_free(self):
        """The free key whose parked message is the oldest, or None."""
        cdef Key key
        while self.free:
            key = self.free[0][1]
            if (key.subscriber is None and not key.blocked and not key.held and key.parked
                    and key.parked[0][0] == self.free[0][0]):
                return key
            heappop(self.free)
        return None

    cdef Key with_oldest(self):
        """The key with the oldest parked message, or None."""
        cdef Key key
        while self.oldest:
            key = self.oldest[0][1]
            if key.parked and key.parked[0][0] == self.oldest[0][0]:
                return key
            heappop(self.oldest)
        return None

    cdef list remove_parked(self, Key key):
        """Forget all parked messages of the key, and return them."""
        cdef list found = [held for _, held in key.parked]
        self.count -= len(found)
        key.known -= len(found)
        for place, _ in key.parked:
            del self.places[place]
        key.parked = []
        return found

    cdef list all_parked(self):
        """All parked messages, in no order."""
        cdef Key key
        cdef list found = []
        for key in self.keys.values():
            for entry in key.parked:
                found.append(entry[1])
        return found


cdef uint32_t key_of(GroupSettings settings, const Publication* publication) except? 0:
    """The key of a message: a hash of its topic name, or of its publisher's client identifier."""
    cdef bytes name
    if settings.strategy_number == BY_TOPIC:
        return hash_of(publication.topic, publication.topic_length)
    if publication.publisher == NULL or publication.publisher == <void*>None:
        return 1                                  # the broker itself, a will, or an analytics job
    publisher = <object>publication.publisher
    name = (<Subscriber>publisher).client_id if isinstance(publisher, Subscriber) else publisher
    return hash_of(name, len(name))
