"""Wills: published once when a connection ends without DISCONNECT, whoever or whatever ends it (G6).

The will is the CONNECT packet that its channel keeps. With a durable store it is recorded when the client connects, and
the record that it is settled is in the same block as what its publication queued: after a crash it is published at
restart, once.
"""

from _speedups.channel import Channel
from _speedups.journal import Journal
from _speedups.packets import Connect
from _speedups.router import Router
from _speedups.turn import COUNTERS

WILLS_PUBLISHED = COUNTERS.index("wills_published")


def record(journal: Journal, client_id: bytes, connect: Connect) -> None:
    """Write the will of a connected client into the journal."""
    if connect.will_topic is not None:
        journal.record_will(
            client_id, connect.will_topic.encode(), connect.will_payload, connect.will_qos, connect.will_retain
        )


def discard(channel: Channel, journal: Journal) -> None:
    """The client said DISCONNECT: no will [MQTT-3.14.4-3]."""
    if channel.connect is not None:
        channel.connect = None
        if channel.session is not None:
            journal.record_will_gone(channel.session.client_id)


def publish(channel: Channel, router: Router, client_id: bytes) -> None:
    """The connection ended in another way [MQTT-3.1.2-8]."""
    connect, channel.connect = channel.connect, None
    if connect is not None and connect.will_topic is not None:
        publish_stored(
            router, client_id, connect.will_topic.encode(), connect.will_payload, connect.will_qos, connect.will_retain
        )


def publish_stored(router: Router, client_id: bytes, topic: bytes, payload: bytes, qos: int, retain: bool) -> None:
    """Publish a will, and record that it is settled."""
    router.publish(topic, payload, qos, retain)
    router.turn.journal.record_will_gone(client_id)
    router.turn.count(WILLS_PUBLISHED)
