"""Records the steps of messages that belong to a trace of OpenTelemetry, for spans that are made of them elsewhere.

A message belongs to a trace by its user property `traceparent` (W3C Trace Context), which the broker passes on as it
is: other nodes, and this node after a restart, find the context in the message. A message without one may get a context
here, by chance. The message as clients get it has nothing of that: its field `trace` is a number of this node.

Bounded: `most` steps until the next `take`, of which the first half may begin traces and the rest belongs to traces
that have begun. Further steps are counted only. A step costs the same for all messages: of long names, and of payloads
for the checksum, it has the beginning.
"""

from binascii import hexlify
from math import log1p
from os import urandom
from random import random
from re import compile as pattern
from time import time_ns
from zlib import crc32

from libc.stdint cimport uint8_t

from ..codec.properties import decode_block
from .message cimport Publication

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t n, const void* needle, size_t size)
    int memcmp(const void* one, const void* other, size_t n)

cdef enum:
    SAMPLED_MAX = 4096         # contexts of this node that are kept
    UNANSWERED_MAX = 20000     # PUBLISH packets remembered until they are answered
    KEY_SIZE = 13
    NAME_MAX = 1024            # bytes of a topic name, a client id and a payload that are looked at
    STATE_MAX = 512            # bytes of a tracestate: vendors need not pass on more

cdef const uint8_t* KEY = b"\x00\x0btraceparent"     # the name of the user property, with its length

