# Records the steps of messages that belong to a trace of OpenTelemetry. See span_recorder.pyx.

from libc.stdint cimport uint16_t, uint64_t

from .message cimport Publication

cdef enum:
    LEFT_OUT = 0xFFFF          # `trace` of a message of which no steps are recorded here
    SHORTEST_BLOCK = 71        # bytes of a property block with the shortest traceparent


cdef class SpanRecorder:
    cdef Py_ssize_t most       # steps until `take`
    cdef double share          # of the messages without a context that get one here
    cdef uint64_t skip         # messages until the next of them
    cdef list steps            # since the last `take`
    cdef readonly uint64_t begun       # messages from clients that are traced
    cdef readonly uint64_t missed      # steps that did not fit
    cdef dict sampled          # `trace` of a message -> its context, and its name
    cdef uint16_t last         # the newest of these numbers
    cdef bytes block           # the last property block that was read ...
    cdef object block_context  # ... and its context
    cdef dict unanswered       # (connection's address in memory, packet identifier) -> step of its PUBLISH

    cdef bint has_traceparent(self, const Publication* publication) noexcept
    cdef tuple context_of(self, const Publication* publication)
    cdef tuple begin(self, Publication* publication)
    cdef bint is_sampled(self) except -1
    cdef int note(self, str step, object client_id, const Publication* publication, int qos, str detail) except -1
    cdef int received(self, object outlet, object client_id, Publication* publication, uint16_t packet_id) except -1
    cdef int refused(self, object outlet, const Publication* publication, uint16_t packet_id, str detail) except -1
    cdef int answered(self, object outlet, int kind, uint16_t packet_id, bint was_stored) except -1


cdef inline bint may_be_traced(uint16_t trace, Py_ssize_t properties_length) noexcept nogil:
    """Whether a message can have a context, by its fields `trace` and `properties_length`."""
    return trace != LEFT_OUT and (trace != 0 or properties_length >= SHORTEST_BLOCK)
