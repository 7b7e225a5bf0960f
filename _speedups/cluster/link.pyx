"""The connection to Redis, as far as it is on the path of messages: commands, replies and pushes.

A reply belongs to the oldest call without one. When the connection ends, every pending call gets a `LinkLost`: Redis
may or may not have executed it. The callers interpret replies and pushes (cluster/redis/link.py).
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from ..base.buffers cimport buffer_size
from .resp cimport put_count, put_text, read_reply
from ..net.posix cimport now
from ..net.reactor cimport Reactor

from collections import deque

from .resp import Incomplete, InvalidReply, ReplyError

# Replies of a server of a Redis Cluster that does not have all keys of the slot, or may not change them. READONLY: of a
# primary that became a replica; MASTERDOWN: of a replica without a primary.
ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN")
NO_FUNCTION = "ERR Function not found"    # after FUNCTION FLUSH: the next connection loads the library


class LinkLost(Exception):
    """The connection ended before the reply arrived.

    Each loss has its own instance: a raised exception has the frames of its last catcher, and their variables.
    """

    def __init__(self, why="the connection to Redis was lost"):
        super().__init__(why)


cdef bytes SKIP = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n"


def ignore(reply):
    """For calls whose reply does not matter."""


cdef class RedisConnection(OutgoingConnection):
    """A connection to Redis, which speaks RESP3.

    Args:
        reactor: of the node.
        on_push: called with channel and payload of each message that is published to this node; returns the number of
            publications in it.
        on_drained: called when all received data is processed; the turn then ends.
        on_lost: called once, when the connection has ended.
        in_slot: whether it is to a server of a Redis Cluster, which can lose the slot of the keys.
    """

    def __init__(self, Reactor reactor not None, on_push not None, on_drained not None, on_lost not None,
                 bint in_slot=False):
        OutgoingConnection.__init__(self, reactor)
        self.on_push = on_push
        self.on_drained = on_drained
        self.on_lost = on_lost
        self.in_slot = in_slot
        self.why_closed = ""
        self.waiting = deque()
        self.withheld = deque()
        self.read_at = now()

    @property
    def silent_for(self):
        """Seconds that the oldest pending call has waited without any data arriving; 0 if none is pending."""
        if not self.waiting:
            return 0.0
        return (now() - max(self.read_at, <int64_t>self.waiting[0][1])) / 1e9

    # ---- calls ----

    def call(self, then not None, *command):
        """Send a command; `then` gets the reply, which may be a ReplyError or LinkLost."""
        if self.closed:
            then(LinkLost())
            return
        self.waiting.append((then, now()))
        self.write(*command)

    def call_alone(self, then not None, *command):
        """As `call`, and nothing that follows is sent before the reply: Redis serves its other clients in between."""

        def replied(reply):
            self.sendable = self.withheld.popleft() if self.withheld else -1
            self.flush()
            then(reply)

        self.call(replied, *command)
        if self.closed:
            return
        if self.sendable < 0:
            self.sendable = buffer_size(&self.out)
        else:
            self.withheld.append(buffer_size(&self.out) - self.sendable - sum(self.withheld))

    def write(self, *command):
        """Send a command that has no reply; the reply to the next call confirms it."""
        if self.closed:
            return
        put_count(self, len(command))
        for argument in command:
            self.put_argument(argument)
        self.flush_soon()

    def publish(self, bytes command not None, bytes channel not None, bytes message not None):
        """Publish a message. Nothing waits for the reply, so Redis sends none if `skip_replies` was called."""
        if self.closed:
            return
        if self.skips:
            memcpy(self.reserve(len(SKIP)), <const uint8_t*>SKIP, len(SKIP))
        else:
            self.waiting.append((ignore, now()))
        put_count(self, 3)
        put_text(self, command, len(command))
        put_text(self, channel, len(channel))
        put_text(self, message, len(message))
        self.flush_soon()

    def skip_replies(self):
        """Redis need not reply to `publish`: each reply costs it a write, and this node a wake-up."""
        self.skips = True

    cdef int put_argument(self, object argument) except -1:
        cdef bytes text
        if isinstance(argument, bytes):
            text = argument
        else:
            text = (argument if isinstance(argument, str) else str(argument)).encode()
        return put_text(self, text, len(text))

    def close(self, str why=""):
        """End the connection, for a reason or at its end; this calls `on_lost`."""
        if not self.closed:
            self.why_closed = why
            self.hang_up()

    def set_on_lost(self, on_lost not None):
        """Replace the function that is called when the connection has ended."""
        self.on_lost = on_lost

    # ---- deferred pushes and replies ----

    def hold(self):
        """Keep pushes until `release`: the state that they change is still being read."""
        if self.held is None:
            self.held = []

    def release(self):
        """Process the kept pushes, in order."""
        held, self.held = self.held, None
        for channel, payload in held or ():
            if not self.closed:
                self.push(channel, payload)
        self.on_drained()

    def call_first(self, decide not None, *command):
        """Send a command, and defer all replies and pushes until its reply.

        `decide` gets that reply, and returns whether to process the deferred ones.
        """

        def decided(reply):
            deferred, self.deferred = self.deferred, None
            if decide(reply):
                for item, is_push in deferred or ():
                    self.take(item, is_push)

        if self.deferred is None:
            self.deferred = []
            self.replies_before = len(self.waiting)
            self.on_first = decided
            self.call(ignore, *command)

    # ---- input ----

    cdef int handle_input(self) except -1:
        cdef const uint8_t* at
        cdef bint is_push
        self.read_at = now()
        try:
            while not self.closed and buffer_size(&self.incoming) > self.missing:
                at = self.incoming.data + self.incoming.start
                is_push = at[0] == c'>'
                try:
                    item = read_reply(&at, self.incoming.data + self.incoming.end, 0)
                except Incomplete as error:        # without this bound a large reply would be read again for each part
                    self.missing = buffer_size(&self.incoming) + error.args[0] - 1
                    break
                self.missing = 0
                self.incoming.start = at - self.incoming.data
                if (why := self.unusable(item, is_push)):
                    self.close(why)
                elif self.deferred is None:
                    self.take(item, is_push)
                else:
                    self.defer(item, is_push)
        except InvalidReply as error:
            self.close(f"Redis sent an invalid reply: {error}")
        try:
            self.on_drained()
        except Exception as error:
            self.turn.report(error)
        return 0

    cdef int defer(self, object item, bint is_push) except -1:
        if is_push or self.replies_before:
            self.replies_before -= not is_push
            self.deferred.append((item, is_push))
        else:
            del self.waiting[sum([not of_push for _, of_push in self.deferred])]
            try:
                self.on_first(item)
            except Exception as error:
                self.turn.report(error)
        return 0

    cdef int take(self, object item, bint is_push) except -1:
        if is_push:
            kind = (<list>item)[0]
            if kind == b"message" or kind == b"smessage":
                self.push((<list>item)[1], (<list>item)[2])
        elif self.waiting:
            then, _ = self.waiting.popleft()
            try:
                then(item)
            except Exception as error:
                self.turn.report(error)
        return 0

    cdef int push(self, object channel, object payload) except -1:
        if self.held is not None:
            self.held.append((channel, payload))
            return 0
        try:
            self.publications += self.on_push(channel, payload)
        except Exception as error:
            self.turn.report(error)
        return 0

    cdef str unusable(self, object item, bint is_push):
        """The reason of a reply or push to connect again: the keys are elsewhere, the functions are gone; or empty."""
        if isinstance(item, ReplyError):
            text = str(item)
            if text.startswith(NO_FUNCTION):
                return "Redis does not have the functions any more"
            if self.in_slot and text.startswith(ELSEWHERE):
                return f"another primary has the keys, or will have them: {text}"
        if self.in_slot and is_push and (<list>item)[0] == b"sunsubscribe":
            return "the slot of the keys has moved to another primary"
        return ""

    cdef int ended(self) except -1:
        self.held = self.deferred = None
        waiting, self.waiting = self.waiting, deque()
        lost = LinkLost(self.why_closed) if self.why_closed else LinkLost()
        for then, _ in waiting:
            try:
                then(lost)
            except Exception as error:
                self.turn.report(error)
        try:
            self.on_lost()
        except Exception as error:
            self.turn.report(error)
        return 0
