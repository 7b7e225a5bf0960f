"""A request to one client, and its response: a message without a subscription, a tap at the topic of the response."""

from libc.stdint cimport uint8_t, uint32_t

from ..codec.publish cimport PUBLISH_QOS_0
from .message cimport (
    Message, Publication, expiry_after, message_new, message_release, publication_of,
)
from .session cimport SOURCE_ENDED, MessageSource, Session
from .subscriber cimport LOG, Plan, Receiver, Subscriber
from .turn cimport Turn


cdef class DirectMessage(MessageSource):
    """A message that a session pulls once.

    Args:
        turn: of the node.
        topic: a valid topic name, with the prefix of the client's tenant.
        payload: its bytes.
        qos: 0, 1 or 2.
        properties: a valid property block of PUBLISH, without its length, Topic Alias and Message Expiry Interval.
        seconds: after which the message expires.
    """

    cdef Message* message

    def __init__(self, Turn turn not None, bytes topic not None, bytes payload not None, uint8_t qos,
                 bytes properties not None, uint32_t seconds):
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), qos, False)
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.expires = expiry_after(seconds, turn.clock)
        self.message = message_new(&publication)
        if self.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept:
        if self.message != NULL:
            message_release(self.message)
            self.message = NULL

    cdef int pull(self, Session session) except -1:
        cdef Message* m = self.message
        if m == NULL:
            return SOURCE_ENDED
        try:
            if session.may_not_read(m, m.qos == 0):
                return SOURCE_ENDED
            if m.qos:
                session.enqueue(m, m.qos, NULL, 0)
            elif session.put_publish(m, PUBLISH_QOS_0, 0, b""):
                session.trace("sent", m, 0, "")
        finally:
            self.drop()
        return SOURCE_ENDED


cdef class Tap(Subscriber):
    """A subscriber that gives each message of a client of this node to a function. It is not counted as a receiver.

    Args:
        turn: of the node.
        take: called with client id of the publisher, topic name, payload, QoS and property block.
    """

    cdef object take

    def __init__(self, Turn turn not None, take):
        self.turn = turn
        self.client_id = b""
        self.kind = LOG
        self.take = take

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1:
        cdef object publisher
        if publication.forwarded or publication.publisher == NULL or publication.publisher == <void*>None:
            return 0
        publisher = <object>publication.publisher
        self.take(
            (<Subscriber>publisher).client_id if isinstance(publisher, Subscriber) else publisher,
            publication.topic[:publication.topic_length],
            publication.payload[:publication.payload_length],
            publication.qos,
            publication.properties[:publication.properties_length],
        )
        return 0
