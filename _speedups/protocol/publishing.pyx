"""The end of a PUBLISH: published or refused, and acknowledged.

The functions get the parts of a connection that they need: its outlet, its session, the router. They know neither
packets nor the socket.
"""

from libc.stdint cimport uint32_t, uint64_t

from ..codec.publish cimport is_reserved
from ..codec.tables cimport (
    CODE_NO_MATCHING_SUBSCRIBERS, CODE_NOT_AUTHORIZED, CODE_PACKET_IDENTIFIER_NOT_FOUND, CODE_PAYLOAD_FORMAT_INVALID,
    CODE_QUOTA_EXCEEDED, CODE_TOPIC_NAME_INVALID, PUBACK, PUBCOMP, PUBREC,
)
from ..codec.tenants cimport begins_tenant
from ..routing.delayed cimport delay_of, is_delayed
from ..session.counters cimport DELAYED_REFUSED
from ..session.incoming_qos2 cimport Awaiting, incoming_bytes, incoming_count
from ..session.message cimport Message, message_new, message_release, publication_of_message
from ..session.turn cimport (
    DELAYS_ARE_OFF, NO_REASON, NO_RIGHT, ONLY_THE_BROKER, PAYLOAD_NOT_UTF_8, TOO_MANY_DELAYED, TOO_MANY_UNRELEASED,
    WRONG_DELAY, record_position,
)

from ..codec.topics import split_tenant
from ..session.turn import ACK_REASONS

STATE_TOPIC = b"$SYS/broker/connection/%s/state"


cdef int accept_publish(Outlet outlet, Router router, Publication* publication, uint16_t packet_id,
                        bint bounded) except -1:
    """Publish a QoS 1 message that its publisher, a Session, may publish, or keep a QoS 2 message; acknowledge it.

    `bounded`: QoS 2 within the limits of unreleased messages. Returns 1 if there are too many, and the client's level
    has no code for that; else 0.
    """
    cdef uint64_t before
    cdef uint8_t code = 0
    outlet.turn.journal.touched = 0
    if publication.qos == 1:
        before = record_position(outlet.turn)
        if router.publish_now_or_later(publication) == 0 and outlet.level == 5:
            code = CODE_NO_MATCHING_SUBSCRIBERS
        return outlet.acknowledge(PUBACK << 4, packet_id, record_position(outlet.turn) > before, code, 0)
    return await_release(outlet, <Session>publication.publisher, publication, packet_id, bounded)


cdef inline int await_release(Outlet outlet, Session session, Publication* publication, uint16_t packet_id,
                              bint bounded) except -1:
    """Keep a QoS 2 message until its PUBREL."""
    cdef Message* message
    if bounded and has_too_many_unreleased(session, publication):
        if outlet.level < 5:
            return 1
        return refuse_publish(outlet, session, publication, packet_id, TOO_MANY_UNRELEASED)
    message = message_new(publication)
    if message == NULL:
        raise MemoryError
    session.await_release(packet_id, message)
    return outlet.acknowledge(PUBREC << 4, packet_id, session.recorded(), 0, 0)


cdef inline bint has_too_many_unreleased(Session session, const Publication* publication) noexcept:
    """Whether one more QoS 2 message would be above the limits of messages that wait for PUBREL."""
    cdef Py_ssize_t count = incoming_count(session.incoming)
    return count >= session.turn.limits.max_awaiting_release or (
        count and incoming_bytes(session.incoming) + publication.topic_length + publication.properties_length
        + publication.payload_length > session.turn.limits.max_queued_bytes)


cdef int repeat_pubrec(Outlet outlet, Session session, const Publication* publication, uint16_t packet_id) except -1:
    """A QoS 2 message has come again: PUBREC again, but not before the first one may be sent."""
    if outlet.turn.tracer is not None:
        outlet.turn.tracer.note("received", session.client_id, publication, 2, "again: it awaits PUBREL")
    outlet.turn.journal.touched = <uint64_t>1 << session.shard
    return outlet.acknowledge(PUBREC << 4, packet_id, session.recorded() and outlet.turn.behind(), 0, 0)


