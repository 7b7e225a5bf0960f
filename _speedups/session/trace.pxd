# Traces the steps of selected messages. See trace.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from .message cimport Message, Publication
from .span_recorder cimport SpanRecorder


cdef class Tracer:
    cdef tuple filters         # topic filters of the traced messages; None: of every message
    cdef list counts           # of each filter: its events since the last `take` ...
    cdef list missed           # ... and steps that did not fit
    cdef list events           # events since the last `take`
    cdef dict unanswered       # (connection's address in memory, packet identifier) -> event of its PUBLISH
    cdef SpanRecorder spans    # records steps for spans, too; None: there are no spans

    cdef bint follows(self, const Publication* publication) except -1
    cdef int record(self, str step, object client_id, const Publication* publication, int qos, str detail) except -1
    cdef int note(self, str step, object client_id, const Publication* publication, int qos, str detail) except -1
    cdef int note_message(self, str step, object client_id, const Message* m, int qos, str detail) except -1
    cdef int received(self, object outlet, object client_id, Publication* publication, uint16_t packet_id) except -1
    cdef int refused(self, object outlet, object client_id, const Publication* publication, uint16_t packet_id,
                     str detail) except -1
    cdef int answered(self, object outlet, uint8_t first_byte, uint16_t packet_id, bint was_stored) except -1
    cdef bint has_room(self, const uint8_t* topic, Py_ssize_t n, int steps) except -1


cdef class Watch:
    cdef dict waiting          # property block -> function that takes the steps of the message with it

    cdef int note(self, str step, const Message* m, str detail) except -1
