"""The chunks of transactions: PUBLISH packets, one behind the other, that become messages in the form of the store.

Each message is judged by the rules for a PUBLISH of the client: names, rights, rewriting, the tenant's prefix.
"""

from libc.stdint cimport uint8_t, uint32_t

from ..base.cursor cimport Cursor, read_varint
from ..codec.tables cimport PUBLISH
from ..routing.chunk cimport read_row, row_size, write_row
from ..session.message cimport Publication, publication_of
from ..session.turn cimport NO_REASON, NO_RIGHT, NOT_REWRITABLE, PAYLOAD_NOT_UTF_8, WRONG_CHUNK
from .channel cimport Channel
from .incoming_publish cimport SOUND, Incoming, is_text, read_properties, read_publish
from .publishing cimport may_publish, reserved_refusal

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize


def stage_rows(Channel channel not None, bytes payload not None):
    """The messages of a chunk, as the store has them.

    Args:
        channel: of the client.
        payload: PUBLISH packets of MQTT 5.0, without topic aliases; their packet identifiers mean nothing.

    Returns:
        The chunk, empty if it is refused; the number of its messages; the AckReason of the refusal, or NO_REASON.
    """
    cdef const uint8_t* packet = payload
    cdef const uint8_t* end = packet + len(payload)
    cdef Incoming incoming
    cdef Cursor at
    cdef uint32_t length = 0, count = 0
    cdef int why
    cdef list parts = [], keep = [None]
    cdef bytes part
    if channel.session is None:                    # its connection has ended
        return b"", 0, WRONG_CHUNK
    while packet < end:
        at.p, at.end = packet + 1, end
        if read_varint(&at, &length) < 0 or end - at.p < <Py_ssize_t>length:
            return b"", 0, WRONG_CHUNK
        why = judge(channel, &incoming, packet, at.p, length, keep)
        if why != NO_REASON:
            return b"", 0, why
        part = PyBytes_FromStringAndSize(NULL, row_size(&incoming.publication))
        write_row(<uint8_t*>PyBytes_AS_STRING(part), &incoming.publication)
        parts.append(part)
        if channel.metered:
            channel.charge(True, 0)
        packet = at.p + length
        count += 1
    return b"".join(parts), count, NO_REASON if count else WRONG_CHUNK


cdef int judge(Channel channel, Incoming* incoming, const uint8_t* packet, const uint8_t* body,
               Py_ssize_t n, list keep) except -1:
    """Take a packet of a chunk apart; the AckReason to refuse it, or NO_REASON.

    `keep` holds the topic name that a rule has made, which the publication refers to.
    """
    cdef Publication* publication = &incoming.publication
    cdef const uint8_t* name
    cdef const uint8_t* properties
    cdef Py_ssize_t length
    cdef bytes renamed
    cdef int why = NO_REASON
    if packet[0] >> 4 != PUBLISH or packet[0] >> 1 & 3 > channel.maximum_qos or packet[0] & channel.refused_flags:
        return WRONG_CHUNK
    if (read_publish(incoming, packet[0], packet, body, n, 5) != SOUND
            or read_properties(incoming, packet[0], packet) != SOUND or publication.topic_length == 0
            or publication.properties_length and incoming.scan.alias != NULL):
        return WRONG_CHUNK
    publication.publisher = <void*>channel.session
    name, length = publication.topic, publication.topic_length
    if (channel.qualify(publication) if channel.session.tenant is not None
            else channel.router.check_topic(publication, 0, 5)):
        return WRONG_CHUNK
    if channel.turn.rewrite is not None:
        renamed = channel.turn.rewrite(channel, name[:length])
        if not channel.rename(publication, name, length, renamed):
            return NOT_REWRITABLE
        keep[0] = renamed
        name, length = renamed, len(renamed)
    if name[0] == c'$':
        why = reserved_refusal(channel.router, channel.session, publication, name, length)
    elif channel.session.rights is not None and not may_publish(channel.session.rights, publication):
        why = NO_RIGHT
    if why == NO_RIGHT:
        channel.note_denial(publication)
    elif why == NO_REASON and publication.properties_length and incoming.scan.payload_format and (
            channel.turn.limits.validate_payload and not is_text(publication.payload, publication.payload_length)):
        why = PAYLOAD_NOT_UTF_8
    return why


def open_rows(bytes chunk not None):
    """The messages of a chunk: topic name, payload, QoS, RETAIN and property block of each.

    Raises:
        ValueError: it is no chunk.
    """
    cdef const uint8_t* p = chunk
    cdef const uint8_t* end = p + len(chunk)
    cdef Publication publication
    cdef list found = []
    while p < end:
        p = read_row(p, end, &publication)
        if p == NULL:
            raise ValueError("not a chunk of a transaction")
        found.append((publication.topic[:publication.topic_length], publication.payload[:publication.payload_length],
                      publication.qos, publication.retain != 0, publication.properties[:publication.properties_length]))
    return found


def chunk_of(list rows not None):
    """The chunk of messages as `open_rows` returns them: its inverse."""
    cdef Publication publication
    cdef bytes topic, payload, properties, part
    cdef list parts = []
    for topic, payload, qos, retain, properties in rows:
        publication = publication_of(topic, len(topic), payload, len(payload), qos, retain)
        publication.properties = properties
        publication.properties_length = len(properties)
        part = PyBytes_FromStringAndSize(NULL, row_size(&publication))
        write_row(<uint8_t*>PyBytes_AS_STRING(part), &publication)
        parts.append(part)
    return b"".join(parts)