cdef int refuse_publish(Outlet outlet, Session session, const Publication* publication, uint16_t packet_id,
                        uint8_t why, uint8_t code=0) except -1:
    """Drop a message. Level 5 gets the reason; below it the only reply is an acknowledgement [MQTT-3.3.5-2].

    `why` is an AckReason; `code` is the reason code, 0 = the code that fits `why`.
    """
    cdef uint8_t qos = publication.qos
    if outlet.turn.tracer is not None:
        outlet.turn.tracer.refused(outlet, session.client_id, publication, packet_id, ACK_REASONS[why])
    if qos == 0:
        return 0
    return outlet.acknowledge((PUBACK if qos == 1 else PUBREC) << 4, packet_id, False, code or code_of(why), why)


cdef uint8_t code_of(uint8_t why) noexcept:
    """The reason code for an AckReason of this module or of the channel."""
    if why == ONLY_THE_BROKER or why == NO_RIGHT:
        return CODE_NOT_AUTHORIZED
    if why == TOO_MANY_UNRELEASED or why == TOO_MANY_DELAYED:
        return CODE_QUOTA_EXCEEDED
    return CODE_PAYLOAD_FORMAT_INVALID if why == PAYLOAD_NOT_UTF_8 else CODE_TOPIC_NAME_INVALID


cdef int reserved_refusal(Router router, Session session, const Publication* publication, const uint8_t* name,
                          Py_ssize_t n) except -1:
    """The AckReason to refuse a message to a topic that begins with `$`, or NO_REASON. `name` is as the client has it.

    A message to `$delayed/...` is accepted as one to its TOPIC would be.
    """
    cdef int why
    if is_delayed(name, n):
        why = delay_refusal(router, session, publication)
        if why != NO_REASON and why != NO_RIGHT:
            session.turn.counters[DELAYED_REFUSED] += 1
        return why
    if is_reserved(name, n) or begins_tenant(name, n):
        return NO_REASON if is_own_state(session, name, n) else ONLY_THE_BROKER                 # [MQTT-4.7.2-1]
    return NO_REASON if session.rights is None or may_publish(session.rights, publication) else NO_RIGHT


cdef int delay_refusal(Router router, Session session, const Publication* publication) except -1:
    cdef uint32_t seconds = 0
    cdef Py_ssize_t at = delay_of(publication.topic, publication.topic_length, &seconds)
    cdef const uint8_t* topic = publication.topic + at
    cdef Py_ssize_t n = publication.topic_length - at
    cdef Py_ssize_t hidden = session.tenant.prefix_size if at >= 0 and session.tenant is not None else 0
    if router.delayed.max_messages == 0:
        return DELAYS_ARE_OFF
    if at < 0:
        return WRONG_DELAY
    if is_reserved(topic + hidden, n - hidden) or begins_tenant(topic + hidden, n - hidden):
        return ONLY_THE_BROKER                                                                  # [MQTT-4.7.2-1]
    if session.rights is not None and not session.rights.may(topic, n, MAY_PUBLISH):
        return NO_RIGHT
    if router.delayed.is_full(topic, n, publication.topic_length + publication.properties_length
                              + publication.payload_length):
        return TOO_MANY_DELAYED
    return NO_REASON


cdef bint is_own_state(Session session, const uint8_t* name, Py_ssize_t n) except -1:
    """Whether the client, a bridge, reports at this topic whether it is connected, as Mosquitto's bridges do."""
    return name[:n] == STATE_TOPIC % split_tenant(session.client_id)[1]


cdef int release_publish(Outlet outlet, Router router, Session session, uint16_t packet_id) except -1:
    """PUBREL: publish the message, exactly once; PUBCOMP for an unknown identifier too [MQTT-4.3.3-2]."""
    cdef uint64_t before = record_position(outlet.turn)
    cdef Awaiting found = session.release(packet_id)
    cdef Publication publication
    cdef bint wait
    cdef uint8_t code = 0
    outlet.turn.journal.touched = 0
    if found.message != NULL:
        try:
            publication = publication_of_message(found.message)
            publication.publisher = <void*>session
            publication.divisible = True
            if session.recorded():
                publication.packet_id = packet_id
                publication.progress = found.progress
                publication.number = found.number
                publication.shard = session.shard
            router.publish_now_or_later(&publication)
        finally:
            message_release(found.message)
        session.released(packet_id)
        wait = record_position(outlet.turn) > before
    else:
        wait = session.recorded() and outlet.turn.behind()
        outlet.turn.journal.touched = <uint64_t>1 << session.shard
        if outlet.level == 5:
            code = CODE_PACKET_IDENTIFIER_NOT_FOUND
    return outlet.acknowledge(PUBCOMP << 4, packet_id, wait, code, 0)
