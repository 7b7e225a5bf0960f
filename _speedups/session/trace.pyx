"""What becomes of messages that somebody follows: one event for each step of each message, until it is taken.

A node has a tracer only while somebody follows something: without, the data path asks one pointer. Steps are in `STEPS`.
A message is named by a checksum of its topic name and payload, which is the same at every node and needs no memory:
whoever publishes the same again and again sees one name. Memory is bounded: what doesn't fit is counted.
"""

from time import time
from zlib import crc32

from _speedups.session.message cimport message_payload
from _speedups.codec.topics cimport match_topic

STEPS = ("received", "stored", "answered", "retained", "forwarded", "queued", "sent", "acknowledged", "dropped")

cdef enum:
    EVENTS_MAX = 20000        # that wait to be taken
    UNANSWERED_MAX = 20000    # PUBLISH packets remembered until they are answered


cdef class Tracer:
    """Notes the steps of messages.

    Args:
        filters: topic filters, valid UTF-8 bytes, of the messages that are followed; None: all are.
    """

    def __init__(self, filters):
        self.all = filters is None
        self.filters = tuple(filters or ())
        self.events = []
        self.unanswered = {}

    def take(self):
        """What has happened since the last time, and how many events did not fit.

        An event is (seconds since 1970, step, name of the message, topic name, client id or node or None, bytes of the
        payload, QoS, detail).
        """
        events, self.events = self.events, []
        missed, self.missed = self.missed, 0
        return events, missed

    cdef bint follows(self, const uint8_t* topic, Py_ssize_t n) noexcept:
        """Whether a message with this topic name is."""
        cdef bytes wanted
        cdef const uint8_t* p
        if self.all:
            return True
        for wanted in self.filters:
            p = wanted
            if match_topic(p, len(wanted), topic, n) == 1:
                return True
        return False

    cdef int note(self, str step, object client_id, const uint8_t* topic, Py_ssize_t n, const uint8_t* payload,
                  Py_ssize_t size, int qos, str detail) except -1:
        """A step of a message, if it is followed."""
        if not self.follows(topic, n):
            return 0
        if len(self.events) >= EVENTS_MAX:
            self.missed += 1
            return 0
        name = topic[:n]
        self.events.append((
            time(), step, crc32(payload[:size], crc32(name)), name, client_id, size, qos, detail))
        return 1

    cdef int note_message(self, str step, object client_id, const Message* m, int qos, str detail) except -1:
        return self.note(step, client_id, m.data, m.topic_length, message_payload(m), m.payload_length, qos, detail)

    cdef int received(self, object outlet, object client_id, const uint8_t* topic, Py_ssize_t n,
                      const uint8_t* payload, Py_ssize_t size, int qos, uint16_t packet_id, bint dup) except -1:
        """A PUBLISH has come; its answer is awaited, if it gets one."""
        if (self.note("received", client_id, topic, n, payload, size, qos, "DUP" if dup else "")
                and qos and len(self.unanswered) < UNANSWERED_MAX):
            self.unanswered[id(outlet), packet_id] = self.events[len(self.events) - 1]
        elif qos:                                  # what is known may be of a connection that was there before
            self.unanswered.pop((id(outlet), packet_id), None)
        return 0

    cdef int answered(self, object outlet, uint8_t first_byte, uint16_t packet_id, bint was_stored) except -1:
        """PUBACK, PUBREC or PUBCOMP leaves for the publisher."""
        cdef int kind = first_byte >> 4
        event = self.unanswered.get((id(outlet), packet_id))
        if event is None or kind not in (4, 5, 7):
            return 0
        if kind != 5:
            del self.unanswered[id(outlet), packet_id]
        if len(self.events) >= EVENTS_MAX - 1:
            self.missed += 1
            return 0
        rest = event[2:7]
        if was_stored:
            self.events.append((time(), "stored", *rest, ""))
        self.events.append((time(), "answered", *rest, "PUBACK" if kind == 4 else "PUBREC" if kind == 5 else "PUBCOMP"))
        return 0
