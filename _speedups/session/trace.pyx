"""Traces selected messages: one event for each step of each message, kept until `take`.

A node has a tracer only while a trace runs, or if spans are made of the steps of some messages (`span_recorder.pyx`);
without one, the data path checks one pointer. Steps are in `STEPS`.
The name of a message is a checksum of its topic name and payload, which is the same at every node and needs no memory.
Messages with equal topic name and payload share one name. Memory is bounded: events that don't fit are counted,
for each filter apart.
"""

from time import time
from zlib import crc32

from .message cimport Publication, message_properties, publication_of_message
from .span_recorder cimport SpanRecorder, may_be_traced
from ..codec.topics cimport match_topic

STEPS = ("received", "stored", "answered", "retained", "forwarded", "queued", "sent", "acknowledged", "dropped")

cdef enum:
    EVENTS_MAX = 20000        # kept for a filter until `take`
    UNANSWERED_MAX = 20000    # PUBLISH packets remembered until they are answered


cdef inline bint filter_matches(object wanted, const uint8_t* topic, Py_ssize_t n) noexcept:
    """Whether a topic filter matches; None matches each topic name."""
    return wanted is None or match_topic(<const uint8_t*><bytes>wanted, len(<bytes>wanted), topic, n) == 1


cdef class Tracer:
    """Records the steps of messages.

    Args:
        filters: topic filters of the messages to trace, valid UTF-8 bytes; None: all messages.
        spans: gets the steps of the messages that have a context, whatever their topics; None: there are no spans.
    """

    def __init__(self, filters, SpanRecorder spans=None):
        self.filters = tuple(filters)
        self.spans = spans
        self.unanswered = {}
        self.begin()

    def begin(self):
        """Have no events."""
        self.events = []
        self.counts = [0] * len(self.filters)
        self.missed = [0] * len(self.filters)

    def take(self):
        """The events since the last call, and for each filter the number of events that did not fit.

        An event is (seconds since 1970, step, name of the message, topic name, client id or node or None, bytes of the
        payload, QoS, detail).
        """
        events, missed = self.events, dict(zip(self.filters, self.missed))
        self.begin()
        return events, missed

    cdef bint follows(self, const Publication* publication) except -1:
        """Whether this message is traced."""
        cdef object wanted
        if (self.spans is not None and may_be_traced(publication.trace, publication.properties_length)
                and self.spans.context_of(publication)):
            return True
        if not self.filters:
            return False
        for wanted in self.filters:
            if filter_matches(wanted, publication.topic, publication.topic_length):
                return True
        return False

    cdef bint has_room(self, const uint8_t* topic, Py_ssize_t n, int steps) except -1:
        """Whether a filter that matches has room for more events, which are counted, or else as missed."""
        cdef Py_ssize_t i
        cdef list matching = [i for i in range(len(self.filters)) if filter_matches(self.filters[i], topic, n)]
        cdef bint room = any([self.counts[i] + steps <= EVENTS_MAX for i in matching])
        cdef list counted = self.counts if room else self.missed
        for i in matching:
            counted[i] += steps
        return room

    cdef int record(self, str step, object client_id, const Publication* publication, int qos, str detail) except -1:
        """Record a step of a message, if a filter matches; returns whether it is recorded."""
        if not self.filters or not self.has_room(publication.topic, publication.topic_length, 1):
            return 0
        name = publication.topic[:publication.topic_length]
        self.events.append((
            time(), step, crc32(publication.payload[:publication.payload_length], crc32(name)), name, client_id,
            publication.payload_length, qos, detail))
        return 1

    cdef int note(self, str step, object client_id, const Publication* publication, int qos, str detail) except -1:
        """Record a step of a message, if it is traced."""
        self.record(step, client_id, publication, qos, detail)
        if self.spans is not None and may_be_traced(publication.trace, publication.properties_length):
            self.spans.note(step, client_id, publication, qos, detail)
        return 0

    cdef int note_message(self, str step, object client_id, const Message* m, int qos, str detail) except -1:
        cdef Publication publication
        if not self.filters and not may_be_traced(m.trace, m.properties_length):
            return 0
        publication = publication_of_message(<Message*>m)
        return self.note(step, client_id, &publication, qos, detail)

    cdef int received(self, object outlet, object client_id, Publication* publication, uint16_t packet_id) except -1:
        """Record a received PUBLISH and remember it until it is answered, if QoS is not 0."""
        cdef int qos = publication.qos
        if self.spans is not None:
            self.spans.received(outlet, client_id, publication, packet_id)
        if not self.filters:
            return 0
        if (self.record("received", client_id, publication, qos, "DUP" if publication.dup else "")
                and qos and len(self.unanswered) < UNANSWERED_MAX):
            self.unanswered[id(outlet), packet_id] = self.events[len(self.events) - 1]
        elif qos:                                  # the entry may be of an earlier connection at the same address
            self.unanswered.pop((id(outlet), packet_id), None)
        return 0

    cdef int refused(self, object outlet, object client_id, const Publication* publication, uint16_t packet_id,
                     str detail) except -1:
        """Record that a received PUBLISH is refused."""
        if self.spans is not None and may_be_traced(publication.trace, publication.properties_length):
            self.spans.refused(outlet, publication, packet_id, detail)
        return self.record("dropped", client_id, publication, publication.qos, detail)

    cdef int answered(self, object outlet, uint8_t first_byte, uint16_t packet_id, bint was_stored) except -1:
        """Record PUBACK, PUBREC or PUBCOMP sent to the publisher."""
        cdef int kind = first_byte >> 4
        cdef bytes topic
        if self.spans is not None:
            self.spans.answered(outlet, kind, packet_id, was_stored)
        if not self.unanswered:
            return 0
        event = self.unanswered.get((id(outlet), packet_id))
        if event is None or kind not in (4, 5, 7):
            return 0
        if kind != 5:
            del self.unanswered[id(outlet), packet_id]
        topic = event[3]
        if not self.has_room(topic, len(topic), 2 if was_stored else 1):
            return 0
        rest = event[2:7]
        if was_stored:
            self.events.append((time(), "stored", *rest, ""))
        self.events.append((time(), "answered", *rest, "PUBACK" if kind == 4 else "PUBREC" if kind == 5 else "PUBCOMP"))
        return 0


cdef class Watch:
    """Reports the steps of single messages, which their property blocks identify.

    A message to a persistent session of a cluster comes back from Redis as another object, with the same block.
    """

    def __init__(self):
        self.waiting = {}

    def __len__(self):
        return len(self.waiting)

    def add(self, bytes properties not None, take):
        """Call `take` with each step of the message with this property block, and its detail."""
        self.waiting[properties] = take

    def remove(self, bytes properties not None):
        """Report steps of this message no more."""
        self.waiting.pop(properties, None)

    cdef int note(self, str step, const Message* m, str detail) except -1:
        if m.properties_length:
            take = self.waiting.get(message_properties(m)[:<Py_ssize_t>m.properties_length])
            if take is not None:
                take(step, detail)
        return 0
