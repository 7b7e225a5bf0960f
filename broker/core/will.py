"""Wills: published once when a connection ends without DISCONNECT, for whatever reason (G6).

The will is in the CONNECT packet that the channel keeps. With a durable store it is recorded when the client connects.
The record that it is settled is in the same block as the messages that its publication queued. So after a crash it is
published once, at restart or by another node.
"""

from _speedups.codec.packets import Connect
from _speedups.protocol.channel import Channel
from _speedups.routing.router import Router
from _speedups.session.counters import PUBLISH_DENIED, WILLS_PUBLISHED
from _speedups.session.journal import Journal


def record(journal: Journal, client_id: bytes, connect: Connect) -> None:
    """Write the will of a connected client into the journal."""
    if connect.will_topic is not None:
        journal.record_will(
            client_id, connect.will_topic.encode(), connect.will_payload, connect.will_qos, connect.will_retain
        )


def publish(channel: Channel, client_id: bytes, router: Router) -> bool:
    """A connection ended other than by DISCONNECT: publish its will, if it has one [MQTT-3.1.2-8].

    Returns whether it had one; the caller records, in the same block, that it is settled.
    """
    connect, channel.connect = channel.connect, None
    if connect is None or connect.will_topic is None:
        return False
    will_topic = connect.will_topic.encode()
    rights = channel.identity.rights
    if rights is not None and not rights.may_publish(will_topic):  # the rules have changed since CONNECT
        router.turn.count(PUBLISH_DENIED)
        return True
    publish_stored(router, client_id, will_topic, connect.will_payload, connect.will_qos, connect.will_retain)
    return True


def publish_stored(router: Router, client_id: bytes, topic: bytes, payload: bytes, qos: int, retain: bool) -> None:
    """Publish the will of a client."""
    router.publish(topic, payload, qos, retain, client_id)
    router.turn.count(WILLS_PUBLISHED)