# https://www.w3.org/TR/trace-context/#traceparent-header-field-values: a later version may have more fields.
TRACEPARENT = pattern(
    "(?!ff)(00|[0-9a-f]{2}(?=.{53}(?:-|\\Z)))-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
SKIP_MAX = 1e18                # messages: never
UNSAMPLED = ()                 # the context of a message whose publisher records no spans


def context_in(bytes block not None):
    """The context in the property block of a message.

    Returns:
        (traceparent, tracestate, False); an empty tuple if the publisher has left the message out of its sample; None
        if there is no traceparent, more than one, or an invalid one.
    """
    pairs = decode_block(block).get("user_property", ())
    parents = [value for name, value in pairs if name == "traceparent"]
    if len(parents) != 1:
        return None
    found = TRACEPARENT.match(parents[0])
    if found is None or (found[1] == "00" and found.end() != len(parents[0])):
        return None
    if not int(found[0][53:55], 16) & 1:
        return UNSAMPLED
    state = ",".join([value for name, value in pairs if name == "tracestate"]).encode()
    return found[0].encode(), state if len(state) <= STATE_MAX else b"", False


cdef inline object name_of(const Publication* p):
    """A checksum of topic name and payload."""
    return crc32(p.payload[:min(p.payload_length, NAME_MAX)], crc32(p.topic[:p.topic_length])) ^ p.payload_length


cdef inline tuple step_of(str step, tuple context, object client_id, const Publication* p, int qos, str detail, key):
    return (time_ns(), step, context, name_of(p), p.topic[:min(p.topic_length, NAME_MAX)],
            client_id[:NAME_MAX] if client_id is not None else None, p.payload_length, qos, detail, key)


cdef class SpanRecorder:
    """Records steps.

    Args:
        most: steps that are kept until `take`.
        share: of the messages from clients without traceparent that get a context here, 0 to 1.
    """

    def __init__(self, Py_ssize_t most, double share):
        self.steps = []
        self.sampled = {}
        self.unanswered = {}
        self.block = b""
        self.configure(most, share)

    def configure(self, Py_ssize_t most, double share):
        """Set the limit and the share."""
        self.most = most
        self.share = share
        self.draw()

    def draw(self):
        """Choose the number of messages until the next one that gets a context: each has the same chance."""
        self.skip = int(min(log1p(-random()) / log1p(-self.share), SKIP_MAX)) if 0 < self.share < 1 else 0

    def take(self):
        """The steps since the last call.

        A step is (nanoseconds since 1970, step, context, name of the message, topic name, client id or node or None,
        bytes of the payload, QoS, detail, key). A context is (traceparent, tracestate, whether it began here). The key
        is (number of the connection, packet identifier) in steps of a PUBLISH from a client until its acknowledgement,
        in others None.
        """
        steps, self.steps = self.steps, []
        return steps

    cdef bint has_traceparent(self, const Publication* p) noexcept:
        """Whether there may be a traceparent among the properties."""
        return (p.properties_length >= SHORTEST_BLOCK
                and memmem(p.properties, p.properties_length, KEY, KEY_SIZE) != NULL)

    cdef tuple context_of(self, const Publication* p):
        """The context of a message whose steps are recorded, or an empty tuple or None."""
        cdef const uint8_t* block
        if p.trace == LEFT_OUT:
            return None
        if p.trace:
            found = self.sampled.get(p.trace)
            return found[0] if found is not None and found[1] == name_of(p) else None
        if not self.has_traceparent(p):
            return None
        block = self.block
        if len(self.block) != p.properties_length or memcmp(block, p.properties, p.properties_length):
            self.block = p.properties[:p.properties_length]
            self.block_context = context_in(self.block)
        return self.block_context                 # often it is the next step of the same message

    cdef bint is_sampled(self) except -1:
        """Whether a message without a context gets one."""
        if self.share <= 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.draw()
        return True

    cdef tuple begin(self, Publication* p):
        """Give a message a context."""
        cdef tuple context = (b"00-%s-%s-01" % (hexlify(urandom(16)), hexlify(urandom(8))), b"", True)
        self.last = self.last % (LEFT_OUT - 1) + 1
        # A message may wait for longer than its context is kept. The number then belongs to another message, and the
        # name keeps them apart.
        if len(self.sampled) >= SAMPLED_MAX:
            del self.sampled[next(iter(self.sampled))]
        p.trace = self.last
        self.sampled[p.trace] = (context, name_of(p))
        return context

    cdef int note(self, str step, object client_id, const Publication* p, int qos, str detail) except -1:
        """Record a step of a message, if it has a context."""
        cdef tuple context
        if len(self.steps) >= self.most:
            self.missed += p.trace != 0 or self.has_traceparent(p)
            return 0
        context = self.context_of(p)
        if context:
            self.steps.append(step_of(step, context, client_id, p, qos, detail, None))
        return 0

    cdef int received(self, object outlet, object client_id, Publication* p, uint16_t packet_id) except -1:
        """A client has sent a PUBLISH: record the step, and remember it until it is answered, if QoS is not 0.

        Without room for a new trace the message is left out, here and in its queues.
        """
        cdef tuple context
        if packet_id and self.unanswered:
            self.unanswered.pop((id(outlet), packet_id), None)       # of an earlier message
        if self.share <= 0 and not may_be_traced(0, p.properties_length):
            return 0
        context = self.context_of(p)
        if context is None and not self.is_sampled() or context == UNSAMPLED:
            return 0
        if len(self.steps) * 2 >= self.most:
            p.trace = LEFT_OUT
            self.missed += 1
            return 0
        if context is None:
            context = self.begin(p)
        key = (id(outlet), packet_id)
        self.begun += 1
        self.steps.append(step_of("received", context, client_id, p, p.qos, "DUP" if p.dup else "", key))
        if p.qos and len(self.unanswered) < UNANSWERED_MAX:
            self.unanswered[key] = self.steps[len(self.steps) - 1]
        return 0

    cdef int refused(self, object outlet, const Publication* p, uint16_t packet_id, str detail) except -1:
        """A PUBLISH is refused."""
        cdef tuple context = self.context_of(p) if len(self.steps) < self.most else None
        if context:
            self.steps.append(step_of("refused", context, None, p, p.qos, detail, (id(outlet), packet_id)))
        return 0

    cdef int answered(self, object outlet, int kind, uint16_t packet_id, bint was_stored) except -1:
        """PUBACK (4), PUBREC (5) or PUBCOMP (7) is sent to a publisher."""
        if not self.unanswered or kind not in (4, 5, 7):
            return 0
        key = (id(outlet), packet_id)
        received = self.unanswered.get(key)
        if received is None:
            return 0
        if kind != 5:
            del self.unanswered[key]
        if len(self.steps) >= self.most:
            self.missed += 1
            return 0
        now = time_ns()
        if was_stored:
            self.steps.append((now, "stored", *received[2:8], "", key))
        self.steps.append((
            now, "answered", *received[2:8], "PUBACK" if kind == 4 else "PUBREC" if kind == 5 else "PUBCOMP", key))
        return 1
